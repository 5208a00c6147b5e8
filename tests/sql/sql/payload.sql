-- Payloads at the edges of JSON: stored unchanged or refused with PostgreSQL's own error; never altered.
CREATE DATABASE contract_payload;
\c contract_payload
CREATE EXTENSION outbox_ext;

-- JSON null is a value of four bytes; only SQL NULL is refused (see emit).
SELECT count(outbox_emit('doc', 'small', 't', p::jsonb)) FROM unnest('{"null","{}","\"\"","0","[]","false"}'::text[]) p;
SELECT string_agg(payload::text, ' ' ORDER BY event_id) FROM outbox_event WHERE aggregate_id = 'small';

-- Numbers keep their digits and their scale.
SELECT outbox_emit('doc', 'number', 't',
    '{"n": 123456789012345678901234567890.123456789, "z": 1.10, "i": 9007199254740993, "e": 1e3, "s": 1E-5}') IS NOT NULL AS emitted;
SELECT payload FROM outbox_event WHERE aggregate_id = 'number';
SELECT outbox_emit('doc', 'digits', 't', ('{"f": ' || repeat('7', 309) || ', "h": ' || repeat('9', 131072) || '}')::jsonb) IS NOT NULL AS emitted;
SELECT length(payload ->> 'f'), length(payload ->> 'h'), payload::text = '{"f": ' || repeat('7', 309) || ', "h": ' || repeat('9', 131072) || '}' AS unchanged
  FROM outbox_event WHERE aggregate_id = 'digits';
SELECT outbox_emit('doc', 'tiny', 't', '1e-16383') IS NOT NULL AS emitted;
SELECT outbox_emit('doc', 'huge', 't', '1e131072');
\echo :SQLSTATE

-- Nesting.
SELECT count(outbox_emit('doc', 'nested', 't', (repeat('[', depth) || repeat(']', depth))::jsonb)) FROM unnest('{127,128,1000,6000}'::int[]) depth;
SELECT length(payload::text) / 2 AS depth FROM outbox_event WHERE aggregate_id = 'nested' ORDER BY event_id;
SELECT outbox_emit('doc', 'nested', 't', (repeat('[', 20000) || repeat(']', 20000))::jsonb);
\echo :SQLSTATE

-- \u0000 is not text for PostgreSQL. Its error reaches the caller; no row is left half-written.
SELECT outbox_emit('doc', 'zero', 't', '{"a": "x\u0000y"}');
\echo :SQLSTATE
CREATE TABLE noted (id int, doc json);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox_emit('doc', 'zero', 't', to_jsonb(NEW));
    RETURN NEW;
END $$;
CREATE TRIGGER note AFTER INSERT ON noted FOR EACH ROW EXECUTE FUNCTION note();
INSERT INTO noted VALUES (1, '{"a": "x\u0000y"}');
\echo :SQLSTATE
SELECT (SELECT count(*) FROM noted) AS noted, (SELECT count(*) FROM outbox_event WHERE aggregate_id = 'zero') AS emitted;
SELECT outbox_emit('doc', E'a\000b', 't', '{}');
\echo :SQLSTATE

-- Text of every plane, and what looks like an escape.
SELECT outbox_emit('doc', 'ключ-鍵-🔑', 'Geändert', '{"s": "ü € 𝄞 \u00fc \\u0000 \" \t /"}', headers => '{"ключ": "wert ü"}') IS NOT NULL AS emitted;
SELECT aggregate_id, event_type, headers, payload FROM outbox_event WHERE event_type = 'Geändert';

\c outbox_sql
DROP DATABASE contract_payload WITH (FORCE);
