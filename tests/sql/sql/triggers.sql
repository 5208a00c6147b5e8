-- Triggers that somebody else hangs on our tables: they may emit in their turn, and they run on a search_path of ours, not on the caller's.
CREATE DATABASE contract_triggers;
\c contract_triggers
SET client_min_messages = warning;
CREATE EXTENSION outbox_ext;

-- An event that follows from another one.
CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM public.outbox_emit('follow', NEW.aggregate_id, 'followed', '{}');
    RETURN NULL;
END $$;
CREATE TRIGGER follow AFTER INSERT ON outbox_log FOR EACH ROW WHEN (NEW.aggregate_type <> 'follow') EXECUTE FUNCTION follow();
SELECT outbox_emit('order', '1', 'first', '{}') IS NOT NULL AS emitted;
SELECT outbox_emit('order', '2', 'second', '{}') IS NOT NULL AS emitted;
SELECT aggregate_type, aggregate_id, event_type FROM outbox_log ORDER BY seq;
DROP TRIGGER follow ON outbox_log;

-- A trigger that leans on the search_path does not find what the caller put there: with EXECUTE on outbox_emit nobody becomes its owner.
CREATE FUNCTION public.audit(text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'the audit of public'; END $$;
CREATE FUNCTION call_audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM audit(NEW.event_id::text); RETURN NULL; END $$;
CREATE TRIGGER call_audit AFTER INSERT ON outbox_log FOR EACH ROW EXECUTE FUNCTION call_audit();
CREATE TRIGGER call_audit AFTER INSERT ON consumed_event FOR EACH ROW EXECUTE FUNCTION call_audit();
CREATE ROLE contract_low;
CREATE SCHEMA low AUTHORIZATION contract_low;
GRANT EXECUTE ON FUNCTION outbox_emit, inbox_try_consume TO contract_low;
SET ROLE contract_low;
CREATE FUNCTION low.audit(text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'captured as %', current_user; END $$;
SET search_path = low, public;
\set VERBOSITY terse
SELECT outbox_emit('order', '3', 'third', '{}');
SELECT inbox_try_consume('c', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
\set VERBOSITY default
RESET ROLE;
RESET search_path;
DROP TRIGGER call_audit ON outbox_log;
DROP TRIGGER call_audit ON consumed_event;

-- COMMIT PREPARED tells nobody, so what the relay must be told of cannot be prepared.
INSERT INTO outbox_parked (event_id, aggregate_key, seq, parked_at, attempts, reason, aggregate_type, aggregate_id, last_error)
    SELECT event_id, event_id, seq, now(), 1, 'failed', aggregate_type, aggregate_id, 'by hand' FROM outbox_log WHERE event_type = 'first';
BEGIN;
SELECT outbox_discard(event_id, 'prepared') FROM outbox_dead_letter;
PREPARE TRANSACTION 'discard';
SELECT count(*) AS still_failed FROM outbox_dead_letter;
BEGIN;
SELECT outbox_emit('order', '4', 'prepared', '{}') IS NOT NULL AS emitted;
PREPARE TRANSACTION 'emit';
ROLLBACK PREPARED 'emit';

\c postgres
DROP DATABASE contract_triggers WITH (FORCE);
DROP ROLE contract_low;
