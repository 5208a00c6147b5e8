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
    /// Of these, handed over.
    handed: u32,
    /// Since when nothing was heard of what was handed over.
    silent_since_ms: u64,
    queue: VecDeque<(Ticket, Via)>,
}

impl Lane {
    pub fn cold(probe: bool) -> Lane {
        Lane {
            warmth: Warmth::Cold,
            careful_out: false,
            probe,
            out: 0,
            handed: 0,
            silent_since_ms: 0,
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

    /// An event that was given out is handed over.
    pub fn sent(&mut self, now_ms: u64) {
        if self.handed == 0 {
            self.silent_since_ms = now_ms;
        }
        self.handed += 1;
    }

    /// It was not, after all.
    pub fn unsent(&mut self) {
        self.handed -= 1;
    }

    /// A report came. Returns for how long nothing had been heard.
    pub fn heard(&mut self, now_ms: u64) -> u64 {
        self.handed = self.handed.saturating_sub(1);
        now_ms.saturating_sub(std::mem::replace(&mut self.silent_since_ms, now_ms))
    }

    /// Since when something is out and nothing was heard.
    pub fn silent_since_ms(&self) -> Option<u64> {
        (self.handed > 0).then_some(self.silent_since_ms)
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

    pub fn take_all(&mut self) -> impl Iterator<Item = Ticket> + use<> {
        std::mem::take(&mut self.queue).into_iter().map(|(ticket, _)| ticket)
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
