-- An attacker's functions, operators and tables in front of ours on the search_path: none of that code runs, and rows go
-- to the real tables.
CREATE DATABASE contract_path;
\c contract_path
CREATE SCHEMA outbox;
CREATE SCHEMA evil;
CREATE FUNCTION evil.captured() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'captured'; END $$;
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT evil.captured()::text::timestamptz';
CREATE FUNCTION evil.gen_random_uuid() RETURNS uuid LANGUAGE sql AS 'SELECT evil.captured()::text::uuid';
CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT evil.captured()::int::bigint';
CREATE FUNCTION evil.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS 'SELECT evil.captured()::text::xid8';
CREATE FUNCTION evil.octet_length(text) RETURNS int LANGUAGE sql AS 'SELECT evil.captured()::int';
CREATE FUNCTION evil.array_to_string(anyarray, text) RETURNS text LANGUAGE sql AS 'SELECT evil.captured()::text';
CREATE FUNCTION evil.pg_visible_in_snapshot(xid8, pg_snapshot) RETURNS boolean LANGUAGE sql AS 'SELECT evil.captured()';
CREATE FUNCTION evil.same(uuid, uuid) RETURNS boolean LANGUAGE sql AS 'SELECT evil.captured()';
CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.captured()';
CREATE FUNCTION evil.same(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT evil.captured()';
CREATE FUNCTION evil.same(xid8, xid8) RETURNS boolean LANGUAGE sql AS 'SELECT evil.captured()';
CREATE FUNCTION evil.same(jsonb, text[]) RETURNS boolean LANGUAGE sql AS 'SELECT evil.captured()';
CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = uuid, RIGHTARG = uuid);
CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR evil.~~ (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR evil.<> (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR evil.<= (FUNCTION = evil.same, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR evil.< (FUNCTION = evil.same, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR evil.> (FUNCTION = evil.same, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = xid8, RIGHTARG = xid8);
CREATE OPERATOR evil.?| (FUNCTION = evil.same, LEFTARG = jsonb, RIGHTARG = text[]);
CREATE TABLE evil.outbox_log (LIKE pg_class);
CREATE TABLE evil.outbox_event (event_id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb);
CREATE TABLE evil.consumed_event (consumer_name text, event_id uuid, consumed_at timestamptz);
CREATE TABLE evil.outbox_stop (reason text);
CREATE SEQUENCE evil.outbox_log_seq;
-- The relay's sessions and the installation get that path as well.
ALTER DATABASE contract_path SET search_path = evil, pg_catalog, public;
\c contract_path
SELECT now();
CREATE EXTENSION outbox_ext SCHEMA outbox;

-- The temporary schema is in front of everything that is not qualified.
CREATE TEMP TABLE outbox_event (event_id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb);
CREATE TEMP TABLE outbox_log (event_id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb);
CREATE TEMP TABLE consumed_event (consumer_name text, event_id uuid);
CREATE TEMP TABLE outbox_stop (reason text);

SELECT outbox.outbox_emit('order', '1', 'OrderPlaced', '{}', headers => '{"h": "v"}', topic => 'orders') IS NOT NULL AS emitted;
INSERT INTO outbox.outbox_event (aggregate_type, aggregate_id, event_type, payload, headers, topic) VALUES ('order', '1', 'OrderPaid', '{}', '{"h": "v"}', 'orders')
RETURNING event_type, state;
SELECT outbox.inbox_try_consume('billing', '00000000-0000-0000-0000-000000000001');
SELECT outbox.inbox_try_consume('billing', '00000000-0000-0000-0000-000000000001');
INSERT INTO outbox.outbox_log (aggregate_type, aggregate_id, event_type, payload, xid, seq) VALUES ('order', '1', 'foreign', '{}', '3', 77) RETURNING seq;
SELECT outbox.outbox_arm() AS there_was_a_stop;
-- What operators call, with an event that was given up.
INSERT INTO outbox.outbox_parked (event_id, aggregate_key, seq, parked_at, attempts, reason, aggregate_type, aggregate_id, last_error)
SELECT event_id, event_id, seq, created_at, 5, 'failed', aggregate_type, aggregate_id, 'refused' FROM outbox.outbox_log ORDER BY seq LIMIT 1
RETURNING event_id \gset
SELECT outbox.outbox_retry('00000000-0000-0000-0000-000000000001');
SELECT outbox.outbox_retry_all('order', 'x%');
SELECT aggregate_id, last_error FROM outbox.outbox_dead_letter;
SELECT outbox.outbox_discard(:'event_id', 'not needed');
DELETE FROM outbox.outbox_parked;
SELECT waiting, parked FROM outbox.outbox_status;
SELECT event_type, state, attempts, published_at FROM outbox.outbox_event ORDER BY event_type COLLATE "C";
SELECT event_type FROM outbox.outbox_pending ORDER BY event_type COLLATE "C";
UPDATE outbox.outbox_event SET payload = '{}';

-- With an empty path, as pg_dump restores.
SET search_path = '';
SELECT outbox.outbox_emit('order', '2', 'OrderPlaced', '{}') IS NOT NULL AS emitted;
INSERT INTO outbox.outbox_log (aggregate_type, aggregate_id, event_type, payload, xid, seq) VALUES ('order', '2', 'foreign', '{}', '3', 78) RETURNING seq;
SELECT outbox.inbox_try_consume('billing', '00000000-0000-0000-0000-000000000002');
SELECT outbox.outbox_arm() AS there_was_a_stop;

-- Nothing went to the attacker's tables.
SELECT (SELECT pg_catalog.count(*) FROM evil.outbox_event) + (SELECT pg_catalog.count(*) FROM evil.outbox_log) + (SELECT pg_catalog.count(*) FROM evil.consumed_event)
     + (SELECT pg_catalog.count(*) FROM evil.outbox_stop) + (SELECT pg_catalog.count(*) FROM pg_temp.outbox_event) + (SELECT pg_catalog.count(*) FROM pg_temp.outbox_log)
     + (SELECT pg_catalog.count(*) FROM pg_temp.consumed_event) + (SELECT pg_catalog.count(*) FROM pg_temp.outbox_stop) AS strayed;
SELECT pg_catalog.count(*) FROM outbox.outbox_log;

\c outbox_sql
DROP DATABASE contract_path WITH (FORCE);
