//! The topics of a session: their names, what is known of each, and when to ask again.
//!
//! Unknown -> (partitions) Known; Unknown -> (missing for longer than the grace, or denied) Missing;
//! Known -> (another partition count) Moving -> (nothing outstanding) Known;
//! Known or Moving -> (a failure report) Missing -> (nothing outstanding but what was abandoned, then partitions) Known.
//!
//! That the brokers know a topic does not say that it may be written. So when a missing topic is known
//! again its lanes begin with one event that goes carefully: if it fails, nothing else is disturbed.
//!
//! No answer is never an answer: in an outage topics stay what they are.

use std::collections::HashMap;
use std::sync::Arc;

use super::asking::Asks;
use super::event::{Ticket, Via};
use super::lane::{Lane, Ready};
use super::limits::Limits;
use crate::backoff::Backoff;
use crate::partition::partition_of_hash;

/// How old the partition count of a topic in use may get. Java's `metadata.max.age.ms` is 300 s.
pub(super) const KNOWN_AGE_MS_MAX: u64 = 60_000;

/// An interned topic name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub(super) u32);

impl TopicId {
    /// As the number of a question to the brokers; [`super::Window::topic_from_u64`] is the way back.
    pub fn to_u64(self) -> u64 {
        u64::from(self.0)
    }
}

/// A partition of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LaneId {
    pub topic: TopicId,
    pub partition: u32,
}

pub(super) enum State {
    Unknown {
        waiting: Vec<Ticket>,
        missing_since: Option<u64>,
        tries: u32,
    },
    Known {
        lanes: Vec<Lane>,
        ask_after: u64,
    },
    Moving {
        /// Those of the old count, for what is outstanding there.
        lanes: Vec<Lane>,
        partitions: u32,
        waiting: Vec<Ticket>,
        ask_after: u64,
    },
    Missing {
        error: Arc<str>,
        /// As of what is still out; 0 when nothing can be.
        partitions: u32,
    },
}

pub(super) struct Topic {
    name: Arc<str>,
    pub(super) state: State,
    /// Handed to the producer and without a report.
    pub(super) outstanding: u32,
    /// When the last report of one of its events came. Lanes know better while there are any.
    pub(super) heard_ms: u64,
    /// When the brokers last said that it is there, while it counted as missing.
    pub(super) found_ms: u64,
    pub(super) question_open: bool,
    /// The open question counts as one about a missing topic.
    pub(super) asked_as_missing: bool,
    /// The answer to the open question is from before the topic failed.
    pub(super) answer_stale: bool,
    pub(super) ask_at: Option<u64>,
    pub(super) backoff: Backoff,
    /// Failed since its last delivery: the back-off goes on where it was.
    troubled: bool,
    /// Known again, and without a delivery since.
    pub(super) probing: bool,
    /// Rows are parked for it since an earlier session.
    pub(super) rows_expected: bool,
    /// In the list of recovered topics.
    pub(super) recovered: bool,
}

pub(super) struct Topics {
    by_name: HashMap<Arc<str>, TopicId>,
    pub(super) topics: Vec<Topic>,
    pub(super) asks: Asks,
    /// Known again, with rows parked for them that are to be read.
    pub(super) recovered: Vec<TopicId>,
    /// Those last given out by [`Topics::take_recovered`].
    pub(super) taken: Vec<TopicId>,
    /// The last positive report, and since when they have come without a long silence before.
    pub(super) answered_ms: u64,
    pub(super) answering_since_ms: u64,
    silence_ms_long: u64,
    retry_backoff_ms: u64,
    retry_backoff_max_ms: u64,
    seed: u64,
}

impl Topics {
    pub fn new(limits: &Limits) -> Topics {
        Topics {
            by_name: HashMap::new(),
            topics: Vec::new(),
            asks: Asks::default(),
            recovered: Vec::new(),
            taken: Vec::new(),
            answered_ms: 0,
            answering_since_ms: 0,
            silence_ms_long: limits.partition_stall_ms / 2,
            retry_backoff_ms: limits.retry_backoff_ms,
            retry_backoff_max_ms: limits.retry_backoff_max_ms,
            seed: limits.seed,
        }
    }

    pub fn intern(&mut self, name: &str) -> TopicId {
        if let Some(&id) = self.by_name.get(name) {
            return id;
        }
        let id = TopicId(self.topics.len() as u32);
        let name: Arc<str> = name.into();
        self.by_name.insert(name.clone(), id);
        let seed = self.seed.wrapping_add(u64::from(id.0) << 32);
        self.topics.push(Topic {
            name,
            state: State::Unknown {
                waiting: Vec::new(),
                missing_since: None,
                tries: 0,
            },
            outstanding: 0,
            heard_ms: 0,
            found_ms: 0,
            question_open: false,
            asked_as_missing: false,
            answer_stale: false,
            ask_at: None,
            backoff: Backoff::new(self.retry_backoff_ms, self.retry_backoff_max_ms, seed),
            troubled: false,
            probing: false,
            rows_expected: false,
            recovered: false,
        });
        id
    }

    fn get(&self, id: TopicId) -> &Topic {
        &self.topics[id.0 as usize]
    }

    pub(super) fn get_mut(&mut self, id: TopicId) -> &mut Topic {
        &mut self.topics[id.0 as usize]
    }

    pub fn name(&self, id: TopicId) -> &Arc<str> {
        &self.get(id).name
    }

    /// Why nothing can be sent to the topic, if so.
    pub fn missing(&self, id: TopicId) -> Option<&Arc<str>> {
        match &self.get(id).state {
            State::Missing { error, .. } => Some(error),
            _ => None,
        }
    }

    pub fn all_missing(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.topics.iter().filter_map(|topic| match &topic.state {
            State::Missing { error, .. } => Some((&topic.name, error)),
            _ => None,
        })
    }

    /// Takes an unsent event of a topic that is not missing: into `ready` or into a queue of its own.
    pub fn admit(&mut self, id: TopicId, ticket: Ticket, hash: u32, via: Via, ready: &mut Ready) {
        match &mut self.get_mut(id).state {
            State::Known { lanes, .. } => {
                let partition = partition_of_hash(hash, lanes.len() as u32);
                lanes[partition as usize].admit(ticket, via, ready);
            }
            State::Unknown { waiting, .. } | State::Moving { waiting, .. } => waiting.push(ticket),
            State::Missing { .. } => debug_assert!(false, "events of a missing topic are parked"),
        }
    }

    /// The topic is in use: sees to it that what is known of it is neither absent nor old.
    pub fn ask_if_old(&mut self, id: TopicId, now_ms: u64) {
        let topic = self.get_mut(id);
        match &mut topic.state {
            State::Known { ask_after, .. } if *ask_after <= now_ms => {
                *ask_after = now_ms + KNOWN_AGE_MS_MAX;
                self.ask(id, now_ms);
            }
            State::Unknown { .. } if topic.ask_at.is_none() => self.ask(id, now_ms),
            _ => {}
        }
    }

    /// The partition for an event that is handed to the producer now.
    pub fn sent(&mut self, id: TopicId, hash: u32, now_ms: u64) -> u32 {
        let topic = self.get_mut(id);
        topic.outstanding += 1;
        match &mut topic.state {
            State::Known { lanes, .. } => {
                let partition = partition_of_hash(hash, lanes.len() as u32);
                lanes[partition as usize].sent(now_ms);
                partition
            }
            _ => unreachable!("only events of known topics are ready"),
        }
    }

    pub fn unsent(&mut self, id: TopicId, hash: u32) {
        let topic = self.get_mut(id);
        topic.outstanding -= 1;
        if let State::Known { lanes, .. } | State::Moving { lanes, .. } = &mut topic.state {
            let partition = partition_of_hash(hash, lanes.len() as u32);
            lanes[partition as usize].unsent();
        }
    }

    /// An event has its positive report, or was refused for its own fault. What may go now is put into
    /// `ready`, or returned to be admitted again, in order.
    pub fn reported(
        &mut self,
        (id, hash): (TopicId, u32),
        (via, delivered): (Via, bool),
        now_ms: u64,
        ready: &mut Ready,
    ) -> Vec<Ticket> {
        let topic = &mut self.topics[id.0 as usize];
        topic.outstanding -= 1;
        topic.heard_ms = now_ms;
        if delivered && (topic.troubled || topic.probing) {
            topic.troubled = false;
            topic.probing = false;
            topic.backoff.reset();
        }
        let known = matches!(topic.state, State::Known { .. });
        if let State::Known { lanes, .. } | State::Moving { lanes, .. } = &mut topic.state {
            let partition = partition_of_hash(hash, lanes.len() as u32);
            let lane = &mut lanes[partition as usize];
            if lane.heard(now_ms) >= self.silence_ms_long {
                self.answering_since_ms = now_ms;
            }
            self.answered_ms = now_ms;
            if known {
                lane.reported(via, delivered, ready);
                return Vec::new();
            }
        }
        self.finish_moving(id)
    }

    /// Those of the events that wait behind one with this hash that `belong`, in order, taken out.
    pub fn take_behind(&mut self, id: TopicId, hash: u32, mut belongs: impl FnMut(Ticket) -> bool) -> Vec<Ticket> {
        match &mut self.get_mut(id).state {
            State::Known { lanes, .. } => {
                let partition = partition_of_hash(hash, lanes.len() as u32);
                lanes[partition as usize].take(belongs)
            }
            State::Unknown { waiting, .. } | State::Moving { waiting, .. } => {
                waiting.extract_if(.., |ticket| belongs(*ticket)).collect()
            }
            State::Missing { .. } => Vec::new(),
        }
    }

    /// Everything of the topic that waits here, not in order, and not what is in `ready`.
    pub fn take_queued(&mut self, id: TopicId) -> Vec<Ticket> {
        match &mut self.get_mut(id).state {
            State::Unknown { waiting, .. } | State::Moving { waiting, .. } => std::mem::take(waiting),
            State::Known { lanes, .. } => lanes.iter_mut().flat_map(Lane::take_all).collect(),
            State::Missing { .. } => Vec::new(),
        }
    }

    /// A failure report, or a failed send, of one outstanding event: the topic is missing until it
    /// is known anew.
    pub fn fail(&mut self, id: TopicId, error: Arc<str>, now_ms: u64) {
        let topic = self.get_mut(id);
        topic.outstanding -= 1;
        topic.heard_ms = now_ms;
        if let State::Missing { error: last, .. } = &mut topic.state {
            *last = error;
            return;
        }
        self.become_missing(id, error, now_ms);
    }

    /// A topic that had rows parked for it when the session began.
    pub fn assume_missing(&mut self, id: TopicId, error: Arc<str>, now_ms: u64) {
        let topic = self.get_mut(id);
        if matches!(&topic.state, State::Unknown { waiting, .. } if waiting.is_empty()) {
            topic.state = State::Missing { error, partitions: 0 };
            self.ask(id, now_ms);
        }
    }

    /// A topic that has rows with the reason `partition` when the session begins.
    pub fn expect_rows(&mut self, id: TopicId, now_ms: u64) {
        let topic = self.get_mut(id);
        topic.rows_expected = true;
        if matches!(topic.state, State::Unknown { .. }) {
            self.ask(id, now_ms);
        }
    }

    /// The lane of a key as long as the topic is known, and of what was out when it became missing.
    pub fn lane_of(&self, id: TopicId, hash: u32) -> Option<LaneId> {
        let partitions = self.get(id).state.partitions();
        (partitions > 0).then(|| LaneId {
            topic: id,
            partition: partition_of_hash(hash, partitions),
        })
    }

    pub(super) fn become_missing(&mut self, id: TopicId, error: Arc<str>, now_ms: u64) {
        let topic = self.get_mut(id);
        let partitions = topic.state.partitions();
        topic.state = State::Missing { error, partitions };
        topic.troubled = true;
        if topic.question_open {
            topic.answer_stale = true;
        } else {
            let delay = topic.backoff.next_delay_ms();
            self.ask(id, now_ms + delay);
        }
    }

    /// Called with all unsent events of the topic, in order, after [`super::answer::Effect::Move`]. Returns those
    /// that can be admitted at once.
    pub fn start_moving(&mut self, id: TopicId, partitions: u32, waiting: Vec<Ticket>, now_ms: u64) -> Vec<Ticket> {
        let topic = self.get_mut(id);
        let lanes = match &mut topic.state {
            State::Known { lanes, .. } => std::mem::take(lanes),
            _ => Vec::new(),
        };
        topic.state = State::Moving {
            lanes,
            partitions,
            waiting,
            ask_after: now_ms + KNOWN_AGE_MS_MAX,
        };
        self.finish_moving(id)
    }

    pub(super) fn finish_moving(&mut self, id: TopicId) -> Vec<Ticket> {
        let topic = self.get_mut(id);
        match &mut topic.state {
            State::Moving {
                partitions,
                waiting,
                ask_after,
                ..
            } if topic.outstanding == 0 => {
                let (partitions, waiting) = (*partitions, std::mem::take(waiting));
                topic.state = known(partitions, *ask_after, topic.probing);
                // Rows that wait for a partition may have another one now, which answers.
                self.recover(id);
                waiting
            }
            _ => Vec::new(),
        }
    }
}

impl State {
    /// Partitions that what is out was sent to.
    fn partitions(&self) -> u32 {
        match self {
            State::Unknown { .. } => 0,
            State::Known { lanes, .. } | State::Moving { lanes, .. } => lanes.len() as u32,
            State::Missing { partitions, .. } => *partitions,
        }
    }
}

pub(super) fn known(partitions: u32, ask_after: u64, probe: bool) -> State {
    let lanes = (0..partitions).map(|_| Lane::cold(probe)).collect();
    State::Known { lanes, ask_after }
}
