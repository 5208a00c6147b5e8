-- inbox_try_consume in one session: true once per pair, with the caller's transaction. Two sessions: tests/isolation.
CREATE DATABASE contract_inbox;
\c contract_inbox
CREATE EXTENSION outbox_ext;

SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000001');
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000001');
SELECT inbox_try_consume(consumer_name => 'billing', event_id => '00000000-0000-0000-0000-000000000002');
SELECT consumer_name, event_id, consumed_at <= now() AS in_the_past FROM consumed_event ORDER BY event_id;

-- Twice in one transaction.
BEGIN;
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000003');
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000003');
COMMIT;

-- Rolled back work is forgotten.
BEGIN;
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000004');
ROLLBACK;
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000004');
BEGIN;
SAVEPOINT s;
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000005');
ROLLBACK TO s;
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000005');
COMMIT;
CREATE TABLE seen (n int, first_time boolean);
DO $$
BEGIN
    BEGIN
        INSERT INTO seen SELECT 1, inbox_try_consume('billing', '00000000-0000-0000-0000-000000000006');
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN
        INSERT INTO seen SELECT 2, inbox_try_consume('billing', '00000000-0000-0000-0000-000000000006');
    END;
    INSERT INTO seen SELECT 3, inbox_try_consume('billing', '00000000-0000-0000-0000-000000000006');
END $$;
SELECT * FROM seen ORDER BY n;

-- Two-phase commit.
BEGIN;
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000007');
PREPARE TRANSACTION 'inbox';
ROLLBACK PREPARED 'inbox';
BEGIN;
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000007');
PREPARE TRANSACTION 'inbox';
COMMIT PREPARED 'inbox';
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000007');

-- Another consumer is another pair. Names are compared byte by byte.
SELECT name, inbox_try_consume(name, '00000000-0000-0000-0000-000000000008')
  FROM unnest(ARRAY['a', 'b', 'A', 'a ', ' a', 'ä', U&'a\0308', '🧾', 'a']) WITH ORDINALITY AS n(name, i) ORDER BY i;

-- Arguments that are none.
SELECT inbox_try_consume(NULL, '00000000-0000-0000-0000-000000000009');
\echo :SQLSTATE
SELECT inbox_try_consume('billing', NULL);
\echo :SQLSTATE
SELECT inbox_try_consume('', '00000000-0000-0000-0000-000000000009');
\echo :SQLSTATE
SELECT inbox_try_consume(repeat('x', 10240), '00000000-0000-0000-0000-000000000009');
\echo :SQLSTATE
SELECT inbox_try_consume((SELECT string_agg(md5(n::text), '') FROM generate_series(1, 320) n), '00000000-0000-0000-0000-000000000009');
SELECT inbox_try_consume(repeat('x', 255), '00000000-0000-0000-0000-000000000009');
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000000');
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-000000000000');

-- The same limits hold for rows put in by hand.
\set VERBOSITY terse
INSERT INTO consumed_event (consumer_name, event_id) VALUES ('', '00000000-0000-0000-0000-00000000000a');
INSERT INTO consumed_event (consumer_name, event_id) VALUES (repeat('x', 10240), '00000000-0000-0000-0000-00000000000a');
\set VERBOSITY default

-- Many at once, as a batch consumer asks.
CREATE TABLE arrived (n int, event_id uuid);
INSERT INTO arrived SELECT n, lpad((n % 10)::text, 32, '0')::uuid FROM generate_series(1, 30) n;
SELECT count(*) FILTER (WHERE first_time) AS first_time, count(*) FILTER (WHERE NOT first_time) AS again
  FROM (SELECT inbox_try_consume('batch', event_id) AS first_time FROM arrived ORDER BY n) a;

BEGIN READ ONLY;
SELECT inbox_try_consume('billing', '00000000-0000-0000-0000-00000000000b');
\echo :SQLSTATE
ROLLBACK;

\c outbox_sql
DROP DATABASE contract_inbox WITH (FORCE);
