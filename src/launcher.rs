//! The launcher: one static background worker that connects to no database, finds those that have the extension, and keeps one relay process for
//! each. It reads no table of ours and never talks to Kafka.
//!
//! A database goes through these states; the slot in shared memory ([`crate::shmem::Phase`]) tells the launcher of each:
//!
//! ```text
//!   unknown --(launcher start, CREATE EXTENSION's commit, new in pg_database)--> wanted
//!   wanted --(a free slot and a worker process)--> Starting --(the process connected)--> Running
//!   Running --Absent: no extension here--> known to be without: nothing until asked again
//!   Running --Left: settings of the database changed--> wanted, at once
//!   Running --Terminated: SIGTERM--> wanted, after a second, if the database is still there
//!   Running --Failed, or gone without a word--> wanted, after a pause that doubles
//!   Running --has work and does not move for lease_duration--> wanted: a successor with a new token; the frozen one sees its slot taken
//! ```
//!
//! A relay is started once (BGW_NEVER_RESTART): one that is started while its database is dropped ends with "does not exist", and the launcher
//! finds the database gone. After a crash restart shared memory is empty and everything begins again.

use crate::guc::Settings;
use crate::pg::txn::Isolation;
use crate::pg::{catalog, runtime, txn, worker};
use crate::shmem::{self, Board, Phase, SLOTS, board};
use outbox_core::backoff::Backoff;
use pgrx::prelude::*;
use std::collections::HashMap;

const LAUNCHER: &str = "outbox_ext launcher";
const RELAY: &str = "outbox_ext relay";
/// The postmaster starts a terminated launcher again after this.
const RESTART_SECONDS: i32 = 1;
/// pg_database is looked at for new databases this often.
const NEW_DATABASES_MS: u64 = 60_000;
/// A process that was asked for and did not appear for this long did not start (fork failed, or its database is locked).
const START_TIMEOUT_MS: u64 = 15_000;
/// Relays at work are looked after this often, even when nothing sets our latch.
const SLOT_LOOK_MS: u64 = 10_000;
/// Databases being looked at at once, beside those served: each look takes a worker process for a moment.
const PROBES_AT_ONCE: usize = 2;
/// A relay that was terminated is started again after this: a DROP DATABASE that terminated it is over by then.
const AFTER_SIGTERM_MS: u64 = 1_000;
/// A look at pg_database this recent is good enough.
const SAME_LOOK_MS: u64 = 200;
/// No worker process was free: try again after this.
const NO_WORKER_MS: u64 = 1_000;
/// Say so in the log at most this often.
const COMPLAIN_MS: u64 = 60_000;

/// Registers the launcher; called by _PG_init while shared_preload_libraries are loaded.
pub fn register() {
    worker::register_static(LAUNCHER, "outbox_launcher_main", RESTART_SECONDS);
}

/// Main function of the launcher process.
#[allow(unsafe_code, reason = "the symbol's name is given to the postmaster")]
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn outbox_launcher_main(_argument: pg_sys::Datum) {
    runtime::start();
    worker::connect(pg_sys::Oid::INVALID);
    let Some(board) = board() else { runtime::exit(0) };
    board.set_launcher_latch(runtime::my_latch());
    runtime::on_exit(forget_latch);
    runtime::report_activity("keeps a relay for each database that has outbox_ext");
    let mut launcher = Launcher {
        board,
        databases: HashMap::new(),
        looked_at: None,
        complained_at: None,
    };
    while !runtime::shutdown_requested() {
        runtime::take_reload();
        let pause = launcher.turn(&Settings::current(), runtime::monotonic_ms());
        if runtime::signal_pending() {
            continue;
        }
        if runtime::wait(None, Some(pause)).postmaster_died {
            break;
        }
    }
    // Not 0: pg_terminate_backend must not switch publishing off until the next server start.
    runtime::exit(1);
}

#[allow(unsafe_code, reason = "a callback that PostgreSQL calls")]
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn forget_latch(_code: i32, _argument: pg_sys::Datum) {
    if let Some(board) = board() {
        board.set_launcher_latch(0);
    }
}

/// What the launcher remembers of a database.
struct Known {
    name: String,
    /// None: it has no extension, as far as known.
    wanted_at: Option<u64>,
    slot: Option<usize>,
    started_at: u64,
    backoff: Backoff,
}

struct Launcher {
    board: &'static Board,
    databases: HashMap<u32, Known>,
    looked_at: Option<u64>,
    complained_at: Option<u64>,
}

impl Launcher {
    /// One turn of the loop; returns how long to sleep at most.
    fn turn(&mut self, settings: &Settings, now: u64) -> u64 {
        let requests = self.board.take_requests();
        let look_due = self.looked_at.is_none_or(|at| now >= at + NEW_DATABASES_MS);
        if look_due || requests.iter().any(|database| !self.databases.contains_key(database)) {
            self.look_for_databases(settings, now);
        }
        for database in requests {
            if let Some(known) = self.databases.get_mut(&database) {
                // With a process at work too: it may have looked for the extension just before it was created. One that failed has its pause.
                if known.slot.is_some() || known.wanted_at.is_none() {
                    known.wanted_at = Some(now);
                    known.backoff.reset();
                }
            }
        }
        self.follow_slots(settings, now);
        // One that ended, ended perhaps because its database is gone.
        if self.looked_at.is_none_or(|at| now > at + SAME_LOOK_MS) && self.due(now).next().is_some() {
            self.look_for_databases(settings, now);
        }
        self.start_wanted(settings, now)
    }

    /// Reads pg_database: new databases are wanted (to be looked at), vanished ones forgotten.
    fn look_for_databases(&mut self, settings: &Settings, now: u64) {
        self.looked_at = Some(now);
        let found = match txn::run(Isolation::ReadCommitted, |_| catalog::databases()) {
            Ok(found) => found,
            Err(error) => {
                pgrx::log!("outbox_ext could not read the list of databases: {}", error.message);
                return;
            }
        };
        let gone: Vec<u32> = self
            .databases
            .keys()
            .copied()
            .filter(|oid| !found.iter().any(|database| database.oid.to_u32() == *oid))
            .collect();
        for oid in gone {
            if self.databases.get(&oid).is_some_and(|known| known.slot.is_none()) {
                self.databases.remove(&oid);
            }
        }
        for database in found {
            let oid = database.oid.to_u32();
            let slot = self.board.slot_of(oid);
            let known = self.databases.entry(oid).or_insert_with(|| Known {
                name: String::new(),
                // A launcher that was restarted finds relays at work, and leaves them alone.
                wanted_at: slot.is_none().then_some(now),
                slot,
                started_at: now,
                backoff: Backoff::new(
                    settings.retry_backoff_ms,
                    settings.retry_backoff_max_ms,
                    now ^ u64::from(oid),
                ),
            });
            known.name = database.name;
        }
        // Slots of databases that were dropped while no launcher was there to see it.
        for slot in (0..SLOTS).map(|index| self.board.slot(index)) {
            let vanished = slot.database() != 0 && !self.databases.contains_key(&slot.database());
            if vanished && !worker::is_alive(slot.pid()) {
                slot.free();
            }
        }
    }

    /// Learns from the slots what became of the relays.
    fn follow_slots(&mut self, settings: &Settings, now: u64) {
        for (database, known) in &mut self.databases {
            let Some(index) = known.slot else { continue };
            let slot = self.board.slot(index);
            let outcome = match slot.phase() {
                Phase::Starting if now < known.started_at + START_TIMEOUT_MS => continue,
                Phase::Running if worker::is_alive(slot.pid()) => {
                    if now > known.started_at + settings.retry_backoff_max_ms {
                        known.backoff.reset();
                    }
                    let has_work = slot.wake_pending() || slot.in_flight().0 > 0;
                    if !has_work || slot.heartbeat_age_ms() < settings.lease_duration_ms {
                        continue;
                    }
                    pgrx::log!(
                        "relay {} of database \"{}\" has not moved for {} ms and is replaced",
                        slot.pid(),
                        known.name,
                        slot.heartbeat_age_ms()
                    );
                    Phase::Left
                }
                Phase::Starting | Phase::Running => Phase::Failed,
                other => other,
            };
            slot.free();
            known.slot = None;
            known.wanted_at = match outcome {
                Phase::Absent => known.wanted_at,
                Phase::Left => Some(now),
                Phase::Terminated => Some(now + AFTER_SIGTERM_MS),
                _ => Some(now + known.backoff.next_delay_ms()),
            };
            pgrx::debug1!("outbox_ext: relay of database {database} ended: {outcome:?}");
        }
    }

    /// Databases whose relay is to be started now.
    fn due(&self, now: u64) -> impl Iterator<Item = u32> {
        let is_due = move |known: &Known| known.slot.is_none() && known.wanted_at.is_some_and(|at| at <= now);
        self.databases
            .iter()
            .filter(move |(_, known)| is_due(known))
            .map(|(&oid, _)| oid)
    }

    /// Starts what is due; returns how long until something else is.
    fn start_wanted(&mut self, settings: &Settings, now: u64) -> u64 {
        let mut probing = self.board_count(Phase::Starting);
        let mut pause = NEW_DATABASES_MS;
        let slot_look_ms = SLOT_LOOK_MS.min(settings.lease_duration_ms / 2);
        let mut due: Vec<u32> = self.due(now).collect();
        for known in self.databases.values() {
            match known.wanted_at {
                Some(at) if known.slot.is_none() && at > now => pause = pause.min(at - now),
                _ if known.slot.is_some() => pause = pause.min(slot_look_ms),
                _ => {}
            }
        }
        due.sort_unstable();
        for oid in due {
            if probing >= PROBES_AT_ONCE {
                // The end of a probe sets our latch; this is for one that never starts.
                return pause.min(NO_WORKER_MS);
            }
            if !self.start(oid, now) {
                return pause.min(NO_WORKER_MS);
            }
            probing += 1;
        }
        pause
    }

    fn board_count(&self, phase: Phase) -> usize {
        (0..SLOTS)
            .filter(|&index| self.board.slot(index).database() != 0 && self.board.slot(index).phase() == phase)
            .count()
    }

    fn start(&mut self, oid: u32, now: u64) -> bool {
        let Some(known) = self.databases.get_mut(&oid) else {
            return true;
        };
        let Some(index) = (0..SLOTS).find(|&index| self.board.slot(index).database() == 0) else {
            self.complain(
                now,
                &format!("more than {SLOTS} databases have outbox_ext; the others are not served"),
            );
            return false;
        };
        let slot = self.board.slot(index);
        // What is said there is of another database perhaps.
        shmem::clear_details(index);
        slot.assign(oid);
        // Slot and generation travel in the argument: a process that finds another generation was succeeded before it began.
        let argument = (slot.generation() as usize) << 32 | index;
        if worker::start_once(
            &format!("{RELAY} for {}", known.name),
            RELAY,
            "outbox_relay_main",
            argument,
        ) {
            known.slot = Some(index);
            known.started_at = now;
            known.wanted_at = None;
            return true;
        }
        slot.free();
        self.complain(now, "outbox_ext finds no free background worker for a relay; raise max_worker_processes (events wait meanwhile)");
        false
    }

    fn complain(&mut self, now: u64, text: &str) {
        if self.complained_at.is_none_or(|at| now >= at + COMPLAIN_MS) {
            self.complained_at = Some(now);
            pgrx::log!("{text}");
        }
    }
}
