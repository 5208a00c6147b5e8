//! One transaction callback a process; ids, start and snapshot of the transaction at hand.

use outbox_core::snapshot::Snapshot;
use pgrx::pg_sys;
use std::slice;

/// What became of the transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Committed,
    /// About to be prepared: the last moment to refuse that.
    Preparing,
    /// Rolled back, or prepared: its later COMMIT PREPARED runs in another process and calls nobody back.
    Otherwise,
}

static mut ON_END: Option<fn(End)> = None;

/// Registers `on_end` to be called at the end of every transaction of this process from now on. Called once a process.
///
/// On commit the callback runs after the transaction has become visible to others (xact.c: ProcArrayEndTransaction comes before
/// XACT_EVENT_COMMIT). It must not raise: an ERROR there is a PANIC; only for
/// [`End::Preparing`] it may.
pub fn on_end(callback: fn(End)) {
    // SAFETY: one thread; registered once.
    unsafe {
        assert!((&raw const ON_END).read().is_none());
        ON_END = Some(callback);
        pg_sys::RegisterXactCallback(Some(ended), std::ptr::null_mut());
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn ended(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    let end = match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT => End::Committed,
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => End::Preparing,
        pg_sys::XactEvent::XACT_EVENT_ABORT | pg_sys::XactEvent::XACT_EVENT_PREPARE => End::Otherwise,
        _ => return,
    };
    // SAFETY: set before this function was registered.
    if let Some(callback) = unsafe { ON_END } {
        callback(end);
    }
}

/// Id of the current top-level transaction; assigns one.
pub fn top_xid() -> u64 {
    // SAFETY: inside a transaction, as every SQL function is.
    unsafe { pg_sys::GetTopFullTransactionId().value }
}

/// Id of the current subtransaction within its transaction.
pub fn subtransaction() -> u32 {
    // SAFETY: reads backend-local state.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// When the current transaction began, as now() says: microseconds since 2000-01-01 UTC.
pub fn start() -> i64 {
    // SAFETY: reads backend-local state.
    unsafe { pg_sys::GetCurrentTransactionStartTimestamp() }
}

/// The active snapshot as pg_current_snapshot() shows it (xid8funcs.c), without the way through text, which is long when hundreds of transactions run.
pub fn snapshot() -> Snapshot {
    // SAFETY: the transaction has an active snapshot, with xcnt entries in xip; they are copied.
    unsafe {
        assert!(pg_sys::ActiveSnapshotSet());
        let active = &*pg_sys::GetActiveSnapshot();
        let next = pg_sys::ReadNextFullTransactionId().value;
        let running = match active.xcnt {
            0 => &[],
            count => slice::from_raw_parts(active.xip, count as usize),
        };
        let mut xip: Vec<u64> = running.iter().map(|xid| widen(xid.into_inner(), next)).collect();
        xip.sort_unstable();
        // One that is being prepared is in the array twice for a moment.
        xip.dedup();
        Snapshot {
            xmin: widen(active.xmin.into_inner(), next),
            xmax: widen(active.xmax.into_inner(), next),
            xip,
        }
    }
}

/// The full id of a transaction that a snapshot or the server's bookkeeping names: of the epoch of the next one to be given out, or of the one before.
pub fn widen(xid: u32, next: u64) -> u64 {
    let same_epoch = next & !u64::from(u32::MAX) | u64::from(xid);
    if same_epoch > next {
        same_epoch - (1 << 32)
    } else {
        same_epoch
    }
}
