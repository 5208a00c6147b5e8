-- Events that were given up: what an operator sees and does. The relay is off here; what it would have left is put in by
-- hand: a cursor that has passed four events, of which three are parked.
CREATE DATABASE contract_dead_letter;
ALTER DATABASE contract_dead_letter SET outbox_ext.enabled = off;
\c contract_dead_letter
SET datestyle = 'ISO';
SET timezone = 'UTC';
CREATE EXTENSION outbox_ext;
SELECT outbox_emit('order', '1', 'refused', '{"n": 1}') AS refused \gset
SELECT outbox_emit('order', '1', 'waits behind', '{"n": 2}') AS behind \gset
SELECT outbox_emit('invoice', '2', 'refused too', '{"n": 3}', topic => 'invoices') AS other \gset
SELECT outbox_emit('order', '3', 'went through', '{"n": 4}') AS sent \gset
INSERT INTO outbox_batch (batch_no, pos, events, bytes, published_at, snapshot)
SELECT 1, max(seq), 1, 100, '2026-01-01 00:00:01+00', pg_current_snapshot() FROM outbox_log;
INSERT INTO outbox_parked (event_id, aggregate_key, seq, parked_at, attempts, reason, aggregate_type, aggregate_id, last_error)
SELECT event_id, md5(aggregate_type || aggregate_id)::uuid, seq, '2026-01-01 00:00:00+00',
       CASE event_type WHEN 'waits behind' THEN 0 ELSE 5 END, CASE event_type WHEN 'waits behind' THEN 'behind' ELSE 'failed' END,
       aggregate_type, aggregate_id, CASE event_type WHEN 'refused' THEN 'too large' WHEN 'refused too' THEN 'policy violation' END
  FROM outbox_log WHERE event_type <> 'went through';

SELECT aggregate_type, aggregate_id, event_type, payload, topic, attempts, last_error, failed_at FROM outbox_dead_letter ORDER BY payload;
SELECT event_type, state, attempts, published_at, last_error FROM outbox_event ORDER BY event_id;
SELECT event_type, state FROM outbox_pending ORDER BY event_id;
-- What was given up does not wait any more; what is behind it does.
SELECT waiting, parked FROM outbox_status;

-- The lag: of what waits behind since it was parked; of what is scheduled since it was due; of what is tried again since then.
SELECT oldest_due_age > '30 days' AS old FROM outbox_status;
BEGIN;
DELETE FROM outbox_parked WHERE reason = 'behind';
SELECT oldest_due_age FROM outbox_status;
UPDATE outbox_parked SET reason = 'scheduled', available_at = now() + interval '1 hour' WHERE event_id = :'other';
SELECT oldest_due_age FROM outbox_status;
UPDATE outbox_parked SET available_at = now() - interval '1 hour' WHERE event_id = :'other';
SELECT oldest_due_age BETWEEN '1 hour' AND '61 minutes' AS an_hour FROM outbox_status;
DELETE FROM outbox_parked WHERE event_id = :'other';
SELECT outbox_retry(:'refused');
SELECT oldest_due_age < '1 minute' AS not_since_2026_began FROM outbox_status;
ROLLBACK;

-- Trying again: only what was given up.
SELECT outbox_retry(:'sent');
SELECT outbox_retry(:'behind');
SELECT outbox_retry('00000000-0000-0000-0000-000000000001');
SELECT outbox_retry(NULL);
\echo :SQLSTATE
BEGIN;
SELECT outbox_retry(:'refused');
SELECT outbox_retry(:'refused') AS again;
SELECT state, attempts, last_error FROM outbox_event WHERE event_id = :'refused';
SELECT waiting, parked FROM outbox_status;
ROLLBACK;
SELECT state FROM outbox_event WHERE event_id = :'refused';
BEGIN;
SELECT outbox_retry_all() AS retried;
ROLLBACK;
BEGIN;
SELECT outbox_retry_all('invoice') AS retried;
ROLLBACK;
BEGIN;
SELECT outbox_retry_all(error_pattern => '%large%') AS retried;
ROLLBACK;
SELECT outbox_retry_all('order', 'policy%') AS retried;

-- Letting go: it is never published and waits no more. Its reason and who said so stay readable.
SELECT outbox_discard(:'sent', 'not needed');
SELECT outbox_discard(:'behind', 'not needed');
SELECT outbox_discard(:'refused', NULL);
\echo :SQLSTATE
SELECT outbox_discard(:'refused', 'customer was told by phone');
SELECT outbox_discard(:'refused', 'again');
SELECT outbox_retry(:'refused');
SELECT state, attempts, published_at, last_error FROM outbox_event WHERE event_id = :'refused';
SELECT event_type FROM outbox_dead_letter;
SELECT event_type, state FROM outbox_pending ORDER BY event_id;
SELECT waiting, parked FROM outbox_status;

-- An operator who is no superuser.
CREATE ROLE contract_operator;
SET ROLE contract_operator;
SELECT outbox_retry(:'other');
\echo :SQLSTATE
SELECT outbox_retry_all();
SELECT outbox_discard(:'other', 'mine');
SELECT count(*) FROM outbox_dead_letter;
RESET ROLE;
GRANT EXECUTE ON FUNCTION outbox_retry, outbox_discard TO contract_operator;
GRANT SELECT ON outbox_dead_letter TO contract_operator;
SET ROLE contract_operator;
SELECT count(*) FROM outbox_dead_letter;
SELECT outbox_retry(:'other');
RESET ROLE;

\c outbox_sql
DROP DATABASE contract_dead_letter WITH (FORCE);
DROP ROLE contract_operator;
