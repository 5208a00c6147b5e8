//! The window towards the producer: what is handed over, what comes back, and what the brokers say of topics.

use std::sync::Arc;

use super::answer::{Effect, TopicAnswer};
use super::event::{ParkReason, Source, Ticket};
use super::held::Place;
use super::step::{Slot, State, Unpark};
use super::topics::TopicId;
use super::{Dispatch, Window};

impl<B> Window<B> {
    /// The next event to be handed to the producer; it counts as outstanding.
    pub fn next_send(&mut self) -> Option<Dispatch> {
        self.free_body_sent_out();
        let (ticket, via, (number, index)) = loop {
            let (ticket, via) = self.ready.pop_front()?;
            let place = self.place_of(ticket);
            // Else it is left out for good. What may be behind it in its lane is of later steps.
            if self.ends_before.is_none_or(|end| place.0 < end) {
                break (ticket, via, place);
            }
        };
        let step = &mut self.steps[(number - self.first) as usize];
        let event = &mut step.events[index as usize];
        event.state = State::Outstanding;
        event.via = via;
        step.unsent -= 1;
        if step.unsent == 0 {
            self.sent_out = Some(number);
        }
        self.unsent -= 1;
        self.outstanding += 1;
        let partition = self.topics.sent(event.topic, event.key_hash, self.now_ms);
        Some(Dispatch {
            ticket,
            topic: event.topic,
            partition,
            via,
        })
    }

    /// The session comes to its end, and this window with it: from now on only what completes a step is handed over of which something was already,
    /// or the steps before it. What was published of a step that cannot be settled is read again.
    pub fn finish_begun(&mut self) {
        let begun = self.steps.iter().rposition(|step| {
            let mut events = step.events.iter();
            step.outcome.events > 0 || events.any(|event| event.state == State::Outstanding)
        });
        self.ends_before = Some(begun.map_or(self.first, |at| self.first + at as u64 + 1));
    }

    /// The producer could not take the event that [`Self::next_send`] gave last: it stays the next one.
    pub fn unsend(&mut self, ticket: Ticket) {
        let Some((number, index)) = self.outstanding_place(ticket) else {
            return;
        };
        let step = &mut self.steps[(number - self.first) as usize];
        let event = &mut step.events[index as usize];
        event.state = State::Unsent;
        let (topic, hash, via) = (event.topic, event.key_hash, event.via);
        step.unsent += 1;
        self.unsent += 1;
        self.outstanding -= 1;
        self.topics.unsent(topic, hash);
        self.ready.push_front((ticket, via));
    }

    /// The body of the step of the event that [`Self::next_send`] gave last.
    pub fn body(&self, step: u32) -> &B {
        let (number, _) = self.place_of(Ticket { step, index: 0 });
        let body = self.steps[(number - self.first) as usize].body.as_ref();
        body.expect("a step keeps its body while one of its events is unsent")
    }

    /// Kafka has acknowledged the event, with an offset.
    pub fn report_delivered(&mut self, ticket: Ticket) {
        let Some((number, index)) = self.outstanding_place(ticket) else {
            return self.report_abandoned(ticket, true);
        };
        self.outstanding -= 1;
        let step = &mut self.steps[(number - self.first) as usize];
        let event = &step.events[index as usize];
        let (topic, hash, via) = (event.topic, event.key_hash, event.via);
        if !self.suspects.is_empty() {
            self.suspects.remove(&event.event_id);
        }
        step.outcome.events += 1;
        step.outcome.bytes += u64::from(event.bytes);
        if let Source::Parked { reason, attempts } = event.source {
            self.stalls.count(Some(reason), None);
            let unpark = Unpark {
                event_id: event.event_id,
                aggregate: event.aggregate,
                attempts,
                from: reason,
            };
            step.outcome.unparks.push(unpark);
        }
        self.decide((number, index));
        let (now_ms, ready) = (self.now_ms, &mut self.ready);
        let waiting = self.topics.reported((topic, hash), (via, true), now_ms, ready);
        self.admit_all(topic, waiting);
    }

    /// The event cannot be written to its topic: [`crate::failure::Action::ParkTopic`]. It is parked,
    /// and so is all that waits for this topic.
    pub fn report_topic_failure(&mut self, ticket: Ticket, error: Arc<str>, now_ms: u64) {
        self.now_ms = now_ms;
        let Some(place) = self.outstanding_place(ticket) else {
            return self.report_abandoned(ticket, false);
        };
        self.outstanding -= 1;
        let topic = self.slot(ticket).topic;
        let unsent = if self.topics.missing(topic).is_none() {
            self.recall(topic)
        } else {
            Vec::new()
        };
        self.topics.fail(topic, error.clone(), now_ms);
        self.fail(place, ParkReason::Topic, error.clone());
        for ticket in unsent {
            self.fail(self.place_of(ticket), ParkReason::Topic, error.clone());
        }
    }

    /// What the brokers said of a topic that [`Self::topics_to_ask`] named.
    pub fn topic_answer(&mut self, topic: TopicId, answer: TopicAnswer, now_ms: u64) {
        self.now_ms = now_ms;
        match self.topics.answer(topic, answer, now_ms) {
            Effect::Nothing => {}
            Effect::Admit(waiting) => self.admit_all(topic, waiting),
            Effect::Park(waiting, error) => {
                for ticket in waiting {
                    self.fail(self.place_of(ticket), ParkReason::Topic, error.clone());
                }
            }
            Effect::Move(partitions) => {
                let unsent = self.recall(topic);
                let waiting = self.topics.start_moving(topic, partitions, unsent, now_ms);
                self.admit_all(topic, waiting);
            }
        }
    }

    /// Topics to ask the brokers about now. Each has at most one question open: the next one comes
    /// after [`Self::topic_answer`].
    pub fn topics_to_ask(&mut self, now_ms: u64) -> Vec<TopicId> {
        self.topics.take_due(now_ms)
    }

    /// When [`Self::topics_to_ask`] will next have something.
    pub fn next_ask_at(&self) -> Option<u64> {
        self.topics.next_ask_at()
    }

    /// All unsent events of a topic, in the order of reading, out of every queue.
    fn recall(&mut self, topic: TopicId) -> Vec<Ticket> {
        let mut unsent = self.topics.take_queued(topic);
        let ready = std::mem::take(&mut self.ready);
        for (ticket, via) in ready {
            if self.slot(ticket).topic == topic {
                unsent.push(ticket);
            } else {
                self.ready.push_back((ticket, via));
            }
        }
        unsent.sort_by_key(|&ticket| self.place_of(ticket));
        unsent
    }

    pub(super) fn admit_all(&mut self, topic: TopicId, tickets: Vec<Ticket>) {
        for ticket in tickets {
            let event = self.slot(ticket);
            let (hash, via) = (event.key_hash, event.via);
            match self.stalled(topic, hash).cloned() {
                None => self.topics.admit(topic, ticket, hash, via, &mut self.ready),
                Some(error) => {
                    self.fail(self.place_of(ticket), ParkReason::Partition, error);
                }
            }
        }
    }

    /// Drops the body of a step all of which was handed to the producer.
    pub(super) fn free_body_sent_out(&mut self) {
        if let Some(number) = self.sent_out.take()
            && let Some(step) = self.steps.get_mut(number.wrapping_sub(self.first) as usize)
        {
            self.bytes -= step.free_body();
        }
    }

    pub(super) fn slot(&self, ticket: Ticket) -> &Slot {
        let (number, index) = self.place_of(ticket);
        &self.steps[(number - self.first) as usize].events[index as usize]
    }

    /// Undoes the wrapping of a ticket's step number.
    pub(super) fn place_of(&self, ticket: Ticket) -> Place {
        (
            self.first + u64::from(ticket.step.wrapping_sub(self.first as u32)),
            ticket.index,
        )
    }

    /// The place of an outstanding event; none if the ticket is not of one.
    pub(super) fn outstanding_place(&self, ticket: Ticket) -> Option<Place> {
        let (number, index) = self.place_of(ticket);
        let step = self.steps.get((number - self.first) as usize)?;
        let event = step.events.get(index as usize)?;
        (event.state == State::Outstanding).then_some((number, index))
    }
}
