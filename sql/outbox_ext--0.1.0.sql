-- outbox_ext 0.1.0. Frozen once released: a change goes into an upgrade script outbox_ext--0.1.0--<next>.sql.
--
-- No IF NOT EXISTS and no OR REPLACE anywhere: an object somebody else created first must stop the installation, never be adopted.
-- Everything is reached by its schema; functions written in Rust find that schema from their own OID, so ALTER SCHEMA ... RENAME is harmless.
\echo Use "CREATE EXTENSION outbox_ext" to load this file. \quit

-- Refuses an encoding other than UTF8 before anything is created.
CREATE FUNCTION @extschema@.outbox_announce() RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_announce_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_announce() IS
    'Checks that this database can hold an outbox and asks the launcher, at commit, to start its relay. Called by CREATE EXTENSION; calling it again is harmless.';
SELECT @extschema@.outbox_announce();

-- What column defaults, checks and triggers call. PostgreSQL checks EXECUTE on defaults and checks against the role that inserts, hence PUBLIC on three of them (end of file).
CREATE FUNCTION @extschema@.outbox_new_event_id() RETURNS uuid
    LANGUAGE c VOLATILE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_new_event_id_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_new_event_id() IS 'A new UUID version 7: ordered by time, so that the primary key grows at its right edge.';

CREATE FUNCTION @extschema@.outbox_next_seq() RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_next_seq_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_next_seq() IS
    'The next number of outbox_log_seq; also marks the transaction, so that its commit wakes the relay. Checks no privilege on the sequence.';

CREATE FUNCTION @extschema@.outbox_restamp() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_restamp_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_restamp() IS
    'Gives a row that brought its own xid (restore, import, logical replication) the xid of this transaction, lifts the sequence above its seq, and sets the stop that outbox_arm() lifts.';

CREATE FUNCTION @extschema@.outbox_refuse_update() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_refuse_update_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_refuse_update() IS 'Refuses UPDATE of outbox_log: an event never changes after it was emitted.';

CREATE FUNCTION @extschema@.outbox_event_is_sound(
    xid xid8, created_at timestamptz, aggregate_type text, aggregate_id text, event_type text, topic text, headers jsonb) RETURNS boolean
    LANGUAGE c STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_event_is_sound_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_event_is_sound(xid8, timestamptz, text, text, text, text, jsonb) IS
    'True, or an error that says what is wrong: the xid of the inserting transaction, types of 1 to 255 bytes, an id of at most 1024, a legal topic, headers that are an object of strings without our names, a finite time.';

CREATE FUNCTION @extschema@.outbox_note_removal() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_note_removal_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_note_removal() IS 'Tells the relay that events were deleted, so that it forgets what it has parked of them.';

-- DROP EXTENSION locks what belongs to it as it finds it in pg_depend, which is in the order of creation as long as nobody has left gaps there. So what
-- a transaction locks first comes first here (the inbox, outbox_log, its sequence): the other way round it and the DROP lock each other out.
CREATE TABLE @extschema@.consumed_event (
    consumer_name text COLLATE "C" NOT NULL,
    event_id uuid NOT NULL,
    consumed_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    CONSTRAINT consumed_event_pkey PRIMARY KEY (consumer_name, event_id),
    CONSTRAINT "consumer_name must have 1 to 255 bytes" CHECK (pg_catalog.octet_length(consumer_name) BETWEEN 1 AND 255)
);
COMMENT ON TABLE @extschema@.consumed_event IS 'The inbox: which consumer has applied which event.';
COMMENT ON COLUMN @extschema@.consumed_event.consumer_name IS 'The consumer, 1 to 255 bytes, compared byte by byte.';
COMMENT ON COLUMN @extschema@.consumed_event.event_id IS 'The event it applied.';
COMMENT ON COLUMN @extschema@.consumed_event.consumed_at IS 'Start of the transaction that applied it.';

CREATE TABLE @extschema@.outbox_log (
    -- fixed-width columns first: their offsets are constant, which makes reading a row cheaper
    event_id uuid NOT NULL DEFAULT @extschema@.outbox_new_event_id(),
    seq bigint NOT NULL DEFAULT @extschema@.outbox_next_seq(),
    xid xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    available_at timestamptz,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    topic text,
    headers jsonb,
    payload jsonb NOT NULL,
    CONSTRAINT outbox_log_pkey PRIMARY KEY (event_id)
);
CREATE SEQUENCE @extschema@.outbox_log_seq AS bigint CACHE 1;
COMMENT ON SEQUENCE @extschema@.outbox_log_seq IS
    'The order of emission. Not owned by the column, so that TRUNCATE ... RESTART IDENTITY leaves it alone. CACHE must stay 1: a cache costs order between sessions.';

-- NOT VALID because part of it is true at insert time only (xid is the top-level transaction that inserts the row, the one fact the cursor leans on), and must
-- never be run over old rows.
ALTER TABLE @extschema@.outbox_log ADD CONSTRAINT outbox_log_event_is_sound CHECK (
    @extschema@.outbox_event_is_sound(xid, created_at, aggregate_type, aggregate_id, event_type, topic, headers)) NOT VALID;
CREATE INDEX outbox_log_seq_idx ON @extschema@.outbox_log (seq);
CREATE INDEX outbox_log_xid_seq_idx ON @extschema@.outbox_log (xid, seq);
-- No WHEN: its expression would be read anew for each INSERT statement, which costs more than calling the function.
CREATE TRIGGER outbox_log_restamp BEFORE INSERT ON @extschema@.outbox_log
    FOR EACH ROW EXECUTE FUNCTION @extschema@.outbox_restamp();
ALTER TABLE @extschema@.outbox_log ENABLE ALWAYS TRIGGER outbox_log_restamp;
CREATE TRIGGER outbox_log_refuse_update BEFORE UPDATE ON @extschema@.outbox_log
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.outbox_refuse_update();
CREATE TRIGGER outbox_log_note_delete AFTER DELETE ON @extschema@.outbox_log
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.outbox_note_removal();
CREATE TRIGGER outbox_log_note_truncate AFTER TRUNCATE ON @extschema@.outbox_log
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.outbox_note_removal();
COMMENT ON TABLE @extschema@.outbox_log IS 'Append-only log of events. A row is written once, at emit, and never touched until it is deleted by age. COPY goes here; INSERT and SELECT go through outbox_event.';
COMMENT ON COLUMN @extschema@.outbox_log.event_id IS 'Identity of the event; the record header "id". UUID version 7 unless given.';
COMMENT ON COLUMN @extschema@.outbox_log.seq IS 'Order of emission. First deliveries of an aggregate follow it.';
COMMENT ON COLUMN @extschema@.outbox_log.xid IS 'The top-level transaction that inserted the row. Kept true by a trigger and a check; the relay''s cursor leans on it.';
COMMENT ON COLUMN @extschema@.outbox_log.created_at IS 'Start of the emitting transaction unless given; the record''s timestamp, clamped to the time of sending.';
COMMENT ON COLUMN @extschema@.outbox_log.available_at IS 'Not to be published before this time. NULL and -infinity: at once; infinity: never.';
COMMENT ON COLUMN @extschema@.outbox_log.aggregate_type IS 'Kind of the aggregate, 1 to 255 bytes; by default part of the topic name.';
COMMENT ON COLUMN @extschema@.outbox_log.aggregate_id IS 'Which aggregate, 0 to 1024 bytes; the record''s key. Order is kept per (aggregate_type, aggregate_id).';
COMMENT ON COLUMN @extschema@.outbox_log.event_type IS 'What happened, 1 to 255 bytes; the record header "eventType".';
COMMENT ON COLUMN @extschema@.outbox_log.topic IS 'The topic, where it is not to come from outbox_ext.topic.';
COMMENT ON COLUMN @extschema@.outbox_log.headers IS 'Further record headers: an object of strings.';
COMMENT ON COLUMN @extschema@.outbox_log.payload IS 'The record''s value is payload::text, byte for byte.';
COMMENT ON CONSTRAINT outbox_log_pkey ON @extschema@.outbox_log IS 'An event id is used once.';
COMMENT ON CONSTRAINT outbox_log_event_is_sound ON @extschema@.outbox_log IS 'What an event must be; one constraint, for each costs every INSERT statement. Refuses a row whose xid is not that of the inserting transaction. The relay does not run without it.';
COMMENT ON TRIGGER outbox_log_restamp ON @extschema@.outbox_log IS 'Changes only rows that bring a foreign xid; ENABLE ALWAYS, so that logical replication fires it too. The relay does not run without it.';
COMMENT ON TRIGGER outbox_log_note_delete ON @extschema@.outbox_log IS 'The relay forgets what it has parked of deleted events.';
COMMENT ON TRIGGER outbox_log_note_truncate ON @extschema@.outbox_log IS 'The relay forgets what it has parked of deleted events.';
COMMENT ON TRIGGER outbox_log_refuse_update ON @extschema@.outbox_log IS 'Events never change.';
COMMENT ON INDEX @extschema@.outbox_log_seq_idx IS 'New events in order.';
COMMENT ON INDEX @extschema@.outbox_log_xid_seq_idx IS 'Late events: those of transactions that committed after the cursor had passed their seq.';

CREATE TABLE @extschema@.outbox_lease (
    singleton boolean NOT NULL DEFAULT true CONSTRAINT outbox_lease_pkey PRIMARY KEY,
    lease_token uuid,
    lease_until timestamptz,
    pid integer,
    acquired_at timestamptz,
    database_oid oid,
    CONSTRAINT outbox_lease_has_one_row CHECK (singleton)
);
COMMENT ON TABLE @extschema@.outbox_lease IS 'One row: the relay that holds the lease on every event beyond the cursor.';
COMMENT ON COLUMN @extschema@.outbox_lease.singleton IS 'Always true: there is one lease.';
COMMENT ON COLUMN @extschema@.outbox_lease.lease_token IS 'New with each acquisition. A settle whose token is not this one changes nothing.';
COMMENT ON COLUMN @extschema@.outbox_lease.lease_until IS 'Extended by settles and while sends are outstanding; runs out when the relay is idle, for then nothing is leased.';
COMMENT ON COLUMN @extschema@.outbox_lease.pid IS 'The relay''s process; NULL after it released the lease.';
COMMENT ON COLUMN @extschema@.outbox_lease.acquired_at IS 'When the lease was acquired.';
COMMENT ON COLUMN @extschema@.outbox_lease.database_oid IS 'The database that these tables are of. In another one they are a copy (CREATE DATABASE ... TEMPLATE): its relay sets the stop.';
INSERT INTO @extschema@.outbox_lease (database_oid)
    SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database();

CREATE TABLE @extschema@.outbox_batch (
    batch_no bigint NOT NULL CONSTRAINT outbox_batch_pkey PRIMARY KEY,
    pos bigint NOT NULL,
    walk_xid xid8,
    walk_seq bigint,
    events bigint NOT NULL,
    bytes bigint NOT NULL,
    published_at timestamptz NOT NULL,
    lease_token uuid,
    snapshot pg_snapshot NOT NULL,
    walk_snapshot pg_snapshot,
    unparked uuid[],
    unparked_attempts integer[]
);
CREATE INDEX outbox_batch_pos_idx ON @extschema@.outbox_batch (pos, batch_no);
CREATE INDEX outbox_batch_unparked_idx ON @extschema@.outbox_batch USING gin (unparked) WHERE unparked IS NOT NULL;
COMMENT ON TABLE @extschema@.outbox_batch IS 'Append-only ledger of settles. The newest row is the cursor: everything up to it was acknowledged by Kafka or is in outbox_parked.';
COMMENT ON COLUMN @extschema@.outbox_batch.batch_no IS 'Counts up by one; of two writers of the same number the second fails.';
COMMENT ON COLUMN @extschema@.outbox_batch.pos IS 'Highest seq that was read past.';
COMMENT ON COLUMN @extschema@.outbox_batch.walk_xid IS 'Where the walk through late events stands: transaction. NULL when no walk is open.';
COMMENT ON COLUMN @extschema@.outbox_batch.walk_seq IS 'Where the walk through late events stands: seq within walk_xid.';
COMMENT ON COLUMN @extschema@.outbox_batch.events IS 'Events that this settle published.';
COMMENT ON COLUMN @extschema@.outbox_batch.bytes IS 'Bytes of keys, headers and payloads that this settle published.';
COMMENT ON COLUMN @extschema@.outbox_batch.published_at IS 'When it was settled.';
COMMENT ON COLUMN @extschema@.outbox_batch.lease_token IS 'The lease under which it was settled.';
COMMENT ON COLUMN @extschema@.outbox_batch.snapshot IS 'Snapshot of the read that ended at pos: what it did not see and is not above pos is still to come.';
COMMENT ON COLUMN @extschema@.outbox_batch.walk_snapshot IS 'Snapshot that the open walk works off.';
COMMENT ON COLUMN @extschema@.outbox_batch.unparked IS 'Events that this settle published out of outbox_parked.';
COMMENT ON COLUMN @extschema@.outbox_batch.unparked_attempts IS 'Their attempts, in the same order.';
COMMENT ON INDEX @extschema@.outbox_batch_pos_idx IS 'When was an event published.';
COMMENT ON INDEX @extschema@.outbox_batch_unparked_idx IS 'When was a parked event published.';
-- Before every transaction: no snapshot below sees xid 3, the first normal one.
INSERT INTO @extschema@.outbox_batch (batch_no, pos, events, bytes, published_at, snapshot) VALUES (0, 0, 0, 0, pg_catalog.now(), '3:3:');

CREATE TABLE @extschema@.outbox_parked (
    event_id uuid NOT NULL CONSTRAINT outbox_parked_pkey PRIMARY KEY,
    aggregate_key uuid NOT NULL,
    seq bigint NOT NULL,
    available_at timestamptz,
    parked_at timestamptz NOT NULL,
    attempts integer NOT NULL,
    reason text NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    topic text,
    last_error text,
    CONSTRAINT outbox_parked_reason_is_known CHECK (
        reason IN ('scheduled', 'retry', 'behind', 'topic', 'partition', 'failed', 'discarded'))
);
CREATE INDEX outbox_parked_reason_idx ON @extschema@.outbox_parked (reason, available_at, seq);
CREATE INDEX outbox_parked_aggregate_idx ON @extschema@.outbox_parked (aggregate_key, seq);
CREATE INDEX outbox_parked_topic_idx ON @extschema@.outbox_parked (topic, seq) WHERE reason IN ('topic', 'partition');
COMMENT ON TABLE @extschema@.outbox_parked IS 'The exceptions: events that the cursor has passed and that are not published yet, or never will be.';
COMMENT ON COLUMN @extschema@.outbox_parked.event_id IS 'The event.';
COMMENT ON COLUMN @extschema@.outbox_parked.aggregate_key IS '128-bit hash of (aggregate_type, aggregate_id), by which the relay finds what an aggregate holds back.';
COMMENT ON COLUMN @extschema@.outbox_parked.seq IS 'Its seq.';
COMMENT ON COLUMN @extschema@.outbox_parked.available_at IS 'When it is due (scheduled, retry). NULL: it waits for something else than time.';
COMMENT ON COLUMN @extschema@.outbox_parked.parked_at IS 'Since when it waits: when it was parked; of a scheduled one that came due and could not go, when that was; when it was given up, or tried again by an operator.';
COMMENT ON COLUMN @extschema@.outbox_parked.attempts IS 'How often Kafka refused it for a fault of the event itself. Outages do not count.';
COMMENT ON COLUMN @extschema@.outbox_parked.reason IS
    'scheduled: its own available_at is to come; topic: its topic cannot be written now; partition: its partition does not answer while others do; behind: an earlier event of its aggregate is parked; failed: given up, last_error says why; retry: refused, and to be sent again; discarded: by an operator.';
COMMENT ON COLUMN @extschema@.outbox_parked.aggregate_type IS 'Its aggregate type.';
COMMENT ON COLUMN @extschema@.outbox_parked.aggregate_id IS 'Its aggregate id.';
COMMENT ON COLUMN @extschema@.outbox_parked.topic IS 'The topic it waits for (topic, partition).';
COMMENT ON COLUMN @extschema@.outbox_parked.last_error IS 'Why it was parked, for topic, partition, retry and failed; who discarded it and why, for discarded.';
COMMENT ON INDEX @extschema@.outbox_parked_reason_idx IS 'What is due; how many by reason.';
COMMENT ON INDEX @extschema@.outbox_parked_aggregate_idx IS 'What waits in one aggregate, in order.';
COMMENT ON INDEX @extschema@.outbox_parked_topic_idx IS 'What waits for one topic, in order.';

CREATE TABLE @extschema@.outbox_stop (
    singleton boolean NOT NULL DEFAULT true CONSTRAINT outbox_stop_pkey PRIMARY KEY,
    reason text NOT NULL,
    set_by text NOT NULL DEFAULT session_user,
    set_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    CONSTRAINT outbox_stop_has_at_most_one_row CHECK (singleton)
);
COMMENT ON TABLE @extschema@.outbox_stop IS 'While it holds a row, nothing of this database is published. Set by the first foreign row in outbox_log, and by the relay of a copied database; lifted by outbox_arm().';
COMMENT ON COLUMN @extschema@.outbox_stop.singleton IS 'Always true: there is at most one stop.';
COMMENT ON COLUMN @extschema@.outbox_stop.reason IS 'What set it.';
COMMENT ON COLUMN @extschema@.outbox_stop.set_by IS 'Who set it.';
COMMENT ON COLUMN @extschema@.outbox_stop.set_at IS 'When it was set.';

-- Functions of applications and operators. What they do needs no right of the caller's but EXECUTE, and a trigger that somebody hangs on the tables
-- they write to runs with a search_path that is not the caller's. outbox_emit sees to both itself, for SECURITY DEFINER and SET cost each call more than the insert.
CREATE FUNCTION @extschema@.outbox_emit(
    aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb DEFAULT NULL, topic text DEFAULT NULL,
    event_id uuid DEFAULT NULL, available_at timestamptz DEFAULT NULL) RETURNS uuid
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_emit_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_emit(text, text, text, jsonb, jsonb, text, uuid, timestamptz) IS
    'Emits an event in the caller''s transaction and returns its id. Refuses at once what could never be published. EXECUTE is all the caller needs.';

CREATE FUNCTION @extschema@.inbox_try_consume(consumer_name text, event_id uuid) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'inbox_try_consume_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_try_consume(text, uuid) IS
    'True exactly once for a (consumer, event), in the caller''s transaction; false when it was consumed before. Waits for a concurrent call with the same pair; at REPEATABLE READ and above that one raises a serialization failure.';

CREATE FUNCTION @extschema@.outbox_arm() RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'outbox_arm_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_arm() IS
    'Lifts the stop that foreign rows (a restore, an import, logical replication) have set: they are published from then on. True if there was one.';

CREATE FUNCTION @extschema@.outbox_retry(event_id uuid) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'outbox_retry_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_retry(uuid) IS 'Has an event that was given up sent again. False when it is not one.';

CREATE FUNCTION @extschema@.outbox_retry_all(aggregate_type text DEFAULT NULL, error_pattern text DEFAULT NULL) RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'outbox_retry_all_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_retry_all(text, text) IS
    'Has all events that were given up sent again: those of an aggregate type, those whose last_error is LIKE the pattern, or all. Returns how many.';

CREATE FUNCTION @extschema@.outbox_discard(event_id uuid, reason text) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'outbox_discard_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_discard(uuid, text) IS
    'Lets an event that was given up go: it is never published, and what waits behind it is. False when it is not one.';

CREATE FUNCTION @extschema@.outbox_relay(
    OUT pid integer, OUT state text, OUT read_pos bigint, OUT read_snapshot text, OUT in_flight bigint, OUT in_flight_bytes bigint,
    OUT published bigint, OUT last_published_at timestamptz, OUT heartbeat_age interval, OUT last_error text) RETURNS record
    LANGUAGE c VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'outbox_relay_wrapper';
COMMENT ON FUNCTION @extschema@.outbox_relay() IS
    'What the relay of this database says of itself in shared memory. last_error is shown only to roles that may read outbox_status. pid is NULL when no relay runs.';

-- Views
CREATE VIEW @extschema@.outbox_cursor AS
    SELECT batch_no, pos, snapshot, walk_xid, walk_seq, walk_snapshot, published_at
      FROM @extschema@.outbox_batch ORDER BY batch_no DESC LIMIT 1;
COMMENT ON VIEW @extschema@.outbox_cursor IS 'The settled cursor: the newest row of the ledger.';

CREATE VIEW @extschema@.outbox_event AS
    SELECT l.event_id, l.aggregate_type, l.aggregate_id, l.event_type, l.payload, l.headers, l.topic, l.created_at, l.available_at,
           (SELECT CASE
                       WHEN p.reason IN ('scheduled', 'behind', 'failed', 'discarded') THEN p.reason
                       WHEN p.reason IS NOT NULL THEN 'retrying'
                       WHEN l.seq <= c.pos AND (pg_catalog.pg_visible_in_snapshot(l.xid, c.snapshot)
                            OR (pg_catalog.pg_visible_in_snapshot(l.xid, c.walk_snapshot) AND (l.xid, l.seq) <= (c.walk_xid, c.walk_seq))) THEN 'published'
                       WHEN r.pid IS NOT NULL AND l.seq <= r.read_pos AND pg_catalog.pg_visible_in_snapshot(l.xid, r.read_snapshot::pg_snapshot) THEN 'leased'
                       WHEN l.available_at > pg_catalog.now() THEN 'scheduled'
                       ELSE 'pending'
                   END
              FROM @extschema@.outbox_cursor c
              CROSS JOIN @extschema@.outbox_relay() r
              LEFT JOIN @extschema@.outbox_parked p ON p.event_id = l.event_id) AS state,
           COALESCE(
               (SELECT p.attempts FROM @extschema@.outbox_parked p WHERE p.event_id = l.event_id),
               (SELECT b.unparked_attempts[pg_catalog.array_position(b.unparked, l.event_id)]
                  FROM @extschema@.outbox_batch b WHERE b.unparked OPERATOR(pg_catalog.@>) ARRAY[l.event_id] ORDER BY b.batch_no DESC LIMIT 1),
               0) AS attempts,
           (SELECT s.lease_token FROM @extschema@.outbox_lease s CROSS JOIN @extschema@.outbox_relay() r CROSS JOIN @extschema@.outbox_cursor c
             WHERE r.pid = s.pid AND l.seq <= r.read_pos AND pg_catalog.pg_visible_in_snapshot(l.xid, r.read_snapshot::pg_snapshot)
               AND NOT (l.seq <= c.pos AND (pg_catalog.pg_visible_in_snapshot(l.xid, c.snapshot)
                        OR COALESCE(pg_catalog.pg_visible_in_snapshot(l.xid, c.walk_snapshot) AND (l.xid, l.seq) <= (c.walk_xid, c.walk_seq), false)))) AS lease_token,
           (SELECT s.lease_until FROM @extschema@.outbox_lease s CROSS JOIN @extschema@.outbox_relay() r CROSS JOIN @extschema@.outbox_cursor c
             WHERE r.pid = s.pid AND l.seq <= r.read_pos AND pg_catalog.pg_visible_in_snapshot(l.xid, r.read_snapshot::pg_snapshot)
               AND NOT (l.seq <= c.pos AND (pg_catalog.pg_visible_in_snapshot(l.xid, c.snapshot)
                        OR COALESCE(pg_catalog.pg_visible_in_snapshot(l.xid, c.walk_snapshot) AND (l.xid, l.seq) <= (c.walk_xid, c.walk_seq), false)))) AS lease_until,
           CASE WHEN EXISTS (SELECT FROM @extschema@.outbox_parked p WHERE p.event_id = l.event_id) THEN NULL
                ELSE COALESCE(
                    (SELECT b.published_at FROM @extschema@.outbox_batch b WHERE b.unparked OPERATOR(pg_catalog.@>) ARRAY[l.event_id] ORDER BY b.batch_no DESC LIMIT 1),
                    (SELECT b.published_at FROM @extschema@.outbox_batch b
                      WHERE b.pos >= l.seq AND (pg_catalog.pg_visible_in_snapshot(l.xid, b.snapshot)
                            OR (pg_catalog.pg_visible_in_snapshot(l.xid, b.walk_snapshot) AND (l.xid, l.seq) <= (b.walk_xid, b.walk_seq)))
                      ORDER BY b.pos, b.batch_no LIMIT 1))
           END AS published_at,
           (SELECT p.last_error FROM @extschema@.outbox_parked p WHERE p.event_id = l.event_id) AS last_error
      FROM @extschema@.outbox_log l;
COMMENT ON VIEW @extschema@.outbox_event IS 'The outbox as everybody knows it. INSERT and SELECT go here; the columns from state on are computed and cannot be given.';
COMMENT ON COLUMN @extschema@.outbox_event.event_id IS 'Identity of the event; the record header "id". UUID version 7 unless given.';
COMMENT ON COLUMN @extschema@.outbox_event.aggregate_type IS 'Kind of the aggregate, 1 to 255 bytes; by default part of the topic name.';
COMMENT ON COLUMN @extschema@.outbox_event.aggregate_id IS 'Which aggregate, 0 to 1024 bytes; the record''s key.';
COMMENT ON COLUMN @extschema@.outbox_event.event_type IS 'What happened, 1 to 255 bytes; the record header "eventType".';
COMMENT ON COLUMN @extschema@.outbox_event.payload IS 'The record''s value is payload::text, byte for byte.';
COMMENT ON COLUMN @extschema@.outbox_event.headers IS 'Further record headers: an object of strings.';
COMMENT ON COLUMN @extschema@.outbox_event.topic IS 'The topic, where it is not to come from outbox_ext.topic.';
COMMENT ON COLUMN @extschema@.outbox_event.created_at IS 'Start of the emitting transaction unless given; the record''s timestamp.';
COMMENT ON COLUMN @extschema@.outbox_event.available_at IS 'Not to be published before this time.';
COMMENT ON COLUMN @extschema@.outbox_event.state IS 'pending, leased (read by the relay, not settled), published, scheduled, retrying (refused, or its topic or partition does not take it now), behind (an earlier event of its aggregate), failed (given up) or discarded.';
COMMENT ON COLUMN @extschema@.outbox_event.attempts IS 'How often Kafka refused it for a fault of the event itself.';
COMMENT ON COLUMN @extschema@.outbox_event.lease_token IS 'The lease it is being sent under; NULL unless leased.';
COMMENT ON COLUMN @extschema@.outbox_event.lease_until IS 'Until when; NULL unless leased.';
COMMENT ON COLUMN @extschema@.outbox_event.published_at IS 'When it was settled as published.';
COMMENT ON COLUMN @extschema@.outbox_event.last_error IS 'Why it is retrying or failed; who discarded it and why. What is behind has none: see the first parked event of its aggregate.';

CREATE VIEW @extschema@.outbox_dead_letter AS
    SELECT l.event_id, l.aggregate_type, l.aggregate_id, l.event_type, l.payload, l.headers, l.topic, l.created_at, p.attempts, p.last_error, p.parked_at AS failed_at
      FROM @extschema@.outbox_parked p JOIN @extschema@.outbox_log l ON l.event_id = p.event_id
     WHERE p.reason = 'failed';
COMMENT ON VIEW @extschema@.outbox_dead_letter IS 'Events that were given up. They stay until outbox_retry() or outbox_discard(); later events of their aggregates wait behind them unless outbox_ext.after_give_up is pass.';
COMMENT ON COLUMN @extschema@.outbox_dead_letter.event_id IS 'Identity of the event.';
COMMENT ON COLUMN @extschema@.outbox_dead_letter.aggregate_type IS 'Its aggregate type.';
COMMENT ON COLUMN @extschema@.outbox_dead_letter.aggregate_id IS 'Its aggregate id.';
COMMENT ON COLUMN @extschema@.outbox_dead_letter.event_type IS 'Its event type.';
COMMENT ON COLUMN @extschema@.outbox_dead_letter.payload IS 'Its payload.';
COMMENT ON COLUMN @extschema@.outbox_dead_letter.headers IS 'Its headers.';
COMMENT ON COLUMN @extschema@.outbox_dead_letter.topic IS 'The topic it named, if any.';
COMMENT ON COLUMN @extschema@.outbox_dead_letter.created_at IS 'When it was emitted.';
COMMENT ON COLUMN @extschema@.outbox_dead_letter.attempts IS 'How often it was refused.';
COMMENT ON COLUMN @extschema@.outbox_dead_letter.last_error IS 'Why it was given up.';
COMMENT ON COLUMN @extschema@.outbox_dead_letter.failed_at IS 'When it was given up.';

-- Each branch is one index range, so that the set costs what it holds and not what the log holds, whatever the planner believes: ORDER BY with OFFSET 0
-- leaves it no other index, OFFSET 0 with a key no other join. A second bound of a range that is always true is there because the planner takes a range
-- between two bounds it does not know for narrow (0.5 %), a one-sided one for a third of the table; and what it takes for costly it compiles (jit), which takes
-- longer than any of these.
CREATE VIEW @extschema@.outbox_unpublished AS
    SELECT l.event_id, l.seq, l.created_at, 'new' AS kind
      FROM @extschema@.outbox_log l
     WHERE l.seq > (SELECT c.pos FROM @extschema@.outbox_cursor c) AND l.seq <= 9223372036854775807
    UNION ALL
    SELECT l.event_id, l.seq, l.created_at, 'late'
      FROM @extschema@.outbox_cursor c
      CROSS JOIN LATERAL pg_catalog.pg_snapshot_xip(c.snapshot) x
      CROSS JOIN LATERAL (
          SELECT * FROM @extschema@.outbox_log l
           WHERE l.xid >= x AND l.xid <= x ORDER BY l.xid, l.seq OFFSET 0) l
     WHERE l.seq <= c.pos
       AND NOT (c.walk_snapshot IS NOT NULL AND pg_catalog.pg_visible_in_snapshot(l.xid, c.walk_snapshot) AND (l.xid, l.seq) <= (c.walk_xid, c.walk_seq))
    UNION ALL
    SELECT l.event_id, l.seq, l.created_at, 'late'
      FROM @extschema@.outbox_cursor c
      CROSS JOIN LATERAL (
          SELECT * FROM @extschema@.outbox_log l
           WHERE l.xid >= pg_catalog.pg_snapshot_xmax(c.snapshot) AND l.xid <= '18446744073709551615'::xid8
           ORDER BY l.xid, l.seq OFFSET 0) l
     WHERE l.seq <= c.pos
       AND NOT (c.walk_snapshot IS NOT NULL AND pg_catalog.pg_visible_in_snapshot(l.xid, c.walk_snapshot) AND (l.xid, l.seq) <= (c.walk_xid, c.walk_seq))
    UNION ALL
    SELECT p.event_id, p.seq, l.created_at, p.reason
      FROM @extschema@.outbox_parked p
      CROSS JOIN LATERAL (SELECT * FROM @extschema@.outbox_log l WHERE l.event_id = p.event_id OFFSET 0) l
     WHERE p.reason <> 'discarded';
COMMENT ON VIEW @extschema@.outbox_unpublished IS 'Ids of the events that are not published, found by index: new (beyond the cursor), late (below it, committed after it), and parked ones by their reason.';

CREATE VIEW @extschema@.outbox_pending AS
    SELECT e.* FROM @extschema@.outbox_unpublished u
      CROSS JOIN LATERAL (SELECT * FROM @extschema@.outbox_event e WHERE e.event_id = u.event_id OFFSET 0) e;
COMMENT ON VIEW @extschema@.outbox_pending IS 'The rows of outbox_event that are not published and not discarded, found by index. WHERE published_at IS NULL reads everything, and has the discarded ones too.';

CREATE VIEW @extschema@.outbox_status AS
    WITH c AS MATERIALIZED (SELECT pos, published_at, batch_no FROM @extschema@.outbox_cursor),
    fresh AS MATERIALIZED (
        SELECT count(*) AS n, min(f.created_at) FILTER (WHERE f.available_at IS NULL OR f.available_at <= pg_catalog.now()) AS oldest FROM (
            SELECT l.created_at, l.available_at FROM @extschema@.outbox_log l
             WHERE l.seq > (SELECT pos FROM c) AND l.seq <= 9223372036854775807 ORDER BY l.seq LIMIT 10001) f),
    -- Beyond 10,000 new events the late ones are not looked for: their index range would run over the backlog.
    late AS MATERIALIZED (
        SELECT count(*) AS n, min(f.created_at) AS oldest FROM (
            SELECT u.created_at FROM @extschema@.outbox_unpublished u WHERE u.kind = 'late' AND (SELECT n FROM fresh) <= 10000 LIMIT 10001) f),
    parked AS MATERIALIZED (
        SELECT r.reason, f.n, f.oldest
          FROM pg_catalog.unnest('{scheduled,retry,behind,topic,partition,failed,discarded}'::text[]) r(reason)
          CROSS JOIN LATERAL (
              SELECT count(*) AS n,
                     CASE WHEN r.reason = 'scheduled' THEN min(g.available_at) FILTER (WHERE g.available_at <= pg_catalog.clock_timestamp())
                          WHEN r.reason NOT IN ('failed', 'discarded') THEN min(g.parked_at) END AS oldest
                FROM (SELECT p.parked_at, p.available_at FROM @extschema@.outbox_parked p WHERE p.reason = r.reason
                       -- For the index, lest a rare reason be looked for in the whole table.
                       ORDER BY p.reason, p.available_at, p.seq LIMIT 10001) g) f
         WHERE f.n > 0),
    due AS MATERIALIZED (
        SELECT LEAST((SELECT oldest FROM fresh), (SELECT oldest FROM late), (SELECT min(p.oldest) FROM parked p)) AS oldest),
    waiting AS MATERIALIZED (
        SELECT (SELECT n FROM fresh) + (SELECT n FROM late)
               + COALESCE((SELECT sum(p.n) FROM parked p WHERE p.reason NOT IN ('failed', 'discarded')), 0)::bigint AS n,
               (SELECT n FROM fresh) > 10000 OR (SELECT n FROM late) > 10000 OR EXISTS (SELECT FROM parked p WHERE p.n > 10000) AS is_estimate)
    SELECT COALESCE(r.state, 'no relay') AS state,
           CASE WHEN (SELECT n FROM fresh) > 10000
                THEN GREATEST(w.n, (SELECT s.last_value FROM @extschema@.outbox_log_seq s) - (SELECT pos FROM c)) ELSE w.n END AS waiting,
           w.is_estimate AS waiting_is_estimate,
           -- An event is older than nothing, also after the clock was set back. GREATEST alone would make 0 of NULL.
           (SELECT CASE WHEN d.oldest IS NOT NULL THEN GREATEST(pg_catalog.clock_timestamp() - d.oldest, '0'::interval) END FROM due d) AS oldest_due_age,
           COALESCE(r.in_flight, 0) AS in_flight,
           COALESCE(r.in_flight_bytes, 0) AS in_flight_bytes,
           COALESCE((SELECT pg_catalog.jsonb_object_agg(p.reason, p.n) FROM parked p), '{}') AS parked,
           NULLIF((SELECT published_at FROM c), (SELECT b.published_at FROM @extschema@.outbox_batch b WHERE b.batch_no = 0)) AS last_published_at,
           COALESCE(r.published, 0) AS published_since_start,
           r.pid AS relay_pid,
           r.heartbeat_age,
           s.lease_until,
           (SELECT pos FROM c) AS settled_pos,
           COALESCE(CASE WHEN r.state = 'misconfigured' THEN r.last_error END, (SELECT t.reason FROM @extschema@.outbox_stop t), r.last_error) AS last_error
      FROM waiting w CROSS JOIN @extschema@.outbox_relay() r LEFT JOIN @extschema@.outbox_lease s ON true;
COMMENT ON VIEW @extschema@.outbox_status IS 'One row: where this database''s outbox stands. Cheap whatever the log holds; works without a relay and on a standby.';
COMMENT ON COLUMN @extschema@.outbox_status.state IS
    'no relay, starting, running, idle, no brokers, disabled, foreign rows, outage, misconfigured or damaged; the manual explains each.';
COMMENT ON COLUMN @extschema@.outbox_status.waiting IS 'Events not published yet, without failed and discarded ones; exact to 10,000.';
COMMENT ON COLUMN @extschema@.outbox_status.waiting_is_estimate IS 'True when waiting, or a count in parked, is beyond 10,000 and so an estimate (waiting) or a floor (parked).';
COMMENT ON COLUMN @extschema@.outbox_status.oldest_due_age IS 'How long the oldest event that is due has waited: the lag. Since created_at; a scheduled one since its available_at; another parked one since it was parked. NULL when nothing that is due waits.';
COMMENT ON COLUMN @extschema@.outbox_status.in_flight IS 'Events read by the relay and not settled.';
COMMENT ON COLUMN @extschema@.outbox_status.in_flight_bytes IS 'Their bytes.';
COMMENT ON COLUMN @extschema@.outbox_status.parked IS 'Parked events by reason, each exact to 10,000.';
COMMENT ON COLUMN @extschema@.outbox_status.last_published_at IS 'Time of the newest settle.';
COMMENT ON COLUMN @extschema@.outbox_status.published_since_start IS 'Events that the running relay has published.';
COMMENT ON COLUMN @extschema@.outbox_status.relay_pid IS 'Process id of the relay; NULL when none runs.';
COMMENT ON COLUMN @extschema@.outbox_status.heartbeat_age IS 'Since when the relay has not turned its loop. An idle relay turns it at least once per outbox_ext.poll_interval; one that is disabled, without brokers or misconfigured every 10 seconds, or every half outbox_ext.lease_duration if that is less.';
COMMENT ON COLUMN @extschema@.outbox_status.lease_until IS 'End of the lease; it runs out when the relay is idle.';
COMMENT ON COLUMN @extschema@.outbox_status.settled_pos IS 'The settled cursor''s seq.';
COMMENT ON COLUMN @extschema@.outbox_status.last_error IS 'What keeps events from being published, or went wrong last.';

-- Dumps: unpublished events, consumed keys and the sequence's place. Cursor, lease and parking mean nothing in another cluster.
-- pg_dump reads no views of ours (restrict_nonsystem_relation_kind), hence the cursor's rule once more: parked and not discarded, or not passed.
SELECT pg_catalog.pg_extension_config_dump('@extschema@.outbox_log', $$WHERE COALESCE(
    (SELECT p.reason <> 'discarded' FROM @extschema@.outbox_parked p WHERE p.event_id = outbox_log.event_id),
    (SELECT NOT (outbox_log.seq <= b.pos AND (pg_catalog.pg_visible_in_snapshot(outbox_log.xid, b.snapshot)
                 OR COALESCE(pg_catalog.pg_visible_in_snapshot(outbox_log.xid, b.walk_snapshot)
                             AND (outbox_log.xid, outbox_log.seq) <= (b.walk_xid, b.walk_seq), false)))
       FROM @extschema@.outbox_batch b ORDER BY b.batch_no DESC LIMIT 1),
    true)$$);
SELECT pg_catalog.pg_extension_config_dump('@extschema@.outbox_log_seq', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.consumed_event', '');

-- Tables and views have no PUBLIC privileges to begin with; functions do.
REVOKE ALL ON FUNCTION @extschema@.outbox_announce() FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.outbox_restamp() FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.outbox_refuse_update() FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.outbox_note_removal() FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.outbox_emit(text, text, text, jsonb, jsonb, text, uuid, timestamptz) FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.inbox_try_consume(text, uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.outbox_arm() FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.outbox_retry(uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.outbox_retry_all(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.outbox_discard(uuid, text) FROM PUBLIC;
-- Left to PUBLIC, because PostgreSQL checks them against the role that inserts or selects and not against the view's owner: the two column defaults, the check's function and outbox_relay().
