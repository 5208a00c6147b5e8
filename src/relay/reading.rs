//! How a session reads: one step is one short transaction with one snapshot, and what it brings is flushed to disk before anything of it is sent.

use super::session::{End, Session};
use super::step::{Body, Reader, Rules};
use super::store::Fence;
use crate::pg::spi::{self, Spi};
use crate::pg::{catalog, runtime, txn, wal, xact};
use crate::shmem::{self, State};
use outbox_core::cursor::Cursor;
use outbox_core::snapshot::Snapshot;
use outbox_core::window::Meta;
use std::rc::Rc;

/// The table was locked by somebody (ALTER TABLE, VACUUM FULL): look again after this.
const LOCKED_RETRY_MS: u64 = 50;
/// After a read that failed for a reason that may pass: each attempt may wait for a lock, during which nothing is sent or settled.
const FAILED_RETRY_MS: u64 = 1_000;
/// After a read that came to the end of the log the next one waits, the longer the more it brought: what a step costs besides its events is then
/// shared by those that came meanwhile. At 2,000 events/s that is a third of the relay's CPU time. A log that was quiet is read at once.
const PACE_MIN_MS: u64 = 1;
const PACE_MAX_MS: u64 = 4;
const PACE_EVENTS_PER_MS: usize = 4;

impl Session<'_> {
    pub(super) fn may_read(&self, now: u64) -> bool {
        now >= self.read_not_before_ms && self.wants_to_read()
    }

    /// There may be something to read, and room for it.
    pub(super) fn wants_to_read(&self) -> bool {
        self.held_for_standbys.is_none()
            && ((self.more && self.window.can_read()) || (self.parked_wait() && self.window.can_read_parked()))
    }

    /// Parked events may go now, and no step of them is in flight (there is one at a time).
    pub(super) fn parked_wait(&self) -> bool {
        !self.window.parked_step_in_flight()
            && runtime::monotonic_ms() >= self.parked_not_before_ms
            && (self.look_for_due
                || self.next_due.is_some_and(|due| due <= txn::now())
                || self.window.draining().next().is_some()
                || self.window.has_recovered_topics())
    }

    /// Reads a step. True when it brought events, or when there is more to read.
    pub(super) fn read(&mut self) -> Result<bool, End> {
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
        });
        let step = match outcome {
            Ok(step) => step?,
            Err(error) if error.may_pass() => {
                self.read_error = Some(error.message);
                self.window.parked_read_failed();
                return Ok(self.read_later(FAILED_RETRY_MS, look_for_due));
            }
            Err(error) => return Err(error.into()),
        };
        self.read_error = None;
        let Some(step) = step else {
            // Somebody has the table; he is not to wait for us.
            return Ok(self.read_later(LOCKED_RETRY_MS, look_for_due));
        };
        // From here on it says what came up while the step waits for standbys.
        self.more = false;
        if self.settings.wait_for_standbys && !wal::synchronous_standbys_have(step.flushed_upto) {
            self.held_for_standbys = Some(step);
            self.held_since_ms = runtime::monotonic_ms();
            return Ok(false);
        }
        Ok(self.take_step(step))
    }

    /// Nothing was read now. False: nothing came of it.
    fn read_later(&mut self, ms: u64, look_for_due: bool) -> bool {
        self.read_not_before_ms = runtime::monotonic_ms() + ms;
        self.more = true;
        self.look_for_due |= look_for_due;
        false
    }

    /// Goes on with the step that waits for the synchronous standbys, if they have it by now. True if so.
    pub(super) fn take_step_that_standbys_have(&mut self) -> bool {
        match self.held_for_standbys.take() {
            Some(step) if wal::synchronous_standbys_have(step.flushed_upto) => self.take_step(step),
            waiting => {
                self.held_for_standbys = waiting;
                false
            }
        }
    }

    /// The reads of one step, under its snapshot.
    pub(super) fn read_step(&mut self, spi: &Spi, last_seq: Option<i64>, look_for_due: bool) -> Result<StepRead, End> {
        let fence = self.store.fence(spi, &self.token, self.place.log);
        if !fence.lease_held {
            return Err(End::Superseded);
        }
        self.hindrance = hindrance(&fence);
        if self.hindrance.is_some() {
            return Ok(StepRead::nothing(self.cursor.clone()));
        }
        let now = txn::now();
        let (template, max_message_bytes) = (Rc::clone(&self.template), self.settings.max_message_bytes);
        let (batch_size, batch_bytes) = (self.settings.batch_size, self.settings.batch_bytes);
        let rules = || Rules {
            template: Rc::clone(&template),
            max_message_bytes,
            now,
        };
        let limit = |rules| Reader::new(rules, batch_size, batch_bytes);

        let mut parked = limit(rules());
        if !self.window.parked_step_in_flight() {
            for topic in self.window.recovered_topics() {
                self.store.of_topic(spi, topic, &mut parked, &mut self.window);
            }
            if look_for_due || self.next_due.is_some_and(|due| due <= now) {
                let pause_max_ms = self.settings.retry_backoff_max_ms.max(self.settings.retry_backoff_ms);
                let pause_max = i64::try_from(pause_max_ms.saturating_mul(1_000)).unwrap_or(i64::MAX);
                self.store.due(spi, now, pause_max, &mut parked, &mut self.window);
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
        let (cursor, more) = if self.window.can_read() {
            self.read_log(spi, xact::snapshot(), last_seq, &mut log)
        } else {
            (self.cursor.clone(), self.more)
        };
        wal::flush_commits(log.xids().chain(parked.xids()));
        Ok(StepRead {
            log: log.finish(),
            parked: parked.finish(),
            cursor,
            more,
            flushed_upto: wal::flushed_upto(),
        })
    }

    /// Reads late events, then new ones, up to the step's limits. Returns where the cursor stands then, and whether there may be more.
    fn read_log(&mut self, spi: &Spi, now: Snapshot, last_seq: Option<i64>, log: &mut Reader) -> (Cursor, bool) {
        let mut cut: Option<(u64, i64)> = None;
        for range in &self.cursor.late_ranges(&now) {
            cut = if log.is_full() {
                log.last_position()
            } else {
                self.store.late(spi, range, self.cursor.pos, log, &mut self.window)
            };
            if cut.is_some() {
                break;
            }
        }
        if let Some(position) = cut {
            return (self.cursor.cut_walk(&now, position), true);
        }
        if self.cursor.walk.is_some() {
            return (self.cursor.end_walk(), true);
        }
        log.sort_by_seq();
        if log.is_full() {
            return (self.cursor.advance(now, self.cursor.pos), true);
        }
        match self.store.new_events(spi, self.cursor.pos, log, &mut self.window) {
            Some((_, pos)) => (self.cursor.advance(now, pos), true),
            None => {
                let end = log.highest_seq().max(last_seq).unwrap_or(i64::MIN);
                (self.cursor.advance(now, end), false)
            }
        }
    }

    /// Takes over what was read, outside the transaction.
    pub(super) fn take_step(&mut self, step: StepRead) -> bool {
        let now = runtime::monotonic_ms();
        let brought = !step.parked.0.is_empty() || !step.log.0.is_empty();
        if step.parked.0.is_empty() && self.parked_wait() {
            // Something keeps them (a stop, a report that is due, an earlier retry).
            self.parked_not_before_ms = now + self.settings.poll_interval_ms;
        }
        if !step.parked.0.is_empty() {
            self.window.open_step(None, step.parked.0, step.parked.1, now);
        }
        self.cursor = step.cursor;
        self.more |= step.more;
        if !self.more {
            let pace = PACE_MIN_MS + (step.log.0.len() / PACE_EVENTS_PER_MS) as u64;
            self.read_not_before_ms = now + pace.min(PACE_MAX_MS);
        }
        // A cursor that moved without events is not worth a settle: read again from before, nothing comes up twice.
        if !step.log.0.is_empty() {
            self.window
                .open_step(Some(self.cursor.clone()), step.log.0, step.log.1, now);
        }
        self.slot.set_read(self.cursor.pos);
        shmem::set_snapshot(self.index, &self.cursor.snapshot);
        brought || (self.more && self.window.can_read())
    }
}

/// What one step's reads brought.
pub(super) struct StepRead {
    log: (Vec<Meta>, Body),
    parked: (Vec<Meta>, Body),
    cursor: Cursor,
    more: bool,
    /// WAL position that covers the commits of its events.
    flushed_upto: u64,
}

impl StepRead {
    fn nothing(cursor: Cursor) -> StepRead {
        StepRead {
            log: (Vec::new(), Body::default()),
            parked: (Vec::new(), Body::default()),
            cursor,
            more: false,
            flushed_upto: 0,
        }
    }
}

fn hindrance(fence: &Fence) -> Option<(State, &'static str)> {
    if !fence.guarded {
        return Some((
            State::Damaged,
            "trigger outbox_log_restamp or check outbox_log_event_is_sound is missing or disabled: events could be lost; re-create it (the trigger with ENABLE ALWAYS)",
        ));
    }
    fence.stopped.then_some((
        State::ForeignRows,
        "rows that were not emitted here arrived in outbox_log; nothing is published until somebody calls outbox_arm()",
    ))
}
