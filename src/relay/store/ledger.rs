//! Lease, ledger and parked rows: what a session loads at its start and writes when it settles.

use super::{Store, parse_snapshot};
use crate::pg::call::uuid_bytes;
use crate::pg::spi::{Access, Plan, Spi, text_datum, uuid_datum};
use crate::relay::Body;
use outbox_core::cursor::{Cursor, Walk};
use outbox_core::window::{AggregateKey, Settlement, Window};
use pgrx::pg_sys::Datum;

/// A parked head's topic, as the row says and what it was made from.
pub struct ParkedTopic {
    pub topic: String,
    pub error: String,
    pub aggregate_type: String,
    pub event_type: String,
    /// The event names its topic itself.
    pub given: bool,
    /// The topic itself; else a partition of it did not answer.
    pub cannot_be_written: bool,
}

/// A row for outbox_parked out of a `Park` or a `Repark`, which have these fields in common.
macro_rules! parked_json {
    ($park:expr, $window:expr) => {
        serde_json::json!({
            "event_id": uuid_text(&$park.event_id),
            "aggregate_key": uuid_text(&$park.aggregate.0.to_be_bytes()),
            "reason": $park.reason.as_str(),
            "topic": $park.topic.map(|topic| &**$window.topic_name(topic)),
            "error": $park.error.as_deref(),
            "attempts": $park.attempts,
            "retry_in_ms": $park.retry_in_ms,
        })
    };
}

impl Store {
    pub fn acquire(&self, spi: &Spi, token: &[u8; 16], duration_ms: u64, pid: i32) {
        spi.execute(
            &self.acquire,
            &[
                Some(uuid_datum(token)),
                Some((duration_ms as i64).into()),
                Some(pid.into()),
            ],
            Access::Write,
        );
    }

    /// False when the lease is somebody else's.
    pub fn extend(&self, spi: &Spi, token: &[u8; 16], duration_ms: u64) -> bool {
        spi.execute(
            &self.extend,
            &[Some(uuid_datum(token)), Some((duration_ms as i64).into())],
            Access::Write,
        )
        .count()
            == 1
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
            (Some(xid), Some(seq), Some(snapshot)) => Some(Walk {
                xid: xid as u64,
                seq,
                snapshot,
            }),
            _ => None,
        };
        let cursor = Cursor {
            pos: rows.i64(0, 1)?,
            snapshot: snapshot(2)?,
            walk,
        };
        Some((rows.i64(0, 0)?, cursor))
    }

    /// Deletes parked rows whose event is gone (TRUNCATE, DELETE): nothing else would ever take them away. How many.
    pub fn drop_orphans(&self, spi: &Spi) -> usize {
        spi.execute(&self.drop_orphans, &[], Access::Write).count()
    }

    /// What holds which aggregate (failed events only if they are to): rows, and how many of them wait for something of their own.
    pub fn held(&self, spi: &Spi, failed_holds: bool, mut hold: impl FnMut(AggregateKey, u64, u64)) {
        spi.for_each(&self.held, &[Some(failed_holds.into())], |row| {
            let key = row.datum(0).map(uuid_bytes).unwrap_or_default();
            let count = |column| row.i64(column).unwrap_or(0) as u64;
            hold(AggregateKey(u128::from_be_bytes(key)), count(1), count(2));
            true
        });
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
                cannot_be_written: rows.bool(row, 5).unwrap_or(false),
            })
            .collect()
    }

    /// How many events are set aside for partitions of which topic.
    pub fn parked_for_partitions(&self, spi: &Spi) -> Vec<(String, usize)> {
        let rows = spi.execute(&self.parked_for_partitions, &[], Access::Read);
        let row = |row| Some((rows.text(row, 0)?, rows.i64(row, 1)? as usize));
        (0..rows.count()).filter_map(row).collect()
    }

    /// outbox_ext.topic has changed since these were parked: they wait for another topic now.
    pub fn retarget(&self, spi: &Spi, parked: &ParkedTopic, topic: &str) {
        let values =
            [&parked.topic, topic, &parked.aggregate_type, &parked.event_type].map(|text| Some(text_datum(text)));
        spi.execute(&self.retarget, &values, Access::Write);
    }

    /// Appends to the ledger and moves parked rows, under the lease. False, with nothing changed, when the lease is somebody else's. A second
    /// writer of the same batch number gets a unique violation.
    pub fn settle(&self, spi: &Spi, batch_no: i64, cursor: &Cursor, settlement: &Settlement, token: &[u8; 16]) -> bool {
        let walk = cursor.walk.as_ref();
        let unparked = (!settlement.unparks.is_empty())
            .then(|| uuid_array(settlement.unparks.iter().map(|unpark| &unpark.event_id)));
        let attempts = unparked.is_some().then(|| {
            let numbers: Vec<String> = settlement
                .unparks
                .iter()
                .map(|unpark| unpark.attempts.to_string())
                .collect();
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
    pub fn park(&self, spi: &Spi, settlement: &Settlement, window: &Window<Body>) -> bool {
        let rows = settlement.parks.iter().map(|park| parked_json!(park, window)).collect();
        self.write_json(spi, &self.park, rows)
    }

    /// Changes the reasons of parked rows. True when all were there.
    pub fn repark(&self, spi: &Spi, settlement: &Settlement, window: &Window<Body>) -> bool {
        let rows = settlement
            .reparks
            .iter()
            .map(|park| parked_json!(park, window))
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

fn uuid_text(bytes: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*bytes).to_string()
}

fn uuid_array<'a>(uuids: impl Iterator<Item = &'a [u8; 16]>) -> String {
    let texts: Vec<String> = uuids.map(uuid_text).collect();
    format!("{{{}}}", texts.join(","))
}
