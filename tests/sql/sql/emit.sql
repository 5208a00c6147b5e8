-- outbox_emit: what it returns, what it stores, what it refuses. There is no broker here: nothing is published.
CREATE DATABASE contract_emit;
\c contract_emit
SET datestyle = 'ISO';
SET timezone = 'UTC';
CREATE EXTENSION outbox_ext;

-- The id returned is the row's. One that is made is of version 7, so that the primary key grows at its right edge.
SELECT outbox_emit('order', '42', 'OrderPlaced', '{"total": 49.90}') AS id \gset
SELECT aggregate_type, aggregate_id, event_type, payload, headers, topic, available_at, state, attempts, published_at, last_error
  FROM outbox_event WHERE event_id = :'id';
SELECT substr(:'id', 15, 1) AS uuid_version;
SELECT a < b AS ids_ascend FROM (SELECT outbox_emit('order', '42', 'a', '{}') AS a, outbox_emit('order', '42', 'b', '{}') AS b) ids;

-- All arguments, by name.
SELECT outbox_emit(aggregate_type => 'order', aggregate_id => '43', event_type => 'OrderPaid', payload => '{"by": "card"}',
    headers => '{"traceparent": "00-4bf9", "empty": ""}', topic => 'payments', event_id => 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
    available_at => '2999-01-01 00:00:00+00');
SELECT aggregate_type, aggregate_id, event_type, payload, headers, topic, available_at, state FROM outbox_event WHERE aggregate_id = '43';

-- In one transaction the order is the order of the calls; created_at is the transaction's start.
BEGIN;
SELECT count(outbox_emit('order', '44', 'step' || n, '{}')) FROM generate_series(1, 3) n;
SELECT outbox_emit('order', '44', 'step4', '{}') IS NOT NULL AS emitted;
COMMIT;
SELECT string_agg(event_type, ' ' ORDER BY seq) AS in_order, count(DISTINCT created_at) AS times FROM outbox_log WHERE aggregate_id = '44';

-- What rolls back was never emitted.
BEGIN;
SELECT outbox_emit('order', '45', 'kept', '{}') IS NOT NULL AS emitted;
SAVEPOINT s;
SELECT outbox_emit('order', '45', 'undone', '{}') IS NOT NULL AS emitted;
ROLLBACK TO s;
SELECT outbox_emit('order', '45', 'kept too', '{}') IS NOT NULL AS emitted;
COMMIT;
BEGIN;
SELECT outbox_emit('order', '45', 'undone as well', '{}') IS NOT NULL AS emitted;
ROLLBACK;
SELECT string_agg(event_type, ', ' ORDER BY seq) FROM outbox_log WHERE aggregate_id = '45';

-- From a trigger and from PL/pgSQL with an exception handler.
CREATE TABLE orders (id int PRIMARY KEY, status text);
CREATE FUNCTION order_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox_emit('order', NEW.id::text, 'OrderChanged', to_jsonb(NEW));
    RETURN NEW;
END $$;
CREATE TRIGGER order_changed AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION order_changed();
INSERT INTO orders VALUES (46, 'placed');
DO $$
BEGIN
    UPDATE orders SET status = 'lost' WHERE id = 46;
    RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN
    UPDATE orders SET status = 'paid' WHERE id = 46;
END $$;
SELECT payload FROM outbox_event WHERE aggregate_id = '46' ORDER BY event_id;

-- Due times.
SELECT outbox_emit('order', '47', 'past', '{}', available_at => '-infinity') IS NOT NULL AS emitted;
SELECT outbox_emit('order', '47', 'never', '{}', available_at => 'infinity') IS NOT NULL AS emitted;
SELECT event_type, available_at, state FROM outbox_event WHERE aggregate_id = '47' ORDER BY event_id;

-- NULL where a value is needed.
SELECT outbox_emit(NULL, '1', 't', '{}');
\echo :SQLSTATE
SELECT outbox_emit('order', NULL, 't', '{}');
\echo :SQLSTATE
SELECT outbox_emit('order', '1', NULL, '{}');
\echo :SQLSTATE
SELECT outbox_emit('order', '1', 't', NULL);
\echo :SQLSTATE

-- An empty type is refused; an empty aggregate_id is a key like any other.
SELECT outbox_emit('', '1', 't', '{}');
\echo :SQLSTATE
SELECT outbox_emit('order', '1', '', '{}');
\echo :SQLSTATE
SELECT outbox_emit('order', '', 'empty key', '{}') IS NOT NULL AS emitted;

-- Lengths are counted in bytes, and the message is the same whether the value compresses well or not.
SELECT outbox_emit('order', repeat('x', 1024), 't', '{}') IS NOT NULL AS emitted;
SELECT outbox_emit('order', repeat('ü', 512), 't', '{}') IS NOT NULL AS emitted;
SELECT outbox_emit('order', repeat('x', 1025), 't', '{}');
\echo :SQLSTATE
SELECT outbox_emit('order', repeat('ü', 513), 't', '{}');
SELECT outbox_emit('order', repeat('x', 20000), 't', '{}');
SELECT outbox_emit('order', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 200) n), 't', '{}');
SELECT outbox_emit('order', '1', repeat('t', 255), '{}') IS NOT NULL AS emitted;
SELECT outbox_emit('order', '1', repeat('t', 10240), '{}');
\echo :SQLSTATE
SELECT outbox_emit(repeat('a', 256), '1', 't', '{}', topic => 'fits');
\echo :SQLSTATE
SELECT outbox_emit(repeat('a', 255), '1', 't', '{}', topic => 'fits') IS NOT NULL AS emitted;

-- The topic's name, after the template, must be one that Kafka takes.
SELECT outbox_emit('Order Line', '1', 't', '{}');
\echo :SQLSTATE
SELECT outbox_emit('a/b', '1', 't', '{}');
SELECT outbox_emit('Zürich', '1', 't', '{}');
SELECT outbox_emit(' lead', '1', 't', '{}');
SELECT outbox_emit('x;y', '1', 't', '{}');
SELECT outbox_emit(repeat('a', 250), '1', 't', '{}');
\echo :SQLSTATE
-- outbox.event.{aggregate_type} has 13 bytes before the type: 236 more are the limit of 249.
SELECT outbox_emit(repeat('a', 237), '1', 't', '{}');
SELECT outbox_emit(repeat('a', 236), '1', 't', '{}') IS NOT NULL AS emitted;
-- A topic of its own makes any type possible.
SELECT outbox_emit('Order Line', '1', 't', '{}', topic => 'order.lines_v-1') IS NOT NULL AS emitted;
SELECT outbox_emit('order', '1', 't', '{}', topic => '');
\echo :SQLSTATE
SELECT outbox_emit('order', '1', 't', '{}', topic => '.');
SELECT outbox_emit('order', '1', 't', '{}', topic => '..');
SELECT outbox_emit('order', '1', 't', '{}', topic => 'a b');
SELECT outbox_emit('order', '1', 't', '{}', topic => E'a\nb');
SELECT outbox_emit('order', '1', 't', '{}', topic => repeat('t', 250));
SELECT outbox_emit('order', '1', 't', '{}', topic => repeat('t', 249)) IS NOT NULL AS emitted;

-- Headers are an object of strings, without our three names.
SELECT outbox_emit('order', '1', 't', '{}', headers => '{}') IS NOT NULL AS emitted;
SELECT outbox_emit('order', '1', 't', '{}', headers => '{"ID": "other", "Id": "case matters"}') IS NOT NULL AS emitted;
SELECT outbox_emit('order', '1', 't', '{}', headers => '[]');
\echo :SQLSTATE
SELECT outbox_emit('order', '1', 't', '{}', headers => '"text"');
SELECT outbox_emit('order', '1', 't', '{}', headers => 'null');
SELECT outbox_emit('order', '1', 't', '{}', headers => '{"a": 1}');
\echo :SQLSTATE
SELECT outbox_emit('order', '1', 't', '{}', headers => '{"ok": "yes", "a": null}');
SELECT outbox_emit('order', '1', 't', '{}', headers => '{"a": ["x"]}');
SELECT outbox_emit('order', '1', 't', '{}', headers => '{"id": "mine"}');
\echo :SQLSTATE
SELECT outbox_emit('order', '1', 't', '{}', headers => '{"eventType": "mine"}');
SELECT outbox_emit('order', '1', 't', '{}', headers => '{"aggregateType": "mine"}');

-- The record's size: key, headers and payload together, in bytes.
SHOW outbox_ext.max_message_bytes;
SELECT outbox_emit('order', '1', 't', to_jsonb(repeat('x', 990000))) IS NOT NULL AS emitted;
SELECT outbox_emit('order', '1', 't', to_jsonb(repeat('x', 1000000)));
\echo :SQLSTATE
SELECT outbox_emit('order', '1', 't', to_jsonb(repeat('ü', 490000))) IS NOT NULL AS emitted;
SELECT outbox_emit('order', '1', 't', to_jsonb(repeat('ü', 510000)));
SELECT outbox_emit('order', '1', 't', '{}', headers => jsonb_build_object('big', repeat('h', 1000000)));
SELECT outbox_emit('order', repeat('k', 1000), 't', to_jsonb(repeat('x', 500000)), headers => jsonb_build_object('big', repeat('h', 499500)));

-- Small as stored and large as text: what counts is what it becomes.
SELECT outbox_emit('order', '1', 't', to_jsonb(repeat(E'\x01', 160000))) IS NOT NULL AS emitted;
SELECT outbox_emit('order', '1', 't', to_jsonb(repeat(E'\x01', 170000)));
SELECT outbox_emit('order', '1', 't', ('[1' || repeat(', 1e255', 3700) || ']')::jsonb) IS NOT NULL AS emitted;
SELECT outbox_emit('order', '1', 't', ('[1' || repeat(', -1e255', 4000) || ']')::jsonb);
SELECT outbox_emit('order', '1', 't', ('[1' || repeat(', 1e131071', 7) || ']')::jsonb) IS NOT NULL AS emitted;
SELECT outbox_emit('order', '1', 't', ('[1' || repeat(', 1e131071', 8) || ']')::jsonb);

-- A caller's own id: the same twice is a unique violation, in one transaction or two, and nothing is overwritten.
SELECT outbox_emit('order', '48', 'first', '{}', event_id => '11111111-1111-4111-8111-111111111111');
SELECT outbox_emit('order', '48', 'second', '{}', event_id => '11111111-1111-4111-8111-111111111111');
\echo :SQLSTATE
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox_emit('order', '48', 'third', '{}', event_id => '22222222-2222-4222-8222-222222222222');
SELECT outbox_emit('order', '48', 'fourth', '{}', event_id => '22222222-2222-4222-8222-222222222222');
\echo :SQLSTATE
COMMIT;
SELECT event_id, event_type FROM outbox_event WHERE aggregate_id = '48';

-- UUIDs as PostgreSQL reads them: however spelled, one id in one spelling.
SELECT outbox_emit('order', '49', 't', '{}', event_id => 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12');
SELECT outbox_emit('order', '49', 't', '{}', event_id => '{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a13}');
SELECT outbox_emit('order', '49', 't', '{}', event_id => 'a0eebc999c0b4ef8bb6d6bb9bd380a14');
SELECT outbox_emit('order', '49', 't', '{}', event_id => '00000000-0000-0000-0000-000000000000');
SELECT outbox_emit('order', '49', 't', '{}', event_id => 'ffffffff-ffff-ffff-ffff-ffffffffffff');
SELECT outbox_emit('order', '49', 't', '{}', event_id => '-a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a15');
\echo :SQLSTATE

-- Where nothing can be written.
BEGIN READ ONLY;
SELECT outbox_emit('order', '1', 't', '{}');
\echo :SQLSTATE
ROLLBACK;

-- An error of emit is the caller's own: caught, the transaction goes on.
DO $$
BEGIN
    PERFORM outbox_emit('order', '50', '', '{}');
EXCEPTION WHEN OTHERS THEN
    PERFORM outbox_emit('order', '50', 'instead', jsonb_build_object('caught', SQLSTATE));
END $$;
SELECT event_type, payload FROM outbox_event WHERE aggregate_id = '50';

-- The template may be the database's own. What it makes is checked as well.
ALTER DATABASE contract_emit SET outbox_ext.topic = 'shop.{aggregate_type}.v1';
\c contract_emit
SELECT outbox_emit('order', '51', 't', '{}') IS NOT NULL AS emitted;
SELECT outbox_emit('Order Line', '51', 't', '{}');

\c outbox_sql
DROP DATABASE contract_emit WITH (FORCE);
