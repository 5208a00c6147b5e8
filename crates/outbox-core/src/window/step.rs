//! One step in flight, and what settling it means.

use std::collections::HashMap;
use std::sync::Arc;

use super::event::{AggregateKey, Meta, ParkReason, Source, Via};
use super::topics::{LaneId, TopicId};
use crate::cursor::Cursor;

/// A row to be added to `outbox_parked`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Park {
    pub event_id: [u8; 16],
    pub aggregate: AggregateKey,
    pub reason: ParkReason,
    /// 1 if this was a failure of its own, else 0.
    pub attempts: i32,
    /// Set when the reason is [`ParkReason::Retry`]: it is due after so long.
    pub retry_in_ms: Option<u64>,
    pub error: Option<Arc<str>>,
    /// Set when the reason is [`ParkReason::Topic`] or [`ParkReason::Partition`].
    pub topic: Option<TopicId>,
    pub(super) lane: Option<LaneId>,
}

/// A row of `outbox_parked` whose event was published: to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpark {
    pub event_id: [u8; 16],
    pub aggregate: AggregateKey,
    pub attempts: i32,
    /// The row's reason.
    pub from: ParkReason,
}

/// A row of `outbox_parked` whose reason changes, or whose error is a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repark {
    pub event_id: [u8; 16],
    pub aggregate: AggregateKey,
    /// The row's reason so far.
    pub from: ParkReason,
    pub reason: ParkReason,
    /// The row's new count: one more than before if this was a failure of its own.
    pub attempts: i32,
    /// Set when the reason is [`ParkReason::Retry`]: it is due after so long.
    pub retry_in_ms: Option<u64>,
    pub error: Option<Arc<str>>,
    /// Set when the reason is [`ParkReason::Topic`] or [`ParkReason::Partition`].
    pub topic: Option<TopicId>,
    pub(super) lane: Option<LaneId>,
}

/// What one settle transaction writes: the outcome of one or several steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// The ledger's new cursor; none if only parked events were published.
    pub cursor: Option<Cursor>,
    /// Published, with a positive report for each.
    pub events: u64,
    pub bytes: u64,
    pub parks: Vec<Park>,
    pub unparks: Vec<Unpark>,
    pub reparks: Vec<Repark>,
    /// How many steps it settles; none if it is only of events published late (stall.rs).
    pub steps: u32,
    /// Whether one of them was a step of parked events.
    pub(super) parked_step: bool,
}

impl Settlement {
    /// Adds the outcome of the step that follows.
    pub(super) fn merge(&mut self, next: Settlement) {
        self.cursor = next.cursor.or(self.cursor.take());
        self.events += next.events;
        self.bytes += next.bytes;
        self.parks.extend(next.parks);
        self.unparks.extend(next.unparks);
        self.reparks.extend(next.reparks);
        self.steps += next.steps;
        self.parked_step |= next.parked_step;
    }
}

/// Where an event of a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In one queue of the window, or on its way there.
    Unsent,
    /// Handed to the producer.
    Outstanding,
    /// Published, parked, or left as it was.
    Decided,
}

/// An event in flight: what is needed of its [`Meta`], in one cache line.
pub(super) struct Slot {
    pub event_id: [u8; 16],
    pub aggregate: AggregateKey,
    pub topic: TopicId,
    pub key_hash: u32,
    pub bytes: u32,
    pub source: Source,
    pub state: State,
    /// Until it is handed over: how it must go. Then: how it went.
    pub via: Via,
}

impl Slot {
    pub fn new(event: &Meta, via: Via) -> Slot {
        Slot {
            event_id: event.event_id,
            aggregate: event.aggregate,
            topic: event.topic,
            key_hash: event.key_hash,
            bytes: event.bytes,
            source: event.source,
            state: State::Unsent,
            via,
        }
    }
}

/// A step in flight.
pub(super) struct Step<B> {
    /// Kept while an event of the step is unsent.
    pub body: Option<B>,
    pub events: Vec<Slot>,
    pub unsent: usize,
    pub undecided: usize,
    /// Bytes of decided events that the body still occupies.
    pub bytes_lingering: u64,
    pub outcome: Settlement,
    /// Of a parked step: aggregates that stopped at an event that cannot go, and its place. What
    /// comes after it stays as it is.
    pub stopped: HashMap<AggregateKey, u32>,
}

impl<B> Step<B> {
    pub fn new(cursor: Option<Cursor>, events: Vec<Slot>, body: B) -> Step<B> {
        let count = events.len();
        let parked_step = cursor.is_none();
        let outcome = Settlement {
            cursor,
            steps: 1,
            parked_step,
            ..Settlement::default()
        };
        Step {
            body: Some(body),
            events,
            unsent: count,
            undecided: count,
            bytes_lingering: 0,
            outcome,
            stopped: HashMap::new(),
        }
    }

    /// Drops the body if nothing of it will be read again. Returns how many bytes that frees.
    pub fn free_body(&mut self) -> u64 {
        if self.unsent > 0 || self.body.take().is_none() {
            return 0;
        }
        std::mem::take(&mut self.bytes_lingering)
    }
}
