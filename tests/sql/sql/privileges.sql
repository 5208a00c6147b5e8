-- Least privilege: what an application role, an inserting role, a consumer and a stranger may do.
CREATE DATABASE contract_privileges;
\c contract_privileges
CREATE SCHEMA outbox;
CREATE EXTENSION outbox_ext SCHEMA outbox;
CREATE ROLE contract_emitter;
CREATE ROLE contract_inserter;
CREATE ROLE contract_consumer;
CREATE ROLE contract_watcher;
CREATE ROLE contract_stranger;
GRANT USAGE ON SCHEMA outbox TO contract_emitter, contract_inserter, contract_consumer, contract_watcher, contract_stranger;
GRANT EXECUTE ON FUNCTION outbox.outbox_emit TO contract_emitter;
GRANT INSERT ON outbox.outbox_event TO contract_inserter;
GRANT EXECUTE ON FUNCTION outbox.inbox_try_consume TO contract_consumer;
GRANT SELECT ON outbox.outbox_status TO contract_watcher;

-- Emitting takes EXECUTE and nothing else.
SET ROLE contract_emitter;
SELECT outbox.outbox_emit('order', '1', 'OrderPlaced', '{}') IS NOT NULL AS emitted;
SELECT count(*) FROM outbox.outbox_log;
\echo :SQLSTATE
SELECT count(*) FROM outbox.outbox_event;
INSERT INTO outbox.outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 't', '{}');
SELECT nextval('outbox.outbox_log_seq');
SELECT outbox.inbox_try_consume('billing', '00000000-0000-0000-0000-000000000001');
SELECT outbox.outbox_arm();
\echo :SQLSTATE
-- A unique violation of an id that somebody else used tells no more than that.
SELECT outbox.outbox_emit('order', '1', 't', '{}', event_id => '11111111-1111-4111-8111-111111111111');
SELECT outbox.outbox_emit('order', '1', 't', '{}', event_id => '11111111-1111-4111-8111-111111111111');

-- Inserting takes INSERT on the view; RETURNING takes SELECT as well.
SET ROLE contract_inserter;
INSERT INTO outbox.outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '2', 'OrderPlaced', '{}');
INSERT INTO outbox.outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '2', 'OrderPaid', '{}') RETURNING event_id;
\echo :SQLSTATE
RESET ROLE;
GRANT SELECT (event_id) ON outbox.outbox_event TO contract_inserter;
SET ROLE contract_inserter;
INSERT INTO outbox.outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '2', 'OrderPaid', '{}') RETURNING event_id IS NOT NULL AS has_id;
RESET ROLE;
GRANT SELECT ON outbox.outbox_event TO contract_inserter;
SET ROLE contract_inserter;
INSERT INTO outbox.outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '2', 'OrderShipped', '{}') RETURNING event_type, state, attempts;
SELECT event_type, state FROM outbox.outbox_event WHERE aggregate_id = '2' ORDER BY event_id;
-- The view is no way round to the rest.
INSERT INTO outbox.outbox_log (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '2', 't', '{}');
DELETE FROM outbox.outbox_event;
UPDATE outbox.outbox_event SET payload = '{}';
SELECT count(*) FROM outbox.outbox_log;

-- Consuming takes EXECUTE and nothing else.
SET ROLE contract_consumer;
SELECT outbox.inbox_try_consume('billing', '00000000-0000-0000-0000-000000000001');
SELECT outbox.inbox_try_consume('billing', '00000000-0000-0000-0000-000000000001');
SELECT count(*) FROM outbox.consumed_event;
SELECT outbox.outbox_emit('order', '1', 't', '{}');

-- Watching takes SELECT on the status; it shows nothing of the events.
SET ROLE contract_watcher;
SELECT waiting, in_flight, parked FROM outbox.outbox_status;
SELECT count(*) FROM outbox.outbox_event;

-- A stranger with USAGE on the schema gets nothing. What PUBLIC may call reads and changes no table of ours.
SET ROLE contract_stranger;
SELECT outbox.outbox_emit('order', '1', 't', '{}');
SELECT outbox.inbox_try_consume('billing', '00000000-0000-0000-0000-000000000001');
SELECT outbox.outbox_arm();
SELECT outbox.outbox_announce();
SELECT count(*) FROM outbox.outbox_event;
SELECT count(*) FROM outbox.outbox_status;
SELECT count(*) FROM outbox.outbox_pending;
SELECT count(*) FROM outbox.outbox_stop;
SELECT count(*) FROM outbox.outbox_lease;
SELECT count(*) FROM outbox.outbox_batch;
SELECT count(*) FROM outbox.outbox_parked;
SELECT last_error IS NULL AS no_error_shown FROM outbox.outbox_relay();
-- Trigger functions are no functions to call, and no trigger to put on a table of one's own.
CREATE TEMP TABLE mine (xid xid8);
CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION outbox.outbox_restamp();

RESET ROLE;
SELECT aggregate_id, count(*) FROM outbox.outbox_event GROUP BY 1 ORDER BY 1;
SELECT count(*) AS stops FROM outbox.outbox_stop;

\c outbox_sql
DROP DATABASE contract_privileges WITH (FORCE);
DROP ROLE contract_emitter, contract_inserter, contract_consumer, contract_watcher, contract_stranger;
