-- outbox_status and outbox_pending read what is unpublished, not what the log holds: whatever the planner believes of the tables.
CREATE DATABASE contract_views_cost;
\c contract_views_cost
CREATE EXTENSION outbox_ext;
ALTER TABLE outbox_log SET (autovacuum_enabled = off);

-- 20,000 events of which the ledger says that all but the last five are published.
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload)
SELECT 'order', (n % 100)::text, 'Changed', to_jsonb(n) FROM generate_series(1, 20000) n;
INSERT INTO outbox_batch (batch_no, pos, events, bytes, published_at, snapshot)
SELECT max(batch_no) + 1, (SELECT max(seq) - 5 FROM outbox_log), 19995, 0, now(), pg_current_snapshot() FROM outbox_batch;

CREATE FUNCTION reads_little(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    after bigint;
BEGIN
    SELECT seq_tup_read + idx_tup_fetch INTO before FROM pg_stat_xact_user_tables WHERE relname = 'outbox_log';
    EXECUTE query;
    SELECT seq_tup_read + idx_tup_fetch INTO after FROM pg_stat_xact_user_tables WHERE relname = 'outbox_log';
    RETURN after - before < 100;
END $$;
CREATE VIEW costs AS
    SELECT reads_little('SELECT * FROM outbox_status') AS status,
           reads_little('SELECT count(*) FROM outbox_pending') AS count,
           reads_little('SELECT count(state) FROM outbox_pending') AS states,
           reads_little('SELECT EXISTS (SELECT FROM outbox_pending)') AS any,
           reads_little('SELECT * FROM outbox_pending LIMIT 1') AS one;

SELECT count(*) FROM outbox_pending;
SELECT * FROM costs;
ANALYZE;
SELECT * FROM costs;
-- With parked ones, before and after the planner knows of them.
INSERT INTO outbox_parked (event_id, aggregate_key, seq, parked_at, attempts, reason, aggregate_type, aggregate_id)
SELECT event_id, event_id, seq, now(), 0, 'behind', aggregate_type, aggregate_id FROM outbox_log WHERE seq <= 5;
SELECT count(*) FROM outbox_pending;
SELECT * FROM costs;
ANALYZE;
SELECT * FROM costs;

\c outbox_sql
DROP DATABASE contract_views_cost WITH (FORCE);
