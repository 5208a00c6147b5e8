//! Shared memory: one slot for each database that a relay serves, and the launcher's latch. Everything here can be derived again from the tables
//! and is empty after a crash restart.
//!
//! Only atomics, so that a committing backend can wake a relay without a lock; what does not fit into one has a lock of its own.
//! Without shared_preload_libraries there is no shared memory: [`board`] is None, and callers do without.

mod slot;

pub use slot::{Phase, Slot, State};

use crate::pg::runtime;
use outbox_core::snapshot::Snapshot;
use pgrx::lwlock::PgLwLock;
use pgrx::shmem::AssertPGRXSharedMemory;
use pgrx::{PgAtomic, pg_guard, pg_shmem_init};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Databases that can be served at once. A slot takes about 1,600 bytes of shared memory.
pub const SLOTS: usize = 64;
const ERROR_BYTES: usize = 510;
/// Running transactions of a snapshot that is shown.
const RUNNING_MAX: usize = 120;

#[allow(unsafe_code, reason = "the names are ours alone")]
// SAFETY: no other object of shared memory has this name.
static BOARD: PgAtomic<AssertPGRXSharedMemory<Board>> = unsafe { PgAtomic::new(c"outbox_ext board") };
#[allow(unsafe_code, reason = "the names are ours alone")]
// SAFETY: as above.
static DETAILS: PgLwLock<AssertPGRXSharedMemory<[Details; SLOTS]>> = unsafe { PgLwLock::new(c"outbox_ext details") };
/// Set in the postmaster and inherited by every process it forks.
static PRELOADED: AtomicBool = AtomicBool::new(false);

/// Asks for the shared memory; only while shared_preload_libraries are loaded.
#[allow(unsafe_code, reason = "pg_shmem_init! expands to hooks")]
pub fn request() {
    use pgrx::pg_sys;
    request_board();
    fn request_board() {
        pg_shmem_init!(BOARD = shareable(Board::empty()));
    }
    pg_shmem_init!(DETAILS = shareable([Details::EMPTY; SLOTS]));
    PRELOADED.store(true, Ordering::Relaxed);
}

/// For [`Board`], a struct of atomics, and [`Details`], plain numbers and bytes.
#[allow(unsafe_code, reason = "a promise that pgrx asks for")]
fn shareable<T>(value: T) -> AssertPGRXSharedMemory<T> {
    // SAFETY: neither has a pointer or a lock of its own, so every process may use it.
    unsafe { AssertPGRXSharedMemory::new(value) }
}

/// The shared memory, or None when the library was not preloaded.
pub fn board() -> Option<&'static Board> {
    PRELOADED.load(Ordering::Relaxed).then(|| &**BOARD.get())
}

/// A text of at most N bytes.
#[derive(Clone, Copy)]
struct Text<const N: usize> {
    len: u16,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    const EMPTY: Text<N> = Text { len: 0, bytes: [0; N] };

    /// Takes the text, cut at a character's edge.
    fn set(&mut self, text: &str) {
        let mut end = text.len().min(N);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.len = end as u16;
        self.bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
    }

    /// None when it is empty.
    fn get(&self) -> Option<String> {
        (self.len > 0).then(|| String::from_utf8_lossy(&self.bytes[..self.len as usize]).into_owned())
    }
}

/// A snapshot with few running transactions.
#[derive(Clone, Copy)]
struct Seen {
    xmin: u64,
    xmax: u64,
    running: u16,
    xip: [u64; RUNNING_MAX],
}

impl Seen {
    const NOTHING: Seen = Seen {
        xmin: 0,
        xmax: 0,
        running: 0,
        xip: [0; RUNNING_MAX],
    };

    /// Takes the snapshot; of one with too many running transactions only what it sees for sure.
    fn set(&mut self, snapshot: &Snapshot) {
        let (xmax, xip) = if snapshot.xip.len() <= RUNNING_MAX {
            (snapshot.xmax, &snapshot.xip[..])
        } else {
            (snapshot.xmin, &[][..])
        };
        (self.xmin, self.xmax, self.running) = (snapshot.xmin, xmax, xip.len() as u16);
        self.xip[..xip.len()].copy_from_slice(xip);
    }

    /// None before the first one.
    fn get(&self) -> Option<Snapshot> {
        (self.xmin > 0).then(|| Snapshot {
            xmin: self.xmin,
            xmax: self.xmax,
            xip: self.xip[..self.running as usize].to_vec(),
        })
    }
}

/// What of a slot is too large for atomics.
#[derive(Clone, Copy)]
struct Details {
    error: Text<ERROR_BYTES>,
    snapshot: Seen,
}

impl Details {
    const EMPTY: Details = Details {
        error: Text::EMPTY,
        snapshot: Seen::NOTHING,
    };
}

pub struct Board {
    launcher_latch: AtomicUsize,
    /// Databases that ask for a relay: written by CREATE EXTENSION's commit, emptied by the launcher. 0 = free.
    requests: [AtomicU32; SLOTS],
    slots: [Slot; SLOTS],
}

impl Board {
    fn empty() -> Board {
        Board {
            launcher_latch: AtomicUsize::new(0),
            requests: [const { AtomicU32::new(0) }; SLOTS],
            slots: std::array::from_fn(|_| Slot::empty()),
        }
    }

    pub fn slot(&self, index: usize) -> &Slot {
        &self.slots[index]
    }

    /// The slot of a database, by its OID.
    pub fn slot_of(&self, database: u32) -> Option<usize> {
        self.slots.iter().position(|slot| slot.database() == database)
    }

    /// The launcher's latch, or nobody's.
    pub fn set_launcher_latch(&self, latch: usize) {
        self.launcher_latch.store(latch, Ordering::Release);
    }

    pub fn wake_launcher(&self) {
        let latch = self.launcher_latch.load(Ordering::Acquire);
        if latch != 0 {
            runtime::set_latch(latch);
        }
    }

    /// Has the launcher look at a database. With more requests at once than there are slots one is dropped: the launcher looks at every
    /// database when it starts.
    pub fn request_relay(&self, database: u32) {
        for request in &self.requests {
            match request.compare_exchange(0, database, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(present) if present == database => break,
                Err(_) => {}
            }
        }
        self.wake_launcher();
    }

    /// The databases asked for since the last call.
    pub fn take_requests(&self) -> Vec<u32> {
        self.requests
            .iter()
            .map(|request| request.swap(0, Ordering::AcqRel))
            .filter(|&database| database != 0)
            .collect()
    }
}

/// Sets the last error of a slot; an empty text clears it.
pub fn set_error(slot: usize, text: &str) {
    DETAILS.exclusive()[slot].error.set(text);
}

/// The last error of a slot.
pub fn error(slot: usize) -> Option<String> {
    DETAILS.share()[slot].error.get()
}

/// Forgets what is said of a slot: another relay begins.
pub fn clear_details(slot: usize) {
    DETAILS.exclusive()[slot] = Details::EMPTY;
}

/// Sets the snapshot of a slot's last read; of one with too many running transactions only what it sees for sure.
pub fn set_snapshot(slot: usize, snapshot: &Snapshot) {
    DETAILS.exclusive()[slot].snapshot.set(snapshot);
}

/// The snapshot of a slot's last read.
pub fn snapshot(slot: usize) -> Option<Snapshot> {
    DETAILS.share()[slot].snapshot.get()
}
