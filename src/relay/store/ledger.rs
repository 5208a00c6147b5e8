//! Lease, ledger and parked rows: what a session loads at its start and writes when it settles.

use super::{Store, parse_snapshot};
use crate::pg::call::uuid_bytes;
use crate::pg::spi::{Access, Row, Spi, text_datum, types, uuid_datum};
use crate::relay::Body;
use outbox_core::cursor::{Cursor, Walk};
use outbox_core::window::{AggregateKey, ParkReason, Settlement, Window};
use pgrx::pg_sys::{Datum, Oid};
use std::collections::HashMap;

/// Rows of outbox_parked looked at in one stretch: some 10 ms.
const STRETCH_ROWS: usize = 5_000;

/// What parked rows wait for, as they say and what that was made from.
#[derive(PartialEq, Eq, Hash)]
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

/// Columns of `holders`.
impl ParkedTopic {
    fn of(row: &Row<'_>, reason: ParkReason) -> ParkedTopic {
        let text = |column| row.text(column).unwrap_or_default();
        ParkedTopic {
            topic: text(3),
            error: text(4),
            aggregate_type: text(5),
            event_type: text(6),
            given: row.datum(7).is_some(),
            cannot_be_written: reason == ParkReason::Topic,
        }
    }

    /// Whether it is what [`Self::of`] makes of the row.
    fn is_of(&self, row: &Row<'_>, reason: ParkReason) -> bool {
        let texts = [&self.topic, &self.error, &self.aggregate_type, &self.event_type];
        texts.iter().zip(3..).all(|(text, column)| row.text_is(column, text))
            && self.given == row.datum(7).is_some()
            && self.cannot_be_written == (reason == ParkReason::Topic)
    }
}

/// What became of the rows that a settle was to add to outbox_parked.
pub struct Parked {
    /// Each event still has its row in the log.
    pub all_there: bool,
    /// One took the place of a row that an event of the same id had left which was deleted: what that row held is not what the window believes.
    pub replaced: bool,
}

/// A stretch of outbox_parked.
#[derive(Default)]
pub struct Stretch {
    /// Its last row, unless the table ended before.
    pub last: Option<[u8; 16]>,
    /// Rows whose event is gone.
    pub orphans: Vec<[u8; 16]>,
    /// One of them holds its aggregate.
    pub holds: bool,
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
    /// Whether the tables are those of another database, copied with it.
    pub fn is_copy(&self, spi: &Spi, database: Oid) -> bool {
        let rows = spi.execute(&self.is_copy, &[Some(database.into())], Access::Read);
        rows.bool(0, 0) == Some(true)
    }

    pub fn acquire(&self, spi: &Spi, token: &[u8; 16], duration_ms: u64, pid: i32, database: Oid) {
        spi.execute(
            &self.acquire,
            &[
                Some(uuid_datum(token)),
                Some((duration_ms as i64).into()),
                Some(pid.into()),
                Some(database.into()),
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

    /// Shows each aggregate that a parked row holds (a failed one only if it is to), and whether that row waits for something of its own. Returns
    /// what they wait for, with how many rows each, and the rows whose event is gone, which are shown to nobody.
    pub fn holders(
        &self,
        spi: &Spi,
        failed_holds: bool,
        mut hold: impl FnMut(AggregateKey, bool),
    ) -> (HashMap<ParkedTopic, usize>, Vec<[u8; 16]>) {
        let holds = |reason: &ParkReason| reason.holds(failed_holds);
        let reasons: Vec<&str> = ParkReason::ALL
            .into_iter()
            .filter(holds)
            .map(ParkReason::as_str)
            .collect();
        let reasons = format!("{{{}}}", reasons.join(","));
        let (mut topics, mut orphans) = (HashMap::new(), Vec::new());
        let mut add = |alike: Option<(ParkedTopic, usize)>| {
            if let Some((topic, rows)) = alike {
                *topics.entry(topic).or_insert(0) += rows;
            }
        };
        // Rows that wait for the same mostly come one after the other: count them before their topic is looked up.
        let mut alike: Option<(ParkedTopic, usize)> = None;
        spi.for_each(&self.holders, &[Some(text_datum(&reasons))], |row| {
            let uuid = |column| row.datum(column).map(uuid_bytes).unwrap_or_default();
            if row.bool(8) {
                orphans.push(uuid(0));
                return true;
            }
            let reason = reason_of(row, 2);
            hold(AggregateKey(u128::from_be_bytes(uuid(1))), reason.blocks(failed_holds));
            if matches!(reason, ParkReason::Topic | ParkReason::Partition) {
                match &mut alike {
                    Some((topic, rows)) if topic.is_of(row, reason) => *rows += 1,
                    _ => add(alike.replace((ParkedTopic::of(row, reason), 1))),
                }
            }
            true
        });
        add(alike);
        (topics, orphans)
    }

    /// Looks at the next rows of outbox_parked after `after`, by event id. `failed_holds`: what was given up holds its aggregate.
    pub fn stretch(&self, spi: &Spi, after: &[u8; 16], failed_holds: bool) -> Stretch {
        let mut stretch = Stretch::default();
        let mut rows = 0;
        let values = [Some(uuid_datum(after)), Some((STRETCH_ROWS as i64).into())];
        spi.for_each(&self.stretch, &values, |row| {
            let event_id = row.datum(0).map(uuid_bytes).unwrap_or_default();
            rows += 1;
            if rows == STRETCH_ROWS {
                stretch.last = Some(event_id);
            }
            if row.bool(2) {
                stretch.orphans.push(event_id);
                stretch.holds |= reason_of(row, 1).holds(failed_holds);
            }
            true
        });
        stretch
    }

    /// Deletes these parked rows if their event is gone (TRUNCATE, DELETE): nothing else would ever take them away. An event with the same id and
    /// another seq is another event.
    pub fn drop_orphans(&self, spi: &Spi, orphans: &[[u8; 16]]) {
        for orphans in orphans.chunks(STRETCH_ROWS) {
            let orphans = uuid_array(orphans.iter());
            spi.execute(&self.drop_orphans, &[Some(text_datum(&orphans))], Access::Write);
        }
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

    /// Adds parked rows.
    pub fn park(&self, spi: &Spi, settlement: &Settlement, window: &Window<Body>) -> Parked {
        if settlement.parks.is_empty() {
            return Parked {
                all_there: true,
                replaced: false,
            };
        }
        let json = settlement.parks.iter().map(|park| parked_json!(park, window)).collect();
        let rows = spi.execute(&self.park, &[Some(json_datum(json))], Access::Write);
        Parked {
            all_there: rows.count() == settlement.parks.len(),
            replaced: (0..rows.count()).any(|row| rows.bool(row, 0) == Some(true)),
        }
    }

    /// Changes the reasons of parked rows. True when all were there.
    pub fn repark(&self, spi: &Spi, settlement: &Settlement, window: &Window<Body>) -> bool {
        let reparks = &settlement.reparks;
        if reparks.is_empty() {
            return true;
        }
        let json = reparks.iter().map(|park| parked_json!(park, window)).collect();
        let rows = spi.run(&self.repark, &[types::TEXT], &[Some(json_datum(json))], Access::Write);
        rows.count() == reparks.len()
    }
}

fn json_datum(rows: Vec<serde_json::Value>) -> Datum {
    text_datum(&serde_json::Value::from(rows).to_string())
}

/// The check constraint lets only known reasons in.
pub(super) fn reason_of(row: &Row<'_>, column: usize) -> ParkReason {
    ParkReason::ALL
        .into_iter()
        .find(|reason| row.text_is(column, reason.as_str()))
        .unwrap_or(ParkReason::Retry)
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*bytes).to_string()
}

fn uuid_array<'a>(uuids: impl Iterator<Item = &'a [u8; 16]>) -> String {
    let texts: Vec<String> = uuids.map(uuid_text).collect();
    format!("{{{}}}", texts.join(","))
}
