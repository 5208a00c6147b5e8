//! Which lanes are silent while others answer.

use super::event::Ticket;
use super::lane::Lane;
use super::topics::{LaneId, State, TopicId, Topics};
use crate::partition::partition_of_hash;

/// How far into a lane's silence others must have answered: this part of
/// [`super::Limits::partition_stall_ms`]. More than what lies between two reports in a normal run.
const OTHERS_ANSWERED_PART: u64 = 32;

fn margin_ms(stall_ms: u64) -> u64 {
    (stall_ms / OTHERS_ANSWERED_PART).max(1)
}

impl Topics {
    /// Lanes that have been silent for `stall_ms` while others answered, and for how long. `full`: nothing more
    /// can be read, or nothing parked, so that nobody else need answer.
    pub fn silent_lanes(&self, stall_ms: u64, full: bool, now_ms: u64) -> Vec<(LaneId, u64)> {
        let mut silent: Vec<_> = self
            .waiting_lanes()
            .filter(|(_, since)| self.is_silent(*since, margin_ms(stall_ms), stall_ms, now_ms))
            .collect();
        // In an outage those that answered last have something outstanding as well. Here they have not.
        let mut lanes = self.waiting_lanes();
        if silent.is_empty() && full && lanes.all(|(_, since)| self.is_silent(since, 1, stall_ms, now_ms)) {
            silent.extend(self.waiting_lanes());
        }
        silent
            .into_iter()
            .map(|(lane, since_ms)| (lane, now_ms - since_ms))
            .collect()
    }

    /// Topics that became missing with events out, of which nothing was heard for `stall_ms` while others answered, or while the brokers told of the
    /// topic; and for how long. They have no lanes to tell of.
    pub fn silent_missing(&self, stall_ms: u64, now_ms: u64) -> Vec<(TopicId, u64)> {
        let topics = (0..).map(TopicId).zip(&self.topics);
        let silent = topics.filter(|(_, topic)| {
            let found = now_ms.saturating_sub(topic.heard_ms) >= stall_ms
                && topic.found_ms >= topic.heard_ms.saturating_add(margin_ms(stall_ms));
            matches!(topic.state, State::Missing { .. })
                && topic.outstanding > 0
                && (found || self.is_silent(topic.heard_ms, margin_ms(stall_ms), stall_ms, now_ms))
        });
        silent.map(|(id, topic)| (id, now_ms - topic.heard_ms)).collect()
    }

    /// Whether who is silent since then has been so for `stall_ms`, with others answering `margin_ms` into it.
    fn is_silent(&self, since_ms: u64, margin_ms: u64, stall_ms: u64, now_ms: u64) -> bool {
        let from_ms = since_ms.max(self.answering_since_ms);
        now_ms.saturating_sub(from_ms) >= stall_ms && self.answered_ms >= from_ms.saturating_add(margin_ms)
    }

    /// Of the lanes that have been silent for `stall_ms` the one that has been longest.
    pub fn longest_silent(&self, stall_ms: u64, now_ms: u64) -> Option<LaneId> {
        let silent = self
            .waiting_lanes()
            .filter(|(_, since)| now_ms.saturating_sub(*since) >= stall_ms);
        silent
            .min_by_key(|(lane, since)| (*since, lane.topic.0, lane.partition))
            .map(|(lane, _)| lane)
    }

    /// Lanes with something outstanding, and since when they are silent.
    fn waiting_lanes(&self) -> impl Iterator<Item = (LaneId, u64)> {
        let topics = (0..).map(TopicId).zip(&self.topics);
        topics.flat_map(|(topic, known)| {
            let lanes = match &known.state {
                State::Known { lanes, .. } | State::Moving { lanes, .. } => &lanes[..],
                State::Unknown { .. } | State::Missing { .. } => &[],
            };
            let lanes = (0..).zip(lanes);
            lanes.filter_map(move |(partition, lane)| Some((LaneId { topic, partition }, lane.silent_since_ms()?)))
        })
    }

    /// What waits for a lane, in order.
    pub fn take_lane(&mut self, lane: LaneId, hash_of: impl Fn(Ticket) -> u32) -> Vec<Ticket> {
        match &mut self.get_mut(lane.topic).state {
            State::Known { lanes, .. } => lanes[lane.partition as usize].take_all().collect(),
            State::Moving { lanes, waiting, .. } => {
                let partitions = lanes.len() as u32;
                let of_lane = |ticket| partition_of_hash(hash_of(ticket), partitions) == lane.partition;
                waiting.extract_if(.., |ticket| of_lane(*ticket)).collect()
            }
            State::Unknown { .. } | State::Missing { .. } => Vec::new(),
        }
    }

    /// So many outstanding events of a lane are not waited for any more. Returns events to be admitted again.
    pub fn abandoned(&mut self, lane: LaneId, events: u32) -> Vec<Ticket> {
        let topic = self.get_mut(lane.topic);
        topic.outstanding -= events;
        if let State::Known { lanes, .. } | State::Moving { lanes, .. } = &mut topic.state {
            lanes[lane.partition as usize] = Lane::cold(topic.probing);
        }
        self.finish_moving(lane.topic)
    }
}
