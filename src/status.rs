//! `outbox_relay()`: what the relay of this database says of itself in shared memory. The views of the install script add what the tables say.

use crate::pg::call::{Args, Returned};
use crate::pg::{catalog, record};
use crate::shmem::{self, Phase};
use pgrx::prelude::*;

/// SQL `outbox_relay()`: one row; all NULL when no relay serves this database. The error's text may name brokers, and is shown only to roles that
/// may read outbox_status.
#[pg_extern(sql = false)]
fn outbox_relay(fcinfo: pg_sys::FunctionCallInfo) -> Returned {
    let found = shmem::board().and_then(|board| {
        board
            .slot_of(catalog::my_database().to_u32())
            .map(|index| (index, board.slot(index)))
    });
    let Some((index, slot)) = found else {
        return Returned(record::build(fcinfo, &[None; 10]));
    };
    let running = slot.pid() != 0;
    let state = match (running, slot.phase()) {
        (true, _) => Some(slot.state().as_str()),
        (false, Phase::Starting) => Some("starting"),
        (false, _) => None,
    };
    let (in_flight, in_flight_bytes) = slot.in_flight();
    let (published, published_at) = slot.published();
    let snapshot = if running { shmem::snapshot(index) } else { None };
    let may_read_error = Args::new(fcinfo)
        .schema()
        .relation(c"outbox_status")
        .is_some_and(catalog::may_select);
    let error = if may_read_error { shmem::error(index) } else { None };
    Returned(record::build(
        fcinfo,
        &[
            running.then(|| record::int4(slot.pid())),
            state.map(record::text),
            running.then(|| record::int8(slot.read_pos())),
            snapshot.map(|snapshot| record::text(&snapshot.to_string())),
            Some(record::int8(in_flight as i64)),
            Some(record::int8(in_flight_bytes as i64)),
            Some(record::int8(published as i64)),
            published_at.map(record::int8),
            running.then(|| record::interval_ms(slot.heartbeat_age_ms())),
            error.map(|error| record::text(&error)),
        ],
    ))
}
