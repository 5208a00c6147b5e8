//! Steps in flight: what may be sent when, what waits, what is parked, and when a step may be settled.
//!
//! A window lives as long as one producer and one session of the relay. After a fatal error, a lost
//! lease or a settle that cannot be made the relay drops it and starts a new one at the last settled cursor.
//! It is pure: no clock, no names of PostgreSQL or librdkafka, no input or output. One thread uses it.
//!
//! The life of an event:
//!
//! ```text
//! open_step -> [waits for its topic] -> [queued in its lane] -> ready -> next_send: outstanding
//!     |                 |                       |                              |
//!     +-----------------+-----------------------+------- parked <--------------+---> delivered
//! ```
//!
//! Rules, and what they are for:
//! - Per lane (partition of a topic) events go in the order of reading. The first goes alone until
//!   its positive report (lane.rs).
//! - An event of a missing topic is parked, and from then on the later events of its aggregate are
//!   parked behind it, whatever their topic (held.rs). Order is promised for an aggregate on one
//!   topic: events of it that go to different topics do not wait for each other otherwise.
//! - A missing topic is used again only when no report of it is due, but for what was abandoned, and the brokers were asked after that.
//! - Steps settle in order, and an event that was parked counts as held until the settle that
//!   publishes it. So a restart at any point finds in the table what it must not overtake.
//!
//! What the relay owes it: reports that are due are given before more is taken by [`Window::next_send`],
//! so that nothing follows a failure that has already happened; and a row is read for a retry of its own
//! only while no blocking row ([`ParkReason::blocks`]) of its aggregate is before it.
//!
//! How the relay drives it: [`Window::hold`] and [`Window::assume_missing`] for the rows parked at the
//! start; then in a loop [`Window::can_read`] and [`Window::open_step`], [`Window::topics_to_ask`] and
//! [`Window::topic_answer`], [`Window::next_send`], the reports, [`Window::take_settlement`] and, when its
//! transaction has committed, [`Window::settled`].

mod answer;
mod asking;
mod careful;
mod event;
mod held;
mod lane;
mod limits;
mod park;
mod report;
mod settle;
mod silence;
mod stall;
mod step;
mod topics;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

pub use answer::{TOPIC_GRACE_MS, TopicAnswer};
pub use event::{AggregateKey, Fate, Meta, ParkReason, Source, Ticket, Via};
pub use limits::Limits;
pub use step::{Park, Repark, Settlement, Unpark};
pub use topics::TopicId;

use crate::backoff::Backoff;
use crate::cursor::Cursor;
use held::{HeldAggregates, Place};
use lane::Ready;
use stall::Stalls;
use step::{Slot, Step};
use topics::Topics;

/// An event to be handed to a producer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    pub ticket: Ticket,
    pub topic: TopicId,
    pub partition: u32,
    pub via: Via,
}

/// See the module. `B` is what the relay needs to build a step's records: the rows.
pub struct Window<B> {
    limits: Limits,
    steps: VecDeque<Step<B>>,
    /// The number, not wrapped, of the first of `steps`.
    first: u64,
    ready: Ready,
    topics: Topics,
    held: HeldAggregates,
    stalls: Stalls,
    /// Events that go carefully, wherever they are read.
    suspects: HashSet<[u8; 16]>,
    /// Between the attempts of an event that was refused.
    retry: Backoff,
    /// The latest time that the window was told.
    now_ms: u64,
    /// The step whose last unsent event was given out: its body is needed until the next call.
    sent_out: Option<u64>,
    /// Nothing of this step and those after it is handed over any more.
    ends_before: Option<u64>,
    parked_steps: usize,
    events: usize,
    unsent: usize,
    outstanding: usize,
    bytes: u64,
}

impl<B> Window<B> {
    pub fn new(limits: Limits) -> Window<B> {
        Window {
            topics: Topics::new(&limits),
            retry: Backoff::new(limits.retry_backoff_ms, limits.retry_backoff_max_ms, limits.seed),
            limits,
            steps: VecDeque::new(),
            first: 0,
            ready: Ready::new(),
            held: HeldAggregates::default(),
            stalls: Stalls::default(),
            suspects: HashSet::new(),
            now_ms: 0,
            sent_out: None,
            ends_before: None,
            parked_steps: 0,
            events: 0,
            unsent: 0,
            outstanding: 0,
            bytes: 0,
        }
    }

    /// At the start of a session: the aggregate has `rows` rows in `outbox_parked` that hold it
    /// ([`ParkReason::holds`]: all but scheduled, discarded and perhaps failed), `blocking` of which are not `behind`
    /// ([`ParkReason::blocks`]). With none blocking it drains at once.
    pub fn hold(&mut self, aggregate: AggregateKey, rows: u64, blocking: u64) {
        if rows > 0 {
            self.held.add_settled(aggregate, rows, blocking);
        }
    }

    /// At the start of a session: rows are parked for this topic, for this reason, or the last session
    /// ended because it could not be written. It is asked for at once; events that come before the
    /// answer are parked too. When it is known, the first event of each partition goes carefully.
    pub fn assume_missing(&mut self, name: &str, error: Arc<str>, now_ms: u64) -> TopicId {
        let id = self.topics.intern(name);
        self.topics.assume_missing(id, error, now_ms);
        id
    }

    /// The id of a topic in this window. The name is interned for good.
    pub fn topic(&mut self, name: &str) -> TopicId {
        self.topics.intern(name)
    }

    /// The topic whose [`TopicId::to_u64`] this is; none for any other number.
    pub fn topic_from_u64(&self, number: u64) -> Option<TopicId> {
        self.topics.by_number(number)
    }

    pub fn topic_name(&self, topic: TopicId) -> &Arc<str> {
        self.topics.name(topic)
    }

    /// Takes a step that was read: `cursor` is where it ends; none for a step of parked events, of
    /// which there may be one at a time. Events are in the order of reading. A step without events
    /// is complete at once.
    pub fn open_step(&mut self, cursor: Option<Cursor>, events: Vec<Meta>, body: B, now_ms: u64) {
        self.now_ms = now_ms;
        let number = self.first + self.steps.len() as u64;
        let count = events.len();
        let bytes: u64 = events.iter().map(|event| u64::from(event.bytes)).sum();
        self.parked_steps += usize::from(cursor.is_none());
        self.events += count;
        self.unsent += count;
        self.bytes += bytes;
        let slots = events
            .iter()
            .map(|event| Slot::new(event, self.via_of(event)))
            .collect();
        self.steps.push_back(Step::new(cursor, slots, body));
        for (index, event) in events.into_iter().enumerate() {
            self.place((number, index as u32), event.fate, now_ms);
        }
        let step = &mut self.steps[(number - self.first) as usize];
        self.bytes -= step.free_body();
    }

    /// Decides what becomes of an event that was just read.
    fn place(&mut self, (number, index): Place, fate: Fate, now_ms: u64) {
        let step = &self.steps[(number - self.first) as usize];
        let event = &step.events[index as usize];
        let held = self.held.holds(event.aggregate, (number, index));
        let (may_go, reason) = match event.source {
            Source::Log if fate == Fate::Scheduled => (false, Some((ParkReason::Scheduled, None))),
            Source::Log
            | Source::Parked {
                reason: ParkReason::Scheduled,
                ..
            } if held => (false, Some((ParkReason::Behind, None))),
            Source::Parked { .. } if fate == Fate::Scheduled => (false, None),
            Source::Parked { .. } if step.stopped.contains_key(&event.aggregate) => (false, None),
            Source::Parked { .. } if self.is_abandoned(&event.event_id) => (false, None),
            Source::Log | Source::Parked { .. } => {
                let missing = self.topics.missing(event.topic);
                match (fate, missing, self.stalled(event.topic, event.key_hash)) {
                    (Fate::Defect(error), ..) => (false, Some((ParkReason::Failed, Some(error)))),
                    (_, Some(error), _) => (false, Some((ParkReason::Topic, Some(error.clone())))),
                    (_, _, Some(error)) => (false, Some((ParkReason::Partition, Some(error.clone())))),
                    (_, None, None) => (true, None),
                }
            }
        };
        if may_go {
            let (topic, hash, via) = (event.topic, event.key_hash, event.via);
            let ticket = Ticket {
                step: number as u32,
                index,
            };
            self.topics.admit(topic, ticket, hash, via, &mut self.ready);
            return self.topics.ask_if_old(topic, now_ms);
        }
        if let Some((reason, error)) = reason {
            self.park((number, index), reason, error);
        }
        self.decide((number, index));
    }

    /// Whether another step of the log may be read.
    pub fn can_read(&self) -> bool {
        self.can_read_parked() && !self.parked_full()
    }

    /// Whether the limits allow another step, of whatever kind.
    pub fn can_read_parked(&self) -> bool {
        let overhead = self.limits.event_overhead_bytes * self.in_flight_events() as u64;
        self.bytes + overhead < self.limits.max_bytes && self.events < self.limits.max_events
    }

    /// Whether [`Self::recovered_topics`] would name any.
    pub fn has_recovered_topics(&self) -> bool {
        !self.parked_step_in_flight() && self.topics.has_recovered()
    }

    /// Topics that cannot be written now, and why.
    pub fn missing_topics(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.topics.all_missing()
    }

    /// Events handed to the producer and without a report.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Events that wait in the window: for their topic, for their lane, or for the producer.
    pub fn waiting_events(&self) -> usize {
        self.unsent
    }

    /// Events whose outcome is open: waiting or outstanding.
    pub fn in_flight_events(&self) -> usize {
        self.unsent + self.outstanding
    }

    /// Bytes of events handed to the producer or held in bodies.
    pub fn in_flight_bytes(&self) -> u64 {
        self.bytes
    }

    /// Aggregates that are held back.
    pub fn held_aggregates(&self) -> usize {
        self.held.len()
    }

    /// Whether no step is in flight.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Snapshot;

    #[test]
    fn step_numbers_may_wrap_around_while_steps_are_in_flight() {
        let limits = Limits {
            max_bytes: 1_000,
            event_overhead_bytes: 0,
            max_events: 100,
            retry_backoff_ms: 1,
            retry_backoff_max_ms: 1,
            max_attempts: 1,
            partition_stall_ms: 1,
            max_abandoned_bytes: 1_000,
            max_abandoned_events: 100,
            max_parked: 1,
            failed_holds: true,
            seed: 1,
        };
        let mut window = Window::new(limits);
        window.first = u64::from(u32::MAX) - 1;
        let topic = window.topic("t");
        for number in 0..4u8 {
            let cursor = Cursor {
                pos: i64::from(number),
                snapshot: Snapshot {
                    xmin: 3,
                    xmax: 3,
                    xip: Vec::new(),
                },
                walk: None,
            };
            let event = Meta {
                seq: i64::from(number),
                event_id: [number; 16],
                aggregate: AggregateKey::of("thing", "1"),
                topic,
                key_hash: 0,
                bytes: 1,
                source: Source::Log,
                fate: Fate::Send,
            };
            window.open_step(Some(cursor), vec![event], number, 0);
        }
        window.topics_to_ask(0);
        window.topic_answer(topic, TopicAnswer::Partitions(1), 0);
        let mut steps = Vec::new();
        while let Some(dispatch) = window.next_send() {
            steps.push((dispatch.ticket.step, *window.body(dispatch.ticket.step)));
            window.report_delivered(dispatch.ticket);
        }
        assert_eq!(steps, [(u32::MAX - 1, 0), (u32::MAX, 1), (0, 2), (1, 3)]);
        assert_eq!(window.take_settlement().map(|settlement| settlement.steps), Some(4));
    }
}
