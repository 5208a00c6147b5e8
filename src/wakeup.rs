//! The wake-up at commit: a transaction that drew a seq sets the relay's latch when it commits. No NOTIFY, no lock, nothing for a transaction that
//! rolls back. A transaction that was prepared wakes nobody (its COMMIT PREPARED runs elsewhere): the relay's poll interval finds it. Where the
//! database has no relay, the launcher is asked for one: it may have missed that the extension is there.
//!
//! At a commit the callback runs when that can no longer fail; it does atomics and SetLatch, and does not raise. It raises at PREPARE only, where it may.

use crate::pg::error::raise;
use crate::pg::{catalog, xact};
use crate::shmem;
use pgrx::PgSqlErrorCode;
use std::cell::Cell;

thread_local! {
    // A server process has one thread; thread_local is Rust's way to say so.
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
    static RELAY: Cell<bool> = const { Cell::new(false) };
    static NEW_SESSION: Cell<bool> = const { Cell::new(false) };
    static ROWS_REMOVED: Cell<bool> = const { Cell::new(false) };
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static LAUNCHER: Cell<bool> = const { Cell::new(false) };
    static SLOT: Cell<usize> = const { Cell::new(0) };
    /// This session has asked the launcher for a relay, and there was none since: once is enough, for it may not be able to start one.
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// The current transaction emitted: wake this database's relay when it commits.
pub fn relay_at_commit() {
    if !RELAY.replace(true) {
        register();
    }
}

/// The current transaction changed what is parked: have the relay load it anew when it commits.
pub fn new_session_at_commit() {
    NEW_SESSION.set(true);
    relay_at_commit();
}

/// The current transaction deleted events: have the relay forget what it has parked of them when it commits.
pub fn rows_removed_at_commit() {
    if !QUIET.get() {
        ROWS_REMOVED.set(true);
        relay_at_commit();
    }
}

/// This process is the janitor: what it deletes was published, and nobody need know.
pub fn delete_quietly() {
    QUIET.set(true);
}

/// The current transaction created the extension: wake the launcher when it commits.
pub fn launcher_at_commit() {
    LAUNCHER.set(true);
    register();
}

fn register() {
    if !REGISTERED.replace(true) {
        xact::on_end(ended);
    }
}

fn ended(end: xact::End) {
    if end == xact::End::Preparing {
        if NEW_SESSION.get() {
            raise(
                PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
                "cannot PREPARE a transaction that has retried or discarded events".to_owned(),
                Some("COMMIT PREPARED tells nobody, so the relay would not learn of it.".to_owned()),
                "Use COMMIT.",
            );
        }
        return;
    }
    let (relay, new_session, launcher) = (
        RELAY.replace(false),
        NEW_SESSION.replace(false),
        LAUNCHER.replace(false),
    );
    let rows_removed = ROWS_REMOVED.replace(false);
    if end != xact::End::Committed || !(relay || launcher) {
        return;
    }
    let Some(board) = shmem::board() else { return };
    let database = catalog::my_database().to_u32();
    if relay {
        // The slot is remembered between commits and looked up again only when it is another database's now.
        let remembered = SLOT.get();
        let index = if board.slot(remembered).database() == database {
            Some(remembered)
        } else {
            board.slot_of(database)
        };
        match index {
            Some(index) => {
                SLOT.set(index);
                ASKED.set(false);
                let slot = board.slot(index);
                if new_session {
                    slot.ask_for_new_session();
                }
                if rows_removed {
                    slot.note_rows_removed();
                }
                slot.wake();
            }
            None if !ASKED.replace(true) => board.request_relay(database),
            None => {}
        }
    }
    if launcher {
        board.request_relay(database);
    }
}
