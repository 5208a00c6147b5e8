//! One session of the relay: from acquiring the lease to whatever ends it.
//!
//! A session starts at the last settled cursor with a producer of its own, and that is the only way to start: after a crash, a takeover, a fatal
//! producer error, a lost lease, a failed settle, a change of settings. All its state is in memory and is thrown away at its end.
//!
//! Invariants:
//! - no transaction is open while anything is sent or waited for;
//! - what is handed to the producer was durably committed (WAL is flushed in [`Session::read`]);
//! - a settle covers only events with a positive report, or parks them in the same transaction, and is fenced by the lease's token.

use super::report::Reporter;
use super::step::{self, Body, Reader, Rules};
use super::store::{Fence, Store};
use crate::guc::Settings;
use crate::janitor;
use crate::pg::catalog::{self, Schema};
use crate::pg::spi::{self, Spi};
use crate::pg::txn::{self, Isolation, Transaction};
use crate::pg::{error::ServerError, runtime, wal};
use crate::shmem::{Slot, State};
use outbox_core::backoff::Backoff;
use outbox_core::cursor::Cursor;
use outbox_core::failure::{Action, Failure, TopicFailure};
use outbox_core::snapshot::Snapshot;
use outbox_core::topic::TopicTemplate;
use outbox_core::window::{Limits, Meta, Settlement, Ticket, TopicAnswer, Window};
use outbox_kafka::{Producer, Record, Report, SendError, TopicMetadata};
use pgrx::pg_sys::Oid;

/// Reports taken from librdkafka in one turn, so that a turn stays short.
const REPORTS_PER_TURN: usize = 20_000;
/// Events handed to librdkafka in one turn, for the same reason.
const SENDS_PER_TURN: usize = 20_000;
/// Events in flight; what is known of each takes about 100 bytes.
const IN_FLIGHT_EVENTS_MAX: usize = 200_000;
/// The table was locked by somebody (ALTER TABLE, VACUUM FULL): look again after this.
const LOCKED_RETRY_MS: u64 = 50;
/// Before the first transaction: the cursor of an empty ledger.
const BEGINNING: &str = "3:3:";

/// Why a session ended.
#[derive(Debug)]
pub enum End {
    /// SIGTERM, or the postmaster is gone.
    Shutdown,
    /// Settings changed, or what is parked: start again with what is now.
    Settings,
    /// ALTER DATABASE or ALTER ROLE changed what this session was given at its start: only a new process gets the new ones.
    DatabaseSettings,
    /// The extension is gone, or is another one than the one this session began with.
    Extension,
    /// Another process has the slot or the lease.
    Superseded,
    /// Something failed that may go away: start again after a pause.
    Trouble(String),
    /// Kafka refused a batch for what is in it: starting again would only repeat it.
    Refused(String),
    /// The settings are wrong: nothing helps but others.
    Misconfigured(String),
}

impl From<ServerError> for End {
    fn from(error: ServerError) -> Self {
        End::Trouble(error.message)
    }
}

/// Where the extension's objects are, looked up when the session began and compared in every step.
pub struct Place {
    pub schema: Schema,
    pub log: Oid,
    pub sequence: Oid,
    pub owner: Oid,
}

impl Place {
    /// None when the extension is not there. Inside a transaction that may take a snapshot.
    pub fn find(spi: &Spi) -> Option<Place> {
        let schema = Schema::of(super::store::extension_schema(spi)?);
        let log = schema.relation(c"outbox_log")?;
        let sequence = schema.relation(c"outbox_log_seq")?;
        Some(Place { schema, log, sequence, owner: catalog::relation_owner(log) })
    }

    fn is_current(&self) -> bool {
        self.schema.relation(c"outbox_log") == Some(self.log)
    }
}

pub struct Session<'a> {
    settings: &'a Settings,
    index: usize,
    slot: &'a Slot,
    generation: u32,
    reporter: &'a mut Reporter,
    place: Place,
    template: TopicTemplate,
    store: Store,
    token: [u8; 16],
    lease_until_ms: u64,
    producer: Producer,
    window: Window<Body>,
    /// Where the next step starts: the last one read, settled or not.
    cursor: Cursor,
    /// The last settled ledger row.
    batch_no: i64,
    settled_cursor: Cursor,
    /// The log may hold more than was read.
    more: bool,
    read_not_before_ms: u64,
    polled_at_ms: u64,
    settled_at_ms: u64,
    next_due: Option<i64>,
    look_for_due: bool,
    swept_at_ms: u64,
    /// Publishing is held up, and by what.
    hindrance: Option<(State, &'static str)>,
    reports: Vec<Report>,
}

impl<'a> Session<'a> {
    /// Acquires the lease and loads what was left. The caller has found the extension and brokers.
    pub fn open(settings: &'a Settings, index: usize, slot: &'a Slot, generation: u32, reporter: &'a mut Reporter) -> Result<Session<'a>, End> {
        let template = TopicTemplate::parse(&settings.topic).map_err(|error| End::Misconfigured(format!("outbox_ext.topic: {error}")))?;
        let options = outbox_kafka::parse_options(&settings.kafka_options)
            .map_err(|error| End::Misconfigured(format!("outbox_ext.kafka_options: {error}")))?;
        let producer = Producer::new(&outbox_kafka::Settings {
            brokers: settings.brokers.clone(),
            options,
            max_message_bytes: settings.max_message_bytes,
            max_in_flight_bytes: settings.max_in_flight_bytes + settings.batch_bytes + settings.max_message_bytes,
            max_in_flight_events: IN_FLIGHT_EVENTS_MAX + settings.batch_size,
        })
        .map_err(|error| End::Misconfigured(error.to_string()))?;

        let now = runtime::monotonic_ms();
        let mut window = Window::new(Limits {
            max_bytes: settings.max_in_flight_bytes as u64,
            max_events: IN_FLIGHT_EVENTS_MAX,
            retry_backoff_ms: settings.retry_backoff_ms,
            retry_backoff_max_ms: settings.retry_backoff_max_ms,
            seed: now,
        });
        let token = *uuid::Uuid::now_v7().as_bytes();
        let found = txn::run(Isolation::ReadCommitted, |transaction| {
            transaction.snapshot();
            spi::connected(|spi| {
                let place = Place::find(spi)?;
                transaction.become_owner(place.owner);
                let store = Store::prepare(spi, &place.schema);
                store.acquire(spi, &token, settings.lease_duration_ms, std::process::id() as i32);
                store.drop_orphans(spi);
                Some((place, store))
            })
        })?;
        let Some((place, store)) = found else { return Err(End::Extension) };
        let ledger = txn::run(Isolation::ReadCommitted, |transaction| {
            transaction.become_owner(place.owner);
            transaction.snapshot();
            spi::connected(|spi| {
                store.held(spi, |aggregate, rows, blocking| window.hold(aggregate, rows, blocking));
                for parked in store.parked_topics(spi) {
                    let topic = if parked.given { parked.topic.clone() } else { template.resolve(&parked.aggregate_type, &parked.event_type) };
                    if topic != parked.topic {
                        store.retarget(spi, &parked, &topic);
                    }
                    window.assume_missing(&topic, parked.error.as_str().into(), now);
                }
                store.ledger(spi)
            })
        })?;
        let (batch_no, cursor) = match ledger {
            Some(found) => found,
            None => {
                pgrx::warning!("outbox_ext: the ledger {}.outbox_batch is empty; everything in outbox_log is published again", place.schema.quoted);
                (0, Cursor { pos: 0, snapshot: beginning(), walk: None })
            }
        };
        slot.set_state(State::Running);
        Ok(Session {
            settings,
            index,
            slot,
            generation,
            reporter,
            place,
            template,
            store,
            token,
            lease_until_ms: now + settings.lease_duration_ms,
            producer,
            window,
            settled_cursor: cursor.clone(),
            cursor,
            batch_no,
            more: true,
            read_not_before_ms: 0,
            polled_at_ms: now,
            settled_at_ms: 0,
            next_due: None,
            look_for_due: true,
            swept_at_ms: now,
            hindrance: None,
            reports: Vec::new(),
        })
    }

    /// Publishes until something ends the session; then settles what is settled for sure, and gives the producer up.
    pub fn run(mut self, teardowns: &mut super::Teardowns) -> End {
        let end = loop {
            match self.turn() {
                Ok(()) => {}
                Err(end) => break end,
            }
        };
        if matches!(end, End::Shutdown | End::Settings | End::DatabaseSettings) {
            self.finish_what_is_out();
        }
        if !matches!(end, End::Superseded | End::Extension) {
            // What Kafka acknowledged in time need not be sent again.
            let _ = self.settle();
            let _ = self.transaction(Isolation::ReadCommitted, |session, spi| session.store.release(spi, &session.token));
        }
        self.slot.clear_progress();
        teardowns.push(self.producer.shut_down());
        end
    }

    /// One turn of the loop: reports, answers, sends, settle, read, sleep.
    fn turn(&mut self) -> Result<(), End> {
        self.slot.beat();
        if runtime::shutdown_requested() {
            return Err(End::Shutdown);
        }
        self.check_not_superseded()?;
        if runtime::take_reload() {
            if super::database_settings_changed()? {
                return Err(End::DatabaseSettings);
            }
            if Settings::current() != *self.settings {
                return Err(End::Settings);
            }
        }
        if self.slot.take_new_session() {
            return Err(End::Settings);
        }
        let woken = self.slot.take_wake();
        let now = runtime::monotonic_ms();
        let polled = now >= self.polled_at_ms + self.settings.poll_interval_ms;
        if polled {
            self.polled_at_ms = now;
            self.look_for_due = true;
        }
        self.more |= woken || polled;

        let reports_left = self.take_reports(now)?;
        for topic in self.window.topics_to_ask(now) {
            self.producer.ask_topic(self.window.topic_name(topic), topic.to_u64());
        }
        let sends_left = self.send(now)?;
        self.settle_if_due(now)?;
        let read = if self.may_read(now) { self.read()? } else { false };
        self.sweep_if_due(now);
        self.tell();
        if reports_left || sends_left || read {
            return Ok(());
        }
        self.sleep()
    }

    fn check_not_superseded(&self) -> Result<(), End> {
        if self.slot.generation() == self.generation { Ok(()) } else { Err(End::Superseded) }
    }

    /// Takes what librdkafka and the metadata thread have to say. True: reports are left.
    fn take_reports(&mut self, now: u64) -> Result<bool, End> {
        let mut reports = std::mem::take(&mut self.reports);
        let left = self.producer.serve(REPORTS_PER_TURN, &mut reports);
        let mut failed: Option<Failure> = None;
        for report in reports.drain(..) {
            let ticket = Ticket::from_u64(report.ticket);
            match report.outcome {
                Ok(()) => self.window.report_delivered(ticket),
                Err(failure) if failure.action() == Action::ParkTopic => {
                    self.window.report_topic_failure(ticket, failure.to_string().into(), now);
                }
                // Those that come after the first are mostly consequences of it.
                Err(failure) => failed = Some(worse(failed, failure)),
            }
        }
        self.reports = reports;
        for (question, answer) in self.producer.topic_answers() {
            let answer = match answer {
                TopicMetadata::Partitions(count) => TopicAnswer::Partitions(count),
                TopicMetadata::Missing(TopicFailure::Unknown, text) => TopicAnswer::Missing(text.into()),
                TopicMetadata::Missing(_, text) => TopicAnswer::Denied(text.into()),
                TopicMetadata::NoAnswer(_) => TopicAnswer::NoAnswer,
            };
            if let Some(topic) = self.window.topic_from_u64(question) {
                self.window.topic_answer(topic, answer, now);
            }
        }
        self.reporter.kafka_logs(self.producer.take_logs());
        match failed.or_else(|| self.producer.fatal()) {
            None => Ok(left),
            Some(failure) => Err(end_of(failure)),
        }
    }

    /// Hands ready events to the producer. True: more are ready.
    fn send(&mut self, now: u64) -> Result<bool, End> {
        for _ in 0..SENDS_PER_TURN {
            // A process that was stopped in here for longer than its lease hands over nothing more.
            self.check_not_superseded()?;
            let Some(dispatch) = self.window.next_send() else { return Ok(false) };
            let event = self.window.body(dispatch.ticket.step).event(dispatch.ticket.index);
            let sent = step::with_headers(&event, |headers| {
                let record = Record {
                    topic: self.window.topic_name(dispatch.topic),
                    key: event.key,
                    payload: event.payload,
                    headers,
                    timestamp_ms: event.timestamp_ms,
                };
                self.producer.send(&record, dispatch.partition as i32, dispatch.ticket.to_u64())
            });
            match sent {
                Ok(()) => {}
                Err(SendError::QueueFull) => {
                    self.window.unsend(dispatch.ticket);
                    return Ok(false);
                }
                Err(SendError::Failed(failure)) if failure.action() == Action::ParkTopic => {
                    self.window.report_topic_failure(dispatch.ticket, failure.to_string().into(), now);
                }
                Err(SendError::Failed(failure)) => return Err(end_of(failure)),
            }
        }
        Ok(true)
    }

    fn may_read(&self, now: u64) -> bool {
        now >= self.read_not_before_ms && self.window.can_read() && (self.more || self.parked_wait())
    }

    /// Parked events may go now, and no step of them is in flight (there is one at a time).
    fn parked_wait(&self) -> bool {
        !self.window.parked_step_in_flight()
            && (self.look_for_due
                || self.next_due.is_some_and(|due| due <= txn::now())
                || self.window.draining().next().is_some()
                || self.window.has_recovered_topics())
    }

    /// Reads a step. True when it brought events, or when there is more to read.
    fn read(&mut self) -> Result<bool, End> {
        let look_for_due = std::mem::take(&mut self.look_for_due);
        let outcome = self.transaction_before_snapshot(|session, transaction| {
            if !session.place.is_current() {
                return Err(End::Extension);
            }
            if !catalog::lock_access_share_if_free(session.place.log) {
                return Ok(None);
            }
            if !session.place.is_current() {
                return Err(End::Extension);
            }
            transaction.become_owner(session.place.owner);
            // Read before the snapshot is taken: every seq up to it was drawn before the snapshot, so late events of two transactions have no
            // defined order between them.
            let last_seq = catalog::sequence_last_value(session.place.sequence);
            transaction.snapshot();
            spi::connected(|spi| session.read_step(spi, last_seq, look_for_due)).map(Some)
        })?;
        let Some(step) = outcome? else {
            // Somebody has the table; he is not to wait for us.
            self.read_not_before_ms = runtime::monotonic_ms() + LOCKED_RETRY_MS;
            self.more = true;
            self.look_for_due |= look_for_due;
            return Ok(false);
        };
        Ok(self.take_step(step))
    }

    /// The reads of one step, under its snapshot.
    fn read_step(&mut self, spi: &Spi, last_seq: Option<i64>, look_for_due: bool) -> Result<StepRead, End> {
        let fence = self.store.fence(spi, &self.token, self.place.log);
        if !fence.lease_held {
            return Err(End::Superseded);
        }
        self.hindrance = hindrance(&fence);
        if self.hindrance.is_some() {
            return Ok(StepRead::nothing(self.cursor.clone()));
        }
        let now = txn::now();
        let rules = || Rules { template: &self.template, max_message_bytes: self.settings.max_message_bytes, now };
        let limit = |rules| Reader::new(rules, self.settings.batch_size, self.settings.batch_bytes);

        let mut parked = limit(rules());
        if !self.window.parked_step_in_flight() {
            let recovered = self.window.recovered_topics();
            if !recovered.is_empty() {
                self.store.of_topics(spi, &recovered, &mut parked, &mut self.window);
            }
            if look_for_due || self.next_due.is_some_and(|due| due <= now) {
                self.store.due(spi, now, &mut parked, &mut self.window);
                self.next_due = self.store.next_due(spi);
            }
            let draining: Vec<_> = self.window.draining().take(self.settings.batch_size).collect();
            for aggregate in draining {
                if parked.is_full() {
                    break;
                }
                if !self.store.of_aggregate(spi, aggregate, &mut parked, &mut self.window) {
                    return Err(End::Trouble("parked events were deleted by somebody else".to_owned()));
                }
            }
        } else {
            // Looked for again when the step in flight is settled.
            self.look_for_due |= look_for_due;
        }

        let mut log = limit(rules());
        let ranges = self.cursor.late_ranges(&fence.snapshot);
        let mut cut: Option<(u64, i64)> = None;
        let mut last = None;
        for range in &ranges {
            if log.is_full() {
                cut = last;
                break;
            }
            cut = self.store.late(spi, range, self.cursor.pos, &mut log, &mut self.window);
            if cut.is_some() {
                break;
            }
            last = log.last_position().or(last);
        }
        let walking = self.cursor.walk.is_some();
        let (cursor, more) = match cut {
            Some(position) => (self.cursor.cut_walk(&fence.snapshot, position), true),
            None if walking => (self.cursor.end_walk(), true),
            None => {
                log.sort_by_seq();
                let full = log.is_full();
                let cut = if full { Some((0, self.cursor.pos)) } else { self.store.new_events(spi, self.cursor.pos, &mut log, &mut self.window) };
                match cut {
                    Some((_, pos)) => (self.cursor.advance(fence.snapshot, pos), true),
                    None => {
                        let read = log.highest_seq().unwrap_or(i64::MIN);
                        (self.cursor.advance(fence.snapshot, read.max(last_seq.unwrap_or(i64::MIN))), false)
                    }
                }
            }
        };
        wal::flush_commits(log.xids().chain(parked.xids()));
        Ok(StepRead { log: log.finish(), parked: parked.finish(), cursor, more })
    }

    /// Takes over what was read, outside the transaction.
    fn take_step(&mut self, step: StepRead) -> bool {
        let now = runtime::monotonic_ms();
        let brought = !step.parked.0.is_empty() || !step.log.0.is_empty();
        if !step.parked.0.is_empty() {
            self.window.open_step(None, step.parked.0, step.parked.1, now);
        }
        self.cursor = step.cursor;
        self.more = step.more;
        // A cursor that moved without events is not worth a settle: read again from before, nothing comes up twice.
        if !step.log.0.is_empty() {
            self.window.open_step(Some(self.cursor.clone()), step.log.0, step.log.1, now);
        }
        self.slot.set_read(self.cursor.pos, self.cursor.snapshot.xmax);
        brought || (self.more && self.window.can_read())
    }

    fn settle_if_due(&mut self, now: u64) -> Result<(), End> {
        if self.window.settleable() && now >= self.settled_at_ms + self.settings.settle_interval_ms {
            return self.settle();
        }
        if !self.window.is_empty() && self.lease_needs_extension(now) {
            let held = self.transaction(Isolation::ReadCommitted, |session, spi| {
                session.store.extend(spi, &session.token, session.settings.lease_duration_ms)
            })?;
            self.lease_until_ms = now + self.settings.lease_duration_ms;
            if !held {
                return Err(End::Superseded);
            }
        }
        Ok(())
    }

    fn lease_needs_extension(&self, now: u64) -> bool {
        now + self.settings.lease_duration_ms / 2 > self.lease_until_ms
    }

    /// Appends to the ledger what is complete. After an error the window is of no more use.
    fn settle(&mut self) -> Result<(), End> {
        let Some(settlement) = self.window.take_settlement() else { return Ok(()) };
        let now = runtime::monotonic_ms();
        let extend = self.lease_needs_extension(now);
        let cursor = settlement.cursor.clone().unwrap_or_else(|| self.settled_cursor.clone());
        let batch_no = self.batch_no + 1;
        let (held, all_there) = self.transaction(Isolation::ReadCommitted, |session, spi| {
            let store = &session.store;
            if !store.settle(spi, batch_no, &cursor, &settlement, &session.token) {
                return (false, true);
            }
            let parked = store.park(spi, &settlement, &session.window);
            let reparked = store.repark(spi, &settlement, &session.window);
            if extend {
                store.extend(spi, &session.token, session.settings.lease_duration_ms);
            }
            (true, parked && reparked)
        })?;
        if !held {
            return Err(End::Superseded);
        }
        if extend {
            self.lease_until_ms = now + self.settings.lease_duration_ms;
        }
        self.batch_no = batch_no;
        self.settled_cursor = cursor;
        self.settled_at_ms = now;
        self.window.settled(&settlement);
        self.after_settle(&settlement);
        if all_there { Ok(()) } else { Err(End::Trouble("events were deleted before they were published".to_owned())) }
    }

    fn after_settle(&mut self, settlement: &Settlement) {
        self.slot.add_published(settlement.events, txn::now());
        if !settlement.parks.is_empty() || !settlement.unparks.is_empty() || !settlement.reparks.is_empty() {
            self.look_for_due = true;
        }
    }

    fn sweep_if_due(&mut self, now: u64) {
        if janitor::interval_ms(self.settings).is_some_and(|interval| now >= self.swept_at_ms + interval) {
            self.swept_at_ms = now;
            janitor::start(self.slot, self.index);
        }
    }

    /// Waits for reports a moment, so that a restart repeats little. Reads nothing more and hands nothing more over.
    fn finish_what_is_out(&mut self) {
        const FLUSH_MS: u64 = 500;
        let deadline = runtime::monotonic_ms() + FLUSH_MS;
        while self.window.outstanding() > 0 {
            let now = runtime::monotonic_ms();
            if now >= deadline || self.producer.outage().is_some() {
                return;
            }
            match self.take_reports(now) {
                Ok(true) => {}
                Ok(false) if self.window.outstanding() == 0 => return,
                Ok(false) => {
                    runtime::wait(Some(self.producer.event_fd()), Some(deadline - now));
                }
                Err(_) => return,
            }
        }
    }

    /// Puts into shared memory and the log what this session is doing.
    fn tell(&mut self) {
        self.slot.set_in_flight(self.window.in_flight_events() as u64, self.window.in_flight_bytes());
        let outage = self.producer.outage();
        let (state, error) = match (self.hindrance, outage) {
            (Some((state, text)), _) => (state, Some(text.to_owned())),
            (None, Some(text)) => (State::Outage, Some(text)),
            (None, None) => {
                let topic = self.window.missing_topics().next().map(|(topic, error)| format!("topic \"{topic}\": {error}"));
                (if self.window.is_empty() && !self.more { State::Idle } else { State::Running }, topic)
            }
        };
        self.slot.set_state(state);
        self.reporter.tell(state, error);
    }

    fn sleep(&mut self) -> Result<(), End> {
        let now = runtime::monotonic_ms();
        let mut until = self.polled_at_ms + self.settings.poll_interval_ms;
        if self.window.settleable() {
            until = until.min(self.settled_at_ms + self.settings.settle_interval_ms);
        }
        if let Some(at) = self.window.next_ask_at() {
            until = until.min(at);
        }
        if self.window.can_read() && (self.more || self.parked_wait()) {
            until = until.min(self.read_not_before_ms);
        }
        if !self.window.is_empty() {
            until = until.min(self.lease_until_ms.saturating_sub(self.settings.lease_duration_ms / 2) + 1);
        }
        if let Some(due) = self.next_due
            && !self.window.parked_step_in_flight()
        {
            until = until.min(now + u64::try_from((due - txn::now()).div_euclid(1000) + 1).unwrap_or(0));
        }
        let timeout = until.saturating_sub(now);
        if timeout == 0 {
            return Ok(());
        }
        if self.window.is_empty() {
            runtime::flush_statistics();
        }
        if runtime::wait(Some(self.producer.event_fd()), Some(timeout)).postmaster_died {
            return Err(End::Shutdown);
        }
        Ok(())
    }

    /// A short transaction as the tables' owner.
    fn transaction<T>(&mut self, isolation: Isolation, body: impl FnOnce(&mut Self, &Spi) -> T) -> Result<T, End> {
        let value = txn::run(isolation, |transaction| {
            transaction.become_owner(self.place.owner);
            transaction.snapshot();
            spi::connected(|spi| body(self, spi))
        })?;
        Ok(value)
    }

    fn transaction_before_snapshot<T>(&mut self, body: impl FnOnce(&mut Self, &mut Transaction) -> T) -> Result<T, End> {
        Ok(txn::run(Isolation::RepeatableRead, |transaction| body(self, transaction))?)
    }
}

/// What one step's reads brought.
struct StepRead {
    log: (Vec<Meta>, Body),
    parked: (Vec<Meta>, Body),
    cursor: Cursor,
    more: bool,
}

impl StepRead {
    fn nothing(cursor: Cursor) -> StepRead {
        StepRead { log: (Vec::new(), Body::default()), parked: (Vec::new(), Body::default()), cursor, more: false }
    }
}

fn beginning() -> Snapshot {
    BEGINNING.parse().unwrap_or_else(|error| unreachable!("{error}"))
}

fn hindrance(fence: &Fence) -> Option<(State, &'static str)> {
    if !fence.guarded {
        return Some((
            State::Damaged,
            "trigger outbox_log_restamp or check outbox_log_xid_is_its_own is missing or disabled: events could be lost; re-create it (the trigger with ENABLE ALWAYS)",
        ));
    }
    fence.stopped.then_some((State::ForeignRows, "rows that were not emitted here arrived in outbox_log; nothing is published until somebody calls outbox_arm()"))
}

/// Of two failures the one that says more: a refusal explains the fatal error and the purge that follow from it.
fn worse(known: Option<Failure>, new: Failure) -> Failure {
    let rank = |failure: &Failure| match failure.action() {
        Action::StopRelay => 3,
        Action::Rebuild => 2,
        Action::ParkTopic => 1,
        Action::ReadAgain => 0,
    };
    match known {
        Some(known) if rank(&known) >= rank(&new) => known,
        _ => new,
    }
}

fn end_of(failure: Failure) -> End {
    match failure.action() {
        Action::StopRelay => End::Refused(failure.to_string()),
        Action::Rebuild | Action::ReadAgain | Action::ParkTopic => End::Trouble(failure.to_string()),
    }
}

/// Pauses between sessions that end in trouble.
pub fn backoff(settings: &Settings) -> Backoff {
    Backoff::new(settings.retry_backoff_ms, settings.retry_backoff_max_ms, runtime::monotonic_ms())
}
