-- CREATE EXTENSION, what it makes, and DROP EXTENSION.
CREATE DATABASE contract_install;
\c contract_install

-- Only a superuser installs it.
CREATE ROLE contract_attacker;
GRANT CREATE ON DATABASE contract_install TO contract_attacker;
GRANT CREATE ON SCHEMA public TO contract_attacker;
SET ROLE contract_attacker;
CREATE EXTENSION outbox_ext;
\echo :SQLSTATE

-- An object that somebody else made first stops the installation; nothing of theirs is adopted, nothing of ours stays.
CREATE FUNCTION public.outbox_emit(aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb,
    topic text, event_id uuid, available_at timestamptz) RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid';
RESET ROLE;
CREATE EXTENSION outbox_ext;
\echo :SQLSTATE
DROP FUNCTION public.outbox_emit;
SET ROLE contract_attacker;
CREATE TABLE public.outbox_log (event_id uuid);
RESET ROLE;
CREATE EXTENSION outbox_ext;
\echo :SQLSTATE
DROP TABLE public.outbox_log;
SET ROLE contract_attacker;
CREATE VIEW public.outbox_event AS SELECT 1 AS event_id;
RESET ROLE;
CREATE EXTENSION outbox_ext;
\echo :SQLSTATE
DROP VIEW public.outbox_event;
SET ROLE contract_attacker;
CREATE TYPE public.consumed_event AS ENUM ('mine');
RESET ROLE;
CREATE EXTENSION outbox_ext;
\echo :SQLSTATE
DROP TYPE public.consumed_event;
SELECT count(*) AS left_over FROM pg_class WHERE relnamespace = 'public'::regnamespace;

-- Into public.
CREATE EXTENSION outbox_ext;
SELECT extversion, extnamespace::regnamespace, extrelocatable FROM pg_extension WHERE extname = 'outbox_ext';

-- Its members, by kind.
CREATE VIEW member AS
    SELECT d.classid, d.objid, i.type, i.schema, i.identity
      FROM pg_depend d CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) i
     WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'outbox_ext');
SELECT type, identity FROM member WHERE type <> 'type' ORDER BY type, identity;

-- Every object has a comment: members, their columns, indexes, constraints with a name of ours, and triggers.
SELECT type, identity FROM member WHERE type NOT IN ('type') AND obj_description(objid, classid::regclass::name) IS NULL;
SELECT a.attrelid::regclass, a.attname
  FROM member m JOIN pg_attribute a ON a.attrelid = m.objid AND m.classid = 'pg_class'::regclass
  JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'r'
 WHERE a.attnum > 0 AND NOT a.attisdropped AND col_description(a.attrelid, a.attnum) IS NULL;
SELECT i.indexrelid::regclass
  FROM member m JOIN pg_index i ON i.indrelid = m.objid AND m.classid = 'pg_class'::regclass
 WHERE NOT i.indisprimary AND obj_description(i.indexrelid, 'pg_class') IS NULL;
SELECT t.tgname FROM member m JOIN pg_trigger t ON t.tgrelid = m.objid AND m.classid = 'pg_class'::regclass
 WHERE NOT t.tgisinternal AND obj_description(t.oid, 'pg_trigger') IS NULL;
SELECT description IS NOT NULL AS extension_has_comment FROM pg_extension e
  LEFT JOIN pg_description d ON d.objoid = e.oid AND d.classoid = 'pg_extension'::regclass WHERE extname = 'outbox_ext';

-- What PUBLIC may do: only what a column default or a view needs of every role that inserts or selects.
SELECT m.identity, a.privilege_type FROM member m JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
  CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0 ORDER BY 1;
SELECT m.identity, a.privilege_type FROM member m JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
  CROSS JOIN LATERAL aclexplode(coalesce(c.relacl, acldefault((CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END)::"char", c.relowner))) a
 WHERE a.grantee = 0 ORDER BY 1;

-- What a dump takes along: events, keys and the sequence; no cursor, no lease.
SELECT extconfig::regclass[]::text FROM pg_extension WHERE extname = 'outbox_ext';

-- Its objects are bound to their schema.
CREATE SCHEMA elsewhere;
ALTER EXTENSION outbox_ext SET SCHEMA elsewhere;
\echo :SQLSTATE

-- Members cannot be dropped or altered away by accident.
DROP TABLE outbox_stop;
\echo :SQLSTATE

-- DROP EXTENSION leaves nothing behind.
SELECT outbox_emit('order', '1', 'OrderPlaced', '{}') IS NOT NULL AS emitted;
DROP VIEW member;
DROP EXTENSION outbox_ext;
SELECT count(*) AS left_over FROM pg_class WHERE relnamespace = 'public'::regnamespace;
SELECT count(*) AS left_over FROM pg_proc WHERE pronamespace = 'public'::regnamespace;
SELECT count(*) AS left_over FROM pg_depend d LEFT JOIN pg_extension e ON e.oid = d.refobjid
 WHERE d.refclassid = 'pg_extension'::regclass AND e.oid IS NULL;

-- Into a schema whose name needs quotes; functions find their tables there, whatever the caller's search_path.
CREATE EXTENSION outbox_ext SCHEMA "My Schema";
\echo :SQLSTATE
CREATE SCHEMA "My Schema";
CREATE EXTENSION outbox_ext SCHEMA "My Schema";
SELECT "My Schema".outbox_emit('order', '1', 'OrderPlaced', '{"n": 1}') IS NOT NULL AS emitted;
INSERT INTO "My Schema".outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'OrderPaid', '{"n": 2}');
SELECT event_type, payload, state FROM "My Schema".outbox_event ORDER BY created_at, payload;
SELECT event_type FROM "My Schema".outbox_pending ORDER BY 1;
SELECT "My Schema".inbox_try_consume('billing', '00000000-0000-0000-0000-000000000001');
SELECT "My Schema".inbox_try_consume('billing', '00000000-0000-0000-0000-000000000001');
SELECT waiting FROM "My Schema".outbox_status;
INSERT INTO "My Schema".outbox_log (aggregate_type, aggregate_id, event_type, payload, xid) VALUES ('order', '1', 'Foreign', '{}', '3');
SELECT "My Schema".outbox_arm();
-- A rename of the schema goes with it.
ALTER SCHEMA "My Schema" RENAME TO renamed;
SELECT renamed.outbox_emit('order', '1', 'OrderShipped', '{"n": 3}') IS NOT NULL AS emitted;
SELECT renamed.inbox_try_consume('billing', '00000000-0000-0000-0000-000000000001');
SELECT count(*) FROM renamed.outbox_pending;
DROP EXTENSION outbox_ext;
SELECT count(*) AS left_over FROM pg_class WHERE relnamespace = 'renamed'::regnamespace;

-- Create, drop and create again in one transaction.
BEGIN;
CREATE EXTENSION outbox_ext;
SELECT outbox_emit('order', '1', 'OrderPlaced', '{}') IS NOT NULL AS emitted;
DROP EXTENSION outbox_ext;
CREATE EXTENSION outbox_ext;
SELECT outbox_emit('order', '1', 'OrderPlaced', '{}') IS NOT NULL AS emitted;
COMMIT;
SELECT count(*) FROM outbox_event;

-- Another encoding than UTF8 is refused: a record's bytes are UTF-8.
CREATE DATABASE contract_latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C';
\c contract_latin1
CREATE EXTENSION outbox_ext;
\echo :SQLSTATE
SELECT count(*) AS left_over FROM pg_class WHERE relnamespace = 'public'::regnamespace;

\c contract_install
DROP OWNED BY contract_attacker;
DROP ROLE contract_attacker;
\c outbox_sql
DROP DATABASE contract_latin1;
DROP DATABASE contract_install WITH (FORCE);
