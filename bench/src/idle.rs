//! Row idle: a minute in which nothing happens. No transaction id, no WAL, next to no CPU time, with relay and broker
//! connected.

use std::time::Duration;

use outbox_e2e::wait::let_pass;
use outbox_e2e::{Db, Emit, seconds, wait};
use serde_json::json;

use crate::args::Scale;
use crate::backlog::{EVENT_TYPE, payload};
use crate::process;
use crate::report::{Figure, Grid, Section};
use crate::stand::Stand;

const SECONDS: u64 = 60;
const CPU_BAR_PERCENT: f64 = 0.2;
/// Nothing may have happened for so long before the minute begins.
const QUIET: Duration = Duration::from_secs(5);

pub fn measure(scale: Scale) -> Section {
    let minute = seconds(scale.seconds(SECONDS));
    eprintln!("idle: {minute:?}");
    let stand = Stand::new(&[
        // The server's own writers of WAL are off: every byte would be the extension's.
        ("autovacuum", "off"),
        ("wal_level", "minimal"),
        ("max_wal_senders", "0"),
    ]);
    let mut db = stand.db();
    // A system that has worked, not one that has never begun.
    let (aggregate_type, _) = stand.new_topic("idle");
    for number in 0..100 {
        db.emit(&Emit {
            event_type: EVENT_TYPE,
            ..Emit::new(&aggregate_type, "customer-1", &payload(number))
        });
    }
    db.wait_drained(seconds(30));
    db.wait_state("idle", seconds(10));
    let mut last = used(&mut db);
    wait("the server to be quiet", seconds(120), || {
        let_pass(QUIET);
        let now = used(&mut db);
        let before = std::mem::replace(&mut last, now.clone());
        if before == now {
            Ok(())
        } else {
            Err(format!("{before:?}, {QUIET:?} later {now:?}"))
        }
    });

    let relay = db.relay();
    let launcher: i32 = db.one("SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox_ext launcher'");
    let cpu_before = [relay, launcher].map(cpu);
    let before = used(&mut db);
    let_pass(minute);
    let after = used(&mut db);
    let cpu_after = [relay, launcher].map(cpu);
    assert_eq!(db.relay(), relay, "the same relay all the time");
    stand.end();

    let percent = |process: usize| (cpu_after[process] - cpu_before[process]) / minute.as_secs_f64() * 100.0;
    let ids = after.transaction_id - before.transaction_id;
    let wal = after.wal - before.wal;
    Section {
        name: "idle",
        title: "Idle for a minute",
        method: "After 100 events and when all was quiet for 5 s: a minute without an event, the relay connected to the \
                 broker, settings at their defaults; autovacuum off and wal_level minimal, so that no byte of WAL could be \
                 the server's own. CPU time of relay and launcher with all their threads, by the scheduler's clock."
            .to_owned(),
        figures: vec![
            Figure::at_most("transaction ids used", ids as f64, "", 0.0),
            Figure::at_most("WAL written", wal as f64, "bytes", 0.0),
            Figure::below("CPU time of relay and launcher", percent(0) + percent(1), "% of a core", CPU_BAR_PERCENT),
            Figure::plain("  of it the relay", percent(0), "% of a core"),
            Figure::plain("  of it the launcher", percent(1), "% of a core"),
        ],
        grid: Grid {
            head: Vec::new(),
            lines: Vec::new(),
        },
        notes: Vec::new(),
        plots: Vec::new(),
        raw: json!({
            "seconds": minute.as_secs(), "transaction_ids": ids, "wal_bytes": wal,
            "relay_cpu_percent": percent(0), "launcher_cpu_percent": percent(1),
        }),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Used {
    transaction_id: i64,
    wal: i64,
}

/// The next transaction id and the end of WAL, by a query that uses neither.
fn used(db: &mut Db) -> Used {
    let rows = db.rows(
        "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint",
    );
    Used {
        transaction_id: rows[0].get(0),
        wal: rows[0].get(1),
    }
}

fn cpu(pid: i32) -> f64 {
    let (main, others) = process::cpu_seconds_by_thread(pid);
    main + others
}
