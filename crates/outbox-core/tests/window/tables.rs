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
    /// Kafka refuses it until then.
    pub poison: bool,
}

#[derive(Clone, Debug)]
pub struct Parked {
    pub reason: ParkReason,
    pub topic: Option<usize>,
    pub attempts: i32,
    /// Of one to be retried.
    pub due_ms: u64,
}

#[derive(Default)]
pub struct Tables {
    /// Whether a given up event holds its aggregate.
    pub failed_holds: bool,
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
        now_ms: u64,
        topic_no: impl Fn(outbox_core::window::TopicId) -> usize,
    ) -> Result<(), String> {
        for park in &settlement.parks {
            let event = event_no(park.event_id);
            self.check_attempts(event, 0, park.attempts, park.reason)?;
            let row = Parked {
                reason: park.reason,
                topic: park.topic.map(&topic_no),
                attempts: park.attempts,
                due_ms: now_ms + park.retry_in_ms.unwrap_or(0),
            };
            if self.parked.insert(event, row).is_some() {
                return Err(format!("event {event} was parked twice"));
            }
        }
        for repark in &settlement.reparks {
            let event = event_no(repark.event_id);
            let row = self
                .parked
                .get(&event)
                .cloned()
                .ok_or(format!("event {event} is not parked"))?;
            if row.reason != repark.from {
                return Err(format!("event {event} has reason {}, not {}", row.reason, repark.from));
            }
            self.check_attempts(event, row.attempts, repark.attempts, repark.reason)?;
            let row = Parked {
                reason: repark.reason,
                topic: repark.topic.map(&topic_no),
                attempts: repark.attempts,
                due_ms: now_ms + repark.retry_in_ms.unwrap_or(0),
            };
            self.parked.insert(event, row);
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

    /// An attempt counts only against an event that is at fault itself, and then it does count.
    fn check_attempts(&self, event: EventNo, before: i32, now: i32, reason: ParkReason) -> Result<(), String> {
        let own_fault = matches!(reason, ParkReason::Retry | ParkReason::Failed);
        let row = &self.log[event];
        if own_fault && !row.defect && !row.poison {
            return Err(format!("event {event} is blamed ({reason}) and innocent"));
        }
        if now != before + i32::from(own_fault) {
            return Err(format!("event {event} has {now} attempts after {before}, now {reason}"));
        }
        Ok(())
    }
}
