-- The table as everybody knows it: plain INSERT, RETURNING, ON CONFLICT, COPY; what it refuses; events never change.
CREATE DATABASE contract_insert;
\c contract_insert
SET datestyle = 'ISO';
SET timezone = 'UTC';
CREATE EXTENSION outbox_ext;

-- What an ORM sends.
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'OrderPlaced', '{"n": 1}')
RETURNING aggregate_type, aggregate_id, event_type, payload, headers, topic, available_at, state, attempts, lease_token, published_at, last_error,
    substr(event_id::text, 15, 1) AS uuid_version, created_at = now() AS created_now;
INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, headers, topic, created_at, available_at)
VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'order', '2', 'OrderPlaced', '{"n": 2}', '{"h": "v"}', 'orders', '2026-01-02 03:04:05+00', NULL)
RETURNING *;
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload)
SELECT 'order', '3', 'step' || n, to_jsonb(n) FROM generate_series(1, 5) n;
SELECT string_agg(event_type, ' ' ORDER BY seq) AS in_order FROM outbox_log WHERE aggregate_id = '3';

-- The same id again.
INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload)
VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'order', '2', 'again', '{}');
\echo :SQLSTATE
INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload)
VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'order', '2', 'again', '{}') ON CONFLICT DO NOTHING RETURNING event_id;
INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload)
VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'order', '2', 'again', '{}'),
       ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12', 'order', '2', 'new', '{}') ON CONFLICT (event_id) DO NOTHING RETURNING event_type;
INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload)
VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'order', '2', 'again', '{}') ON CONFLICT (event_id) DO UPDATE SET event_type = 'changed';
\echo :SQLSTATE
SELECT event_type FROM outbox_event WHERE aggregate_id = '2' ORDER BY event_id;

-- What could never be published, where the table can tell. (The detail shows the row, as PostgreSQL does for any table.)
\set VERBOSITY terse
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('', '1', 't', '{}');
\echo :SQLSTATE
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', '', '{}');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', NULL, 't', '{}');
\echo :SQLSTATE
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 't');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES (repeat('a', 256), '1', 't', '{}');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', repeat('ü', 513), 't', '{}');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', repeat('t', 256), '{}');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, topic) VALUES ('order', '1', 't', '{}', 'a b');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, topic) VALUES ('order', '1', 't', '{}', '');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, topic) VALUES ('order', '1', 't', '{}', '..');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, topic) VALUES ('order', '1', 't', '{}', E'a\n');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, topic) VALUES ('order', '1', 't', '{}', repeat('t', 250));
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', '1', 't', '{}', '["h"]');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', '1', 't', '{}', 'null');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', '1', 't', '{}', '{"h": 1}');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', '1', 't', '{}', '{"h": {"x": "y"}}');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', '1', 't', '{}', '{"h": "v", "id": "x"}');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 't', '{}', 'infinity');
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 't', '{}', NULL);

-- The computed columns cannot be given, and the columns of the machinery are not there.
\set VERBOSITY default
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, state) VALUES ('order', '1', 't', '{}', 'published');
\echo :SQLSTATE
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, seq) VALUES ('order', '1', 't', '{}', 1);
\echo :SQLSTATE

-- An event never changes.
UPDATE outbox_event SET payload = '{}' WHERE aggregate_id = '1';
\echo :SQLSTATE
UPDATE outbox_log SET seq = 0;
UPDATE outbox_event SET state = 'published';
\echo :SQLSTATE
SELECT payload FROM outbox_event WHERE aggregate_id = '1';

-- COPY goes to the table; the view takes none.
COPY outbox_event (aggregate_type, aggregate_id, event_type, payload) FROM stdin;
\.
COPY outbox_log (aggregate_type, aggregate_id, event_type, payload, headers) FROM stdin;
order	4	copied1	{"n": 1}	\N
order	4	copied2	{"n": 2}	{"h": "v"}
order	4	copied3	{"n": 3}	\N
\.
SELECT event_type, payload, headers, state FROM outbox_event WHERE aggregate_id = '4' ORDER BY event_id;
SELECT string_agg(event_type, ' ' ORDER BY seq) AS in_order FROM outbox_log WHERE aggregate_id = '4';
\set VERBOSITY terse
COPY outbox_log (aggregate_type, aggregate_id, event_type, payload) FROM stdin;
order	5	good	{}
order	5		{}
\.
\set VERBOSITY default
SELECT count(*) AS of_a_failed_copy FROM outbox_event WHERE aggregate_id = '5';

-- None of that was foreign.
SELECT count(*) AS stops FROM outbox_stop;

-- TRUNCATE ... RESTART IDENTITY empties the log and leaves the order's sequence alone.
SELECT last_value AS before FROM outbox_log_seq \gset
TRUNCATE outbox_log RESTART IDENTITY;
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '6', 'after', '{}');
SELECT seq > :before AS seq_goes_on FROM outbox_log;

-- A due time of its own.
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, available_at)
VALUES ('order', '7', 'later', '{}', now() + interval '1 hour'), ('order', '7', 'now', '{}', now() - interval '1 hour')
RETURNING event_type, state;

\c outbox_sql
DROP DATABASE contract_insert WITH (FORCE);
