-- Rows that bring the xid of another place: a restore, an import, logical replication. They are re-stamped, and nothing is
-- published in this database until somebody says outbox_arm().
CREATE DATABASE contract_foreign;
\c contract_foreign
CREATE EXTENSION outbox_ext;

SELECT outbox_emit('order', '1', 'own', '{}') IS NOT NULL AS emitted;
SELECT outbox_arm() AS there_was_a_stop;

-- Naming one's own transaction is not foreign.
BEGIN;
INSERT INTO outbox_log (aggregate_type, aggregate_id, event_type, payload, xid) VALUES ('order', '1', 'own too', '{}', pg_current_xact_id());
COMMIT;
SELECT count(*) AS stops FROM outbox_stop;

-- A restore's COPY: the seq is kept, the xid becomes this transaction's, the sequence is lifted above, the stop is set once.
BEGIN;
COPY outbox_log (event_id, aggregate_type, aggregate_id, event_type, payload, xid, seq) FROM stdin;
00000000-0000-0000-0000-000000000001	order	2	foreign1	{}	700	5001
00000000-0000-0000-0000-000000000002	order	2	foreign2	{}	700	5002
00000000-0000-0000-0000-000000000003	order	2	foreign3	{}	4294968000	5000
\.
SELECT event_type, seq, xid = pg_current_xact_id() AS restamped FROM outbox_log WHERE aggregate_id = '2' ORDER BY event_id;
COMMIT;
SELECT reason, set_by FROM outbox_stop;
SELECT outbox_emit('order', '2', 'own', '{}') IS NOT NULL AS emitted;
SELECT string_agg(event_type, ' ' ORDER BY seq) AS in_order FROM outbox_log WHERE aggregate_id = '2';
SELECT waiting, last_error FROM outbox_status;

-- Emitting, consuming and reading go on meanwhile.
SELECT outbox_emit('order', '3', 'meanwhile', '{}') IS NOT NULL AS emitted;
SELECT count(*) FROM outbox_pending;

-- Arming lifts it once; it goes with its transaction.
BEGIN;
SELECT outbox_arm() AS there_was_a_stop;
ROLLBACK;
SELECT count(*) AS stops FROM outbox_stop;
SELECT outbox_arm() AS there_was_a_stop;
SELECT outbox_arm() AS there_was_a_stop;
SELECT count(*) AS stops FROM outbox_stop;
SELECT last_error FROM outbox_status;

-- A row that is rolled back stops nothing.
BEGIN;
INSERT INTO outbox_log (aggregate_type, aggregate_id, event_type, payload, xid) VALUES ('order', '4', 'foreign', '{}', '3');
ROLLBACK;
SELECT count(*) AS stops FROM outbox_stop;

-- A NULL xid is made right as well. A plain insert with a foreign xid is treated like a restore's.
INSERT INTO outbox_log (aggregate_type, aggregate_id, event_type, payload, xid) VALUES ('order', '5', 'null', '{}', NULL) RETURNING xid IS NOT NULL AS restamped;
SELECT count(*) AS stops FROM outbox_stop;
SELECT outbox_arm() IS NOT NULL AS armed;

-- As logical replication applies rows.
SET session_replication_role = replica;
INSERT INTO outbox_log (aggregate_type, aggregate_id, event_type, payload, xid, seq) VALUES ('order', '6', 'replicated', '{}', '900', 6000)
RETURNING seq, xid = pg_current_xact_id() AS restamped;
RESET session_replication_role;
SELECT outbox_arm() AS there_was_a_stop;

-- Without the trigger the check refuses them: an event must not get lost through a wrong xid.
ALTER TABLE outbox_log DISABLE TRIGGER outbox_log_restamp;
\set VERBOSITY terse
INSERT INTO outbox_log (aggregate_type, aggregate_id, event_type, payload, xid) VALUES ('order', '7', 'foreign', '{}', '3');
\echo :SQLSTATE
\set VERBOSITY default
ALTER TABLE outbox_log ENABLE ALWAYS TRIGGER outbox_log_restamp;
SELECT count(*) FROM outbox_log WHERE aggregate_id = '7';

-- A trigger of one's own that changes the xid afterwards meets the check, too.
CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.xid := '3'; RETURN NEW; END $$;
CREATE TRIGGER z_spoil BEFORE INSERT ON outbox_log FOR EACH ROW EXECUTE FUNCTION spoil();
\set VERBOSITY terse
SELECT outbox_emit('order', '8', 'spoiled', '{}');
\echo :SQLSTATE
\set VERBOSITY default
DROP TRIGGER z_spoil ON outbox_log;

-- A seq at the end of the range does not use up the sequence.
BEGIN;
INSERT INTO outbox_log (aggregate_type, aggregate_id, event_type, payload, xid, seq) VALUES ('order', '9', 'last seq', '{}', '3', 9223372036854775807);
SELECT outbox_emit('order', '9', 'after the last seq', '{}') IS NOT NULL AS emitted;
ROLLBACK;
SELECT outbox_emit('order', '9', 'afterwards', '{}') IS NOT NULL AS emitted;

-- Who arms and then brings more stops publishing again.
BEGIN;
INSERT INTO outbox_log (aggregate_type, aggregate_id, event_type, payload, xid) VALUES ('order', '10', 'foreign', '{}', '3');
SELECT outbox_arm() AS there_was_a_stop;
INSERT INTO outbox_log (aggregate_type, aggregate_id, event_type, payload, xid) VALUES ('order', '10', 'foreign', '{}', '3');
COMMIT;
SELECT count(*) AS stops FROM outbox_stop;

\c outbox_sql
DROP DATABASE contract_foreign WITH (FORCE);
