//! Transactions of the workers. Isolation and snapshot are chosen here and nowhere else.
//!
//! Leans on: StartTransactionCommand sets the isolation level from default_transaction_isolation, which a database may set to anything, so it is
//! set again; a worker that catches an ERROR must abort by itself; CommitTransactionCommand wants no snapshot pushed.

use super::error::ServerError;
use pgrx::PgTryBuilder;
use pgrx::pg_sys::{self, Oid};
use std::panic::AssertUnwindSafe;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// For settles: each statement sees what is committed.
    ReadCommitted,
    /// For steps: one snapshot, taken by [`Transaction::snapshot`].
    RepeatableRead,
}

/// Runs `body` in a transaction of its own and commits it. An ERROR or panic inside rolls back and is returned; nothing was changed then.
/// Reports the statistics of the tables it touched, without which autovacuum never learns of them.
pub fn run<T>(isolation: Isolation, body: impl FnOnce(&mut Transaction) -> T) -> Result<T, ServerError> {
    let result = PgTryBuilder::new(AssertUnwindSafe(|| {
        // SAFETY: not in a transaction: every path below ends the one it began.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            pg_sys::XactIsoLevel = match isolation {
                Isolation::ReadCommitted => pg_sys::XACT_READ_COMMITTED,
                Isolation::RepeatableRead => pg_sys::XACT_REPEATABLE_READ,
            } as i32;
        }
        let mut transaction = Transaction {
            snapshot_pushed: false,
            previous_user: None,
        };
        let value = body(&mut transaction);
        transaction.finish();
        Ok(value)
    }))
    .catch_others(|caught| {
        let error = ServerError::from(&caught);
        // SAFETY: rolls back whatever was open, as AbortCurrentTransaction does for every caller's loop.
        unsafe { pg_sys::AbortCurrentTransaction() };
        Err(error)
    })
    .execute();
    // SAFETY: outside any transaction, as pgstat_report_stat asks.
    unsafe { pg_sys::pgstat_report_stat(false) };
    result
}

/// The open transaction.
pub struct Transaction {
    snapshot_pushed: bool,
    previous_user: Option<(Oid, i32)>,
}

impl Transaction {
    /// Takes the transaction's snapshot. Locks that must come before it are taken before this call.
    pub fn snapshot(&mut self) {
        assert!(!self.snapshot_pushed);
        // SAFETY: popped in finish, or dropped by the abort.
        unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot()) };
        self.snapshot_pushed = true;
    }

    /// Goes on as `owner`, so that no trigger or function that somebody hung on a table runs with the worker's superuser rights.
    pub fn become_owner(&mut self, owner: Oid) {
        let (mut user, mut context) = (Oid::INVALID, 0);
        // SAFETY: restored in finish; an abort restores it too (AbortTransaction resets user and context).
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
            pg_sys::SetUserIdAndSecContext(
                owner,
                context | (pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION) as i32,
            );
        }
        self.previous_user = Some((user, context));
    }

    fn finish(&mut self) {
        // SAFETY: undoes snapshot and become_owner, then commits.
        unsafe {
            if let Some((user, context)) = self.previous_user {
                pg_sys::SetUserIdAndSecContext(user, context);
            }
            if self.snapshot_pushed {
                pg_sys::PopActiveSnapshot();
            }
            pg_sys::CommitTransactionCommand();
        }
    }
}

/// Runs `body` as `user`, inside the caller's transaction; an ERROR restores the user with the abort. Only for what runs nobody's triggers.
pub fn as_user<R>(user: Oid, body: impl FnOnce() -> R) -> R {
    let (mut previous, mut context) = (Oid::INVALID, 0);
    // SAFETY: set back below, or by the abort of the transaction or subtransaction.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut previous, &mut context);
        pg_sys::SetUserIdAndSecContext(user, context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32);
    }
    let result = body();
    // SAFETY: as above.
    unsafe { pg_sys::SetUserIdAndSecContext(previous, context) };
    result
}

/// The same for statements that may run somebody's triggers: with a search_path that the caller cannot put anything into, as a SECURITY DEFINER
/// function that pins its search_path would.
pub fn as_user_on_safe_path<R>(user: Oid, body: impl FnOnce() -> R) -> R {
    as_user(user, || {
        // SAFETY: the setting is set back below, or by the abort of the transaction or subtransaction.
        let nest_level = unsafe {
            let nest_level = pg_sys::NewGUCNestLevel();
            pg_sys::set_config_option(
                c"search_path".as_ptr(),
                c"pg_catalog, pg_temp".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
            nest_level
        };
        let result = body();
        // SAFETY: as above; a nest level that "commits" puts the saved value back.
        unsafe { pg_sys::AtEOXact_GUC(true, nest_level) };
        result
    })
}

/// The server's clock, in PostgreSQL's unit: microseconds since 2000-01-01 UTC.
pub fn now() -> i64 {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}
