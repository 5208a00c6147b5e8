//! A simulated relay around a `Window`: reads, sends, reports, settles, restarts.

use std::collections::{BTreeSet, VecDeque};

use outbox_core::partition::murmur2;
use outbox_core::window::{Fate, Limits, Meta, ParkReason, Source, TopicId, Window};

use crate::broker::{Broker, Presence, Report};
use crate::support::Rng;
use crate::tables::{EventNo, Tables, cursor_at, event_id, key_of};

pub const TOPICS: usize = 3;
pub const AGGREGATES: usize = 6;

/// What a relay might forget: the tests must then fail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Whole,
    /// Does not tell a new window of the parked rows.
    ForgetsHolds,
}

pub struct Relay {
    pub window: Window<Vec<EventNo>>,
    pub tables: Tables,
    pub broker: Broker,
    pub now_ms: u64,
    pub mended: bool,
    memory: Memory,
    read_pos: EventNo,
    step_rows_max: usize,
    questions: VecDeque<TopicId>,
}

fn topic_name(topic: usize) -> String {
    format!("topic-{topic}")
}

fn topic_no(window: &Window<Vec<EventNo>>, id: TopicId) -> usize {
    let name = window.topic_name(id);
    name.strip_prefix("topic-")
        .and_then(|number| number.parse().ok())
        .expect("one of our topics")
}

fn new_window(rng: &mut Rng) -> Window<Vec<EventNo>> {
    Window::new(Limits {
        max_bytes: 50 + rng.below(500) as u64,
        max_events: 5 + rng.below(30),
        retry_backoff_ms: 100,
        retry_backoff_max_ms: 10_000,
        seed: rng.next(),
    })
}

impl Relay {
    pub fn new(rng: &mut Rng, memory: Memory) -> Relay {
        Relay {
            window: new_window(rng),
            tables: Tables::default(),
            broker: Broker::new(TOPICS),
            now_ms: 1_000_000,
            mended: false,
            memory,
            read_pos: 0,
            step_rows_max: 1 + rng.below(7),
            questions: VecDeque::new(),
        }
    }

    /// Another session: a new producer, a new window, the settled cursor.
    pub fn restart(&mut self, rng: &mut Rng) {
        self.broker.close_producer();
        self.questions.clear();
        self.window = new_window(rng);
        self.read_pos = self.tables.ledger_pos;
        if self.memory == Memory::ForgetsHolds {
            return;
        }
        for aggregate in 0..AGGREGATES {
            let of_aggregate = |&(&event, _): &(&EventNo, _)| self.tables.log[event].aggregate == aggregate;
            let reasons = self
                .tables
                .parked
                .iter()
                .filter(of_aggregate)
                .map(|(_, row)| row.reason);
            let rows = reasons.clone().filter(|reason| reason.holds()).count() as u64;
            let blocking = reasons.filter(|reason| reason.blocks()).count() as u64;
            self.window.hold(key_of(aggregate), rows, blocking);
        }
        let topics: BTreeSet<usize> = self.tables.parked.values().filter_map(|row| row.topic).collect();
        for topic in topics {
            self.window
                .assume_missing(&topic_name(topic), "missing".into(), self.now_ms);
        }
    }

    fn meta(&mut self, event: EventNo, source: Source) -> Meta {
        let row = self.tables.log[event].clone();
        let fate = match row.available_at {
            Some(at) if at > self.now_ms => Fate::Scheduled,
            _ if row.defect && !self.mended => Fate::Defect("does not fit".into()),
            _ => Fate::Send,
        };
        Meta {
            seq: event as i64,
            event_id: event_id(event),
            aggregate: key_of(row.aggregate),
            topic: self.window.topic(&topic_name(row.topic)),
            key_hash: murmur2(row.aggregate.to_string().as_bytes()),
            bytes: 10 + event as u32 % 7,
            source,
            fate,
        }
    }

    pub fn read_log(&mut self) {
        if !self.window.can_read() {
            return;
        }
        let end = self.tables.log.len().min(self.read_pos + self.step_rows_max);
        let events: Vec<EventNo> = (self.read_pos..end).collect();
        let metas = events.iter().map(|&event| self.meta(event, Source::Log)).collect();
        self.read_pos = end;
        self.window.open_step(Some(cursor_at(end)), metas, events, self.now_ms);
    }

    /// Due ones, heads to be retried, draining aggregates, recovered topics: in seq order.
    pub fn read_parked(&mut self) {
        if self.window.parked_step_in_flight() {
            return;
        }
        let draining: BTreeSet<_> = self.window.draining().take(2).collect();
        let recovered = self.window.recovered_topics();
        let recovered: BTreeSet<usize> = recovered.into_iter().map(|id| topic_no(&self.window, id)).collect();
        let due = |&(&event, row): &(&EventNo, &crate::tables::Parked)| {
            let log = &self.tables.log[event];
            match row.reason {
                ParkReason::Scheduled => log.available_at.is_none_or(|at| at <= self.now_ms),
                ParkReason::Behind => draining.contains(&key_of(log.aggregate)),
                ParkReason::Topic => row.topic.is_some_and(|topic| recovered.contains(&topic)),
                ParkReason::Retry => self.tables.is_head(event),
                _ => false,
            }
        };
        let due = self.tables.parked.iter().filter(due).take(self.step_rows_max);
        let rows: Vec<(EventNo, ParkReason)> = due.map(|(&event, row)| (event, row.reason)).collect();
        if rows.is_empty() {
            return;
        }
        let parked = |(event, reason)| self.meta(event, Source::Parked { reason, attempts: 0 });
        let metas: Vec<Meta> = rows.iter().copied().map(parked).collect();
        let body = rows.into_iter().map(|(event, _)| event).collect();
        self.window.open_step(None, metas, body, self.now_ms);
    }

    pub fn send(&mut self, rng: &mut Rng) -> Result<(), String> {
        for _ in 0..1 + rng.below(6) {
            let Some(send) = self.window.next_send() else {
                return Ok(());
            };
            if rng.one_in(8) {
                // The producer's queue is full.
                self.window.unsend(send.ticket);
                return Ok(());
            }
            let event = self.window.body(send.ticket.step)[send.ticket.index as usize];
            let topic = topic_no(&self.window, send.topic);
            let refused = !matches!(self.broker.topics[topic], Presence::Present { .. }) && rng.one_in(2);
            if refused {
                self.window
                    .report_topic_failure(send.ticket, "unknown topic".into(), self.now_ms);
            } else {
                self.broker.send(send.ticket, event, topic, send.partition)?;
            }
        }
        Ok(())
    }

    pub fn take_report(&mut self) {
        match self.broker.next_report() {
            Some(Report::Delivered(ticket)) => self.window.report_delivered(ticket),
            Some(Report::TopicFailure(ticket)) => {
                self.window
                    .report_topic_failure(ticket, "unknown topic".into(), self.now_ms);
            }
            None => {}
        }
    }

    pub fn ask(&mut self) {
        self.questions.extend(self.window.topics_to_ask(self.now_ms));
    }

    pub fn answer(&mut self, rng: &mut Rng) {
        if self.questions.is_empty() {
            return;
        }
        let place = rng.below(self.questions.len());
        let id = self.questions.remove(place).expect("a question at this place");
        let answer = self.broker.answer(topic_no(&self.window, id));
        self.window.topic_answer(id, answer, self.now_ms);
    }

    /// One settle; it may fail, and then the session ends.
    pub fn settle(&mut self, rng: &mut Rng, may_fail: bool) -> Result<(), String> {
        if !self.window.settleable() {
            return Ok(());
        }
        let settlement = self
            .window
            .take_settlement()
            .ok_or("settleable, but nothing to settle")?;
        if may_fail && rng.one_in(20) {
            self.restart(rng);
            return Ok(());
        }
        let published = self.broker.appended.iter().map(|&(event, _)| event).collect();
        self.tables
            .settle(&settlement, &published, |id| topic_no(&self.window, id))?;
        self.window.settled(&settlement);
        if may_fail && rng.one_in(40) {
            self.restart(rng);
        }
        Ok(())
    }

    /// The operator has every event that was given up sent again.
    pub fn retry_failed(&mut self) {
        self.mended = true;
        for row in self
            .tables
            .parked
            .values_mut()
            .filter(|row| row.reason == ParkReason::Failed)
        {
            row.reason = ParkReason::Retry;
        }
    }
}
