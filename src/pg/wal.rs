//! Durability of what is about to be published: WAL is flushed past the commits of a step.

use pgrx::pg_sys;

/// Flushes WAL past the commit records of `xids`, so that an event of a transaction with synchronous_commit = off cannot be published and then be
/// lost in a crash. Free when the commits flushed by themselves.
///
/// Leans on TransactionIdGetCommitLSN (transam.c): the LSN up to which WAL must be flushed for a commit to be durable, possibly a little later
/// than its own record, 0 when nothing is left to flush. (XLogFlush of the insert position would raise an error when that stands just behind a
/// page header.) A transaction older than oldestXid may have no commit status any more; it was durable long ago.
pub fn flush_commits(xids: impl Iterator<Item = u64>) {
    let mut upto: pg_sys::XLogRecPtr = 0;
    let mut last = 0;
    for xid in xids {
        if xid == last {
            continue;
        }
        last = xid;
        let short = pg_sys::TransactionId::from(xid as u32);
        // SAFETY: reads shared counters and the commit log of a transaction that is known to have committed.
        unsafe {
            if !pg_sys::TransactionIdPrecedes(short, (*pg_sys::ShmemVariableCache).oldestXid) {
                upto = upto.max(pg_sys::TransactionIdGetCommitLSN(short));
            }
        }
    }
    if upto != 0 {
        // SAFETY: flushing WAL that was inserted.
        unsafe { pg_sys::XLogFlush(upto) };
    }
}
