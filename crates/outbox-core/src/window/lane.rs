//! A lane is one partition of one topic, as the present producer knows it.
//!
//! A partition to which this producer has nothing appended yet takes a first sequence other than 0,
//! and then what was refused before counts as appended. So the first event goes alone, and the next
//! only after its positive report.

use std::collections::VecDeque;

use super::event::Ticket;

/// Cold -> (its first event is sent) Warming -> (its positive report) Warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Warmth {
    Cold,
    Warming,
    Warm,
}

#[derive(Clone, Debug)]
pub(super) struct Lane {
    warmth: Warmth,
    /// What came while the lane was warming.
    queue: VecDeque<Ticket>,
}

impl Lane {
    pub fn cold() -> Lane {
        Lane {
            warmth: Warmth::Cold,
            queue: VecDeque::new(),
        }
    }

    /// The event may go now, or is queued until the lane is warm.
    pub fn admit(&mut self, ticket: Ticket, ready: &mut VecDeque<Ticket>) {
        match self.warmth {
            Warmth::Warm => ready.push_back(ticket),
            Warmth::Warming => self.queue.push_back(ticket),
            Warmth::Cold => {
                self.warmth = Warmth::Warming;
                ready.push_back(ticket);
            }
        }
    }

    /// An event of the lane has its positive report.
    pub fn delivered(&mut self, ready: &mut VecDeque<Ticket>) {
        if self.warmth == Warmth::Warming {
            self.warmth = Warmth::Warm;
            ready.append(&mut self.queue);
            self.queue = VecDeque::new();
        }
    }

    pub fn into_queue(self) -> VecDeque<Ticket> {
        self.queue
    }
}
