//! When to ask the brokers of a topic, and which topics came back.

use super::topics::{State, TopicId, Topics};

impl Topics {
    pub(super) fn ask(&mut self, id: TopicId, at_ms: u64) {
        let topic = &mut self.topics[id.0 as usize];
        if topic.question_open {
            return;
        }
        if let Some(before) = topic.ask_at.replace(at_ms) {
            self.asks.remove(&(before, id));
        }
        self.asks.insert((at_ms, id));
    }

    pub fn take_due(&mut self, now_ms: u64) -> Vec<TopicId> {
        let mut due = Vec::new();
        while let Some(&(at_ms, id)) = self.asks.first()
            && at_ms <= now_ms
        {
            self.asks.pop_first();
            let topic = self.get_mut(id);
            topic.ask_at = None;
            topic.question_open = true;
            due.push(id);
        }
        due
    }

    pub fn next_ask_at(&self) -> Option<u64> {
        self.asks.first().map(|&(at_ms, _)| at_ms)
    }

    /// Rows parked for the topic are to be read, if it can be written.
    pub fn recover(&mut self, id: TopicId) {
        let topic = &mut self.topics[id.0 as usize];
        let writable = matches!(topic.state, State::Known { .. } | State::Moving { .. });
        if writable && !topic.recovered {
            topic.recovered = true;
            self.recovered.push(id);
        }
    }

    /// The topic with this number, if there is one.
    pub fn by_number(&self, number: u64) -> Option<TopicId> {
        u32::try_from(number)
            .ok()
            .filter(|&index| (index as usize) < self.topics.len())
            .map(TopicId)
    }

    pub fn has_recovered(&self) -> bool {
        !self.recovered.is_empty()
    }

    /// Gives out the recovered topics. Until a read for them finds nothing, each settled step of
    /// parked events brings them up again: see [`Self::recover_taken`].
    pub fn take_recovered(&mut self) -> Vec<TopicId> {
        let mut recovered = std::mem::take(&mut self.recovered);
        recovered.retain(|&id| {
            let topic = &mut self.topics[id.0 as usize];
            topic.recovered = false;
            !matches!(topic.state, State::Missing { .. })
        });
        if !recovered.is_empty() {
            self.taken.clone_from(&recovered);
        }
        recovered
    }

    /// A step of parked events was settled: its read may have been cut by a limit.
    pub fn recover_taken(&mut self) {
        for id in std::mem::take(&mut self.taken) {
            self.recover(id);
        }
    }
}
