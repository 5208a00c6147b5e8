//! Durability of what is about to be published: WAL is flushed past the commits of a step.

use super::xact;
use pgrx::pg_sys;

/// Flushes WAL past the commit records of `xids`, so that an event of a transaction with synchronous_commit = off cannot be published and then be
/// lost in a crash. Free when the commits flushed by themselves.
///
/// Leans on TransactionIdGetCommitLSN (transam.c): the LSN up to which WAL must be flushed for a commit to be durable, possibly a little later
/// than its own record, 0 when nothing is left to flush. (XLogFlush of the insert position would raise an error when that stands just behind a
/// page header.) A transaction older than oldestClogXid may have no commit status any more; it was durable long ago. (That one advances before the
/// commit log is cut off, oldestXid only after it.) An event may be older than the 2^31 transactions that 32 bits can tell apart, so that is asked of
/// all 64.
pub fn flush_commits(xids: impl Iterator<Item = u64>) {
    let mut upto: pg_sys::XLogRecPtr = 0;
    let mut last = 0;
    // SAFETY: reads shared counters.
    let oldest = unsafe {
        let next = pg_sys::ReadNextFullTransactionId().value;
        xact::widen((*pg_sys::ShmemVariableCache).oldestClogXid.into_inner(), next)
    };
    for xid in xids {
        if xid == last {
            continue;
        }
        last = xid;
        if xid >= oldest {
            // SAFETY: reads the commit log of a transaction that is known to have committed.
            upto = upto.max(unsafe { pg_sys::TransactionIdGetCommitLSN(pg_sys::TransactionId::from(xid as u32)) });
        }
    }
    if upto != 0 {
        // SAFETY: flushing WAL that was inserted.
        unsafe { pg_sys::XLogFlush(upto) };
    }
}

/// Up to where WAL is on this server's disk: past the commits of everything visible, once [`flush_commits`] was called for it.
pub fn flushed_upto() -> u64 {
    // SAFETY: reads a shared counter; the timeline is not asked for.
    unsafe { pg_sys::GetFlushRecPtr(std::ptr::null_mut()) }
}

/// Whether [`synchronous_standbys_have`] reads this server's shared memory right: sync_standbys_status was another thing before 15.13.
pub fn knows_synchronous_standbys() -> bool {
    // SAFETY: reads a setting's text, which lives as long as the process.
    let version = unsafe {
        std::ffi::CStr::from_ptr(pg_sys::GetConfigOption(c"server_version_num".as_ptr(), false, false))
            .to_string_lossy()
    };
    version.parse::<u32>().is_ok_and(|version| version >= 150_013)
}

/// Whether the synchronous standbys (synchronous_standby_names) have flushed WAL up to `lsn`; true when there are none.
///
/// Leans on syncrep.c: a walsender of a synchronous standby advances WalSndCtl->lsn at each reply, whether somebody waits or not;
/// sync_standbys_status says whether there are any, once the checkpointer has set it up.
pub fn synchronous_standbys_have(lsn: u64) -> bool {
    const INITIALIZED: u8 = 1;
    const DEFINED: u8 = 2;
    // SAFETY: shared memory; an aligned 64-bit read is not torn on the platforms that PostgreSQL calls 64-bit.
    unsafe {
        let control = pg_sys::WalSndCtl;
        let status = (&raw const (*control).sync_standbys_status).read_volatile();
        if status & INITIALIZED != 0 && status & DEFINED == 0 {
            return true;
        }
        (&raw const (*control).lsn[pg_sys::SYNC_REP_WAIT_FLUSH as usize]).read_volatile() >= lsn
    }
}
