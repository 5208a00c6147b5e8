//! When to ask the brokers of a topic, and which topics came back.
//!
//! Questions are answered one after the other. Those about missing topics come again and again, so only some of them are open at a
//! time: a topic that is new, or in use, never waits behind thousands of others that are not there.

use std::collections::BTreeSet;

use super::topics::{State, TopicId, Topics};

/// Questions about missing topics that are open at a time.
const MISSING_AT_ONCE: usize = 50;

/// What is to be asked, by the time from which on.
#[derive(Default)]
pub(super) struct Asks {
    /// About topics whose events wait, or flow.
    in_use: BTreeSet<(u64, TopicId)>,
    missing: BTreeSet<(u64, TopicId)>,
    /// Questions about missing topics that have no answer yet.
    missing_open: usize,
}

impl Asks {
    fn put(&mut self, id: TopicId, is_missing: bool, at_ms: u64) {
        let asks = if is_missing {
            &mut self.missing
        } else {
            &mut self.in_use
        };
        asks.insert((at_ms, id));
    }

    fn remove(&mut self, id: TopicId, at_ms: u64) {
        self.in_use.remove(&(at_ms, id));
        self.missing.remove(&(at_ms, id));
    }

    /// When there will be something to take.
    fn next_at(&self) -> Option<u64> {
        let missing = (self.missing_open < MISSING_AT_ONCE).then(|| self.missing.first());
        let first = self.in_use.first().into_iter().chain(missing.flatten());
        first.map(|&(at_ms, _)| at_ms).min()
    }

    /// The next topic to be asked about, and whether that counts as a question about a missing one. Those in use come first.
    fn take_due(&mut self, now_ms: u64) -> Option<(TopicId, bool)> {
        let is_due = |first: &&(u64, TopicId)| first.0 <= now_ms;
        if self.in_use.first().filter(is_due).is_some() {
            return self.in_use.pop_first().map(|(_, id)| (id, false));
        }
        if self.missing_open == MISSING_AT_ONCE {
            return None;
        }
        self.missing.first().filter(is_due)?;
        self.missing_open += 1;
        self.missing.pop_first().map(|(_, id)| (id, true))
    }

    pub fn missing_answered(&mut self) {
        self.missing_open -= 1;
    }
}

impl Topics {
    pub(super) fn ask(&mut self, id: TopicId, at_ms: u64) {
        let topic = &mut self.topics[id.0 as usize];
        if topic.question_open {
            return;
        }
        let is_missing = matches!(topic.state, State::Missing { .. });
        if let Some(before) = topic.ask_at.replace(at_ms) {
            self.asks.remove(id, before);
        }
        self.asks.put(id, is_missing, at_ms);
    }

    pub fn take_due(&mut self, now_ms: u64) -> Vec<TopicId> {
        let mut due = Vec::new();
        while let Some((id, as_missing)) = self.asks.take_due(now_ms) {
            let topic = self.get_mut(id);
            topic.ask_at = None;
            topic.question_open = true;
            topic.asked_as_missing = as_missing;
            due.push(id);
        }
        due
    }

    pub fn next_ask_at(&self) -> Option<u64> {
        self.asks.next_at()
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
