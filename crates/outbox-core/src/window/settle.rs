//! The window towards the tables: what a settle writes, and which parked rows are to be read.

use super::Window;
use super::event::AggregateKey;
use super::step::{Repark, Settlement};
use super::topics::TopicId;

/// A settlement takes no further step once it has so many rows to write: they are written by one statement, in memory.
const ROWS_ENOUGH: usize = 5_000;

impl<B> Window<B> {
    /// Whether there is something to settle: the first step is complete, or an event was published late.
    pub fn settleable(&self) -> bool {
        self.stalls.has_late() || self.first_is_complete()
    }

    fn first_is_complete(&self) -> bool {
        self.steps.front().is_some_and(|step| step.undecided == 0)
    }

    /// Takes the longest run of complete steps from the front, or a part of it that parks many. No other is taken before this one is
    /// in the tables ([`Self::settled`]); where it never will be, the window is of no more use: drop it and start at the ledger.
    pub fn take_settlement(&mut self) -> Option<Settlement> {
        self.free_body_sent_out();
        let mut settlement = self.stalls.take_late();
        while self.first_is_complete() {
            if settlement
                .as_ref()
                .is_some_and(|taken| taken.parks.len() + taken.reparks.len() >= ROWS_ENOUGH)
            {
                break;
            }
            let step = self.steps.pop_front()?;
            self.first += 1;
            self.events -= step.events.len();
            self.stalls.note_reasons(&step.outcome);
            match &mut settlement {
                Some(settlement) => settlement.merge(step.outcome),
                None => settlement = Some(step.outcome),
            }
        }
        settlement
    }

    /// The settle transaction has committed.
    pub fn settled(&mut self, settlement: &Settlement) {
        let counted = settlement
            .parks
            .iter()
            .filter(|park| self.limits.holds(park.reason))
            .map(|park| park.aggregate);
        let limits = &self.limits;
        let newly_counted = |repark: &&Repark| !limits.holds(repark.from) && limits.holds(repark.reason);
        let counted = counted.chain(
            settlement
                .reparks
                .iter()
                .filter(newly_counted)
                .map(|repark| repark.aggregate),
        );
        for aggregate in counted {
            self.held.settle_park(aggregate);
        }
        for unpark in settlement.unparks.iter().filter(|unpark| limits.holds(unpark.from)) {
            self.held.settle_unpark(unpark.aggregate, limits.blocks(unpark.from));
        }
        let released = |repark: &&Repark| limits.holds(repark.from) && !limits.holds(repark.reason);
        for repark in settlement.reparks.iter().filter(released) {
            // Whether it blocked was corrected when it was decided.
            self.held.settle_unpark(repark.aggregate, false);
        }
        self.end_late(settlement);
        // Rows that reach the table after their topic was found again, or their partition answered.
        let parks = settlement.parks.iter().map(|park| (park.topic, park.lane));
        let reparks = settlement.reparks.iter().map(|repark| (repark.topic, repark.lane));
        for (topic, lane) in parks.chain(reparks) {
            let stalled = lane.is_some_and(|lane| self.is_stalled_lane(lane));
            if let Some(topic) = topic.filter(|_| !stalled) {
                self.topics.recover(topic);
            }
        }
        if settlement.parked_step {
            self.parked_steps = 0;
            self.topics.recover_taken();
        }
    }

    /// Aggregates whose parked rows may go now, those longest in line first: the relay reads their
    /// rows, in seq order, as a step of parked events. Only aggregates with settled rows are named.
    pub fn draining(&self) -> impl Iterator<Item = AggregateKey> {
        self.held.draining()
    }

    /// Topics that were missing and are known again, or have a partition that answers again: the relay reads the
    /// rows parked for them (reasons `topic` and `partition`, without those that are
    /// [`Self::is_stalled`]), all topics in one query, in seq order, as a step of parked events. Empty while
    /// such a step is in flight. After each they are named again, until a read finds nothing.
    pub fn recovered_topics(&mut self) -> Vec<TopicId> {
        if self.parked_step_in_flight() {
            Vec::new()
        } else {
            self.topics.take_recovered()
        }
    }

    /// The read for [`Self::recovered_topics`] failed: they are named again.
    pub fn parked_read_failed(&mut self) {
        self.topics.recover_taken();
    }

    /// Whether a step of parked events is not settled yet; then no other may be read.
    pub fn parked_step_in_flight(&self) -> bool {
        self.parked_steps > 0
    }
}
