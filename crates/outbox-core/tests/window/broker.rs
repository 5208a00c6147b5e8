//! A simulated Kafka and its producer: topics that come and go, lanes that deliver in order, reports
//! that come later, and producers that were closed while their last requests are still under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outbox_core::window::{Ticket, TopicAnswer};

use crate::support::Rng;
use crate::tables::EventNo;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Absent,
    Denied,
    Present { partitions: u32 },
}

/// One producer's queue to one partition, in order.
type Lanes = BTreeMap<(usize, u32), VecDeque<(Ticket, EventNo)>>;

pub enum Report {
    Delivered(Ticket),
    TopicFailure(Ticket),
}

pub struct Broker {
    pub topics: Vec<Presence>,
    pub outage: bool,
    /// (event, topic), in the order in which the brokers appended them.
    pub appended: Vec<(EventNo, usize)>,
    lanes: Lanes,
    /// What closed producers still had under way: it may land, in order, without a report.
    zombies: Vec<Lanes>,
    reports: VecDeque<(Report, (usize, u32))>,
    /// Lanes with an acknowledgement that the relay has seen, and the number of open messages.
    acknowledged: BTreeSet<(usize, u32)>,
    open: BTreeMap<(usize, u32), usize>,
    this_producer: BTreeSet<EventNo>,
}

impl Broker {
    pub fn new(topics: usize) -> Broker {
        Broker {
            topics: vec![Presence::Absent; topics],
            outage: false,
            appended: Vec::new(),
            lanes: Lanes::new(),
            zombies: Vec::new(),
            reports: VecDeque::new(),
            acknowledged: BTreeSet::new(),
            open: BTreeMap::new(),
            this_producer: BTreeSet::new(),
        }
    }

    pub fn close_producer(&mut self) {
        self.zombies.push(std::mem::take(&mut self.lanes));
        self.reports.clear();
        self.acknowledged.clear();
        self.open.clear();
        self.this_producer.clear();
    }

    /// A lane without an acknowledgement may have one open message only: a broker without a state
    /// for this producer would append the second though it refused the first.
    pub fn send(&mut self, ticket: Ticket, event: EventNo, topic: usize, partition: u32) -> Result<(), String> {
        let lane = (topic, partition);
        let open = self.open.entry(lane).or_default();
        *open += 1;
        if *open > 1 && !self.acknowledged.contains(&lane) {
            return Err(format!("event {event} was sent to cold lane {lane:?} behind another"));
        }
        if self.in_doubt(topic) {
            self.reports.push_back((Report::TopicFailure(ticket), lane));
        } else {
            self.lanes.entry(lane).or_default().push_back((ticket, event));
        }
        Ok(())
    }

    /// The producer does not take a topic for known again while the relay has yet to hear that it failed.
    fn in_doubt(&self, topic: usize) -> bool {
        let failed =
            |(report, lane): &(Report, (usize, u32))| matches!(report, Report::TopicFailure(_)) && lane.0 == topic;
        self.reports.iter().any(failed)
    }

    pub fn set_topic(&mut self, topic: usize, presence: Presence) {
        self.topics[topic] = presence;
        if matches!(presence, Presence::Present { .. }) {
            return;
        }
        // All that is open for the topic fails, in order.
        for (&lane, queue) in self.lanes.iter_mut().filter(|(lane, _)| lane.0 == topic) {
            self.reports
                .extend(queue.drain(..).map(|(ticket, _)| (Report::TopicFailure(ticket), lane)));
        }
        for zombie in &mut self.zombies {
            zombie.retain(|lane, _| lane.0 != topic);
        }
    }

    /// One message of one producer is appended, or all of one of its lanes fail, in order.
    pub fn progress(&mut self, rng: &mut Rng) -> Result<(), String> {
        if self.outage {
            return Ok(());
        }
        let producers = 1 + self.zombies.len();
        let which = rng.below(producers);
        let lanes = if which == 0 {
            &mut self.lanes
        } else {
            &mut self.zombies[which - 1]
        };
        lanes.retain(|_, queue| !queue.is_empty());
        if lanes.is_empty() {
            return Ok(());
        }
        let place = rng.below(lanes.len());
        let (&lane, queue) = lanes.iter_mut().nth(place).expect("a lane at this place");
        if !matches!(self.topics[lane.0], Presence::Present { partitions } if lane.1 < partitions) {
            let failed = queue.drain(..).map(|(ticket, _)| (Report::TopicFailure(ticket), lane));
            if which == 0 {
                self.reports.extend(failed);
            }
            return Ok(());
        }
        let (ticket, event) = queue.pop_front().expect("empty lanes are gone");
        self.appended.push((event, lane.0));
        if which == 0 {
            if !self.this_producer.insert(event) {
                return Err(format!("event {event} was delivered twice by one producer"));
            }
            self.reports.push_back((Report::Delivered(ticket), lane));
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
            Presence::Present { partitions } => TopicAnswer::Partitions(partitions),
        }
    }
}
