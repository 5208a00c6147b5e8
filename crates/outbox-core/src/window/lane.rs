//! A lane is one partition of one topic, as the present producers know it.
//!
//! A partition to which the fast producer has nothing appended yet takes a first sequence other than
//! 0, and then what was refused before counts as appended. So the first event goes alone, and the
//! next only after its positive report.
//!
//! An event that must go carefully waits until nothing of the lane is out in either producer, goes
//! alone, and what is behind it waits for its outcome.

use std::collections::VecDeque;

use super::event::{Ticket, Via};

/// Events that may be handed over now, and to which producer.
pub(super) type Ready = VecDeque<(Ticket, Via)>;

/// What the fast producer has appended. Cold -> (its first event is given out) Warming -> (its positive report) Warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Warmth {
    Cold,
    Warming,
    Warm,
}

#[derive(Clone, Debug)]
pub(super) struct Lane {
    warmth: Warmth,
    /// Whether the one event that is out goes carefully.
    careful_out: bool,
    /// Whether the next event goes carefully, whatever it is: nobody knows whether the topic can be written.
    probe: bool,
    /// Events given out: ready, or handed over and without a report.
    out: u32,
    queue: VecDeque<(Ticket, Via)>,
}

impl Lane {
    pub fn cold(probe: bool) -> Lane {
        Lane {
            warmth: Warmth::Cold,
            careful_out: false,
            probe,
            out: 0,
            queue: VecDeque::new(),
        }
    }

    /// The event may go now, or is queued until its turn.
    pub fn admit(&mut self, ticket: Ticket, via: Via, ready: &mut Ready) {
        if self.queue.is_empty() && self.may_go(via) {
            self.give_out(ticket, via, ready);
        } else {
            self.queue.push_back((ticket, via));
        }
    }

    /// An event of the lane has a report that lets the lane go on.
    pub fn reported(&mut self, via: Via, delivered: bool, ready: &mut Ready) {
        self.out = self.out.saturating_sub(1);
        match via {
            Via::Careful => (self.careful_out, self.probe) = (false, false),
            Via::Fast if delivered => self.warmth = Warmth::Warm,
            Via::Fast => {}
        }
        self.go_on(ready);
    }

    /// Takes those of the queue that `belong` out of it, in order.
    pub fn take(&mut self, mut belongs: impl FnMut(Ticket) -> bool) -> Vec<Ticket> {
        let mut taken = Vec::new();
        self.queue.retain(|&(ticket, _)| {
            let belongs = belongs(ticket);
            if belongs {
                taken.push(ticket);
            }
            !belongs
        });
        taken
    }

    pub fn into_queue(self) -> impl Iterator<Item = Ticket> {
        self.queue.into_iter().map(|(ticket, _)| ticket)
    }

    fn go_on(&mut self, ready: &mut Ready) {
        while let Some(&(ticket, via)) = self.queue.front() {
            if !self.may_go(via) {
                return;
            }
            self.queue.pop_front();
            self.give_out(ticket, via, ready);
            if self.queue.is_empty() {
                self.queue = VecDeque::new();
            }
        }
    }

    fn may_go(&self, via: Via) -> bool {
        match (via, self.warmth) {
            (Via::Fast, Warmth::Warm) if !self.probe => !self.careful_out,
            _ => self.out == 0,
        }
    }

    fn give_out(&mut self, ticket: Ticket, via: Via, ready: &mut Ready) {
        let via = if self.probe { Via::Careful } else { via };
        match via {
            Via::Careful => self.careful_out = true,
            Via::Fast if self.warmth == Warmth::Cold => self.warmth = Warmth::Warming,
            Via::Fast => {}
        }
        self.out += 1;
        ready.push_back((ticket, via));
    }
}
