//! The simulated tables: the log, the parked rows, the ledger. Checks what each settle claims.

use std::collections::{BTreeMap, BTreeSet};

use outbox_core::cursor::Cursor;
use outbox_core::snapshot::Snapshot;
use outbox_core::window::{AggregateKey, ParkReason, Settlement};

/// An event's place in the log; also its seq and, in bytes, its id.
pub type EventNo = usize;

#[derive(Clone, Debug)]
pub struct Event {
    pub aggregate: usize,
    pub topic: usize,
    /// The caller's own delay ends then.
    pub available_at: Option<u64>,
    /// Cannot be published until the operator has mended it.
    pub defect: bool,
}

#[derive(Clone, Debug)]
pub struct Parked {
    pub reason: ParkReason,
    pub topic: Option<usize>,
}

#[derive(Default)]
pub struct Tables {
    pub log: Vec<Event>,
    pub parked: BTreeMap<EventNo, Parked>,
    /// Events below it were read by settled steps.
    pub ledger_pos: EventNo,
}

pub fn key_of(aggregate: usize) -> AggregateKey {
    AggregateKey::of("thing", &aggregate.to_string())
}

pub fn event_id(event: EventNo) -> [u8; 16] {
    (event as u128).to_be_bytes()
}

fn event_no(event_id: [u8; 16]) -> EventNo {
    u128::from_be_bytes(event_id) as EventNo
}

/// Here the log has no late events, so the cursor is its position.
pub fn cursor_at(pos: EventNo) -> Cursor {
    Cursor {
        pos: pos as i64,
        snapshot: Snapshot {
            xmin: 3,
            xmax: 3,
            xip: Vec::new(),
        },
        walk: None,
    }
}

impl Tables {
    pub fn settle(
        &mut self,
        settlement: &Settlement,
        published: &BTreeSet<EventNo>,
        topic_no: impl Fn(outbox_core::window::TopicId) -> usize,
    ) -> Result<(), String> {
        for park in &settlement.parks {
            let row = Parked {
                reason: park.reason,
                topic: park.topic.map(&topic_no),
            };
            if self.parked.insert(event_no(park.event_id), row).is_some() {
                return Err(format!("event {} was parked twice", event_no(park.event_id)));
            }
        }
        for repark in &settlement.reparks {
            let event = event_no(repark.event_id);
            let row = self
                .parked
                .get_mut(&event)
                .ok_or(format!("event {event} is not parked"))?;
            if row.reason != repark.from {
                return Err(format!("event {event} has reason {}, not {}", row.reason, repark.from));
            }
            *row = Parked {
                reason: repark.reason,
                topic: repark.topic.map(&topic_no),
            };
        }
        for unpark in &settlement.unparks {
            let event = event_no(unpark.event_id);
            if !published.contains(&event) {
                return Err(format!("event {event} lost: its row goes and it was never published"));
            }
            let row = self
                .parked
                .remove(&event)
                .ok_or(format!("event {event} is not parked"))?;
            if row.reason != unpark.from {
                return Err(format!("event {event} has reason {}, not {}", row.reason, unpark.from));
            }
        }
        if let Some(cursor) = &settlement.cursor {
            let pos = cursor.pos as EventNo;
            let passed = self.ledger_pos..pos;
            self.ledger_pos = pos;
            if let Some(event) = passed
                .into_iter()
                .find(|e| !published.contains(e) && !self.parked.contains_key(e))
            {
                return Err(format!("event {event} lost: settled, neither published nor parked"));
            }
        }
        Ok(())
    }

    /// Whether a row may be sent again by itself: no other blocking row of its aggregate is before it.
    pub fn is_head(&self, event: EventNo) -> bool {
        let aggregate = self.log[event].aggregate;
        let before = self.parked.range(..event);
        !before
            .into_iter()
            .any(|(&other, row)| self.log[other].aggregate == aggregate && row.reason.blocks())
    }
}
