//! Every SQL text of the relay, and the plans made of them. Nothing here decides; nothing here knows of Kafka.
//!
//! The statements name the schema and lean on no search_path. The relay's session forbids sequential and bitmap scans, hash and merge joins
//! ([`prepare_session`]), so that each read is the index range it is written as, whatever the statistics say.

use super::step::{COLUMN_COUNT, COLUMNS, Reader};
use crate::pg::catalog::Schema;
use crate::pg::runtime::set_for_process;
use crate::pg::spi::{Access, Plan, Rows, Spi, text_datum, types, uuid_datum};
use outbox_core::cursor::{Cursor, LateRange, Walk};
use outbox_core::snapshot::Snapshot;
use outbox_core::window::{AggregateKey, ParkReason, Settlement, TopicId, Window};
use pgrx::pg_sys::{Datum, Oid};
use std::sync::Arc;

/// Settings of the relay's own session.
pub fn prepare_session() {
    for (name, value) in [
        ("search_path", "pg_catalog"),
        ("row_security", "off"),
        ("default_transaction_read_only", "off"),
        // A settle that is lost in a crash is a duplicate at worst.
        ("synchronous_commit", "off"),
        ("lock_timeout", "2s"),
        ("jit", "off"),
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
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
    next_due: Plan,
    of_topics: Plan,
    of_aggregate: Plan,
    acquire: Plan,
    extend: Plan,
    release: Plan,
    ledger: Plan,
    settle: Plan,
    park: Plan,
    unpark: Plan,
    repark: Plan,
    held: Plan,
    parked_topics: Plan,
    retarget: Plan,
    drop_orphans: Plan,
}

/// What a step must know before it reads.
pub struct Fence {
    /// The step's snapshot, C.
    pub snapshot: Snapshot,
    pub lease_held: bool,
    pub stopped: bool,
    /// Trigger and check that keep `xid` true are in place.
    pub guarded: bool,
}

/// A parked head's topic, as the row says and what it was made from.
pub struct ParkedTopic {
    pub topic: String,
    pub error: String,
    pub aggregate_type: String,
    pub event_type: String,
    /// The event names its topic itself.
    pub given: bool,
}

impl Store {
    pub fn prepare(spi: &Spi, schema: &Schema) -> Store {
        use types::{INT4, INT8, OID, TEXT, TIMESTAMPTZ, UUID, XID8};
        let plan = |sql: &str, arguments: &[Oid]| spi.prepare(&sql.replace("{s}", &schema.quoted).replace("{columns}", COLUMNS), arguments);
        Store {
            fence: plan(
                "SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text,
                        EXISTS (SELECT FROM {s}.outbox_lease WHERE lease_token = $1),
                        EXISTS (SELECT FROM {s}.outbox_stop),
                        EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = $2 AND tgname = 'outbox_log_restamp' AND tgenabled = 'A')
                        AND EXISTS (SELECT FROM pg_catalog.pg_constraint
                                     WHERE conrelid = $2 AND contypid = 0 AND conname = 'outbox_log_xid_is_its_own' AND contype = 'c')",
                &[UUID, OID],
            ),
            late: plan(
                "SELECT {columns} FROM {s}.outbox_log l
                  WHERE (l.xid, l.seq) > ($1, $2) AND l.xid < $3 AND l.seq <= $4 ORDER BY l.xid, l.seq",
                &[XID8, INT8, XID8, INT8],
            ),
            new: plan("SELECT {columns} FROM {s}.outbox_log l WHERE l.seq > $1 ORDER BY l.seq", &[INT8]),
            due: plan(
                "SELECT {columns}, p.reason, p.attempts FROM {s}.outbox_parked p JOIN {s}.outbox_log l ON l.event_id = p.event_id
                  WHERE p.reason = $1 AND p.available_at <= $2 ORDER BY p.available_at, p.seq",
                &[TEXT, TIMESTAMPTZ],
            ),
            next_due: plan(
                "SELECT LEAST((SELECT p.available_at FROM {s}.outbox_parked p WHERE p.reason = 'scheduled' ORDER BY p.available_at LIMIT 1),
                              (SELECT p.available_at FROM {s}.outbox_parked p WHERE p.reason = 'retry' ORDER BY p.available_at LIMIT 1))",
                &[],
            ),
            of_topics: plan(
                "SELECT {columns}, p.reason, p.attempts FROM {s}.outbox_parked p JOIN {s}.outbox_log l ON l.event_id = p.event_id
                  WHERE p.reason = 'topic' AND p.topic = ANY (ARRAY(SELECT pg_catalog.jsonb_array_elements_text($1::pg_catalog.jsonb))) ORDER BY p.seq",
                &[TEXT],
            ),
            of_aggregate: plan(
                "SELECT {columns}, p.reason, p.attempts FROM {s}.outbox_parked p JOIN {s}.outbox_log l ON l.event_id = p.event_id
                  WHERE p.aggregate_key = $1 AND p.reason NOT IN ('scheduled', 'discarded') ORDER BY p.seq",
                &[UUID],
            ),
            acquire: plan(
                "INSERT INTO {s}.outbox_lease (singleton, lease_token, lease_until, pid, acquired_at)
                 VALUES (true, $1, pg_catalog.clock_timestamp() + $2 * interval '1 millisecond', $3, pg_catalog.clock_timestamp())
                 ON CONFLICT (singleton) DO UPDATE SET lease_token = excluded.lease_token, lease_until = excluded.lease_until,
                     pid = excluded.pid, acquired_at = excluded.acquired_at",
                &[UUID, INT8, INT4],
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
            park: plan(
                "INSERT INTO {s}.outbox_parked (event_id, aggregate_key, seq, available_at, parked_at, attempts, reason, aggregate_type, aggregate_id,
                                                topic, last_error)
                 SELECT l.event_id, p.aggregate_key, l.seq, CASE WHEN p.reason = 'scheduled' THEN l.available_at END, pg_catalog.clock_timestamp(),
                        CASE WHEN p.reason = 'failed' THEN 1 ELSE 0 END, p.reason, l.aggregate_type, l.aggregate_id, p.topic, p.error
                   FROM pg_catalog.jsonb_to_recordset($1::pg_catalog.jsonb)
                        AS p(event_id pg_catalog.uuid, aggregate_key pg_catalog.uuid, reason pg_catalog.text, topic pg_catalog.text, error pg_catalog.text)
                   JOIN {s}.outbox_log l ON l.event_id = p.event_id",
                &[TEXT],
            ),
            unpark: plan("DELETE FROM {s}.outbox_parked WHERE event_id = ANY ($1::pg_catalog.uuid[])", &[TEXT]),
            repark: plan(
                "UPDATE {s}.outbox_parked k SET reason = p.reason, topic = p.topic, last_error = p.error, available_at = NULL,
                        attempts = k.attempts + CASE WHEN p.reason = 'failed' THEN 1 ELSE 0 END
                   FROM pg_catalog.jsonb_to_recordset($1::pg_catalog.jsonb)
                        AS p(event_id pg_catalog.uuid, aggregate_key pg_catalog.uuid, reason pg_catalog.text, topic pg_catalog.text, error pg_catalog.text)
                  WHERE k.event_id = p.event_id",
                &[TEXT],
            ),
            held: plan(
                "SELECT aggregate_key, count(*), count(*) FILTER (WHERE reason <> 'behind')
                   FROM {s}.outbox_parked WHERE reason NOT IN ('scheduled', 'discarded') GROUP BY aggregate_key",
                &[],
            ),
            parked_topics: plan(
                "SELECT DISTINCT ON (p.topic, l.aggregate_type, l.event_type, l.topic IS NULL)
                        p.topic, COALESCE(p.last_error, ''), l.aggregate_type, l.event_type, l.topic IS NOT NULL
                   FROM {s}.outbox_parked p JOIN {s}.outbox_log l ON l.event_id = p.event_id WHERE p.reason = 'topic'",
                &[],
            ),
            retarget: plan(
                "UPDATE {s}.outbox_parked p SET topic = $2 FROM {s}.outbox_log l
                  WHERE p.reason = 'topic' AND p.topic = $1 AND l.event_id = p.event_id AND l.topic IS NULL AND l.aggregate_type = $3 AND l.event_type = $4",
                &[TEXT, TEXT, TEXT, TEXT],
            ),
            drop_orphans: plan(
                "DELETE FROM {s}.outbox_parked p WHERE NOT EXISTS (SELECT FROM {s}.outbox_log l WHERE l.event_id = p.event_id)",
                &[],
            ),
        }
    }

    pub fn acquire(&self, spi: &Spi, token: &[u8; 16], duration_ms: u64, pid: i32) {
        spi.execute(&self.acquire, &[Some(uuid_datum(token)), Some((duration_ms as i64).into()), Some(pid.into())], Access::Write);
    }

    /// False when the lease is somebody else's.
    pub fn extend(&self, spi: &Spi, token: &[u8; 16], duration_ms: u64) -> bool {
        spi.execute(&self.extend, &[Some(uuid_datum(token)), Some((duration_ms as i64).into())], Access::Write).count() == 1
    }

    pub fn release(&self, spi: &Spi, token: &[u8; 16]) {
        spi.execute(&self.release, &[Some(uuid_datum(token))], Access::Write);
    }

    /// The newest ledger row: its number and the settled cursor. None when the ledger is empty.
    pub fn ledger(&self, spi: &Spi) -> Option<(i64, Cursor)> {
        let rows = spi.execute(&self.ledger, &[], Access::Read);
        if rows.count() == 0 {
            return None;
        }
        let snapshot = |column| rows.text(0, column).map(|text| parse_snapshot(&text));
        let walk = match (rows.i64(0, 3), rows.i64(0, 4), snapshot(5)) {
            (Some(xid), Some(seq), Some(snapshot)) => Some(Walk { xid: xid as u64, seq, snapshot }),
            _ => None,
        };
        let cursor = Cursor { pos: rows.i64(0, 1)?, snapshot: snapshot(2)?, walk };
        Some((rows.i64(0, 0)?, cursor))
    }

    /// Deletes parked rows whose event is gone (TRUNCATE, DELETE): nothing else would ever take them away.
    pub fn drop_orphans(&self, spi: &Spi) {
        spi.execute(&self.drop_orphans, &[], Access::Write);
    }

    /// What holds which aggregate: rows, and how many of them wait for something of their own.
    pub fn held(&self, spi: &Spi, mut hold: impl FnMut(AggregateKey, u64, u64)) {
        let mut cursor = spi.cursor(&self.held, &[]);
        loop {
            let rows = cursor.fetch(1000);
            if rows.count() == 0 {
                break;
            }
            for row in 0..rows.count() {
                let key = AggregateKey(u128::from_be_bytes(rows.uuid(row, 0).unwrap_or_default()));
                hold(key, rows.i64(row, 1).unwrap_or(0) as u64, rows.i64(row, 2).unwrap_or(0) as u64);
            }
        }
    }

    pub fn parked_topics(&self, spi: &Spi) -> Vec<ParkedTopic> {
        let rows = spi.execute(&self.parked_topics, &[], Access::Read);
        let text = |row, column| rows.text(row, column).unwrap_or_default();
        (0..rows.count())
            .map(|row| ParkedTopic {
                topic: text(row, 0),
                error: text(row, 1),
                aggregate_type: text(row, 2),
                event_type: text(row, 3),
                given: rows.bool(row, 4).unwrap_or(false),
            })
            .collect()
    }

    /// outbox_ext.topic has changed since these were parked: they wait for another topic now.
    pub fn retarget(&self, spi: &Spi, parked: &ParkedTopic, topic: &str) {
        let values = [&parked.topic, topic, &parked.aggregate_type, &parked.event_type].map(|text| Some(text_datum(text)));
        spi.execute(&self.retarget, &values, Access::Write);
    }

    /// Takes the step's snapshot and says what stands in the step's way.
    pub fn fence(&self, spi: &Spi, token: &[u8; 16], log: Oid) -> Fence {
        let rows = spi.execute(&self.fence, &[Some(uuid_datum(token)), Some(log.into())], Access::Read);
        let flag = |column| rows.bool(0, column).unwrap_or(false);
        Fence {
            snapshot: parse_snapshot(&rows.text(0, 0).unwrap_or_default()),
            lease_held: flag(1),
            stopped: flag(2),
            guarded: flag(3),
        }
    }

    /// Reads late events of one range. Some((xid, seq)) of the last one when the step became full before the range's end; equal (xid, seq) are
    /// never divided.
    pub fn late(&self, spi: &Spi, range: &LateRange, pos: i64, reader: &mut Reader<'_>, window: &mut Window<super::Body>) -> Option<(u64, i64)> {
        let values =
            [Some(Datum::from(range.after_xid)), Some(range.after_seq.into()), Some(Datum::from(range.end_xid)), Some(pos.into())];
        self.read(spi, &self.late, &values, reader, window)
    }

    /// Reads new events; as [`Store::late`].
    pub fn new_events(&self, spi: &Spi, pos: i64, reader: &mut Reader<'_>, window: &mut Window<super::Body>) -> Option<(u64, i64)> {
        self.read(spi, &self.new, &[Some(pos.into())], reader, window)
    }

    fn read(
        &self,
        spi: &Spi,
        plan: &Plan,
        values: &[Option<Datum>],
        reader: &mut Reader<'_>,
        window: &mut Window<super::Body>,
    ) -> Option<(u64, i64)> {
        let by_seq_only = std::ptr::eq(plan, &self.new);
        let mut cursor = spi.cursor(plan, values);
        let mut last: Option<(u64, i64)> = None;
        loop {
            let rows = cursor.fetch(reader.fetch_size());
            if rows.count() == 0 {
                return None;
            }
            for row in 0..rows.count() {
                let position = Reader::position(&rows, row);
                if reader.is_full() && last.is_none_or(|(xid, seq)| seq != position.1 || (xid != position.0 && !by_seq_only)) {
                    return Some(last.unwrap_or((0, i64::MIN)));
                }
                reader.push(&rows, row, None, window);
                last = Some(position);
            }
        }
    }

    /// When the next scheduled or retried event is due, microseconds since 2000.
    pub fn next_due(&self, spi: &Spi) -> Option<i64> {
        spi.execute(&self.next_due, &[], Access::Read).i64(0, 0)
    }

    /// Reads parked events that are due at `now`.
    pub fn due(&self, spi: &Spi, now: i64, reader: &mut Reader<'_>, window: &mut Window<super::Body>) {
        for reason in [ParkReason::Retry, ParkReason::Scheduled] {
            self.read_parked(spi, &self.due, &[Some(text_datum(reason.as_str())), Some(now.into())], reader, window);
        }
    }

    /// Reads the events parked for these topics.
    pub fn of_topics(&self, spi: &Spi, topics: &[TopicId], reader: &mut Reader<'_>, window: &mut Window<super::Body>) {
        let names: Vec<Arc<str>> = topics.iter().map(|&topic| window.topic_name(topic).clone()).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let json = serde_json::Value::from(names).to_string();
        self.read_parked(spi, &self.of_topics, &[Some(text_datum(&json))], reader, window);
    }

    /// Reads what is parked of one aggregate. False when nothing is.
    pub fn of_aggregate(&self, spi: &Spi, aggregate: AggregateKey, reader: &mut Reader<'_>, window: &mut Window<super::Body>) -> bool {
        let before = reader.len();
        self.read_parked(spi, &self.of_aggregate, &[Some(uuid_datum(&aggregate.0.to_be_bytes()))], reader, window);
        reader.len() > before
    }

    fn read_parked(&self, spi: &Spi, plan: &Plan, values: &[Option<Datum>], reader: &mut Reader<'_>, window: &mut Window<super::Body>) {
        let mut cursor = spi.cursor(plan, values);
        while !reader.is_full() {
            let rows = cursor.fetch(reader.fetch_size());
            if rows.count() == 0 {
                return;
            }
            for row in 0..rows.count() {
                // The check constraint lets only known reasons in.
                let reason = rows.text(row, COLUMN_COUNT).and_then(|text| text.parse().ok()).unwrap_or(ParkReason::Retry);
                let attempts = rows.datum(row, COLUMN_COUNT + 1).map_or(0, |datum| datum.value() as i32);
                reader.push(&rows, row, Some((reason, attempts)), window);
            }
        }
    }

    /// Appends to the ledger and moves parked rows, under the lease. False, with nothing changed, when the lease is somebody else's. A second
    /// writer of the same batch number gets a unique violation.
    pub fn settle(&self, spi: &Spi, batch_no: i64, cursor: &Cursor, settlement: &Settlement, token: &[u8; 16]) -> bool {
        let walk = cursor.walk.as_ref();
        let unparked = (!settlement.unparks.is_empty()).then(|| uuid_array(settlement.unparks.iter().map(|unpark| &unpark.event_id)));
        let attempts = unparked.is_some().then(|| {
            let numbers: Vec<String> = settlement.unparks.iter().map(|unpark| unpark.attempts.to_string()).collect();
            format!("{{{}}}", numbers.join(","))
        });
        let values = [
            Some(batch_no.into()),
            Some(cursor.pos.into()),
            Some(text_datum(&cursor.snapshot.to_string())),
            walk.map(|walk| Datum::from(walk.xid)),
            walk.map(|walk| walk.seq.into()),
            walk.map(|walk| text_datum(&walk.snapshot.to_string())),
            Some((settlement.events as i64).into()),
            Some((settlement.bytes as i64).into()),
            unparked.as_deref().map(text_datum),
            attempts.as_deref().map(text_datum),
            Some(uuid_datum(token)),
        ];
        if spi.execute(&self.settle, &values, Access::Write).count() == 0 {
            return false;
        }
        if let Some(unparked) = &unparked {
            spi.execute(&self.unpark, &[Some(text_datum(unparked))], Access::Write);
        }
        true
    }

    /// Adds parked rows. True when each event still has its row in the log.
    pub fn park(&self, spi: &Spi, settlement: &Settlement, window: &Window<super::Body>) -> bool {
        let rows: Vec<serde_json::Value> = settlement
            .parks
            .iter()
            .map(|park| parked_json(&park.event_id, park.aggregate, park.reason, park.topic.map(|topic| &**window.topic_name(topic)), &park.error))
            .collect();
        self.write_json(spi, &self.park, rows)
    }

    /// Changes the reasons of parked rows. True when all were there.
    pub fn repark(&self, spi: &Spi, settlement: &Settlement, window: &Window<super::Body>) -> bool {
        let rows: Vec<serde_json::Value> = settlement
            .reparks
            .iter()
            .map(|park| parked_json(&park.event_id, park.aggregate, park.reason, park.topic.map(|topic| &**window.topic_name(topic)), &park.error))
            .collect();
        self.write_json(spi, &self.repark, rows)
    }

    fn write_json(&self, spi: &Spi, plan: &Plan, rows: Vec<serde_json::Value>) -> bool {
        if rows.is_empty() {
            return true;
        }
        let count = rows.len();
        let json = serde_json::Value::from(rows).to_string();
        spi.execute(plan, &[Some(text_datum(&json))], Access::Write).count() == count
    }
}

fn parked_json(event_id: &[u8; 16], aggregate: AggregateKey, reason: ParkReason, topic: Option<&str>, error: &Option<Arc<str>>) -> serde_json::Value {
    serde_json::json!({
        "event_id": uuid_text(event_id),
        "aggregate_key": uuid_text(&aggregate.0.to_be_bytes()),
        "reason": reason.as_str(),
        "topic": topic,
        "error": error.as_deref(),
    })
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*bytes).to_string()
}

fn uuid_array<'a>(uuids: impl Iterator<Item = &'a [u8; 16]>) -> String {
    let texts: Vec<String> = uuids.map(uuid_text).collect();
    format!("{{{}}}", texts.join(","))
}

fn parse_snapshot(text: &str) -> Snapshot {
    text.parse().unwrap_or_else(|error| pgrx::error!("cannot read a snapshot: {error}"))
}

/// Rows of the extension's own place, looked up in the catalog.
pub fn extension_schema(spi: &Spi) -> Option<Oid> {
    let plan = spi.prepare("SELECT extnamespace FROM pg_catalog.pg_extension WHERE extname = 'outbox_ext'", &[]);
    let rows: Rows<'_> = spi.execute(&plan, &[], Access::Read);
    if rows.count() == 0 { None } else { rows.datum(0, 0).map(|datum| Oid::from(datum.value() as u32)) }
}

/// Settings that ALTER DATABASE and ALTER ROLE give to the relay's session, as one text to compare: they do not reach a running session by a reload.
pub fn database_settings(spi: &Spi) -> String {
    let plan = spi.prepare(
        "SELECT COALESCE(pg_catalog.string_agg(s.setrole::pg_catalog.text || s.setconfig::pg_catalog.text, ' ' ORDER BY s.setrole), '')
           FROM pg_catalog.pg_db_role_setting s
          WHERE s.setdatabase IN (0, (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()))",
        &[],
    );
    spi.execute(&plan, &[], Access::Read).text(0, 0).unwrap_or_default()
}
