//! One session of the relay: from acquiring the lease to whatever ends it.
//!
//! A session starts at the last settled cursor with a producer of its own, and that is the only way to start: after a crash, a takeover, a fatal
//! producer error, a lost lease, a settle that cannot be made, a change of settings. All its state is in memory and is thrown away at its end.
//!
//! Invariants:
//! - no transaction is open while anything is sent or waited for;
//! - what is handed to the producer was durably committed (WAL is flushed in [`Session::read`]);
//! - a settle covers only events with a positive report, or parks them in the same transaction, and is fenced by the lease's token.

use super::clock::Clock;
use super::exchange::{Lesson, Reports};
use super::lanes::Lanes;
use super::reading::StepRead;
use super::report::Reporter;
use super::settling::Settling;
use super::step::Body;
use super::store::Store;
use crate::guc::Settings;
use crate::janitor;
use crate::pg::spi::{self, Spi};
use crate::pg::txn::{self, Isolation, Transaction};
use crate::pg::{error::ServerError, runtime};
use crate::place::Place;
use crate::shmem::{Slot, State};
use outbox_core::backoff::Backoff;
use outbox_core::cursor::Cursor;
use outbox_core::topic::TopicTemplate;
use outbox_core::window::Window;
use std::collections::HashSet;
use std::rc::Rc;

/// A step that waits for synchronous standbys longer than this is worth saying.
const STANDBY_SLOW_MS: u64 = 1_000;
/// While a step waits for synchronous standbys they are looked at this often.
const STANDBY_LOOK_MS: u64 = 5;

/// Why a session ended.
#[derive(Debug)]
pub enum End {
    /// SIGTERM, or the postmaster is gone.
    Shutdown,
    /// Settings changed, or what is parked, or the clock: start again with what is now.
    StartAfresh,
    /// ALTER DATABASE or ALTER ROLE changed what this session was given at its start: only a new process gets the new ones.
    DatabaseSettings,
    /// The extension is gone, or is another one than the one this session began with.
    Extension,
    /// Another process has the slot or the lease.
    Superseded,
    /// Something failed that may go away: start again after a pause.
    Trouble(String),
    /// Kafka refused a batch for what is in it: start again at once, with its events as suspects.
    Refusal(String),
    /// The settings are wrong: nothing helps but others.
    Misconfigured(String),
}

impl From<ServerError> for End {
    fn from(error: ServerError) -> Self {
        End::Trouble(error.message)
    }
}

pub struct Session<'a> {
    pub(super) settings: &'a Settings,
    pub(super) index: usize,
    pub(super) slot: &'a Slot,
    pub(super) generation: u32,
    pub(super) reporter: &'a mut Reporter,
    pub(super) place: Place,
    pub(super) template: Rc<TopicTemplate>,
    pub(super) store: Store,
    pub(super) token: [u8; 16],
    pub(super) lease_until_ms: u64,
    /// The lease could not be extended: not again before this.
    pub(super) extend_not_before_ms: u64,
    pub(super) lanes: Lanes,
    pub(super) waiter: runtime::Waiter,
    pub(super) options: Vec<(String, String)>,
    pub(super) clock: Clock,
    pub(super) lesson: &'a mut Lesson,
    pub(super) window: Window<Body>,
    /// Where the next step starts: the last one read, settled or not.
    pub(super) cursor: Cursor,
    /// The last settled ledger row.
    pub(super) batch_no: i64,
    pub(super) settled_cursor: Cursor,
    /// The log may hold more than was read.
    pub(super) more: bool,
    pub(super) read_not_before_ms: u64,
    pub(super) polled_at_ms: u64,
    pub(super) settings_checked_at_ms: u64,
    pub(super) settled_at_ms: u64,
    pub(super) next_due: Option<i64>,
    pub(super) look_for_due: bool,
    pub(super) swept_at_ms: u64,
    /// Parked events that may go were looked for in vain: not again before this, lest the loop spin.
    pub(super) parked_not_before_ms: u64,
    pub(super) orphans_at_ms: u64,
    /// Published since memory was last given back.
    pub(super) untrimmed_bytes: u64,
    /// Why nothing could be read, last time.
    pub(super) read_error: Option<String>,
    /// Events that were refused by their own fault, until that is settled.
    pub(super) guilty: HashSet<[u8; 16]>,
    pub(super) settling: Settling,
    /// A step that was read and waits for the synchronous standbys.
    pub(super) held_for_standbys: Option<StepRead>,
    pub(super) held_since_ms: u64,
    /// Publishing is held up, and by what.
    pub(super) hindrance: Option<(State, &'static str)>,
    pub(super) reports: Reports,
}

impl<'a> Session<'a> {
    /// Publishes until something ends the session; then settles what is settled for sure, and gives the producer up.
    pub fn run(mut self, teardowns: &mut super::Teardowns) -> End {
        let end = loop {
            match self.turn() {
                Ok(()) => {}
                Err(end) => break end,
            }
        };
        if matches!(end, End::Shutdown | End::StartAfresh | End::DatabaseSettings) {
            self.finish_what_is_out();
        }
        if !matches!(end, End::Superseded | End::Extension) {
            self.settle_the_rest();
            let _ = self.transaction(Isolation::ReadCommitted, |session, spi| {
                session.store.release(spi, &session.token)
            });
        }
        self.slot.clear_progress();
        self.lesson.suspects.extend(self.window.suspects_left());
        self.lesson.suspects.extend(self.guilty.drain());
        self.lanes.shut_down().for_each(|teardown| teardowns.push(teardown));
        end
    }

    /// One turn of the loop: reports, answers, sends, settle, read, sleep.
    fn turn(&mut self) -> Result<(), End> {
        self.slot.beat();
        if runtime::shutdown_requested() {
            return Err(End::Shutdown);
        }
        self.check_not_superseded()?;
        let reloaded = runtime::take_reload();
        let now = runtime::monotonic_ms();
        // Looked at without a reload too: one that was signalled in the transaction that changed them came before its commit.
        if reloaded || now >= self.settings_checked_at_ms + super::CHECK_MS {
            self.settings_checked_at_ms = now;
            if super::database_settings_changed()? {
                return Err(End::DatabaseSettings);
            }
        }
        if reloaded && (Settings::current() != *self.settings || self.options_changed()) {
            return Err(End::StartAfresh);
        }
        // While a settlement waits to be written, so do these.
        if !self.is_kept() && self.slot.take_rows_removed() {
            self.lesson.orphans.hurry();
            if self.window.held_aggregates() > 0 {
                // Loaded anew, for what held them may be gone.
                return Err(End::StartAfresh);
            }
        }
        if !self.is_kept() && self.slot.take_new_session() {
            return Err(End::StartAfresh);
        }
        if let Some(back_ms) = self.clock.set_back_by() {
            self.reporter.clock_set_back(back_ms);
            return Err(End::StartAfresh);
        }
        // Left pending while a read must wait, so that further commits cost no signal.
        let woken = if now < self.read_not_before_ms {
            self.slot.wake_pending()
        } else {
            self.slot.take_wake()
        };
        let polled = now >= self.polled_at_ms + self.settings.poll_interval_ms;
        if polled {
            self.polled_at_ms = now;
            self.look_for_due = true;
        }
        self.more |= woken || polled;
        if woken {
            self.parked_not_before_ms = 0;
        }

        let reports_left = self.take_reports(now)?;
        // In an outage nobody answers, and no partition is to blame.
        if self.lanes.outage().is_none() {
            self.window.check_stalls(now);
            if self.window.abandoned_full() && !self.is_kept() {
                // Before librdkafka is so full of what goes nowhere that it takes nothing that would.
                return Err(End::StartAfresh);
            }
        }
        for topic in self.window.topics_to_ask(now) {
            self.lanes.ask_topic(self.window.topic_name(topic), topic.to_u64());
        }
        let sends_left = self.send(now)?;
        self.settle_if_due(now)?;
        let mut read = self.take_step_that_standbys_have();
        if self.may_read(now) {
            read |= self.read()?;
        }
        self.sweep_if_due(now);
        self.drop_orphans_if_due(now)?;
        self.tell();
        if reports_left || sends_left || read {
            return Ok(());
        }
        self.sleep()
    }

    pub(super) fn check_not_superseded(&self) -> Result<(), End> {
        if self.slot.generation() == self.generation {
            Ok(())
        } else {
            Err(End::Superseded)
        }
    }

    /// Whether the file of outbox_ext.kafka_options_file says something else than when the session began. What cannot be read as properties is no
    /// reason to stop this one; the next, whatever begins it, finds them misconfigured.
    fn options_changed(&self) -> bool {
        match super::options::gather(self.settings) {
            Ok(options) => options != self.options,
            Err(error) => {
                self.reporter.keeps_options(&error);
                false
            }
        }
    }

    fn sweep_if_due(&mut self, now: u64) {
        if janitor::interval_ms(self.settings, self.slot).is_some_and(|interval| now >= self.swept_at_ms + interval) {
            self.swept_at_ms = now;
            janitor::start(self.slot, self.index);
        }
    }

    /// Waits for reports a moment, so that a restart repeats little. Reads nothing more, and hands over only what completes a step.
    fn finish_what_is_out(&mut self) {
        // A client that has just been made may send its first batch after 500 ms only: so long librdkafka waits before it asks for a producer id
        // again (rd_kafka_idemp_pid_timer_restart). To give up just then would have the batch sent and not heard of.
        const FLUSH_MS: u64 = 800;
        let deadline = runtime::monotonic_ms() + FLUSH_MS;
        self.window.finish_begun();
        loop {
            let now = runtime::monotonic_ms();
            if now >= deadline || self.lanes.outage().is_some() {
                return;
            }
            let (Ok(reports_left), Ok(sends_left)) = (self.take_reports(now), self.send(now)) else {
                return;
            };
            if reports_left || sends_left {
                continue;
            }
            if self.window.outstanding() == 0 {
                return;
            }
            self.waiter.wait(deadline - now);
        }
    }

    /// What holds up a part of the events while others flow.
    fn what_is_held_up(&self) -> Option<String> {
        if let Settling::Kept { error, .. } = &self.settling {
            return Some(format!("what was published cannot be settled: {error}"));
        }
        if let Some(error) = &self.read_error {
            return Some(format!("what waits cannot be read: {error}"));
        }
        if self.held_for_standbys.is_some() && runtime::monotonic_ms() > self.held_since_ms + STANDBY_SLOW_MS {
            return Some("events wait for the synchronous standbys (outbox_ext.wait_for_standbys)".to_owned());
        }
        if self.window.parked_full() {
            return Some(format!(
                "{} events are set aside for partitions that do not answer; nothing more is read",
                self.settings.max_parked
            ));
        }
        if let Some((topic, partition)) = self.window.stalled_partitions().next() {
            return Some(format!("{}; its events are set aside", no_answer(topic, partition)));
        }
        if let Some((topic, partition)) = self.window.silent_partition() {
            return Some(format!("{}; events wait", no_answer(topic, partition)));
        }
        let (topic, error) = self.window.missing_topics().next()?;
        Some(format!("topic \"{topic}\": {error}"))
    }

    /// Puts into shared memory and the log what this session is doing.
    fn tell(&mut self) {
        self.slot
            .set_in_flight(self.window.in_flight_events() as u64, self.window.in_flight_bytes());
        let outage = self.lanes.outage();
        let (state, error) = match (self.hindrance, outage) {
            (Some((state, text)), _) => (state, Some(text.to_owned())),
            (None, Some(text)) => (State::Outage, Some(text)),
            (None, None) => {
                let held_up = self.what_is_held_up();
                (
                    if !self.in_flight() && !self.more && self.held_for_standbys.is_none() {
                        State::Idle
                    } else {
                        State::Running
                    },
                    held_up,
                )
            }
        };
        self.slot.set_state(state);
        self.reporter.tell(state, error);
    }

    fn sleep(&mut self) -> Result<(), End> {
        let now = runtime::monotonic_ms();
        let mut until = self.polled_at_ms + self.settings.poll_interval_ms;
        if self.lesson.orphans.hurries() {
            until = until.min(self.orphans_due_at_ms());
        }
        if let Some(due) = self.settle_due_at_ms() {
            until = until.min(due);
        }
        // In an outage stalls are not looked for.
        let stall_check = self
            .window
            .next_stall_check_at()
            .filter(|_| self.lanes.outage().is_none());
        for at in self.window.next_ask_at().into_iter().chain(stall_check) {
            until = until.min(at);
        }
        if self.wants_to_read() || self.slot.wake_pending() {
            until = until.min(self.read_not_before_ms);
        }
        if self.in_flight() {
            let half = self.lease_until_ms.saturating_sub(self.settings.lease_duration_ms / 2) + 1;
            until = until.min(half.max(self.extend_not_before_ms));
        }
        if let Some(due) = self.next_due
            && self.held_for_standbys.is_none()
            && !self.window.parked_step_in_flight()
            && self.window.can_read_parked()
        {
            let due_at = now + u64::try_from((due - txn::now()).div_euclid(1000) + 1).unwrap_or(0);
            until = until.min(due_at.max(self.parked_not_before_ms).max(self.read_not_before_ms));
        }
        if self.held_for_standbys.is_some() {
            // Nothing tells when a standby has replied.
            until = until.min(now + STANDBY_LOOK_MS);
        }
        let timeout = until.saturating_sub(now);
        if timeout == 0 || runtime::signal_pending() {
            return Ok(());
        }
        if !self.in_flight() {
            runtime::flush_statistics();
            if self.untrimmed_bytes > self.settings.max_in_flight_bytes as u64 / 2 {
                self.untrimmed_bytes = 0;
                runtime::trim_memory();
            }
        }
        if self.waiter.wait(timeout).postmaster_died {
            return Err(End::Shutdown);
        }
        Ok(())
    }

    /// A short transaction as the tables' owner.
    pub(super) fn transaction<T>(
        &mut self,
        isolation: Isolation,
        body: impl FnOnce(&mut Self, &Spi) -> T,
    ) -> Result<T, ServerError> {
        txn::run(isolation, |transaction| {
            transaction.become_owner(self.place.owner);
            transaction.snapshot();
            spi::connected(|spi| body(self, spi))
        })
    }

    pub(super) fn transaction_before_snapshot<T>(
        &mut self,
        body: impl FnOnce(&mut Self, &mut Transaction) -> T,
    ) -> Result<T, ServerError> {
        txn::run(Isolation::RepeatableRead, |transaction| body(self, transaction))
    }
}

/// librdkafka tries again and tells nobody why; these are the reasons there can be while brokers can be reached.
fn no_answer(topic: &str, partition: u32) -> String {
    format!(
        "partition {partition} of topic \"{topic}\" acknowledges nothing: it has no leader, or fewer in-sync replicas than \
         min.insync.replicas asks for, or its broker hangs"
    )
}

/// Pauses between sessions that end in trouble.
pub fn backoff(settings: &Settings) -> Backoff {
    Backoff::new(
        settings.retry_backoff_ms,
        settings.retry_backoff_max_ms,
        runtime::monotonic_ms(),
    )
}
