//! A simulated relay around a `Window`: reads, sends, reports, settles, restarts.

use std::collections::{BTreeSet, VecDeque};

use outbox_core::partition::{murmur2, partition_for};
use outbox_core::window::{Fate, Limits, Meta, ParkReason, Settlement, Source, Ticket, TopicId, Window};

use crate::broker::{Broker, Presence, Report};
use crate::support::Rng;
use crate::tables::{EventNo, Tables, cursor_at, event_id, key_of};

pub const TOPICS: usize = 3;
pub const AGGREGATES: usize = 6;
pub const PARTITIONS_MAX: u32 = 4;

/// What a relay might forget: the tests must then fail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Whole,
    /// Does not tell a new window of the parked rows.
    ForgetsHolds,
    /// Does not remember what a refused batch held.
    ForgetsSuspects,
}

/// How a session ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Nothing outlives the process.
    Crash,
    /// The same process goes on.
    Orderly,
}

pub struct Relay {
    pub window: Window<Vec<EventNo>>,
    pub tables: Tables,
    pub broker: Broker,
    pub now_ms: u64,
    pub mended: bool,
    pub sessions: usize,
    limits: Limits,
    suspects: BTreeSet<[u8; 16]>,
    /// Topics that the last session could not write to.
    denied: Vec<String>,
    memory: Memory,
    read_pos: EventNo,
    step_rows_max: usize,
    questions: VecDeque<TopicId>,
    /// A settlement that could not be written yet.
    pub kept: Option<Settlement>,
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

fn new_limits(rng: &mut Rng) -> Limits {
    Limits {
        max_bytes: 50 + rng.below(500) as u64,
        event_overhead_bytes: rng.below(5) as u64,
        max_events: 5 + rng.below(30),
        retry_backoff_ms: 100,
        retry_backoff_max_ms: 10_000,
        max_attempts: 1 + rng.below(3) as i32,
        failed_holds: rng.one_in(2),
        partition_stall_ms: 50 + rng.below(500) as u64,
        max_abandoned_bytes: 20 + rng.below(200) as u64,
        max_abandoned_events: 3 + rng.below(10),
        max_parked: 3 + rng.below(20),
        seed: rng.next(),
    }
}

impl Relay {
    pub fn new(rng: &mut Rng, memory: Memory) -> Relay {
        let limits = new_limits(rng);
        Relay {
            window: Window::new(limits.clone()),
            tables: Tables {
                failed_holds: limits.failed_holds,
                ..Tables::default()
            },
            broker: Broker::new(TOPICS),
            now_ms: 1_000_000,
            mended: false,
            sessions: 1,
            limits,
            suspects: BTreeSet::new(),
            denied: Vec::new(),
            memory,
            read_pos: 0,
            step_rows_max: 1 + rng.below(7),
            questions: VecDeque::new(),
            kept: None,
        }
    }

    /// Partitions that do not answer are set aside; where the producers hold too much for them, there is another session.
    pub fn check_stalls(&mut self) {
        self.window.check_stalls(self.now_ms);
        if self.window.abandoned_full() {
            self.restart(Ending::Orderly);
        }
    }

    /// Another session: new producers, a new window, the settled cursor.
    pub fn restart(&mut self, ending: Ending) {
        self.sessions += 1;
        self.suspects.extend(self.window.suspects_left());
        let denied = self.window.missing_topics().map(|(name, _)| name.to_string());
        self.denied = denied.collect();
        if ending == Ending::Crash || self.memory == Memory::ForgetsSuspects {
            self.suspects.clear();
            self.denied.clear();
        }
        self.broker.close_producers();
        self.questions.clear();
        self.kept = None;
        self.window = Window::new(self.limits.clone());
        self.read_pos = self.tables.ledger_pos;
        self.window.suspect(std::mem::take(&mut self.suspects));
        if self.memory == Memory::ForgetsHolds {
            return;
        }
        let failed_holds = self.limits.failed_holds;
        for aggregate in 0..AGGREGATES {
            let of_aggregate = |&(&event, _): &(&EventNo, _)| self.tables.log[event].aggregate == aggregate;
            let rows = self.tables.parked.iter().filter(of_aggregate);
            let reasons = rows.map(|(_, row)| row.reason);
            let rows = reasons.clone().filter(|reason| reason.holds(failed_holds)).count() as u64;
            let blocking = reasons.filter(|reason| reason.blocks(failed_holds)).count() as u64;
            self.window.hold(key_of(aggregate), rows, blocking);
        }
        for topic in 0..TOPICS {
            let rows = self.tables.parked.values().filter(|row| row.topic == Some(topic));
            let of_reason = |reason| rows.clone().filter(|row| row.reason == reason).count();
            let name = topic_name(topic);
            if of_reason(ParkReason::Topic) > 0 {
                self.window.assume_missing(&name, "missing".into(), self.now_ms);
            }
            if of_reason(ParkReason::Partition) > 0 {
                self.window
                    .expect_rows(&name, of_reason(ParkReason::Partition), self.now_ms);
            }
        }
        for topic in std::mem::take(&mut self.denied) {
            self.window.assume_missing(&topic, "missing".into(), self.now_ms);
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

    /// Whether a partition does not answer that the event goes to, or went to when there were fewer.
    pub fn is_silent(&self, aggregate: usize, topic: usize) -> bool {
        let key = aggregate.to_string();
        let silent = |partitions| partition_for(key.as_bytes(), partitions);
        (1..=PARTITIONS_MAX).any(|partitions| self.broker.silent.contains(&(topic, silent(partitions))))
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
        if self.window.parked_step_in_flight() || !self.window.can_read_parked() {
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
                ParkReason::Topic | ParkReason::Partition => row.topic.is_some_and(|topic| recovered.contains(&topic)),
                ParkReason::Retry => row.due_ms <= self.now_ms,
                _ => false,
            }
        };
        let due = self.tables.parked.iter().filter(due);
        let due: Vec<_> = due.map(|(&event, row)| (event, (row.reason, row.attempts))).collect();
        let source = |(reason, attempts)| Source::Parked { reason, attempts };
        let mut rows = Vec::new();
        for (event, row) in due {
            let meta = self.meta(event, source(row));
            if rows.len() < self.step_rows_max && !self.window.is_stalled(&meta) {
                rows.push((event, row));
            }
        }
        if rows.is_empty() {
            return;
        }
        let parked = |(event, row)| self.meta(event, source(row));
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
            let knows = matches!(
                self.broker.topics[topic],
                Presence::Present { .. } | Presence::WriteDenied { .. }
            );
            if !knows && rng.one_in(2) {
                self.window
                    .report_topic_failure(send.ticket, "unknown topic".into(), self.now_ms);
            } else {
                self.broker.send(send, event, topic)?;
            }
        }
        Ok(())
    }

    /// Takes a report. One that the fast producer did not survive ends the session: with all reports
    /// that are there, and what they say of the events.
    pub fn take_report(&mut self, rng: &mut Rng) -> Result<(), String> {
        let mut tickets: Vec<Ticket> = self.take_one_report().into_iter().flatten().collect();
        if !self.broker.fatal {
            return Ok(());
        }
        // After a fatal error some reports never come.
        while !rng.one_in(8)
            && let Some(ticket) = self.take_one_report()
        {
            tickets.extend(ticket);
        }
        self.suspects = self.window.refused(tickets).into_iter().collect();
        self.settle(rng, false)?;
        self.restart(Ending::Orderly);
        Ok(())
    }

    /// None: there is no report. Else the ticket of an event of a refused batch, if it is one.
    fn take_one_report(&mut self) -> Option<Option<Ticket>> {
        match self.broker.next_report()? {
            Report::Delivered(ticket) => self.window.report_delivered(ticket),
            Report::TopicFailure(ticket) => {
                self.window
                    .report_topic_failure(ticket, "unknown topic".into(), self.now_ms);
            }
            Report::Refused { ticket, careful: true } => {
                self.window.report_refused(ticket, "too large".into(), self.now_ms);
            }
            Report::Refused { ticket, careful: false } => return Some(Some(ticket)),
        }
        Some(None)
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

    /// One settle; it may fail, and then the session ends, or it is kept and written later.
    pub fn settle(&mut self, rng: &mut Rng, may_fail: bool) -> Result<(), String> {
        let settlement = match self.kept.take() {
            Some(kept) => kept,
            None if !self.window.settleable() => return Ok(()),
            None => self
                .window
                .take_settlement()
                .ok_or("settleable, but nothing to settle")?,
        };
        if may_fail && rng.one_in(20) {
            self.restart(Ending::Orderly);
            return Ok(());
        }
        if may_fail && rng.one_in(4) {
            self.kept = Some(settlement);
            return Ok(());
        }
        let published = self.broker.appended.iter().map(|&(event, _)| event).collect();
        self.tables
            .settle(&settlement, &published, self.now_ms, |id| topic_no(&self.window, id))?;
        self.window.settled(&settlement);
        if may_fail && rng.one_in(40) {
            self.restart(Ending::Crash);
        }
        Ok(())
    }

    /// The operator has every event that was given up sent again.
    pub fn retry_failed(&mut self) {
        self.mended = true;
        self.broker.poison.clear();
        let mut changed = false;
        for row in self.tables.parked.values_mut() {
            if row.reason == ParkReason::Failed {
                row.reason = ParkReason::Retry;
                row.due_ms = 0;
                changed = true;
            }
        }
        if changed && !self.limits.failed_holds {
            // The rows hold their aggregates again.
            self.restart(Ending::Orderly);
        }
    }
}
