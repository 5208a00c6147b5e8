//! Foreign rows: rows of outbox_log that bring an xid of their own (a restore, a clone's import, logical replication), and what else happens to
//! events from outside: the UPDATE that is refused, the DELETE and TRUNCATE that the relay is told of.
//!
//! A foreign row is re-stamped with the xid of the transaction that inserts it, so that the cursor finds it; it keeps its seq, so that a restore keeps
//! its order; and it sets a stop, so that a restored copy does not publish its original's events. `outbox_arm()` lifts the stop. (A database that
//! was copied as files brings no foreign rows: its relay sets the stop when it acquires the lease.)
//!
//! Invariant: a foreign row is never visible without a stop, unless somebody armed after it was. Both are written in one subtransaction; where a
//! stop is there already, the lock on outbox_stop that the insert takes anyway makes outbox_arm() wait for this transaction's end.

use crate::pg::call::{Args, Returned};
use crate::pg::catalog::Schema;
use crate::pg::error::raise;
use crate::pg::spi::{self, Access, Spi, text_datum, types};
use crate::pg::{catalog, trigger, txn, xact};
use crate::wakeup;
use pgrx::PgSqlErrorCode;
use pgrx::prelude::*;
use std::cell::Cell;

/// A lifted sequence goes this much further than asked, so that a restore of a million rows does not log a million setvals.
const LIFT_STRIDE: i64 = 1024;
/// A seq above this lifts nothing: it would leave the sequence without numbers. A wrong seq costs order, never an event.
const LIFT_MAX: i64 = i64::MAX / 2;
const FOREIGN: &str = "rows that were not emitted here (a restore, an import or replication) arrived in outbox_log; \
                       nothing is published until somebody calls outbox_arm()";

thread_local! {
    /// Transaction and subtransaction that have set the stop already.
    static STOPPED: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
    /// This sequence is known to stand at least here.
    static LIFTED: Cell<(pg_sys::Oid, i64)> = const { Cell::new((pg_sys::Oid::INVALID, i64::MIN)) };
}

/// Trigger `outbox_log_restamp`: BEFORE INSERT, for each row. A row with this transaction's xid, as all that are emitted here, stays as it is.
#[pg_extern(sql = false)]
fn outbox_restamp(fcinfo: pg_sys::FunctionCallInfo) -> Returned {
    let row = trigger::InsertedRow::of(fcinfo);
    let xid = xact::top_xid();
    if row.u64(c"xid") == Some(xid) {
        return Returned(row.unchanged());
    }
    let schema = Args::new(fcinfo).schema();
    wakeup::relay_at_commit();
    // The rows come from whoever may insert; stop and sequence are the owner's.
    txn::as_user_on_safe_path(row.table_owner(), || {
        if STOPPED.get() != (xid, xact::subtransaction()) {
            spi::connected(|spi| stop(spi, &schema, FOREIGN));
            STOPPED.set((xid, xact::subtransaction()));
        }
        if let Some(seq) = row.i64(c"seq")
            && let Some(sequence) = schema.relation(c"outbox_log_seq")
            && (LIFTED.get().0 != sequence || seq > LIFTED.get().1)
            && seq <= LIFT_MAX
        {
            lift(&schema, seq);
            LIFTED.set((sequence, seq + LIFT_STRIDE));
        }
    });
    Returned(row.with_u64(c"xid", xid))
}

/// Sets the stop, unless there is one.
pub fn stop(spi: &Spi, schema: &Schema, reason: &str) {
    let sql = format!(
        "INSERT INTO {}.outbox_stop (reason) VALUES ($1) ON CONFLICT DO NOTHING",
        schema.quoted
    );
    spi.run(&sql, &[types::TEXT], &[Some(text_datum(reason))], Access::Write);
}

fn lift(schema: &Schema, seq: i64) {
    spi::connected(|spi| {
        let sql = format!(
            "SELECT pg_catalog.setval('{0}.outbox_log_seq'::pg_catalog.regclass, $1) FROM {0}.outbox_log_seq WHERE last_value OPERATOR(pg_catalog.<) $2",
            schema.quoted.replace('\'', "''")
        );
        let values = [Some((seq + LIFT_STRIDE).into()), Some(seq.into())];
        spi.run(&sql, &[types::INT8, types::INT8], &values, Access::Write);
    });
}

/// Trigger `outbox_log_refuse_update`: BEFORE UPDATE, for each statement.
#[pg_extern(sql = false)]
fn outbox_refuse_update() -> Returned {
    raise(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "an event cannot be changed after it was emitted".to_owned(),
        Some("outbox_log is append-only; state, attempts and published_at of outbox_event are computed.".to_owned()),
        "Emit another event with outbox_emit(). There is nothing to mark as published: the relay keeps a cursor.",
    )
}

/// Triggers `outbox_log_note_delete` and `outbox_log_note_truncate`: AFTER, for each statement.
#[pg_extern(sql = false)]
fn outbox_note_removal() -> Returned {
    wakeup::rows_removed_at_commit();
    Returned(pg_sys::Datum::from(0))
}

/// SQL `outbox_arm()`: lifts the stop. Waits for transactions that are bringing foreign rows in. A copied database is one of its own from here.
#[pg_extern(sql = false)]
fn outbox_arm(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    let schema = Args::new(fcinfo).schema();
    wakeup::relay_at_commit();
    // A row that comes later in this transaction is to stop publishing again.
    STOPPED.set((0, 0));
    spi::connected(|spi| {
        let lock = format!("LOCK TABLE {}.outbox_stop IN SHARE ROW EXCLUSIVE MODE", schema.quoted);
        spi.run(&lock, &[], &[], Access::Write);
        let own = format!(
            "UPDATE {}.outbox_lease SET database_oid = $1 WHERE database_oid OPERATOR(pg_catalog.<>) $1",
            schema.quoted
        );
        spi.run(
            &own,
            &[types::OID],
            &[Some(catalog::my_database().into())],
            Access::Write,
        );
        let delete = format!("DELETE FROM {}.outbox_stop", schema.quoted);
        spi.run(&delete, &[], &[], Access::Write).count() > 0
    })
}
