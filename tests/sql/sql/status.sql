-- Where things stand in SQL, without a broker: the relay is there and says what it waits for; events wait.
CREATE DATABASE contract_status;
\c contract_status
CREATE EXTENSION outbox_ext;
CREATE FUNCTION wait_state(wanted text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE seen text;
BEGIN
    FOR i IN 1..2000 LOOP
        SELECT state INTO seen FROM outbox_status;
        EXIT WHEN seen = wanted;
        PERFORM pg_sleep(0.01);
    END LOOP;
    RETURN seen;
END $$;

-- One row, whatever there is.
SELECT wait_state('no brokers');
SELECT state, waiting, waiting_is_estimate, oldest_due_age, in_flight, parked, last_published_at, relay_pid IS NOT NULL AS has_relay, last_error FROM outbox_status;
SELECT backend_type, datname FROM pg_stat_activity WHERE pid = (SELECT relay_pid FROM outbox_status);
-- Nothing is sent, so nothing is leased: the relay without brokers does not read.
SELECT count(*) AS leases FROM outbox_lease;
SELECT lease_until > now() AS leased FROM outbox_lease WHERE lease_until > now();

SELECT outbox_emit('order', '1', 'a', '{}') IS NOT NULL AS emitted;
SELECT outbox_emit('order', '1', 'later', '{}', available_at => now() + interval '1 hour') IS NOT NULL AS emitted;
SELECT outbox_emit('order', '1', 'c', '{}') IS NOT NULL AS emitted;
SELECT waiting >= 2 AS waiting, waiting_is_estimate, oldest_due_age BETWEEN interval '0' AND interval '1 minute' AS age_is_right, in_flight, last_published_at FROM outbox_status;
SELECT event_type, state, attempts, lease_token, lease_until, published_at, last_error FROM outbox_event ORDER BY event_id;
SELECT event_type, state FROM outbox_pending ORDER BY event_id;
SELECT count(*) AS parked FROM outbox_parked;

-- Beyond 10,000 the number is an estimate and says so.
SELECT count(outbox_emit('order', n::text, 'many', '{}')) FROM generate_series(1, 12000) n;
SELECT waiting BETWEEN 10001 AND 13000 AS near, waiting_is_estimate FROM outbox_status;

-- Switched off for this database, and on again.
ALTER DATABASE contract_status SET outbox_ext.enabled = off;
SELECT pg_reload_conf();
SELECT wait_state('disabled');
ALTER DATABASE contract_status RESET outbox_ext.enabled;
SELECT pg_reload_conf();
SELECT wait_state('no brokers');

-- The relay is ended: the launcher brings another one.
CREATE FUNCTION wait_other_relay(old int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..2000 LOOP
        IF (SELECT relay_pid <> old AND state = 'no brokers' FROM outbox_status) THEN RETURN true; END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
    RETURN false;
END $$;
SELECT relay_pid FROM outbox_status \gset
SELECT pg_terminate_backend(:relay_pid);
SELECT wait_other_relay(:relay_pid);

\c outbox_sql
DROP DATABASE contract_status WITH (FORCE);
