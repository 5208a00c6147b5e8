//! What operators do with events that were given up: try them again, or let them go.
//!
//! Both change rows of outbox_parked in the operator's transaction and have the relay start a new session at its commit: what it keeps in memory of parked events is loaded from the table, as at any
//! start.

use crate::pg::call::Args;
use crate::pg::error::{raise, raise_null};
use crate::pg::spi::{self, Access, text_datum, types};
use crate::wakeup;
use pgrx::PgSqlErrorCode;
use pgrx::prelude::*;

/// SQL `outbox_retry(event_id)`: a failed event is sent again; false when it is not a failed one.
#[pg_extern(sql = false)]
fn outbox_retry(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    let args = Args::new(fcinfo);
    if args.datum(0).is_none() {
        null("event_id");
    }
    retry(&args, "event_id = $1", &[types::UUID], &[args.datum(0)]) > 0
}

/// SQL `outbox_retry_all(aggregate_type, error_pattern)`: all failed events that match are sent again; how many.
#[pg_extern(sql = false)]
fn outbox_retry_all(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    let args = Args::new(fcinfo);
    let filter = "($1 IS NULL OR aggregate_type = $1) AND ($2 IS NULL OR last_error LIKE $2)";
    retry(
        &args,
        filter,
        &[types::TEXT, types::TEXT],
        &[args.datum(0), args.datum(1)],
    ) as i64
}

fn retry(args: &Args, filter: &str, argument_types: &[pg_sys::Oid], values: &[Option<pg_sys::Datum>]) -> usize {
    let sql = format!(
        "UPDATE {}.outbox_parked SET reason = 'retry', available_at = pg_catalog.now(), parked_at = pg_catalog.clock_timestamp() WHERE reason = 'failed' AND {filter}",
        args.schema().quoted
    );
    change(&sql, argument_types, values)
}

/// SQL `outbox_discard(event_id, reason)`: a failed event is never published; what waits behind it goes on. False when it is not a failed one.
#[pg_extern(sql = false)]
fn outbox_discard(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    let args = Args::new(fcinfo);
    if args.datum(0).is_none() {
        null("event_id");
    }
    let reason = args.text(1).unwrap_or_default();
    if reason.trim().is_empty() {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "reason must not be empty".to_owned(),
            None,
            "Say why the event is let go; it stays with the event.",
        );
    }
    let sql = format!(
        "UPDATE {}.outbox_parked SET reason = 'discarded', available_at = NULL, last_error = pg_catalog.concat('discarded by ', session_user, ': ', $2, \
         ' (', last_error, ')') WHERE reason = 'failed' AND event_id = $1",
        args.schema().quoted
    );
    change(
        &sql,
        &[types::UUID, types::TEXT],
        &[args.datum(0), Some(text_datum(reason))],
    ) > 0
}

fn change(sql: &str, argument_types: &[pg_sys::Oid], values: &[Option<pg_sys::Datum>]) -> usize {
    let changed = spi::connected(|spi| spi.run(sql, argument_types, values, Access::Write).count());
    if changed > 0 {
        wakeup::new_session_at_commit();
    }
    changed
}

fn null(argument: &str) -> ! {
    raise_null(argument, "outbox_dead_letter lists the events that were given up.")
}
