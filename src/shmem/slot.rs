//! A slot: what one relay says of itself, and what launcher, committing backends and janitor say to it.

use crate::pg::runtime;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What the launcher knows of a slot's process. Written by the launcher (Free, Starting) and the relay (Running, the ends).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Phase {
    Free = 0,
    /// Asked of the postmaster, not there yet.
    Starting = 1,
    Running = 2,
    /// Ended: the database has no extension.
    Absent = 3,
    /// Ended for a reason that asks for a new one at once: settings of the database changed.
    Left = 4,
    /// Ended by a failure: a new one after a pause.
    Failed = 5,
    /// Ended by SIGTERM: perhaps because its database is being dropped.
    Terminated = 6,
}

/// What the relay is doing, as outbox_status shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    Starting = 0,
    Running = 1,
    Idle = 2,
    NoBrokers = 3,
    Disabled = 4,
    ForeignRows = 5,
    Outage = 6,
    Misconfigured = 7,
    Damaged = 8,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Running => "running",
            State::Idle => "idle",
            State::NoBrokers => "no brokers",
            State::Disabled => "disabled",
            State::ForeignRows => "foreign rows",
            State::Outage => "outage",
            State::Misconfigured => "misconfigured",
            State::Damaged => "damaged",
        }
    }

    const ALL: [State; 9] = [
        State::Starting,
        State::Running,
        State::Idle,
        State::NoBrokers,
        State::Disabled,
        State::ForeignRows,
        State::Outage,
        State::Misconfigured,
        State::Damaged,
    ];
}

/// One served database. The relay writes, everybody reads.
pub struct Slot {
    database: AtomicU32,
    phase: AtomicU32,
    /// Counts the processes this slot was given to, so that one that was succeeded (frozen, then woken up) sees that it was.
    generation: AtomicU32,
    pid: AtomicI32,
    latch: AtomicUsize,
    wake: AtomicBool,
    heartbeat_ms: AtomicU64,
    state: AtomicU32,
    read_pos: AtomicI64,
    in_flight: AtomicU64,
    in_flight_bytes: AtomicU64,
    published: AtomicU64,
    last_published_at: AtomicI64,
    janitor: AtomicBool,
    searched_ms: AtomicU64,
    new_session: AtomicBool,
    rows_removed: AtomicBool,
}

impl Slot {
    pub(super) fn empty() -> Slot {
        Slot {
            database: AtomicU32::new(0),
            phase: AtomicU32::new(Phase::Free as u32),
            generation: AtomicU32::new(0),
            pid: AtomicI32::new(0),
            latch: AtomicUsize::new(0),
            wake: AtomicBool::new(false),
            heartbeat_ms: AtomicU64::new(0),
            state: AtomicU32::new(State::Starting as u32),
            read_pos: AtomicI64::new(i64::MIN),
            in_flight: AtomicU64::new(0),
            in_flight_bytes: AtomicU64::new(0),
            published: AtomicU64::new(0),
            last_published_at: AtomicI64::new(0),
            janitor: AtomicBool::new(false),
            searched_ms: AtomicU64::new(0),
            new_session: AtomicBool::new(false),
            rows_removed: AtomicBool::new(false),
        }
    }

    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            1 => Phase::Starting,
            2 => Phase::Running,
            3 => Phase::Absent,
            4 => Phase::Left,
            5 => Phase::Failed,
            6 => Phase::Terminated,
            _ => Phase::Free,
        }
    }

    pub fn database(&self) -> u32 {
        self.database.load(Ordering::Acquire)
    }

    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    pub fn pid(&self) -> i32 {
        self.pid.load(Ordering::Acquire)
    }

    pub fn state(&self) -> State {
        State::ALL
            .into_iter()
            .find(|&state| state as u32 == self.state.load(Ordering::Relaxed))
            .unwrap_or(State::Starting)
    }

    /// Launcher: gives the slot to a new process of `database`. Whoever had it before sees the new generation.
    pub fn assign(&self, database: u32) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.pid.store(0, Ordering::Release);
        self.latch.store(0, Ordering::Release);
        self.state.store(State::Starting as u32, Ordering::Relaxed);
        self.clear_progress();
        self.published.store(0, Ordering::Relaxed);
        self.last_published_at.store(0, Ordering::Relaxed);
        self.heartbeat_ms.store(runtime::monotonic_ms(), Ordering::Relaxed);
        self.phase.store(Phase::Starting as u32, Ordering::Release);
        self.database.store(database, Ordering::Release);
    }

    /// Launcher: nobody has the slot any more. A process that still thinks so sees the new generation.
    pub fn free(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.database.store(0, Ordering::Release);
        self.phase.store(Phase::Free as u32, Ordering::Release);
    }

    /// Relay: this process has the slot.
    pub fn occupy(&self, pid: i32, latch: usize) {
        self.latch.store(latch, Ordering::Release);
        self.pid.store(pid, Ordering::Release);
        self.phase.store(Phase::Running as u32, Ordering::Release);
        self.beat();
    }

    /// Relay: this process is going, in `phase`.
    pub fn leave(&self, phase: Phase) {
        self.latch.store(0, Ordering::Release);
        self.pid.store(0, Ordering::Release);
        self.clear_progress();
        self.phase.store(phase as u32, Ordering::Release);
    }

    /// Committing backend: events wait. Only the first of many commits between two looks of the relay sets the latch.
    pub fn wake(&self) {
        if !self.wake.swap(true, Ordering::AcqRel) {
            let latch = self.latch.load(Ordering::Acquire);
            if latch != 0 {
                runtime::set_latch(latch);
            }
        }
    }

    /// Relay, after it reset its latch and before it looks for events: the next commit wakes it again.
    pub fn take_wake(&self) -> bool {
        self.wake.swap(false, Ordering::AcqRel)
    }

    pub fn wake_pending(&self) -> bool {
        self.wake.load(Ordering::Acquire)
    }

    /// Relay: it turned its loop.
    pub fn beat(&self) {
        self.heartbeat_ms.store(runtime::monotonic_ms(), Ordering::Relaxed);
    }

    pub fn heartbeat_age_ms(&self) -> u64 {
        runtime::monotonic_ms().saturating_sub(self.heartbeat_ms.load(Ordering::Relaxed))
    }

    pub fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::Relaxed);
    }

    pub fn set_read(&self, pos: i64) {
        self.read_pos.store(pos, Ordering::Relaxed);
    }

    pub fn read_pos(&self) -> i64 {
        self.read_pos.load(Ordering::Relaxed)
    }

    pub fn set_in_flight(&self, events: u64, bytes: u64) {
        self.in_flight.store(events, Ordering::Relaxed);
        self.in_flight_bytes.store(bytes, Ordering::Relaxed);
    }

    pub fn in_flight(&self) -> (u64, u64) {
        (
            self.in_flight.load(Ordering::Relaxed),
            self.in_flight_bytes.load(Ordering::Relaxed),
        )
    }

    /// Relay: a settle published `events` more.
    pub fn add_published(&self, events: u64, at: i64) {
        self.published.fetch_add(events, Ordering::Relaxed);
        if events > 0 {
            self.last_published_at.store(at, Ordering::Relaxed);
        }
    }

    pub fn published(&self) -> (u64, Option<i64>) {
        let at = self.last_published_at.load(Ordering::Relaxed);
        (self.published.load(Ordering::Relaxed), (at != 0).then_some(at))
    }

    /// Committing backend: what is parked was changed by somebody else than the relay.
    pub fn ask_for_new_session(&self) {
        self.new_session.store(true, Ordering::Release);
    }

    /// Relay: was a new session asked for since the last look?
    pub fn take_new_session(&self) -> bool {
        self.new_session.swap(false, Ordering::AcqRel)
    }

    /// Committing backend: events were deleted by somebody else than the janitor.
    pub fn note_rows_removed(&self) {
        self.rows_removed.store(true, Ordering::Release);
    }

    /// Relay: were events deleted since the last look?
    pub fn take_rows_removed(&self) -> bool {
        self.rows_removed.swap(false, Ordering::AcqRel)
    }

    /// Janitor: it is this process's turn; false when another is at work.
    pub fn janitor_begins(&self) -> bool {
        !self.janitor.swap(true, Ordering::AcqRel)
    }

    pub fn janitor_ends(&self) {
        self.janitor.store(false, Ordering::Release);
    }

    /// Janitor: CPU that its sweep spent on what is to stay.
    pub fn set_searched_ms(&self, searched_ms: u64) {
        self.searched_ms.store(searched_ms, Ordering::Release);
    }

    pub fn searched_ms(&self) -> u64 {
        self.searched_ms.load(Ordering::Acquire)
    }

    pub fn janitor_at_work(&self) -> bool {
        self.janitor.load(Ordering::Acquire)
    }

    /// Nothing is read or in flight: at the start and the end of a relay's work.
    pub fn clear_progress(&self) {
        self.set_read(i64::MIN);
        self.set_in_flight(0, 0);
    }
}
