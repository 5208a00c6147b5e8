//! Deciding events: parked, for which reason and behind whom, or published.

use std::sync::Arc;

use super::Window;
use super::event::{AggregateKey, ParkReason, Source};
use super::held::Place;
use super::step::{Park, Repark, State};

impl<B> Window<B> {
    /// Parks an event that has not been published, for this reason: if nothing of its aggregate is parked
    /// ahead of it. Else it waits behind that, and the answer is false.
    pub(super) fn fail(&mut self, place: Place, reason: ParkReason, error: Arc<str>) -> bool {
        let (number, index) = place;
        let step = &self.steps[(number - self.first) as usize];
        let event = &step.events[index as usize];
        let has_row = matches!(event.source, Source::Parked { reason, .. } if self.limits.holds(reason));
        let behind = if has_row {
            step.stopped
                .get(&event.aggregate)
                .is_some_and(|&stopped| index > stopped)
        } else {
            self.held.holds(event.aggregate, place)
        };
        match (behind, has_row) {
            (false, _) => self.park(place, reason, Some(error)),
            (true, false) => self.park(place, ParkReason::Behind, None),
            (true, true) => {}
        }
        self.decide(place);
        !behind
    }

    /// Notes that the event gets a row in `outbox_parked`, or its row another reason.
    pub(super) fn park(&mut self, place: Place, reason: ParkReason, error: Option<Arc<str>>) {
        let (number, index) = place;
        let step = &mut self.steps[(number - self.first) as usize];
        let event = &step.events[index as usize];
        let (event_id, aggregate) = (event.event_id, event.aggregate);
        let counted = i32::from(matches!(reason, ParkReason::Retry | ParkReason::Failed));
        let attempts = match event.source {
            Source::Log => counted,
            Source::Parked { attempts, .. } => attempts.saturating_add(counted),
        };
        let retry_in_ms =
            (reason == ParkReason::Retry).then(|| self.retry.delay_after_ms(attempts.max(1).unsigned_abs()));
        let (holds, blocks) = (self.limits.holds(reason), self.limits.blocks(reason));
        let topic = matches!(reason, ParkReason::Topic | ParkReason::Partition).then_some(event.topic);
        let lane = match reason {
            ParkReason::Partition => self.topics.lane_of(event.topic, event.key_hash),
            _ => None,
        };
        match event.source {
            Source::Log => {
                step.outcome.parks.push(Park {
                    event_id,
                    aggregate,
                    reason,
                    attempts,
                    retry_in_ms,
                    error,
                    topic,
                    lane,
                });
                self.stalls.count(None, Some(reason));
                if holds && let Some(head) = self.held.park(aggregate, place, blocks) {
                    self.put_behind(head, aggregate);
                }
            }
            Source::Parked { reason: from, .. } => {
                step.outcome.reparks.push(Repark {
                    event_id,
                    aggregate,
                    from,
                    reason,
                    attempts,
                    retry_in_ms,
                    error,
                    topic,
                    lane,
                });
                self.stalls.count(Some(from), Some(reason));
                let stopped = if blocks {
                    step.stopped.insert(aggregate, index)
                } else {
                    None
                };
                if let Some(later) = stopped.filter(|&later| later > index) {
                    self.put_behind((number, later), aggregate);
                }
                if self.limits.holds(from) {
                    self.held.change(aggregate, self.limits.blocks(from), blocks);
                } else if holds && let Some(head) = self.held.park(aggregate, place, blocks) {
                    self.put_behind(head, aggregate);
                }
            }
        }
    }

    /// The event was the first of its aggregate to be parked, and is not any more. Its row does not get, or
    /// keeps not having, a reason of its own.
    fn put_behind(&mut self, (number, index): Place, aggregate: AggregateKey) {
        let Some(step) = self.steps.get_mut(number.wrapping_sub(self.first) as usize) else {
            return;
        };
        let event_id = step.events[index as usize].event_id;
        let outcome = &mut step.outcome;
        if let Some(park) = outcome.parks.iter_mut().find(|park| park.event_id == event_id) {
            self.held.change(aggregate, self.limits.blocks(park.reason), false);
            self.stalls.count(Some(park.reason), None);
            *park = Park {
                reason: ParkReason::Behind,
                attempts: 0,
                retry_in_ms: None,
                error: None,
                topic: None,
                lane: None,
                ..*park
            };
        } else if let Some(at) = outcome.reparks.iter().position(|repark| repark.event_id == event_id) {
            let Repark { from, reason, .. } = outcome.reparks[at];
            let was = self.limits.blocks(reason);
            self.stalls.count(Some(reason), None);
            if self.limits.holds(from) {
                outcome.reparks.remove(at);
                self.stalls.count(None, Some(from));
                self.held.change(aggregate, was, self.limits.blocks(from));
            } else {
                let repark = &mut outcome.reparks[at];
                repark.attempts -= i32::from(matches!(reason, ParkReason::Retry | ParkReason::Failed));
                (repark.reason, repark.retry_in_ms) = (ParkReason::Behind, None);
                (repark.error, repark.topic, repark.lane) = (None, None, None);
                self.held.change(aggregate, was, false);
            }
        }
    }

    /// The event's outcome is settled as far as the window goes.
    pub(super) fn decide(&mut self, (number, index): Place) {
        let step = &mut self.steps[(number - self.first) as usize];
        let event = &mut step.events[index as usize];
        let bytes = u64::from(event.bytes);
        if std::mem::replace(&mut event.state, State::Decided) == State::Unsent {
            step.unsent -= 1;
            self.unsent -= 1;
        }
        step.undecided -= 1;
        if step.body.is_some() {
            step.bytes_lingering += bytes;
        } else {
            self.bytes -= bytes;
        }
        self.bytes -= step.free_body();
    }
}
