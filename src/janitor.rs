//! Retention: deletes published events that are older than `outbox_ext.retention`, and the ledger rows before them.
//!
//! A process of its own that the relay starts now and then ([`start`]) and that ends when nothing is left to delete, so that deleting never holds up publishing. It deletes in
//! batches, each a short transaction: what a batch deleted stays deleted whatever becomes of the next one.
//!
//! The rule. Take the newest ledger row older than the retention. Its cursor passed only events that were published or parked before it. So delete the events with seq <= its pos that its
//! snapshot sees, and that are neither parked now (discarded ones go with their row) nor published out of outbox_parked since. (While that row's walk was open, `snapshot` is the one before the walk.) Age alone is
//! not enough: a late event may be older than the retention when it commits. Then delete the ledger rows before that one; never the newest.

use crate::guc::Settings;
use crate::pg::spi::{self, Access, Spi, text_datum, types as t};
use crate::pg::txn::{self, Isolation};
use crate::pg::{runtime, worker};
use crate::place::Place;
use crate::relay::store;
use crate::shmem::{Slot, board};
use crate::wakeup;
use pgrx::prelude::*;

/// Rows of one transaction: some 20 ms.
const BATCH_ROWS: i64 = 5_000;
/// Bounds of the time from one look to the next.
const INTERVAL_MIN_S: u64 = 1;
const INTERVAL_MAX_S: u64 = 600;
/// CPU that deleting a row takes at most. What a sweep took beyond it, it spent on looking at what is to stay.
const ROW_US: u64 = 50;
/// A sweep is so many times as far from the next one as it looked in vain: a twentieth of a core at most.
const SEARCHED_PAUSE: u64 = 20;

/// How long after one look the next is due, in milliseconds: a tenth of the retention, within bounds, and longer where much is parked, which each
/// sweep passes by. None without retention.
pub fn interval_ms(settings: &Settings, slot: &Slot) -> Option<u64> {
    let retention = settings.retention_s?;
    let interval = (retention / 10).clamp(INTERVAL_MIN_S, INTERVAL_MAX_S) * 1000;
    Some(interval.max(slot.searched_ms() * SEARCHED_PAUSE))
}

/// Starts a janitor for the slot's database, unless one is at work. Without a free worker process the next look is as good.
pub fn start(slot: &Slot, index: usize) {
    if !slot.janitor_at_work() {
        worker::start_once(
            "outbox_ext janitor",
            "outbox_ext janitor",
            "outbox_janitor_main",
            (slot.generation() as usize) << 32 | index,
        );
    }
}

/// Main function of a janitor process. The argument holds the slot and its generation.
#[allow(unsafe_code, reason = "the symbol's name is given to the postmaster")]
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn outbox_janitor_main(argument: pg_sys::Datum) {
    runtime::start();
    let Some(board) = board() else { runtime::exit(0) };
    let (index, generation) = (argument.value() & 0xffff_ffff, (argument.value() >> 32) as u32);
    let slot = board.slot(index);
    if slot.generation() != generation || !slot.janitor_begins() {
        runtime::exit(0);
    }
    MINE.set(Some(index));
    runtime::on_exit(left);
    worker::connect(pg_sys::Oid::from(slot.database()));
    store::prepare_session();
    // GIN knows no other scan.
    runtime::set_for_process("enable_bitmapscan", "on");
    wakeup::delete_quietly();
    runtime::report_activity("deletes published events older than outbox_ext.retention");
    match sweep(&Settings::current()) {
        Ok(searched_ms) => slot.set_searched_ms(searched_ms),
        Err(error) => pgrx::log!(
            "outbox_ext janitor stopped, and goes on at the next look: {}",
            error.message
        ),
    }
    runtime::flush_statistics();
    runtime::exit(0);
}

thread_local! {
    static MINE: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

#[allow(unsafe_code, reason = "a callback that PostgreSQL calls")]
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn left(_code: i32, _argument: pg_sys::Datum) {
    if let (Some(board), Some(index)) = (board(), MINE.get()) {
        board.slot(index).janitor_ends();
    }
}

/// Where a sweep ends: the newest ledger row older than the retention.
struct Horizon {
    batch_no: i64,
    pos: i64,
    snapshot: String,
    /// Events were published out of outbox_parked after it: those are looked up one by one.
    unparked_since: bool,
    /// The newest ledger row of which that is known.
    known_upto: i64,
}

/// Returns how many milliseconds of CPU it looked at what is to stay.
fn sweep(settings: &Settings) -> Result<u64, crate::pg::error::ServerError> {
    let Some(retention) = settings.retention_s else {
        return Ok(0);
    };
    let began = runtime::cpu_ms();
    let mut deleted = 0;
    let horizon = in_extension(|spi, schema| horizon(spi, schema, retention))?.flatten();
    let Some(mut horizon) = horizon else { return Ok(0) };
    let mut from = i64::MIN;
    while !runtime::shutdown_requested() {
        match paced(|| in_extension(|spi, schema| delete_events(spi, schema, &horizon, from)))?.flatten() {
            Some((last, rows)) => {
                from = last;
                deleted += rows;
            }
            // Whatever is known of is looked up; else it may be news that ended the deleting.
            None if horizon.unparked_since => break,
            None => match in_extension(|spi, schema| unparked_meanwhile(spi, schema, &horizon))? {
                Some(true) => horizon.unparked_since = true,
                _ => break,
            },
        }
        pgrx::check_for_interrupts!();
    }
    while !runtime::shutdown_requested() {
        let rows = paced(|| in_extension(|spi, schema| delete_ledger(spi, schema, &horizon)))?.unwrap_or(0);
        if rows == 0 {
            break;
        }
        deleted += rows as u64;
        pgrx::check_for_interrupts!();
    }
    Ok((runtime::cpu_ms() - began).saturating_sub(deleted * ROW_US / 1000))
}

/// Rests as long as the work took: deleting takes half a core, and half of what the disks give, at most. At more than 100,000 rows a second it still
/// outruns who commits them.
fn paced<T>(work: impl FnOnce() -> T) -> T {
    let began = runtime::monotonic_ms();
    let result = work();
    runtime::wait(None, Some(runtime::monotonic_ms() - began));
    result
}

/// Runs `body` as the tables' owner, in a transaction of its own; None when the extension is gone.
fn in_extension<T>(body: impl FnOnce(&Spi, &str) -> T) -> Result<Option<T>, crate::pg::error::ServerError> {
    txn::run(Isolation::ReadCommitted, |transaction| {
        transaction.snapshot();
        spi::connected(|spi| {
            let place = Place::find(spi)?;
            transaction.become_owner(place.owner);
            Some(body(spi, &place.schema.quoted))
        })
    })
}

fn horizon(spi: &Spi, schema: &str, retention_s: u64) -> Option<Horizon> {
    let sql =
        format!(
            "SELECT b.batch_no, b.pos, b.snapshot::pg_catalog.text,
                    EXISTS ({}),
                    (SELECT max(n.batch_no) FROM {schema}.outbox_batch n)
               FROM {schema}.outbox_batch b WHERE b.published_at < pg_catalog.clock_timestamp() - $1 * interval '1 second' AND b.batch_no > 0
              ORDER BY b.batch_no DESC LIMIT 1",
            unparked_after(schema, "b.batch_no")
        );
    let types = &[t::INT8];
    let rows = spi.run(&sql, types, &[Some((retention_s as i64).into())], Access::Read);
    if rows.count() == 0 {
        return None;
    }
    Some(Horizon {
        batch_no: rows.i64(0, 0)?,
        pos: rows.i64(0, 1)?,
        snapshot: rows.text(0, 2)?,
        unparked_since: rows.bool(0, 3)?,
        known_upto: rows.i64(0, 4)?,
    })
}

/// Whether an event was published out of outbox_parked since the horizon was looked for.
fn unparked_meanwhile(spi: &Spi, schema: &str, horizon: &Horizon) -> bool {
    let sql = format!("SELECT EXISTS ({})", unparked_after(schema, "$1"));
    let rows = spi.run(&sql, &[t::INT8], &[Some(horizon.known_upto.into())], Access::Read);
    rows.bool(0, 0) == Some(true)
}

/// Ledger rows after this number that published something out of outbox_parked.
fn unparked_after(schema: &str, batch_no: &str) -> String {
    format!("SELECT FROM {schema}.outbox_batch u WHERE u.unparked IS NOT NULL AND u.batch_no > {batch_no}")
}

/// Deletes a batch beyond `from`; the highest seq deleted and how many, None when none was left.
fn delete_events(spi: &Spi, schema: &str, horizon: &Horizon, from: i64) -> Option<(i64, u64)> {
    let (not_unparked_since, batch_no) = if horizon.unparked_since {
        let none_of_it = format!(
            "AND NOT EXISTS (SELECT FROM {schema}.outbox_batch u WHERE u.unparked @> ARRAY[l.event_id] AND u.batch_no > $4)"
        );
        (none_of_it, horizon.batch_no)
    } else {
        // Looked at once for the statement, in its own snapshot.
        let none = format!("AND NOT EXISTS ({})", unparked_after(schema, "$4"));
        (none, horizon.known_upto)
    };
    // By ctid, which only an UPDATE could change, and those are refused.
    let sql =
        format!(
            "WITH gone AS (
                 DELETE FROM {schema}.outbox_log WHERE ctid = ANY (ARRAY(
                     SELECT l.ctid FROM {schema}.outbox_log l
                      WHERE l.seq > $1 AND l.seq <= $2 AND pg_catalog.pg_visible_in_snapshot(l.xid, $3::pg_catalog.pg_snapshot)
                        AND NOT EXISTS (SELECT FROM {schema}.outbox_parked p WHERE p.event_id = l.event_id AND p.reason <> 'discarded') {not_unparked_since}
                      ORDER BY l.seq LIMIT $5)) RETURNING event_id, seq),
             discarded AS (DELETE FROM {schema}.outbox_parked p USING gone WHERE p.event_id = gone.event_id)
             SELECT max(seq), count(*) FROM gone"
        );
    let types = &[t::INT8, t::INT8, t::TEXT, t::INT8, t::INT8];
    let values = [
        Some(from.into()),
        Some(horizon.pos.into()),
        Some(text_datum(&horizon.snapshot)),
        Some(batch_no.into()),
        Some(BATCH_ROWS.into()),
    ];
    let rows = spi.run(&sql, types, &values, Access::Write);
    Some((rows.i64(0, 0)?, rows.i64(0, 1)? as u64))
}

/// Deletes a batch of ledger rows before the horizon; how many.
fn delete_ledger(spi: &Spi, schema: &str, horizon: &Horizon) -> usize {
    let sql = format!(
        "DELETE FROM {schema}.outbox_batch WHERE ctid = ANY (ARRAY(
                 SELECT b.ctid FROM {schema}.outbox_batch b WHERE b.batch_no < $1 ORDER BY b.batch_no LIMIT $2))"
    );
    let types = &[t::INT8, t::INT8];
    spi.run(
        &sql,
        types,
        &[Some(horizon.batch_no.into()), Some(BATCH_ROWS.into())],
        Access::Write,
    )
    .count()
}
