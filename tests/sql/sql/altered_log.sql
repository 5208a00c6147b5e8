-- outbox_emit appends to outbox_log without an INSERT statement while the table is as the extension made it. What a DBA adds to the table takes
-- effect all the same, at once and in sessions that have emitted before; both ways leave the same row.
CREATE DATABASE contract_altered;
\c contract_altered
SET client_min_messages = warning;
CREATE EXTENSION outbox_ext;
CREATE VIEW newest AS
    SELECT event_id, aggregate_type, aggregate_id, event_type, payload, headers, topic, available_at,
           xid = pg_current_xact_id() AS of_this_transaction, created_at = now() AS now, seq
      FROM outbox_log ORDER BY seq DESC LIMIT 1;

-- The same row both ways. A BEFORE trigger that changes nothing makes it a statement.
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
BEGIN;
SELECT outbox_emit('order', '1', 'appended', '{"a": [1, 2.50]}', '{"h": "x"}', 'some.topic', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2030-01-01 00:00+00');
SELECT * FROM newest;
DELETE FROM outbox_log;
CREATE TRIGGER nothing BEFORE INSERT ON outbox_log FOR EACH ROW EXECUTE FUNCTION nothing();
SELECT outbox_emit('order', '1', 'appended', '{"a": [1, 2.50]}', '{"h": "x"}', 'some.topic', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2030-01-01 00:00+00');
SELECT * FROM newest;
DROP TRIGGER nothing ON outbox_log;
COMMIT;
SELECT outbox_emit('order', '2', 'without the rest', 'null') IS NOT NULL AS emitted;
SELECT aggregate_id, payload, headers, topic, available_at FROM newest;

-- A value that TOAST compresses or moves out of the row.
SELECT outbox_emit('order', '3', 'large', to_jsonb((SELECT string_agg(md5(n::text), '') FROM generate_series(1, 20000) n))) IS NOT NULL AS emitted;
SELECT octet_length(payload::text), md5(payload::text) FROM newest;

-- A default of the DBA's own.
ALTER TABLE outbox_log ALTER created_at SET DEFAULT '2001-02-03 04:05+00';
SELECT outbox_emit('order', '4', 'another default', '{}') IS NOT NULL AS emitted;
SELECT aggregate_id, created_at AT TIME ZONE 'UTC' AS created_at FROM outbox_log ORDER BY seq DESC LIMIT 1;
ALTER TABLE outbox_log ALTER created_at SET DEFAULT now();
SELECT outbox_emit('order', '5', 'the default again', '{}') IS NOT NULL AS emitted;
SELECT aggregate_id, created_at > now() - interval '1 minute' AS recent FROM outbox_log ORDER BY seq DESC LIMIT 1;

-- A column with a default.
ALTER TABLE outbox_log ADD tenant text NOT NULL DEFAULT current_user;
SELECT outbox_emit('order', '6', 'another column', '{}') IS NOT NULL AS emitted;
SELECT aggregate_id, tenant = current_user AS filled FROM outbox_log ORDER BY seq DESC LIMIT 1;
ALTER TABLE outbox_log DROP tenant;
SELECT outbox_emit('order', '7', 'a dropped column', '{}') IS NOT NULL AS emitted;
SELECT aggregate_id FROM newest;

\c contract_altered
SET client_min_messages = warning;
-- The rest on a table as it was made.
DROP EXTENSION outbox_ext CASCADE;
CREATE EXTENSION outbox_ext;
SELECT outbox_emit('order', '1', 'first', '{}') IS NOT NULL AS emitted;

-- A check.
ALTER TABLE outbox_log ADD CONSTRAINT small CHECK (octet_length(payload::text) < 20);
\set VERBOSITY terse
SELECT outbox_emit('order', '2', 'large', '{"a": "more than twenty bytes"}');
\set VERBOSITY default
SELECT outbox_emit('order', '2', 'small', '{}') IS NOT NULL AS emitted;
ALTER TABLE outbox_log DROP CONSTRAINT small;

-- Indexes: one on columns, one on an expression, one with a predicate, unique ones.
CREATE INDEX by_type ON outbox_log (event_type);
CREATE INDEX by_tenant ON outbox_log ((payload ->> 'tenant'));
CREATE UNIQUE INDEX one_genesis ON outbox_log (aggregate_id) WHERE event_type = 'genesis';
SELECT outbox_emit('order', '3', 'genesis', '{"tenant": "a"}') IS NOT NULL AS emitted;
SELECT outbox_emit('order', '3', 'genesis', '{"tenant": "a"}');
SET enable_seqscan = off;
SELECT count(*) FROM outbox_log WHERE payload ->> 'tenant' = 'a';
DROP INDEX by_tenant, one_genesis;
SELECT outbox_emit('order', '4', 'indexed', '{}') IS NOT NULL AS emitted;
EXPLAIN (COSTS off) SELECT aggregate_id FROM outbox_log WHERE event_type = 'indexed';
SELECT aggregate_id FROM outbox_log WHERE event_type = 'indexed';
DROP INDEX by_type;
RESET enable_seqscan;

-- A statement trigger, a deferred constraint trigger, a rule.
CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING '% % %', TG_NAME, TG_WHEN, TG_LEVEL; RETURN NULL; END $$;
\set VERBOSITY terse
CREATE TRIGGER said AFTER INSERT ON outbox_log FOR EACH STATEMENT EXECUTE FUNCTION say();
SELECT outbox_emit('order', '5', 't', '{}') IS NOT NULL AS emitted;
DROP TRIGGER said ON outbox_log;
CREATE CONSTRAINT TRIGGER said_late AFTER INSERT ON outbox_log DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION say();
SELECT outbox_emit('order', '6', 't', '{}') IS NOT NULL AS emitted;
DROP TRIGGER said_late ON outbox_log;
\set VERBOSITY default
CREATE TABLE copied (aggregate_id text);
CREATE RULE copy_it AS ON INSERT TO outbox_log DO ALSO INSERT INTO copied VALUES (NEW.aggregate_id);
SELECT outbox_emit('order', '7', 't', '{}') IS NOT NULL AS emitted;
DROP RULE copy_it ON outbox_log;
SELECT * FROM copied;

-- Another table of that name: it gets the events from then on, as with an INSERT.
BEGIN;
ALTER TABLE outbox_log RENAME TO outbox_log_before;
CREATE TABLE outbox_log (LIKE outbox_log_before INCLUDING ALL);
SELECT outbox_emit('order', 'renamed', 't', '{}') IS NOT NULL AS emitted;
SELECT outbox_emit('order', 'renamed again', 't', '{}') IS NOT NULL AS emitted;
SELECT aggregate_id FROM outbox_log ORDER BY seq;
ROLLBACK;
SELECT outbox_emit('order', '7 again', 't', '{}') IS NOT NULL AS emitted;

-- NOT NULL.
BEGIN;
DELETE FROM outbox_log;
ALTER TABLE outbox_log ALTER topic SET NOT NULL;
\set VERBOSITY terse
SELECT outbox_emit('order', 'no topic', 't', '{}');
\set VERBOSITY default
ROLLBACK;

-- Row security that holds for the owner too.
CREATE ROLE contract_plain;
GRANT EXECUTE ON FUNCTION outbox_emit TO contract_plain;
ALTER TABLE outbox_log ENABLE ROW LEVEL SECURITY;
ALTER TABLE outbox_log FORCE ROW LEVEL SECURITY;
CREATE POLICY orders ON outbox_log FOR INSERT WITH CHECK (aggregate_type = 'order');
CREATE ROLE contract_owner;
GRANT USAGE, CREATE ON SCHEMA public TO contract_owner;
ALTER TABLE outbox_log OWNER TO contract_owner;
GRANT EXECUTE ON FUNCTION outbox_new_event_id, outbox_next_seq, outbox_event_is_sound TO contract_owner;
SET ROLE contract_plain;
SELECT outbox_emit('order', '8', 't', '{}') IS NOT NULL AS emitted;
SELECT outbox_emit('invoice', '8', 't', '{}');
RESET ROLE;
ALTER TABLE outbox_log OWNER TO CURRENT_USER;
DROP POLICY orders ON outbox_log;
ALTER TABLE outbox_log DISABLE ROW LEVEL SECURITY;
ALTER TABLE outbox_log NO FORCE ROW LEVEL SECURITY;

-- Every event of this session is there, in order, and each index knows it.
SELECT aggregate_type, aggregate_id, event_type FROM outbox_log ORDER BY seq;
SET enable_seqscan = off;
SELECT count(*) FROM outbox_log WHERE seq > 0;
SELECT count(*) FROM outbox_log WHERE (xid, seq) > ('0', 0);
SELECT count(*) FROM outbox_log l WHERE EXISTS (SELECT FROM outbox_log k WHERE k.event_id = l.event_id);

\c postgres
DROP DATABASE contract_altered WITH (FORCE);
DROP OWNED BY contract_owner, contract_plain;
DROP ROLE contract_owner, contract_plain;
