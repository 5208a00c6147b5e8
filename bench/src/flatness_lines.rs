//! The conditions that flatness is measured under, each with the line or lines it gives.

use outbox_e2e::{Db, seconds};

use crate::args::Scale;
use crate::backlog::{AGGREGATES, EVENT_TYPE, Size, payload_sql};
use crate::flatness::{Bench, DRAINS, LARGE, Line, Probe, wait_parked};

/// What the cost may grow to; with old snapshots, open transactions and held aggregates a little more.
const BAR: f64 = 1.1;
const BAR_OPEN: f64 = 1.2;

/// Of a window before the condition, and of each of the five that follow.
const WINDOW_SECONDS: u64 = 60;
const WINDOWS: usize = 5;

/// What gives the lines of one condition.
pub type Measure = fn(Scale) -> Vec<Line>;

pub const ALL: [(&str, Measure); 8] = [
    ("backlog", backlog_and_kept),
    ("scheduled", scheduled),
    ("held", held),
    ("snapshot", old_snapshot),
    ("open", open_emitter),
    ("writers", idle_writers),
    ("statistics", statistics),
    ("retention", retention),
];

/// A backlog of 10 million, and then as many published rows kept.
fn backlog_and_kept(scale: Scale) -> Vec<Line> {
    let (mut clean, mut bench) = (Bench::new(scale, &[]), Bench::new(scale, &[]));
    let backlog = bench.backlog(scale.events(10_000_000));
    let (without, with) = Bench::in_turn(&mut clean, scale.events(LARGE), |turn| bench.piece(&backlog, turn));
    let note = format!("{} events", backlog.events);
    let backlog = bench.line("backlog of 10 M", BAR, without, with, note);
    clean.end();
    bench.analyze();
    let mut clean = Bench::new(scale, &[]);
    let (without, with) = Bench::drains_in_turn(&mut clean, &mut bench);
    let kept = bench.line("10 M published rows kept", BAR, without, with, String::new());
    clean.end();
    bench.end();
    vec![backlog, kept]
}

/// Two million events that are due tomorrow.
fn scheduled(scale: Scale) -> Vec<Line> {
    let events = scale.events(2_000_000);
    vec![beside_clean("2 M scheduled for later", BAR, scale, &[], |_, bench| {
        let id = format!("'customer-' || n % {AGGREGATES}");
        let tomorrow = ("available_at", "now() + interval '1 day'");
        park(bench, "scheduled", "later", events, &id, tomorrow);
    })]
}

/// 50,000 aggregates, each with an event whose topic does not exist.
fn held(scale: Scale) -> Vec<Line> {
    let aggregates = scale.events(50_000);
    let settings = [("outbox_ext.kafka_options", "allow.auto.create.topics=false")];
    vec![beside_clean(
        "50,000 aggregates held back",
        BAR_OPEN,
        scale,
        &settings,
        |_, bench| {
            park(
                bench,
                "topic",
                "held",
                aggregates,
                "'held-' || n",
                ("topic", "'nowhere'"),
            );
        },
    )]
}

/// Drains of a clean server and of one where something has piled up, in turn. `pile_up` gets both.
fn beside_clean(
    name: &str,
    bar: f64,
    scale: Scale,
    settings: &[(&str, &str)],
    pile_up: impl FnOnce(&mut Bench, &mut Bench),
) -> Line {
    let (mut clean, mut bench) = (Bench::new(scale, settings), Bench::new(scale, settings));
    pile_up(&mut clean, &mut bench);
    let (without, with) = Bench::drains_in_turn(&mut clean, &mut bench);
    let line = bench.line(name, bar, without, with, String::new());
    clean.end();
    bench.end();
    line
}

/// Emits events with a further column, and waits until all are parked for that reason.
fn park(bench: &mut Bench, reason: &str, kind: &str, events: usize, aggregate_id: &str, further: (&str, &str)) {
    bench.stand.publish(&mut bench.db, false);
    insert_with(&mut bench.db, kind, events, aggregate_id, further);
    bench.stand.publish(&mut bench.db, true);
    wait_parked(&mut bench.db, reason, events);
    bench.analyze();
}

/// A REPEATABLE READ snapshot that is held for five minutes.
fn old_snapshot(scale: Scale) -> Vec<Line> {
    open_while_loaded(scale, "old REPEATABLE READ snapshot", |db| {
        db.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
        db.one::<i64>("SELECT count(*) FROM outbox_batch");
    })
}

/// A transaction that has emitted and stays open for five minutes.
fn open_emitter(scale: Scale) -> Vec<Line> {
    open_while_loaded(scale, "open transaction that emitted", |db| {
        db.run("BEGIN");
        db.run("SELECT outbox_emit('open', 'customer-1', 'Happened', '{}')");
    })
}

/// The last of five windows counts: what creeps shows there.
fn open_while_loaded(scale: Scale, name: &str, open: fn(&mut Db)) -> Vec<Line> {
    let mut bench = Bench::new(scale, &[]);
    let window = scale.seconds(WINDOW_SECONDS);
    let before = bench.windows(1, window);
    let mut holder = bench.stand.db();
    open(&mut holder);
    let mut windows = bench.windows(WINDOWS, window);
    let all: Vec<String> = windows
        .iter()
        .map(|probe: &Probe| format!("{:.1}", probe.cpu))
        .collect();
    let note = format!("each window: {}", all.join(", "));
    let last = windows.split_off(WINDOWS - 1);
    let line = bench.line(name, BAR_OPEN, before, last, note);
    holder.run("COMMIT");
    bench.db.wait_drained(seconds(60));
    bench.end();
    vec![line]
}

/// 500 transactions that have emitted and do nothing.
fn idle_writers(scale: Scale) -> Vec<Line> {
    const WRITERS: usize = 500;
    let mut bench = Bench::new(scale, &[("max_connections", "620")]);
    let window = scale.seconds(WINDOW_SECONDS);
    let before = bench.windows(1, window);
    let mut writers: Vec<Db> = (0..WRITERS).map(|_| bench.stand.db()).collect();
    for (number, writer) in writers.iter_mut().enumerate() {
        writer.run("BEGIN");
        writer.run(&format!(
            "SELECT outbox_emit('open', 'customer-{number}', 'Happened', '{{}}')"
        ));
    }
    let after = bench.windows(1, window);
    let line = bench.line("500 idle writing transactions", BAR_OPEN, before, after, String::new());
    writers.iter_mut().for_each(|writer| writer.run("ROLLBACK"));
    bench.end();
    vec![line]
}

/// Statistics that were never gathered, and such that were gathered when the tables were all but empty.
fn statistics(scale: Scale) -> Vec<Line> {
    const GROWN: usize = 1_000_000;
    let line = |name, forget: bool| Line {
        note: "beside statistics gathered when the table had grown as well".to_owned(),
        ..beside_clean(name, BAR, scale, &[], |clean, bench| {
            if forget {
                bench.db.run(
                    "DELETE FROM pg_statistic
                      WHERE starelid IN ('outbox_log'::regclass, 'outbox_batch'::regclass, 'outbox_parked'::regclass);
                     UPDATE pg_class SET reltuples = -1, relpages = 0, relallvisible = 0
                      WHERE oid IN ('outbox_log'::regclass, 'outbox_batch'::regclass, 'outbox_parked'::regclass)",
                );
            }
            for grown in [&mut *clean, bench] {
                grown.drain(scale.events(GROWN));
            }
            clean.analyze();
        })
    };
    vec![
        line("statistics never gathered", true),
        line("statistics gathered on 50,000 rows", false),
    ]
}

/// Two million published rows are deleted by retention while others are published: on a new server for each drain, for dead rows would remain. And, to
/// tell what the relay pays for it from what anybody pays on a machine that is busy: the clean server while retention deletes on the other.
fn retention(scale: Scale) -> Vec<Line> {
    let mut clean = Bench::new(scale, &[]);
    let (mut without, mut elsewhere, mut here) = (Vec::new(), Vec::new(), Vec::new());
    let (mut deleted_elsewhere, mut deleted) = (Vec::new(), Vec::new());
    for _ in 0..DRAINS {
        without.push(clean.drain(scale.events(LARGE)));
        let (probe, rows) = drain_beside_retention(scale, None);
        here.push(probe);
        deleted.push(rows);
        let (probe, rows) = drain_beside_retention(scale, Some(&mut clean));
        elsewhere.push(probe);
        deleted_elsewhere.push(rows);
    }
    let note = |deleted: &[i64]| {
        format!("rows deleted during each drain: {deleted:?}; dead rows and memory: without retention")
    };
    let lines = vec![
        clean.line(
            "retention deleting 2 M rows meanwhile",
            BAR,
            without.clone(),
            here,
            note(&deleted),
        ),
        clean.line(
            "for comparison: the same deleting on another server",
            None,
            without,
            elsewhere,
            note(&deleted_elsewhere),
        ),
    ];
    clean.end();
    lines
}

/// A new server with two million published rows deletes them while `drained`, or it itself, publishes. How that went, and the rows deleted until then.
fn drain_beside_retention(scale: Scale, mut drained: Option<&mut Bench>) -> (Probe, i64) {
    let rows = |bench: &mut Bench| bench.db.one::<i64>("SELECT count(*) FROM outbox_log");
    let mut deleting = Bench::new(scale, &[]);
    deleting.drain(scale.events(2_000_000));
    let backlog = drained
        .as_deref_mut()
        .unwrap_or(&mut deleting)
        .backlog(scale.events(LARGE));
    let before = rows(&mut deleting);
    deleting.stand.cluster.configure(&[("outbox_ext.retention", "0")]);
    deleting.stand.cluster.reload();
    let probe = drained.unwrap_or(&mut deleting).drain_all(&backlog);
    let deleted = before - rows(&mut deleting);
    deleting.end();
    (probe, deleted)
}

/// Appends events with a further column, in transactions of 10,000.
fn insert_with(db: &mut Db, aggregate_type: &str, events: usize, aggregate_id: &str, (column, value): (&str, &str)) {
    const ROWS: usize = 10_000;
    db.run(&format!(
        "DO $$ BEGIN
            FOR step IN 0 .. ({events} - 1) / {ROWS} LOOP
                INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, {column})
                SELECT '{aggregate_type}', {aggregate_id}, '{EVENT_TYPE}', {}, {value}
                  FROM generate_series(step * {ROWS}, least({events}, step * {ROWS} + {ROWS}) - 1) n;
                COMMIT;
            END LOOP;
         END $$",
        payload_sql(Size::Usual)
    ));
}
