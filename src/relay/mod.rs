//! The relay: one process for each database that has the extension. It leases the stream of events, reads them in steps, publishes them to Kafka and
//! settles what Kafka acknowledged.
//!
//! This file owns the process: it connects, finds out whether there is anything to do, runs one [`session`] after the other, pauses between them when
//! they end in trouble, and leaves. [`session`] is the loop itself, with [`opening`], [`reading`], [`exchange`] (with Kafka, through its two [`lanes`]) and [`settling`]; [`store`] has every SQL text, [`step`] the rows of a step, [`report`] log and status, [`orphans`] parked rows without their event, [`clock`] what a clock that is set back calls for,
//! [`options`] the Kafka client's properties.
//! What is decided without a server is in outbox-core; what touches librdkafka is in outbox-kafka.

mod clock;
mod exchange;
mod lanes;
mod opening;
mod options;
mod orphans;
mod reading;
mod report;
mod session;
mod settling;
mod step;
pub mod store;

use crate::guc::Settings;
use crate::pg::spi;
use crate::pg::txn::{self, Isolation};
use crate::pg::{catalog, runtime, worker};
use crate::place::Place;
use crate::shmem::{Board, Phase, Slot, State, board};
use exchange::Lesson;
use outbox_kafka::Teardown;
use pgrx::prelude::*;
use report::Reporter;
use session::{End, Session};
use std::cell::{Cell, RefCell};
use step::Body;

/// While there is nothing to do, whether the extension is still there is looked at this often; and always, what ALTER DATABASE says.
const CHECK_MS: u64 = 10_000;

thread_local! {
    /// Slot and generation of this process, for the exit callback.
    static MINE: Cell<Option<(usize, u32)>> = const { Cell::new(None) };
    static LEAVING: Cell<Phase> = const { Cell::new(Phase::Failed) };
    static DATABASE_SETTINGS: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Main function of a relay process. The argument holds the slot and its generation.
#[allow(unsafe_code, reason = "the symbol's name is given to the postmaster")]
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn outbox_relay_main(argument: pg_sys::Datum) {
    runtime::start();
    let Some(board) = board() else { runtime::exit(0) };
    let (index, generation) = (argument.value() & 0xffff_ffff, (argument.value() >> 32) as u32);
    let slot = board.slot(index);
    if slot.generation() != generation {
        runtime::exit(0);
    }
    MINE.set(Some((index, generation)));
    runtime::on_exit(left);
    worker::connect(pg_sys::Oid::from(slot.database()));
    store::prepare_session();
    let phase = serve(board, index, generation);
    LEAVING.set(phase);
    runtime::exit(0);
}

/// Runs at the end of the process, whatever ends it: gives the slot back and tells the launcher.
#[allow(unsafe_code, reason = "a callback that PostgreSQL calls")]
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn left(_code: i32, _argument: pg_sys::Datum) {
    if let (Some(board), Some((index, generation))) = (board(), MINE.get()) {
        let slot = board.slot(index);
        // A process that was succeeded leaves the slot to its successor.
        if slot.generation() == generation {
            slot.leave(LEAVING.get());
        }
        board.wake_launcher();
    }
}

/// Serves the database until something ends the process; the phase tells the launcher what to do next.
fn serve(board: &'static Board, index: usize, generation: u32) -> Phase {
    let slot = board.slot(index);
    match extension_is_there() {
        Ok(true) => {}
        Ok(false) => return Phase::Absent,
        Err(error) => {
            pgrx::log!("outbox_ext relay could not look for the extension: {error:?}");
            return Phase::Failed;
        }
    }
    // Connecting may have waited for a lock; the launcher may have given the slot to somebody else meanwhile.
    if slot.generation() != generation {
        return Phase::Left;
    }
    slot.occupy(std::process::id() as i32, runtime::my_latch());
    board.wake_launcher();
    runtime::report_activity("publishes this database's outbox to Kafka");
    if let Err(error) = take_database_settings() {
        pgrx::log!("outbox_ext relay could not read its settings: {error:?}");
        return Phase::Failed;
    }
    let mut reporter = Reporter::new(index, catalog::my_database_name());
    let mut teardowns = Teardowns::default();
    let mut lesson = Lesson::default();
    let mut settings = Settings::current();
    let mut backoff = session::backoff(&settings);
    let phase = loop {
        let started = runtime::monotonic_ms();
        let end = if !settings.enabled {
            idle(slot, generation, &settings, State::Disabled, None, &mut reporter)
        } else if settings.brokers.is_empty() {
            idle(slot, generation, &settings, State::NoBrokers, None, &mut reporter)
        } else {
            let opened = Session::open(
                &settings,
                index,
                slot,
                generation,
                &mut reporter,
                &mut lesson,
                &mut teardowns,
            );
            match opened {
                Ok(session) => session.run(&mut teardowns),
                Err(end) => end,
            }
        };
        if runtime::monotonic_ms() > started + settings.retry_backoff_max_ms {
            backoff.reset();
        }
        let end = match end {
            End::Trouble(text) => {
                reporter.tell(State::Running, Some(text));
                pause(slot, generation, &settings, backoff.next_delay_ms())
            }
            End::Refusal(text) => {
                reporter.tell(State::Running, Some(text));
                End::StartAfresh
            }
            End::Misconfigured(text) => idle(
                slot,
                generation,
                &settings,
                State::Misconfigured,
                Some(text),
                &mut reporter,
            ),
            end => end,
        };
        match end {
            End::Shutdown => break Phase::Terminated,
            End::Superseded if slot.generation() != generation => break Phase::Left,
            End::Extension => match extension_is_there() {
                Ok(true) => {}
                Ok(false) => break Phase::Absent,
                Err(_) => break Phase::Failed,
            },
            End::DatabaseSettings => break Phase::Left,
            _ => {}
        }
        settings = Settings::current();
    };
    teardowns.wait();
    phase
}

/// Sleeps in a state in which nothing is published, until a reload, or until the extension or the slot is gone. Leaves the wake-up of commits as it is: the first one
/// rouses us, the others then cost nothing.
fn idle(
    slot: &Slot,
    generation: u32,
    settings: &Settings,
    state: State,
    error: Option<String>,
    reporter: &mut Reporter,
) -> End {
    slot.set_state(state);
    reporter.tell(state, error);
    runtime::flush_statistics();
    let pause = beat_ms(settings);
    let mut checked_at = 0;
    loop {
        slot.beat();
        if runtime::shutdown_requested() {
            return End::Shutdown;
        }
        if slot.generation() != generation {
            return End::Superseded;
        }
        if runtime::take_reload() {
            return after_reload();
        }
        let now = runtime::monotonic_ms();
        if now >= checked_at + pause {
            checked_at = now;
            if !matches!(extension_is_there(), Ok(true)) {
                return End::Extension;
            }
            if database_settings_changed().unwrap_or(true) {
                return End::DatabaseSettings;
            }
        }
        if runtime::signal_pending() {
            continue;
        }
        if runtime::wait(None, Some((checked_at + pause).saturating_sub(now))).postmaster_died {
            return End::Shutdown;
        }
    }
}

/// Longest sleep outside a session: often enough for the launcher, which takes a relay with a pending wake-up for frozen after lease_duration.
fn beat_ms(settings: &Settings) -> u64 {
    CHECK_MS.min(settings.lease_duration_ms / 2)
}

/// Sleeps between two sessions.
fn pause(slot: &Slot, generation: u32, settings: &Settings, ms: u64) -> End {
    let until = runtime::monotonic_ms() + ms;
    loop {
        slot.beat();
        let now = runtime::monotonic_ms();
        if runtime::shutdown_requested() {
            return End::Shutdown;
        }
        if slot.generation() != generation {
            return End::Superseded;
        }
        if runtime::take_reload() {
            return after_reload();
        }
        if now >= until {
            return End::StartAfresh;
        }
        if runtime::wait(None, Some(beat_ms(settings).min(until - now))).postmaster_died {
            return End::Shutdown;
        }
    }
}

fn after_reload() -> End {
    if database_settings_changed().unwrap_or(true) {
        End::DatabaseSettings
    } else {
        End::StartAfresh
    }
}

fn extension_is_there() -> Result<bool, crate::pg::error::ServerError> {
    txn::run(Isolation::ReadCommitted, |transaction| {
        transaction.snapshot();
        spi::connected(|spi| Place::find(spi).is_some())
    })
}

/// Takes over what ALTER DATABASE and ALTER ROLE set for this session, and remembers it. PostgreSQL has applied it when the process connected; an ALTER
/// that committed since then would otherwise be taken for known.
fn take_database_settings() -> Result<(), crate::pg::error::ServerError> {
    let now = txn::run(Isolation::ReadCommitted, |transaction| {
        transaction.snapshot();
        runtime::apply_database_settings();
        spi::connected(store::database_settings)
    })?;
    DATABASE_SETTINGS.set(now);
    Ok(())
}

/// Whether what ALTER DATABASE and ALTER ROLE set for this session differs from the last time this was asked.
fn database_settings_changed() -> Result<bool, crate::pg::error::ServerError> {
    let now = txn::run(Isolation::ReadCommitted, |transaction| {
        transaction.snapshot();
        spi::connected(store::database_settings)
    })?;
    Ok(DATABASE_SETTINGS.with_borrow_mut(|known| std::mem::replace(known, now.clone()) != now))
}

/// Producers that are being torn down on threads of their own.
#[derive(Default)]
pub struct Teardowns(Vec<Teardown>);

impl Teardowns {
    pub fn push(&mut self, teardown: Teardown) {
        self.0.retain(|old| !old.is_done());
        self.0.push(teardown);
    }

    /// Before the process ends, with bounded patience.
    fn wait(&mut self) {
        let patience = self.0.iter().map(Teardown::patience_ms).max();
        let deadline = runtime::monotonic_ms() + patience.unwrap_or(0);
        while let Some(teardown) = self.0.last() {
            let now = runtime::monotonic_ms();
            if teardown.is_done() {
                self.0.pop();
            } else if now >= deadline || teardown.event_fd() < 0 {
                return;
            } else {
                if runtime::wait(Some(teardown.event_fd()), Some(deadline - now)).postmaster_died {
                    return;
                }
            }
        }
    }
}
