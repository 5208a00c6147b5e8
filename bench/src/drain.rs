//! Row drain: a backlog of a million events, from the switch to the last settle. Floor: the same records from memory by
//! librdkafka alone. Beside it what the drain leaves behind and what it takes: dead rows, CPU time, memory, WAL.

use std::time::Duration;

use outbox_e2e::wait::{let_pass, try_wait};
use outbox_e2e::{Db, seconds};
use serde_json::{Value, json};

use crate::args::Scale;
use crate::backlog::{self, AGGREGATES, Records, Size};
use crate::drain_peers::{self, Ours};
use crate::floor;
use crate::process;
use crate::report::{Figure, Grid, Section};
use crate::stand::{PARTITIONS, Stand, settle_disks};
use crate::stats;
use crate::table::Table;
use crate::wal;

const EVENTS: usize = 1_000_000;
/// Of about 4 kB each.
const EVENTS_LARGE: usize = 200_000;
/// What COPY writes out: the columns that a record is made of, as text.
const READ_ALL: &str = "COPY (SELECT event_id, aggregate_type, aggregate_id, event_type, created_at, headers, payload FROM outbox_log ORDER BY seq)
    TO STDOUT";
/// Before the first round, so that none of them pays for the broker's first compilation of its code.
const WARM_UP: usize = 200_000;
const RATE_BAR: f64 = 150_000.0;
const RATIO_BAR: f64 = 0.65;
const WAL_BAR: f64 = 1.0;
const MEMORY_BAR_MIB: f64 = 64.0;
/// The slowest drain worth waiting for.
const DEADLINE: Duration = Duration::from_secs(180);
/// Between two looks at the relay while it drains: seldom, for they take from the same cores, and a look at the memory
/// holds up the process looked at. The times come from the ledger, not from the looks.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Default)]
struct Round {
    events: usize,
    floor_rate: f64,
    /// PostgreSQL alone, the same rows as text.
    read_rate: f64,
    /// From the switch to the last settle.
    rate: f64,
    /// From the first settle to the last: without starting the session, its producer and its producer id.
    rate_steady: f64,
    dead_log: f64,
    dead_batch: f64,
    cpu: f64,
    cpu_main: f64,
    cpu_others: f64,
    private_before: f64,
    private_peak: f64,
    wal_per_event: f64,
    busy_cores: f64,
    settles: f64,
    row_bytes: f64,
    value_bytes: f64,
}

impl Round {
    fn ratio(&self) -> f64 {
        self.rate / self.floor_rate
    }

    fn json(&self) -> Value {
        json!({
            "events": self.events, "floor_rate": self.floor_rate, "read_rate": self.read_rate, "rate": self.rate, "rate_steady": self.rate_steady, "ratio": self.ratio(),
            "dead_log": self.dead_log, "dead_batch": self.dead_batch, "relay_cpu_s": self.cpu,
            "relay_cpu_main_thread_s": self.cpu_main, "relay_cpu_other_threads_s": self.cpu_others,
            "relay_private_before_bytes": self.private_before, "relay_private_peak_bytes": self.private_peak,
            "wal_bytes_per_event": self.wal_per_event, "busy_cores": self.busy_cores, "settles": self.settles,
            "row_bytes": self.row_bytes, "value_bytes": self.value_bytes,
        })
    }
}

pub fn measure(rounds: usize, scale: Scale) -> Vec<Section> {
    let (events, events_large) = (scale.events(EVENTS), scale.events(EVENTS_LARGE));
    eprintln!("drain: {rounds} rounds of {events} events each way, and every peer");
    let (mut usual, mut large, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..rounds {
        usual.push(measure_round(number, Size::Usual, events));
        large.push(measure_round(number, Size::Large, events_large));
        let ours = Ours {
            rate: usual[number].rate,
            rate_large: large[number].rate,
            cpu_per_event: usual[number].cpu / events as f64 * 1e6,
        };
        beside.push((ours, drain_peers::measure_round(number, scale)));
    }
    vec![
        section(Size::Usual, &usual),
        section(Size::Large, &large),
        drain_peers::section(&beside),
    ]
}

/// A round has a cluster of its own: every one begins with the same tables and statistics.
fn measure_round(number: usize, size: Size, events: usize) -> Round {
    let stand = Stand::new(&[
        ("outbox_ext.enabled", "off"),
        // Nothing may sweep up before the dead rows are counted, nor run beside one round and not the next.
        ("autovacuum", "off"),
    ]);
    let mut db = stand.db();
    let (aggregate_type, topic) = stand.new_topic("drain");
    backlog::insert(&mut db, Table::Event, &aggregate_type, size, events);
    let records = Records::read(&mut db, &aggregate_type, PARTITIONS as u32);
    assert_eq!(records.len(), events, "the backlog is complete");
    if number == 0 {
        let (_, warm_up) = stand.new_topic("warm");
        floor::produce_all(stand.broker.address(), &warm_up, &records, WARM_UP.min(events));
    }
    let mut round = Round {
        events,
        row_bytes: db.one("SELECT avg(pg_column_size(l.*))::float8 FROM outbox_log l TABLESAMPLE SYSTEM (1)"),
        value_bytes: records.value_bytes_mean(),
        ..Round::default()
    };
    // Whoever goes second finds a broker that has just been busy: they take turns.
    if number.is_multiple_of(2) {
        produce(&stand, &mut db, &records, &mut round);
        drain(&stand, &mut db, &topic, &mut round);
    } else {
        drain(&stand, &mut db, &topic, &mut round);
        produce(&stand, &mut db, &records, &mut round);
    }
    round.read_rate = events as f64 / stand.read_out(READ_ALL);
    stand.end();
    eprintln!(
        "  round {}, {size:?}: {:.0}/s, librdkafka alone {:.0}/s, PostgreSQL alone {:.0}/s",
        number + 1,
        round.rate,
        round.floor_rate,
        round.read_rate
    );
    round
}

fn produce(stand: &Stand, db: &mut Db, records: &Records, round: &mut Round) {
    let (_, topic) = stand.new_topic("floor");
    settle_disks(db);
    let took = floor::produce_all(stand.broker.address(), &topic, records, round.events);
    assert_eq!(
        stand.broker.count(&topic),
        round.events,
        "librdkafka alone: each record once"
    );
    round.floor_rate = round.events as f64 / took;
}

fn drain(stand: &Stand, db: &mut Db, topic: &str, round: &mut Round) {
    let relay = db.relay();
    settle_disks(db);
    round.private_before = process::private_bytes(relay) as f64;
    let cpu = process::cpu_seconds(relay);
    let (cpu_main, cpu_others) = process::cpu_seconds_by_thread(relay);
    let position = wal::position(db);
    let busy = process::busy_seconds();

    stand.cluster.configure(&[("outbox_ext.enabled", "on")]);
    let switched: f64 = db.one("SELECT extract(epoch FROM clock_timestamp())::float8 FROM pg_reload_conf()");
    let peak = wait_settled(db, relay, round.events);

    let busy = process::busy_seconds() - busy;
    let (main_after, others_after) = process::cpu_seconds_by_thread(relay);
    round.private_peak = peak as f64;
    round.cpu = process::cpu_seconds(relay) - cpu;
    round.cpu_main = main_after - cpu_main;
    round.cpu_others = others_after - cpu_others;
    round.wal_per_event = wal::since(db, &position) / round.events as f64;

    let settles = db.rows(
        "SELECT extract(epoch FROM published_at)::float8, events::float8
           FROM outbox_batch WHERE batch_no > 0 AND events > 0 ORDER BY batch_no",
    );
    let settles: Vec<(f64, f64)> = settles.iter().map(|row| (row.get(0), row.get(1))).collect();
    let (Some((first, events_of_first)), Some((last, _))) = (settles.first(), settles.last()) else {
        unreachable!("all was settled")
    };
    round.settles = settles.len() as f64;
    round.rate = round.events as f64 / (last - switched);
    round.rate_steady = (round.events as f64 - events_of_first) / (last - first);
    round.busy_cores = busy / (last - switched);

    assert_eq!(stand.broker.count(topic), round.events, "the outbox: each event once");
    round.dead_log = dead_rows(db, "outbox_log", round.events as i64);
    round.dead_batch = dead_rows(db, "outbox_batch", settles.len() as i64);
}

/// Waits until the ledger covers every event; returns the most memory that the relay had on the way.
fn wait_settled(db: &mut Db, relay: i32, events: usize) -> u64 {
    let mut peak = 0;
    let settled = try_wait(DEADLINE, || {
        let settled: i64 = db.one("SELECT sum(events)::bigint FROM outbox_batch");
        peak = peak.max(process::private_bytes(relay));
        if settled >= events as i64 {
            return Ok(());
        }
        let_pass(LOOK);
        Err(format!("{settled} events settled, status {}", db.status()))
    });
    settled.unwrap_or_else(|seen| panic!("the backlog was not drained within {DEADLINE:?}: {seen}"));
    peak
}

/// Dead rows by the statistics (once they have arrived) or by a look at every page, whichever says more.
fn dead_rows(db: &mut Db, table: &str, rows: i64) -> f64 {
    let counted = format!("SELECT n_tup_ins >= {rows} FROM pg_stat_all_tables WHERE relname = '{table}'");
    db.wait_true(&counted, seconds(30));
    let told: i64 = db.one(&format!(
        "SELECT n_dead_tup FROM pg_stat_all_tables WHERE relname = '{table}'"
    ));
    let found: i64 = db.one(&format!("SELECT dead_tuple_count FROM pgstattuple('{table}')"));
    told.max(found) as f64
}

fn section(size: Size, rounds: &[Round]) -> Section {
    let (name, title) = match size {
        Size::Usual => ("drain", "Drain of a backlog of 1,000,000 events"),
        Size::Large => ("drain_large", "The same with 200,000 events, payloads of 4 kB"),
    };
    let is_usual = size == Size::Usual;
    const MIB: f64 = (1 << 20) as f64;
    let over = |of: fn(&Round) -> f64| stats::over(rounds, of);
    let most = |of: fn(&Round) -> f64| rounds.iter().map(of).fold(0.0, f64::max);
    let lines = rounds.iter().enumerate().map(|(number, round)| {
        vec![
            format!("{}", number + 1),
            format!("{:.0}", round.rate),
            format!("{:.0}", round.rate_steady),
            format!("{:.0}", round.floor_rate),
            format!("{:.0}", round.read_rate),
            format!("{:.2}", round.ratio()),
            format!("{:.2}", round.cpu),
            format!("{:.2}", round.cpu_main),
            format!("{:.1}", round.private_peak / MIB),
            format!("{:.2}", round.busy_cores),
            format!("{:.0}", round.settles),
        ]
    });
    Section {
        name,
        title,
        method: format!(
            "{:.0} events of {AGGREGATES} aggregates, emitted in transactions of 1,000 while outbox_ext.enabled was off; \
             rows of {:.0} bytes, payloads of {:.0}; one topic of {PARTITIONS} partitions; a new cluster for each round; \
             settings at their defaults, autovacuum off and nothing analyzed. From the switch to the last settle, by the ledger's own times, and each event \
             counted once on the topic. Floor: librdkafka alone with the same settings, from making the producer to the \
             last report, the same records from memory, alternating. PostgreSQL alone: the same rows in order by COPY to a \
             client that throws them away, each value made into text as PostgreSQL does it, which the relay does in its own way.",
            over(|round| round.events as f64),
            over(|round| round.row_bytes),
            over(|round| round.value_bytes)
        ),
        figures: vec![
            Figure::at_least(
                "drained, from the switch",
                over(|round| round.rate),
                "events/s",
                RATE_BAR,
            )
            .only(is_usual),
            Figure::at_least("share of the floor, from the switch", over(Round::ratio), "", RATIO_BAR).only(is_usual),
            Figure::plain(
                "drained, from the first settle",
                over(|round| round.rate_steady),
                "events/s",
            ),
            Figure::plain("floor: librdkafka alone", over(|round| round.floor_rate), "events/s"),
            Figure::plain("floor: PostgreSQL alone", over(|round| round.read_rate), "rows/s"),
            Figure::at_most(
                "dead rows in outbox_log, most of all rounds",
                most(|round| round.dead_log),
                "",
                0.0,
            ),
            Figure::at_most(
                "dead rows in outbox_batch, most of all rounds",
                most(|round| round.dead_batch),
                "",
                0.0,
            ),
            Figure::plain("CPU time of the relay", over(|round| round.cpu), "s"),
            Figure::plain(
                "  of it the main thread (PostgreSQL's side)",
                over(|round| round.cpu_main),
                "s",
            ),
            Figure::plain("  of it librdkafka's threads", over(|round| round.cpu_others), "s"),
            Figure::below(
                "private memory of the relay, most of all rounds",
                most(|round| round.private_peak) / MIB,
                "MiB",
                MEMORY_BAR_MIB,
            ),
            Figure::plain("  before the drain", over(|round| round.private_before) / MIB, "MiB"),
            Figure::below(
                "WAL written, per event",
                over(|round| round.wal_per_event),
                "bytes",
                WAL_BAR,
            ),
        ],
        grid: Grid {
            head: vec![
                "round",
                "events/s",
                "from first settle",
                "floor records/s",
                "read rows/s",
                "share",
                "relay CPU s",
                "main thread CPU s",
                "private MiB",
                "cores busy",
                "settles",
            ],
            lines: lines.collect(),
        },
        notes: Vec::new(),
        plots: Vec::new(),
        raw: json!({ "rounds": rounds.iter().map(Round::json).collect::<Vec<_>>() }),
    }
}
