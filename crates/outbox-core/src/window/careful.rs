//! Suspects: events that may be the reason why Kafka refused a batch.
//!
//! With the fast producer every event of a refused batch fails, and the producer with it; which one
//! was at fault it does not say. So the relay remembers them, and the next window sends each alone
//! by the careful producer ([`Via::Careful`], lane.rs). There a refusal is the event's own and counts.
//!
//! A parked event that failed by its own fault before goes carefully too.

use std::sync::Arc;

use super::Window;
use super::event::{Meta, ParkReason, Source, Ticket, Via};
use super::held::Place;
use super::step::{Slot, State};
use super::topics::TopicId;

impl<B> Window<B> {
    /// At the start of a session: what the last one's refused batches held ([`Self::refused`]), and
    /// those of which it did not know better at its end ([`Self::suspects_left`]).
    pub fn suspect(&mut self, event_ids: impl IntoIterator<Item = [u8; 16]>) {
        self.suspects.extend(event_ids);
    }

    /// The suspects that were neither published nor refused, in no order.
    pub fn suspects_left(&self) -> impl ExactSizeIterator<Item = [u8; 16]> {
        self.suspects.iter().copied()
    }

    /// The events whose report from the fast producer said that Kafka refused them: to be given to
    /// [`Self::suspect`] of the next window. This window is at its end.
    pub fn refused(&self, tickets: impl IntoIterator<Item = Ticket>) -> Vec<[u8; 16]> {
        let event_id = |ticket| match self.outstanding_place(ticket) {
            Some(_) => Some(self.slot(ticket).event_id),
            None => self.abandoned_event(ticket),
        };
        tickets.into_iter().filter_map(event_id).collect()
    }

    /// All events that were handed to a producer and have no report: suspects when a batch was refused
    /// of which no report said which events it held.
    pub fn outstanding_events(&self) -> Vec<[u8; 16]> {
        let slots = self.steps.iter().flat_map(|step| &step.events);
        slots
            .filter(|slot| slot.state == State::Outstanding)
            .map(|slot| slot.event_id)
            .collect()
    }

    /// The topic of an event that was handed over and has no report; none for any other ticket.
    pub fn event_topic(&self, ticket: Ticket) -> Option<TopicId> {
        self.outstanding_place(ticket).map(|_| self.slot(ticket).topic)
    }

    /// Kafka has refused an event that went carefully: by its own fault. It is tried again later, or
    /// given up. Its aggregate is held; all others of its lane go on. If an earlier event of the aggregate was
    /// parked meanwhile, this one waits behind it and nothing counts.
    pub fn report_refused(&mut self, ticket: Ticket, error: Arc<str>, now_ms: u64) {
        self.now_ms = now_ms;
        let Some(place) = self.outstanding_place(ticket) else {
            // It is tried again when its partition answers; nobody waits for it here, so nothing counts.
            return self.report_abandoned(ticket, false);
        };
        let &Slot {
            topic,
            key_hash: hash,
            via,
            event_id,
            aggregate,
            source,
            ..
        } = self.slot(ticket);
        debug_assert!(via == Via::Careful, "a refusal by the fast producer ends the session");
        self.outstanding -= 1;
        let attempts = match source {
            Source::Log => 0,
            Source::Parked { attempts, .. } => attempts,
        };
        let reason = if attempts.saturating_add(1) < self.limits.max_attempts {
            ParkReason::Retry
        } else {
            ParkReason::Failed
        };
        let behind = if self.limits.holds(reason) {
            let (steps, first) = (&self.steps, self.first);
            self.topics.take_behind(topic, hash, |ticket| {
                let step = ticket.step.wrapping_sub(first as u32) as usize;
                steps[step].events[ticket.index as usize].aggregate == aggregate
            })
        } else {
            Vec::new()
        };
        if self.fail(place, reason, error) {
            self.suspects.remove(&event_id);
        }
        for ticket in behind {
            self.hold_back(self.place_of(ticket));
        }
        let waiting = self
            .topics
            .reported((topic, hash), (via, false), now_ms, &mut self.ready);
        self.admit_all(topic, waiting);
    }

    /// How an event that was just read must go.
    pub(super) fn via_of(&self, event: &Meta) -> Via {
        let careful = match event.source {
            Source::Log => false,
            Source::Parked { reason, attempts } => attempts > 0 || reason == ParkReason::Retry,
        };
        if careful || (!self.suspects.is_empty() && self.suspects.contains(&event.event_id)) {
            Via::Careful
        } else {
            Via::Fast
        }
    }

    /// An unsent event waits behind one of its aggregate that was parked: it is parked too, or its row
    /// stays as it is.
    fn hold_back(&mut self, place: Place) {
        let (number, index) = place;
        let event = &self.steps[(number - self.first) as usize].events[index as usize];
        let has_row = matches!(event.source, Source::Parked { reason, .. } if self.limits.holds(reason));
        if !has_row {
            self.park(place, ParkReason::Behind, None);
        }
        self.decide(place);
    }
}
