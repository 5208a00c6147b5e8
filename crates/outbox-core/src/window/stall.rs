//! Partitions that do not answer while others do.
//!
//! librdkafka cannot take back what it was given, so what is outstanding on such a lane is *abandoned*: it is
//! parked, its step can settle, and its report may still come. Nothing more is sent to the lane until
//! the last of these reports is in; what comes for it is parked. A late positive report takes the
//! event's row away, with the step if that is not settled yet, else with the next settlement.
//!
//! While its report is due an abandoned event is never sent again, and its aggregate does not drain.
//! librdkafka's memory is bounded, and what was abandoned stays in it: with too much of that
//! ([`Window::abandoned_full`]) the producer is given up, which is what frees it.
//!
//! If nothing answers it is an outage: nobody is to blame, and nothing is parked. So a lane's silence
//! is measured only while others answer, and anew when others come back from a long silence.

use std::collections::HashMap;
use std::sync::Arc;

use super::Window;
use super::event::{AggregateKey, Meta, ParkReason, Source, Ticket};
use super::held::Place;
use super::step::{Settlement, State, Unpark};
use super::topics::{LaneId, TopicId};

/// How often silence is looked at in [`super::Limits::partition_stall_ms`].
const CHECKS_PER_STALL: u64 = 16;

struct StalledLane {
    /// Reports of abandoned events that are due.
    due: u32,
    error: Arc<str>,
}

/// An event that was parked while the producer has it.
struct Abandoned {
    lane: LaneId,
    aggregate: AggregateKey,
    bytes: u32,
    /// Where it was read, and its row then.
    place: Place,
    source: Source,
    /// The row's reason, once it is settled.
    reason: ParkReason,
}

#[derive(Default)]
pub(super) struct Stalls {
    lanes: HashMap<LaneId, StalledLane>,
    /// Reports that are due.
    due: HashMap<u64, [u8; 16]>,
    /// Bytes of the events whose reports are due.
    due_bytes: u64,
    /// From being abandoned until the report, or until what it said is settled.
    events: HashMap<[u8; 16], Abandoned>,
    /// Late positive reports of events whose step is gone.
    late: Vec<Unpark>,
    late_bytes: u64,
    next_check_ms: u64,
    /// A lane that is silent for as long as a stalled one, while nobody else answers either.
    silent: Option<LaneId>,
    /// Rows with the reason `partition`.
    rows: usize,
}

impl Stalls {
    fn error(&self, lane: LaneId) -> Option<&Arc<str>> {
        self.lanes.get(&lane).map(|stalled| &stalled.error)
    }

    /// Keeps the number of rows with the reason `partition`.
    pub fn count(&mut self, was: Option<ParkReason>, is: Option<ParkReason>) {
        self.rows += usize::from(is == Some(ParkReason::Partition));
        self.rows = self
            .rows
            .saturating_sub(usize::from(was == Some(ParkReason::Partition)));
    }

    pub fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// A settlement of the late positive reports alone.
    pub fn take_late(&mut self) -> Option<Settlement> {
        self.has_late().then(|| Settlement {
            events: self.late.len() as u64,
            bytes: std::mem::take(&mut self.late_bytes),
            unparks: std::mem::take(&mut self.late),
            ..Settlement::default()
        })
    }

    /// Notes the reasons that the rows of abandoned events get.
    pub fn note_reasons(&mut self, outcome: &Settlement) {
        if self.events.is_empty() {
            return;
        }
        let parks = outcome.parks.iter().map(|park| (park.event_id, park.reason));
        let reparks = outcome.reparks.iter().map(|repark| (repark.event_id, repark.reason));
        for (event_id, reason) in parks.chain(reparks) {
            if let Some(event) = self.events.get_mut(&event_id) {
                event.reason = reason;
            }
        }
    }
}

impl<B> Window<B> {
    /// At the start of a session: this many rows have the reason `partition` and this topic. They are read
    /// again ([`Self::recovered_topics`]) when the topic is known; events that come before wait.
    pub fn expect_rows(&mut self, name: &str, rows: usize, now_ms: u64) -> TopicId {
        let id = self.topics.intern(name);
        self.stalls.rows += rows;
        self.topics.expect_rows(id, now_ms);
        id
    }

    /// Looks for lanes that do not answer while others do. To be called in each turn, with the reports
    /// taken before, but not while the brokers are known to be out of reach.
    pub fn check_stalls(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        if self.outstanding == 0 {
            self.stalls.silent = None;
            return;
        }
        if now_ms < self.stalls.next_check_ms {
            return;
        }
        self.stalls.next_check_ms = now_ms + (self.limits.partition_stall_ms / CHECKS_PER_STALL).max(1);
        for (lane, silent_ms) in {
            let full = !self.can_read_parked() || self.parked_step_in_flight();
            self.topics.silent_lanes(self.limits.partition_stall_ms, full, now_ms)
        } {
            self.stall(lane, silent_ms);
        }
        for (topic, silent_ms) in self.topics.silent_missing(self.limits.partition_stall_ms, now_ms) {
            while let Some(lane) = self.lane_with_outstanding(topic) {
                self.stall(lane, silent_ms);
            }
        }
        self.stalls.silent = self.topics.longest_silent(self.limits.partition_stall_ms, now_ms);
    }

    /// When [`Self::check_stalls`] will next look; none while nothing is outstanding.
    pub fn next_stall_check_at(&self) -> Option<u64> {
        (self.outstanding > 0).then_some(self.stalls.next_check_ms)
    }

    /// Partitions that do not answer: topic and number. Of a topic that cannot be written that is the news.
    pub fn stalled_partitions(&self) -> impl Iterator<Item = (&Arc<str>, u32)> {
        let lanes = self.stalls.lanes.keys();
        let lanes = lanes.filter(|lane| self.topics.missing(lane.topic).is_none());
        lanes.map(|lane| (self.topics.name(lane.topic), lane.partition))
    }

    /// A partition that has acknowledged nothing for as long as a stalled one, while nobody else did either: topic and
    /// number. As of the last [`Self::check_stalls`].
    pub fn silent_partition(&self) -> Option<(&Arc<str>, u32)> {
        let lane = self.stalls.silent?;
        Some((self.topics.name(lane.topic), lane.partition))
    }

    /// Events that were parked and whose reports are due all the same.
    pub fn abandoned_events(&self) -> usize {
        self.stalls.due.len()
    }

    /// Whether the producer holds so much for partitions that do not answer that it may soon take nothing for the others, and a new one
    /// would hold less: it gets one event for each such partition until that answers.
    pub fn abandoned_full(&self) -> bool {
        let much = self.stalls.due_bytes >= self.limits.max_abandoned_bytes
            || self.abandoned_events() >= self.limits.max_abandoned_events;
        much && self.stalls.lanes.values().any(|lane| lane.due > 1)
    }

    /// Whether so many rows are parked for partitions that nothing more may be read from the log.
    pub fn parked_full(&self) -> bool {
        self.stalls.rows >= self.limits.max_parked
    }

    /// Whether the row of a parked event is to stay as it is: its own report is due, or it waits for a partition that
    /// does not answer yet. The relay leaves such rows out. A row with another reason is taken, whatever its
    /// partition: it gets the reason `partition`, and so is neither due nor in line until that answers.
    pub fn is_stalled(&self, event: &Meta) -> bool {
        use ParkReason::{Partition, Topic};
        let waits = matches!(
            event.source,
            Source::Parked {
                reason: Topic | Partition,
                ..
            }
        );
        self.is_abandoned(&event.event_id) || (waits && self.stalled(event.topic, event.key_hash).is_some())
    }

    /// Why nothing is sent to the partition of this key now, if so.
    pub(super) fn stalled(&self, topic: TopicId, hash: u32) -> Option<&Arc<str>> {
        if self.stalls.lanes.is_empty() {
            return None;
        }
        self.stalls.error(self.topics.lane_of(topic, hash)?)
    }

    /// Whether the report of this event is due, or what it said is not settled.
    pub(super) fn is_abandoned(&self, event_id: &[u8; 16]) -> bool {
        !self.stalls.events.is_empty() && self.stalls.events.contains_key(event_id)
    }

    pub(super) fn is_stalled_lane(&self, lane: LaneId) -> bool {
        self.stalls.lanes.contains_key(&lane)
    }

    fn stall(&mut self, lane: LaneId, silent_ms: u64) {
        let error: Arc<str> = format!(
            "partition {} of topic \"{}\" has not answered for {} ms",
            lane.partition,
            self.topics.name(lane.topic),
            silent_ms
        )
        .into();
        let outstanding = self.outstanding_of(lane);
        let unsent = self.recall_lane(lane);
        let due = outstanding.len() as u32;
        for place in outstanding {
            self.abandon(place, lane, error.clone());
        }
        self.stalls.lanes.insert(
            lane,
            StalledLane {
                due,
                error: error.clone(),
            },
        );
        for ticket in unsent {
            self.fail(self.place_of(ticket), ParkReason::Partition, error.clone());
        }
        let waiting = self.topics.abandoned(lane, due);
        self.admit_all(lane.topic, waiting);
    }

    fn lane_with_outstanding(&self, topic: TopicId) -> Option<LaneId> {
        let mut events = self.steps.iter().flat_map(|step| &step.events);
        let event = events.find(|event| event.state == State::Outstanding && event.topic == topic)?;
        self.topics.lane_of(topic, event.key_hash)
    }

    fn outstanding_of(&self, lane: LaneId) -> Vec<Place> {
        let steps = (self.first..).zip(&self.steps);
        let events =
            steps.flat_map(|(number, step)| (0..).zip(&step.events).map(move |(n, event)| ((number, n), event)));
        let of_lane = events.filter(|(_, event)| {
            event.state == State::Outstanding
                && event.topic == lane.topic
                && self.topics.lane_of(event.topic, event.key_hash) == Some(lane)
        });
        of_lane.map(|(place, _)| place).collect()
    }

    fn abandon(&mut self, place: Place, lane: LaneId, error: Arc<str>) {
        let event = &self.steps[(place.0 - self.first) as usize].events[place.1 as usize];
        let (event_id, aggregate) = (event.event_id, event.aggregate);
        let ticket = Ticket {
            step: place.0 as u32,
            index: place.1,
        };
        let abandoned = Abandoned {
            lane,
            aggregate,
            bytes: event.bytes,
            place,
            source: event.source,
            reason: match event.source {
                Source::Log => ParkReason::Partition,
                Source::Parked { reason, .. } => reason,
            },
        };
        self.stalls.due.insert(ticket.to_u64(), event_id);
        self.stalls.due_bytes += u64::from(abandoned.bytes);
        self.stalls.events.insert(event_id, abandoned);
        self.outstanding -= 1;
        self.fail(place, ParkReason::Partition, error);
        self.held.abandon(aggregate);
    }

    /// The event of an abandoned ticket.
    pub(super) fn abandoned_event(&self, ticket: Ticket) -> Option<[u8; 16]> {
        self.stalls.due.get(&ticket.to_u64()).copied()
    }

    /// The report of an abandoned event, if it is one.
    #[cold]
    pub(super) fn report_abandoned(&mut self, ticket: Ticket, delivered: bool) {
        if self.stalls.due.is_empty() {
            return;
        }
        let Some(event_id) = self.stalls.due.remove(&ticket.to_u64()) else {
            return;
        };
        let Some(event) = self.stalls.events.get(&event_id) else {
            return;
        };
        let (lane, aggregate) = (event.lane, event.aggregate);
        self.stalls.due_bytes -= u64::from(event.bytes);
        if delivered {
            self.suspects.remove(&event_id);
            self.settle_late(event_id);
        } else {
            self.stalls.events.remove(&event_id);
            self.held.end_abandoned(aggregate);
        }
        if let Some(stalled) = self.stalls.lanes.get_mut(&lane) {
            stalled.due -= 1;
            if stalled.due == 0 {
                self.stalls.lanes.remove(&lane);
                self.topics.recover(lane.topic);
            }
        }
    }

    /// An abandoned event was published after all.
    fn settle_late(&mut self, event_id: [u8; 16]) {
        let Some(event) = self.stalls.events.get(&event_id) else {
            return;
        };
        let (place, aggregate, bytes) = (event.place, event.aggregate, u64::from(event.bytes));
        let attempts = match event.source {
            Source::Log => 0,
            Source::Parked { attempts, .. } => attempts,
        };
        let unpark = |from| Unpark {
            event_id,
            aggregate,
            attempts,
            from,
        };
        let step = place.0.checked_sub(self.first).map(|at| &mut self.steps[at as usize]);
        let Some(step) = step else {
            let from = event.reason;
            self.stalls.count(Some(from), None);
            self.stalls.late.push(unpark(from));
            self.stalls.late_bytes += bytes;
            return;
        };
        let outcome = &mut step.outcome;
        outcome.events += 1;
        outcome.bytes += bytes;
        let limits = &self.limits;
        if let Some(at) = outcome.parks.iter().position(|park| park.event_id == event_id) {
            let reason = outcome.parks.remove(at).reason;
            self.stalls.count(Some(reason), None);
            self.held.unpark(aggregate, limits.blocks(reason));
        } else if let Some(at) = outcome.reparks.iter().position(|repark| repark.event_id == event_id) {
            let repark = outcome.reparks.remove(at);
            self.stalls.count(Some(repark.reason), None);
            outcome.unparks.push(unpark(repark.from));
            if limits.holds(repark.from) {
                let blocks = limits.blocks(repark.from);
                self.held.change(aggregate, limits.blocks(repark.reason), blocks);
            } else {
                self.held.unpark(aggregate, limits.blocks(repark.reason));
            }
        } else if let Source::Parked { reason, .. } = event.source {
            self.stalls.count(Some(reason), None);
            outcome.unparks.push(unpark(reason));
        }
        self.stalls.events.remove(&event_id);
        self.held.end_abandoned(aggregate);
    }

    /// The unparks of a settlement are in the table: those that came late among them.
    pub(super) fn end_late(&mut self, settlement: &Settlement) {
        if self.stalls.events.is_empty() {
            return;
        }
        for unpark in &settlement.unparks {
            if self.stalls.events.remove(&unpark.event_id).is_some() {
                self.held.end_abandoned(unpark.aggregate);
            }
        }
    }

    /// All unsent events of a lane, in the order of reading, out of every queue.
    fn recall_lane(&mut self, lane: LaneId) -> Vec<Ticket> {
        let mut unsent = Vec::new();
        for (ticket, via) in std::mem::take(&mut self.ready) {
            let event = self.slot(ticket);
            if event.topic == lane.topic && self.topics.lane_of(event.topic, event.key_hash) == Some(lane) {
                unsent.push(ticket);
            } else {
                self.ready.push_back((ticket, via));
            }
        }
        let (steps, first) = (&self.steps, self.first);
        unsent.extend(self.topics.take_lane(lane, |ticket| {
            let step = ticket.step.wrapping_sub(first as u32) as usize;
            steps[step].events[ticket.index as usize].key_hash
        }));
        unsent
    }
}
