//! A simulated Kafka and the relay's two producers: topics that come and go, batches of which one
//! event spoils all, lanes that deliver in order, reports that come later, and producers that were
//! closed while their last requests are still under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outbox_core::window::{Dispatch, Ticket, TopicAnswer, Via};

use crate::support::Rng;
use crate::tables::EventNo;

/// The most events that one request of the fast producer carries.
const BATCH_EVENTS_MAX: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Absent,
    /// Metadata says so.
    Denied,
    /// The brokers tell its partitions, and refuse what is written to it.
    WriteDenied {
        partitions: u32,
    },
    Present {
        partitions: u32,
    },
}

/// (careful, topic, partition): one producer's way to one partition.
type Lane = (bool, usize, u32);

/// What is under way, in order.
type Lanes = BTreeMap<Lane, VecDeque<(Ticket, EventNo)>>;

pub enum Report {
    Delivered(Ticket),
    TopicFailure(Ticket),
    Refused { ticket: Ticket, careful: bool },
}

pub struct Broker {
    pub topics: Vec<Presence>,
    pub outage: bool,
    /// Partitions that do not answer.
    pub silent: BTreeSet<(usize, u32)>,
    /// Events that Kafka refuses, until they are mended.
    pub poison: BTreeSet<EventNo>,
    /// (event, topic), in the order in which the brokers appended them.
    pub appended: Vec<(EventNo, usize)>,
    /// The fast producer met an error that it does not survive.
    pub fatal: bool,
    lanes: Lanes,
    /// What closed producers still had under way: it may land, in order, without a report.
    zombies: Vec<Lanes>,
    reports: VecDeque<(Report, Lane)>,
    /// Lanes with an acknowledgement that the relay has seen, and the number of open messages.
    acknowledged: BTreeSet<Lane>,
    open: BTreeMap<Lane, usize>,
    this_producer: BTreeSet<EventNo>,
}

/// What a broker says to a request.
enum Outcome {
    Appended,
    TopicFailure,
    Refused,
}

impl Broker {
    pub fn new(topics: usize) -> Broker {
        Broker {
            topics: vec![Presence::Absent; topics],
            outage: false,
            silent: BTreeSet::new(),
            poison: BTreeSet::new(),
            appended: Vec::new(),
            fatal: false,
            lanes: Lanes::new(),
            zombies: Vec::new(),
            reports: VecDeque::new(),
            acknowledged: BTreeSet::new(),
            open: BTreeMap::new(),
            this_producer: BTreeSet::new(),
        }
    }

    pub fn close_producers(&mut self) {
        self.zombies.push(std::mem::take(&mut self.lanes));
        self.fatal = false;
        self.reports.clear();
        self.acknowledged.clear();
        self.open.clear();
        self.this_producer.clear();
    }

    /// A lane without an acknowledgement may have one open message only: a broker without a state
    /// for this producer would append the second though it refused the first. And a careful one is
    /// alone in its partition, or a later event could go before it.
    pub fn send(&mut self, dispatch: Dispatch, event: EventNo, topic: usize) -> Result<(), String> {
        let careful = dispatch.via == Via::Careful;
        let lane = (careful, topic, dispatch.partition);
        let open = |lane: Lane| self.open.get(&lane).copied().unwrap_or(0);
        if open((!careful, topic, dispatch.partition)) > 0 {
            return Err(format!(
                "event {event} was sent to {lane:?} beside one of the other producer"
            ));
        }
        if open(lane) > 0 && (careful || !self.acknowledged.contains(&lane)) {
            return Err(format!("event {event} was sent to {lane:?}, where it is not alone"));
        }
        *self.open.entry(lane).or_default() += 1;
        if self.fatal && !careful {
            // A broken producer takes nothing any more.
        } else if self.in_doubt(careful, topic) {
            self.reports.push_back((Report::TopicFailure(dispatch.ticket), lane));
        } else {
            self.lanes.entry(lane).or_default().push_back((dispatch.ticket, event));
        }
        Ok(())
    }

    /// A producer does not take a topic for known again while the relay has yet to hear that it failed.
    fn in_doubt(&self, careful: bool, topic: usize) -> bool {
        let failed = |(report, lane): &(Report, Lane)| {
            matches!(report, Report::TopicFailure(_)) && (lane.0, lane.1) == (careful, topic)
        };
        self.reports.iter().any(failed)
    }

    pub fn set_topic(&mut self, topic: usize, presence: Presence) {
        self.topics[topic] = presence;
        if matches!(presence, Presence::Present { .. } | Presence::WriteDenied { .. }) {
            return;
        }
        // All that is open for the topic fails, in order.
        for (&lane, queue) in self.lanes.iter_mut().filter(|(lane, _)| lane.1 == topic) {
            self.reports
                .extend(queue.drain(..).map(|(ticket, _)| (Report::TopicFailure(ticket), lane)));
        }
        for zombie in &mut self.zombies {
            zombie.retain(|lane, _| lane.1 != topic);
        }
    }

    /// One request of one producer is answered.
    pub fn progress(&mut self, rng: &mut Rng) -> Result<(), String> {
        if self.outage {
            return Ok(());
        }
        self.zombies
            .retain(|lanes| lanes.values().any(|queue| !queue.is_empty()));
        let which = rng.below(1 + self.zombies.len());
        let alive = which == 0;
        let lanes = if alive {
            &mut self.lanes
        } else {
            &mut self.zombies[which - 1]
        };
        lanes.retain(|_, queue| !queue.is_empty());
        let fatal = self.fatal && alive;
        let mut lanes: Vec<_> = lanes
            .iter_mut()
            .filter(|(lane, _)| (lane.0 || !fatal) && !self.silent.contains(&(lane.1, lane.2)))
            .collect();
        if lanes.is_empty() {
            return Ok(());
        }
        let place = rng.below(lanes.len());
        let (&lane, queue) = lanes.swap_remove(place);
        let (careful, topic, partition) = lane;
        let most = if careful { 1 } else { BATCH_EVENTS_MAX.min(queue.len()) };
        let batch: Vec<_> = queue.drain(..1 + rng.below(most)).collect();
        let outcome = match self.topics[topic] {
            Presence::Present { partitions } if partition < partitions => {
                if batch.iter().any(|(_, event)| self.poison.contains(event)) {
                    Outcome::Refused
                } else {
                    Outcome::Appended
                }
            }
            _ => Outcome::TopicFailure,
        };
        let write_denied = matches!(self.topics[topic], Presence::WriteDenied { .. });
        let mut failed_too = Vec::new();
        match outcome {
            Outcome::Appended => {}
            Outcome::TopicFailure => failed_too.extend(queue.drain(..)),
            // Gapless: nothing follows what was refused.
            Outcome::Refused => queue.clear(),
        }
        self.fatal |= alive && !careful && (write_denied || matches!(outcome, Outcome::Refused));
        for (ticket, event) in batch.into_iter().chain(failed_too) {
            let report = match outcome {
                Outcome::Appended => {
                    self.appended.push((event, topic));
                    if alive && !self.this_producer.insert(event) {
                        return Err(format!("event {event} was delivered twice in one session"));
                    }
                    Report::Delivered(ticket)
                }
                Outcome::TopicFailure => Report::TopicFailure(ticket),
                Outcome::Refused => Report::Refused { ticket, careful },
            };
            if alive {
                self.reports.push_back((report, lane));
            }
        }
        Ok(())
    }

    pub fn next_report(&mut self) -> Option<Report> {
        let (report, lane) = self.reports.pop_front()?;
        *self.open.get_mut(&lane).expect("a lane that was sent to") -= 1;
        if matches!(report, Report::Delivered(_)) {
            self.acknowledged.insert(lane);
        }
        Some(report)
    }

    pub fn answer(&self, topic: usize) -> TopicAnswer {
        match self.topics[topic] {
            _ if self.outage => TopicAnswer::NoAnswer,
            Presence::Absent => TopicAnswer::Missing("unknown topic".into()),
            Presence::Denied => TopicAnswer::Denied("not authorized".into()),
            Presence::Present { partitions } | Presence::WriteDenied { partitions } => {
                TopicAnswer::Partitions(partitions)
            }
        }
    }
}
