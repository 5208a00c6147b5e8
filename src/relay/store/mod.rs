//! Every SQL text of the relay, and the plans made of them. Nothing here decides; nothing here knows of Kafka.
//!
//! The statements name the schema and lean on no search_path. The relay's session forbids sequential and bitmap scans, hash and merge joins, and sorts
//! ([`prepare_session`]), so that each read is the index range it is written as, whatever the statistics say.

mod ledger;
mod steps;

pub use steps::Fence;

use super::step::COLUMNS;
use crate::pg::catalog::Schema;
use crate::pg::runtime::set_for_process;
use crate::pg::spi::{Access, Plan, Spi, types};
use outbox_core::snapshot::Snapshot;
use pgrx::pg_sys::Oid;

/// The event with the id of p, looked up row by row. OFFSET keeps the planner from any other join or index, which it would choose when it looks at
/// tables that are still empty; the plan is kept while they grow.
const EVENT_BY_ID: &str = "(SELECT * FROM {s}.outbox_log l WHERE l.event_id = p.event_id OFFSET 0) l";
/// The event of a parked row, in the same way, by either index. One with that id and another seq is another event.
const EVENT_OF_PARKED: &str =
    "JOIN LATERAL (SELECT * FROM {s}.outbox_log l WHERE l.event_id = p.event_id AND l.seq = p.seq OFFSET 0) l ON true";

/// Settings of the relay's own session.
pub fn prepare_session() {
    for (name, value) in [
        ("search_path", "pg_catalog"),
        ("row_security", "off"),
        ("default_transaction_read_only", "off"),
        // A settle that is lost in a crash is a duplicate at worst.
        ("synchronous_commit", "off"),
        // Below deadlock_timeout (1 s), so that in a deadlock with DROP EXTENSION or the like it is us who give way.
        ("lock_timeout", "300ms"),
        ("jit", "off"),
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        // Without it the late events' range could be read by another index and sorted: the whole log for each step, once it was analyzed.
        ("enable_sort", "off"),
        ("max_parallel_workers_per_gather", "0"),
    ] {
        set_for_process(name, value);
    }
}

/// Plans of one session, for one schema.
pub struct Store {
    fence: Plan,
    late: Plan,
    new: Plan,
    due: Plan,
    set_back: Plan,
    next_due: Plan,
    of_topic: Plan,
    of_aggregate: Plan,
    is_copy: Plan,
    acquire: Plan,
    extend: Plan,
    release: Plan,
    ledger: Plan,
    settle: Plan,
    park: Plan,
    unpark: Plan,
    repark: String,
    holders: Plan,
    retarget: Plan,
    stretch: Plan,
    drop_orphans: Plan,
}

impl Store {
    pub fn prepare(spi: &Spi, schema: &Schema) -> Store {
        use types::{INT4, INT8, OID, TEXT, TIMESTAMPTZ, UUID, XID8};
        let text = |sql: &str| {
            sql.replace("{columns}", COLUMNS)
                .replace("{event_of_p}", EVENT_OF_PARKED)
                .replace("{event_by_id}", EVENT_BY_ID)
                .replace("{s}", &schema.quoted)
        };
        let plan = |sql: &str, arguments: &[Oid]| spi.prepare(&text(sql), arguments);
        Store {
            fence: plan(
                "SELECT EXISTS (SELECT FROM {s}.outbox_lease WHERE lease_token = $1),
                        EXISTS (SELECT FROM {s}.outbox_stop),
                        EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = $2 AND tgname = 'outbox_log_restamp' AND tgenabled = 'A')
                        AND EXISTS (SELECT FROM pg_catalog.pg_constraint
                                     WHERE conrelid = $2 AND contypid = 0 AND conname = 'outbox_log_event_is_sound' AND contype = 'c')",
                &[UUID, OID],
            ),
            late: plan(
                "SELECT {columns} FROM {s}.outbox_log l
                  WHERE (l.xid, l.seq) > ($1, $2) AND l.xid < $3 AND l.seq <= $4 ORDER BY l.xid, l.seq",
                &[XID8, INT8, XID8, INT8],
            ),
            new: plan("SELECT {columns} FROM {s}.outbox_log l WHERE l.seq > $1 ORDER BY l.seq", &[INT8]),
            due: plan(
                "SELECT {columns}, p.reason, p.attempts FROM {s}.outbox_parked p {event_of_p}
                  WHERE p.reason = $1 AND p.available_at <= $2
                  ORDER BY p.available_at, p.seq",
                &[TEXT, TIMESTAMPTZ],
            ),
            // No pause between two tries is longer than the longest: the clock was set back meanwhile.
            set_back: plan(
                "SELECT {columns}, p.reason, p.attempts FROM {s}.outbox_parked p {event_of_p}
                  WHERE p.reason = 'retry' AND p.available_at > $1
                  ORDER BY p.available_at, p.seq",
                &[TIMESTAMPTZ],
            ),
            next_due: plan(
                "SELECT LEAST((SELECT p.available_at FROM {s}.outbox_parked p WHERE p.reason = 'scheduled' ORDER BY p.available_at LIMIT 1),
                              (SELECT p.available_at FROM {s}.outbox_parked p WHERE p.reason = 'retry' ORDER BY p.available_at LIMIT 1))",
                &[],
            ),
            of_topic: plan(
                "SELECT {columns}, p.reason, p.attempts FROM {s}.outbox_parked p {event_of_p}
                  WHERE p.reason IN ('topic', 'partition') AND p.topic = $1 ORDER BY p.seq",
                &[TEXT],
            ),
            of_aggregate: plan(
                "SELECT {columns}, p.reason, p.attempts FROM {s}.outbox_parked p {event_of_p}
                  WHERE p.aggregate_key = $1 AND p.reason NOT IN ('scheduled', 'discarded', 'failed') ORDER BY p.seq",
                &[UUID],
            ),
            is_copy: plan("SELECT EXISTS (SELECT FROM {s}.outbox_lease e WHERE e.database_oid <> $1)", &[OID]),
            acquire: plan(
                "INSERT INTO {s}.outbox_lease (singleton, lease_token, lease_until, pid, acquired_at, database_oid)
                 VALUES (true, $1, pg_catalog.clock_timestamp() + $2 * interval '1 millisecond', $3, pg_catalog.clock_timestamp(), $4)
                 ON CONFLICT (singleton) DO UPDATE SET lease_token = excluded.lease_token, lease_until = excluded.lease_until,
                     pid = excluded.pid, acquired_at = excluded.acquired_at",
                &[UUID, INT8, INT4, OID],
            ),
            extend: plan(
                "UPDATE {s}.outbox_lease SET lease_until = pg_catalog.clock_timestamp() + $2 * interval '1 millisecond' WHERE lease_token = $1",
                &[UUID, INT8],
            ),
            release: plan(
                "UPDATE {s}.outbox_lease SET lease_until = pg_catalog.clock_timestamp(), pid = NULL WHERE lease_token = $1",
                &[UUID],
            ),
            ledger: plan(
                "SELECT batch_no, pos, snapshot::pg_catalog.text, walk_xid, walk_seq, walk_snapshot::pg_catalog.text
                   FROM {s}.outbox_batch ORDER BY batch_no DESC LIMIT 1",
                &[],
            ),
            settle: plan(
                "INSERT INTO {s}.outbox_batch (batch_no, pos, snapshot, walk_xid, walk_seq, walk_snapshot, events, bytes, lease_token, published_at,
                                               unparked, unparked_attempts)
                 SELECT $1, $2, $3::pg_catalog.pg_snapshot, $4, $5, $6::pg_catalog.pg_snapshot, $7, $8, e.lease_token, pg_catalog.clock_timestamp(),
                        $9::pg_catalog.uuid[], $10::pg_catalog.int4[]
                   FROM {s}.outbox_lease e WHERE e.lease_token = $11",
                &[INT8, INT8, TEXT, XID8, INT8, TEXT, INT8, INT8, TEXT, TEXT, UUID],
            ),
            // A row that is there already was left by an event that was deleted, and whose id was emitted again: xmax tells an update.
            park: plan(
                "INSERT INTO {s}.outbox_parked (event_id, aggregate_key, seq, available_at, parked_at, attempts, reason, aggregate_type, aggregate_id,
                                                topic, last_error)
                 SELECT l.event_id, p.aggregate_key, l.seq, CASE WHEN p.reason = 'scheduled' THEN l.available_at ELSE pg_catalog.clock_timestamp() + p.retry_in_ms * interval '1 millisecond' END, pg_catalog.clock_timestamp(),
                        p.attempts, p.reason, l.aggregate_type, l.aggregate_id, p.topic, p.error
                   FROM pg_catalog.jsonb_to_recordset($1::pg_catalog.jsonb)
                        AS p(event_id pg_catalog.uuid, aggregate_key pg_catalog.uuid, reason pg_catalog.text, topic pg_catalog.text, error pg_catalog.text,
                             attempts pg_catalog.int4, retry_in_ms pg_catalog.int8)
                   JOIN LATERAL {event_by_id} ON true
                 ON CONFLICT (event_id) DO UPDATE SET aggregate_key = excluded.aggregate_key, seq = excluded.seq, available_at = excluded.available_at,
                        parked_at = excluded.parked_at, attempts = excluded.attempts, reason = excluded.reason, aggregate_type = excluded.aggregate_type,
                        aggregate_id = excluded.aggregate_id, topic = excluded.topic, last_error = excluded.last_error
                 RETURNING xmax <> 0",
                &[TEXT],
            ),
            unpark: plan("DELETE FROM {s}.outbox_parked WHERE event_id = ANY ($1::pg_catalog.uuid[])", &[TEXT]),
            // Planned each time, with the sizes that the table has then: an update cannot be told which index to take. What was scheduled waits from now on, and
            // what is given up was so now.
            repark: text(
                "UPDATE {s}.outbox_parked k SET reason = p.reason, topic = p.topic, last_error = p.error, attempts = p.attempts,
                        available_at = pg_catalog.clock_timestamp() + p.retry_in_ms * interval '1 millisecond',
                        parked_at = CASE WHEN k.reason = 'scheduled' OR p.reason = 'failed' THEN pg_catalog.clock_timestamp() ELSE k.parked_at END
                   FROM pg_catalog.jsonb_to_recordset($1::pg_catalog.jsonb)
                        AS p(event_id pg_catalog.uuid, aggregate_key pg_catalog.uuid, reason pg_catalog.text, topic pg_catalog.text, error pg_catalog.text,
                             attempts pg_catalog.int4, retry_in_ms pg_catalog.int8)
                  WHERE k.event_id = p.event_id",
            ),
            holders: plan(
                "SELECT p.event_id, p.aggregate_key, p.reason, p.topic, p.last_error, l.aggregate_type, l.event_type, l.topic, l.event_id IS NULL
                   FROM {s}.outbox_parked p LEFT {event_of_p}
                  WHERE p.reason = ANY ($1::pg_catalog.text[])",
                &[TEXT],
            ),
            retarget: plan(
                "UPDATE {s}.outbox_parked p SET topic = $2
                  WHERE p.reason IN ('topic', 'partition') AND p.topic = $1
                    AND EXISTS (SELECT FROM {event_by_id}
                                 WHERE l.seq = p.seq AND l.topic IS NULL AND l.aggregate_type = $3 AND l.event_type = $4)",
                &[TEXT, TEXT, TEXT, TEXT],
            ),
            stretch: plan(
                "SELECT p.event_id, p.reason, l.event_id IS NULL
                   FROM (SELECT p.event_id, p.seq, p.reason FROM {s}.outbox_parked p WHERE p.event_id > $1 ORDER BY p.event_id LIMIT $2) p
                   LEFT {event_of_p}",
                &[UUID, INT8],
            ),
            drop_orphans: plan(
                "DELETE FROM {s}.outbox_parked p
                  WHERE p.event_id = ANY ($1::pg_catalog.uuid[])
                    AND NOT EXISTS (SELECT FROM {event_by_id} WHERE l.seq = p.seq)",
                &[TEXT],
            ),
        }
    }
}

fn parse_snapshot(text: &str) -> Snapshot {
    text.parse()
        .unwrap_or_else(|error| pgrx::error!("cannot read a snapshot: {error}"))
}

/// Settings that ALTER DATABASE and ALTER ROLE give to the relay's session, as one text to compare: they do not reach a running session by a reload.
pub fn database_settings(spi: &Spi) -> String {
    let sql =
        "SELECT COALESCE(pg_catalog.string_agg(s.setrole::pg_catalog.text || s.setconfig::pg_catalog.text, ' ' ORDER BY s.setrole), '')
           FROM pg_catalog.pg_db_role_setting s
          WHERE s.setdatabase IN (0, (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()))
            AND s.setrole IN (0, (SELECT a.oid FROM pg_catalog.pg_authid a WHERE a.rolname = session_user))";
    spi.run(sql, &[], &[], Access::Read).text(0, 0).unwrap_or_default()
}
