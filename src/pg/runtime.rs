//! The life of a worker process: signals, latch waits, reloads, what pg_stat_activity shows, and how it ends. The only module that looks at
//! signal flags, so that nobody swallows another's.
//!
//! SIGTERM only sets a flag (PostgreSQL's SignalHandlerForShutdownRequest): the worker leaves at its own safe point. Lock waits are bounded by
//! lock_timeout instead, since SIGTERM does not cut them short; that of connecting to a database, which CREATE DATABASE locks for as long as it
//! copies it, included.

use pgrx::pg_sys;
use std::ffi::{CString, c_int};
use std::os::fd::RawFd;

unsafe extern "C-unwind" {
    // postmaster/interrupt.h. Declared here without pgrx's guard, which is not made to run inside a signal handler.
    fn SignalHandlerForConfigReload(signal: c_int);
    fn SignalHandlerForShutdownRequest(signal: c_int);
}

/// Of the launcher, and of the others until they set their own. Less than the launcher waits for a relay to appear.
const LOCK_TIMEOUT: &str = "10s";

/// Why a wait ended.
pub struct Wake {
    pub postmaster_died: bool,
}

/// Installs the handlers and lets signals through. The first thing a worker does.
pub fn start() {
    // SAFETY: signals are blocked until BackgroundWorkerUnblockSignals; the handlers are async-signal-safe C functions of the server.
    unsafe {
        pg_sys::pqsignal(pg_sys::SIGHUP as i32, Some(SignalHandlerForConfigReload));
        pg_sys::pqsignal(pg_sys::SIGTERM as i32, Some(SignalHandlerForShutdownRequest));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
    set_for_process("lock_timeout", LOCK_TIMEOUT);
}

/// Whether somebody asked this process to end.
pub fn shutdown_requested() -> bool {
    // SAFETY: a sig_atomic_t that only the handler writes.
    unsafe { (&raw const pg_sys::ShutdownRequestPending).read_volatile() != 0 }
}

/// Whether a signal waits to be looked at. To be asked just before a long sleep: a lock wait since the last look (ProcSleep) has reset the latch that
/// the signal's handler had set.
pub fn signal_pending() -> bool {
    // SAFETY: as above.
    shutdown_requested() || unsafe { (&raw const pg_sys::ConfigReloadPending).read_volatile() != 0 }
}

/// Takes over a reload of the configuration, if one was signalled. True if so.
pub fn take_reload() -> bool {
    // SAFETY: the flag is cleared before the files are read, so that a signal in between is not lost.
    unsafe {
        if (&raw const pg_sys::ConfigReloadPending).read_volatile() == 0 {
            return false;
        }
        (&raw mut pg_sys::ConfigReloadPending).write_volatile(0);
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        true
    }
}

/// Sleeps until the latch is set, `fd` becomes readable, or the time is over. Answers interrupts (procsignal barriers, without which DROP
/// DATABASE of any database would hang) and leaves the latch reset. For who waits seldom; who waits often has a [`Waiter`].
pub fn wait(fd: Option<RawFd>, timeout_ms: Option<u64>) -> Wake {
    let mut events = pg_sys::WL_LATCH_SET | pg_sys::WL_POSTMASTER_DEATH;
    if fd.is_some() {
        events |= pg_sys::WL_SOCKET_READABLE;
    }
    if timeout_ms.is_some() {
        events |= pg_sys::WL_TIMEOUT;
    }
    // SAFETY: MyLatch belongs to this process; the fd is open (its owner outlives the wait).
    let happened = unsafe {
        pg_sys::WaitLatchOrSocket(
            pg_sys::MyLatch,
            events as i32,
            fd.unwrap_or(pg_sys::PGINVALID_SOCKET),
            timeout_ms.unwrap_or(0).min(i32::MAX as u64) as std::ffi::c_long,
            pg_sys::PG_WAIT_EXTENSION,
        )
    };
    after_wait(happened as u32)
}

fn after_wait(happened: u32) -> Wake {
    // SAFETY: this process's latch.
    unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
    // pg_cancel_backend finds nothing to cancel outside a transaction, and must not end the process there.
    // SAFETY: a flag of this process.
    unsafe { (&raw mut pg_sys::QueryCancelPending).write_volatile(0) };
    pgrx::check_for_interrupts!();
    Wake {
        postmaster_died: happened & pg_sys::WL_POSTMASTER_DEATH != 0,
    }
}

/// What [`wait`] does, for who waits hundreds of times a second on one descriptor: [`wait`] makes an epoll set each time, this keeps it.
pub struct Waiter(*mut pg_sys::WaitEventSet);

impl Waiter {
    /// The descriptor may be closed before this is dropped: epoll forgets it then.
    pub fn new(fd: RawFd) -> Waiter {
        // SAFETY: the set lives in memory of the whole process until drop frees it; MyLatch is this process's for life. An ERROR in here ends the
        // process, being outside any transaction.
        unsafe {
            let set = pg_sys::CreateWaitEventSet(pg_sys::TopMemoryContext, 3);
            let no_latch = std::ptr::null_mut();
            for (events, fd, latch) in [
                (pg_sys::WL_LATCH_SET, pg_sys::PGINVALID_SOCKET, pg_sys::MyLatch),
                (pg_sys::WL_POSTMASTER_DEATH, pg_sys::PGINVALID_SOCKET, no_latch),
                (pg_sys::WL_SOCKET_READABLE, fd, no_latch),
            ] {
                pg_sys::AddWaitEventToSet(set, events, fd, latch, std::ptr::null_mut());
            }
            Waiter(set)
        }
    }

    pub fn wait(&self, timeout_ms: u64) -> Wake {
        let mut happened = pg_sys::WaitEvent::default();
        // SAFETY: room for one event; 0 come when the time is over.
        let count = unsafe {
            pg_sys::WaitEventSetWait(
                self.0,
                timeout_ms.min(i32::MAX as u64) as std::ffi::c_long,
                &mut happened,
                1,
                pg_sys::PG_WAIT_EXTENSION,
            )
        };
        after_wait(if count == 0 { 0 } else { happened.events })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // SAFETY: made once and freed once.
        unsafe { pg_sys::FreeWaitEventSet(self.0) };
    }
}

/// Address of this process's latch, for shared memory. It stays valid memory as long as the server runs: after this process is gone a wake-up by
/// it is at most a spurious one of another process.
pub fn my_latch() -> usize {
    // SAFETY: reads a pointer.
    unsafe { pg_sys::MyLatch as usize }
}

/// Sets a latch whose address came from [`my_latch`].
pub fn set_latch(address: usize) {
    // SAFETY: points into shared memory that lives as long as the server.
    unsafe { pg_sys::SetLatch(address as *mut pg_sys::Latch) };
}

/// What pg_stat_activity shows as this worker's query.
pub fn report_activity(text: &str) {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: copied into shared memory.
    unsafe { pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, text.as_ptr()) };
}

/// Sets a setting for this process only, whatever files, databases or roles say.
pub fn set_for_process(name: &str, value: &str) {
    let (name, value) = (super::catalog::c_string(name), super::catalog::c_string(value));
    // SAFETY: PGC_S_SESSION outranks files, database and role.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_SESSION,
        )
    };
}

/// OID of pg_db_role_setting (DbRoleSettingRelationId).
const DB_ROLE_SETTING: u32 = 2964;

/// Applies what ALTER DATABASE and ALTER ROLE set for this session, as connecting does (process_settings in postinit.c), by the transaction's snapshot.
/// What was RESET since the session began stays.
pub fn apply_database_settings() {
    unsafe extern "C-unwind" {
        // catalog/pg_db_role_setting.h, which pgrx does not bind.
        fn ApplySetting(
            snapshot: pg_sys::Snapshot,
            database: pg_sys::Oid,
            role: pg_sys::Oid,
            relation: pg_sys::Relation,
            source: pg_sys::GucSource::Type,
        );
    }
    const ANY: pg_sys::Oid = pg_sys::Oid::INVALID;
    let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    // SAFETY: in a transaction with a snapshot; pgrx's guard turns an ERROR of the C function into a panic that unwinds these Rust frames.
    unsafe {
        let (database, role) = (pg_sys::MyDatabaseId, pg_sys::GetSessionUserId());
        let snapshot = pg_sys::GetActiveSnapshot();
        let relation = pg_sys::table_open(pg_sys::Oid::from(DB_ROLE_SETTING), lock);
        use pg_sys::GucSource::{PGC_S_DATABASE, PGC_S_DATABASE_USER, PGC_S_GLOBAL, PGC_S_USER};
        for (database, role, source) in [
            (database, role, PGC_S_DATABASE_USER),
            (ANY, role, PGC_S_USER),
            (database, ANY, PGC_S_DATABASE),
            (ANY, ANY, PGC_S_GLOBAL),
        ] {
            pg_sys::ffi::pg_guard_ffi_boundary(|| ApplySetting(snapshot, database, role, relation, source));
        }
        pg_sys::table_close(relation, lock);
    }
}

/// Registers `callback` to run when this process ends, also by FATAL. Shared memory is still there then.
pub fn on_exit(callback: unsafe extern "C-unwind" fn(c_int, pg_sys::Datum)) {
    // SAFETY: registered once a process.
    unsafe { pg_sys::before_shmem_exit(Some(callback), pg_sys::Datum::from(0)) };
}

/// Gives memory that is free back to the system. The allocator keeps what a burst took, in the midst of its heaps, until it is told.
pub fn trim_memory() {
    // SAFETY: any thread may call it at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Sends pending statistics now: called before a long sleep.
pub fn flush_statistics() {
    // SAFETY: outside any transaction.
    unsafe { pg_sys::pgstat_report_stat(true) };
}

/// Ends the process. The postmaster starts a static worker again after code 1, never after 0; a worker started once stays away after either.
pub fn exit(code: i32) -> ! {
    // SAFETY: runs the exit callbacks and does not return.
    unsafe { pg_sys::proc_exit(code) }
}

/// Milliseconds of the machine's monotonic clock: comparable between processes, never set back.
pub fn monotonic_ms() -> u64 {
    clock_ms(libc::CLOCK_MONOTONIC)
}

/// Milliseconds of CPU that this process has used.
pub fn cpu_ms() -> u64 {
    clock_ms(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock_ms(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}
