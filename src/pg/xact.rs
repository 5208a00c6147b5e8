//! One transaction callback a process; ids and start of the transaction at hand.

use pgrx::pg_sys;

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
