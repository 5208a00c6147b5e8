//! Row 3: `outbox_emit` against a plain INSERT of the same row into a table with only a primary key. Autocommit, fsync
//! on, 1, 16 and 64 connections; the relay publishes meanwhile, as in production, and once more with the relay switched off,
//! which tells the statement's own cost from that of sharing the cores with relay and broker.

use outbox_e2e::Db;
use serde_json::{Value, json};

use crate::args::Scale;
use crate::backlog::{AGGREGATES, EVENT_TYPE, payload};
use crate::pgbench::{self, Speed};
use crate::report::{Figure, Grid, Section};
use crate::stand::{Stand, settle_disks};
use crate::stats::median;

const CONNECTIONS: [usize; 3] = [1, 16, 64];
/// Long enough for thousands of commits, short enough that a round sees the same machine three times.
const SECONDS: u64 = 5;
const TIMES_BAR: f64 = 1.15;
/// With the most connections: the share of the plain INSERT's commits.
const RATE_BAR: f64 = 0.95;

/// The row an application would write by itself. The id comes from the same function, so that the keys are alike.
const PLAIN_TABLE: &str = "CREATE TABLE plain_event (
    event_id uuid PRIMARY KEY DEFAULT outbox_new_event_id(),
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now())";

struct Round {
    connections: usize,
    plain: Speed,
    emit: Speed,
    emit_relay_off: Speed,
}

impl Round {
    fn ratio(&self) -> f64 {
        self.plain.tps / self.emit.tps
    }

    fn ratio_relay_off(&self) -> f64 {
        self.plain.tps / self.emit_relay_off.tps
    }

    fn json(&self) -> Value {
        let speed = |speed: Speed| json!({ "tps": speed.tps, "ms": speed.milliseconds });
        json!({
            "connections": self.connections, "insert": speed(self.plain), "emit": speed(self.emit),
            "emit_relay_off": speed(self.emit_relay_off), "ratio": self.ratio(), "ratio_relay_off": self.ratio_relay_off(),
        })
    }
}

pub fn measure(rounds: usize, scale: Scale) -> Section {
    let seconds = scale.seconds(SECONDS) as u32;
    eprintln!("emit: {rounds} rounds of 3 times {seconds} s, on {CONNECTIONS:?} connections");
    let stand = Stand::new(&[]);
    let mut db = stand.db();
    db.run(PLAIN_TABLE);
    let (aggregate_type, _) = stand.new_topic("emit");
    let bench = Bench {
        stand: &stand,
        insert: script(
            "INSERT INTO plain_event (aggregate_type, aggregate_id, event_type, payload) VALUES (",
            &aggregate_type,
        ),
        emit: script("SELECT outbox_emit(", &aggregate_type),
        payload: payload(123_456),
        seconds,
    };
    // Files grown, connections and plans known: none of this belongs to the first round.
    bench.plain(&mut db, 1, 1);
    bench.emit(&mut db, 1, 1);
    let mut measured = Vec::new();
    for number in 0..rounds {
        for connections in CONNECTIONS {
            let round = bench.round(&mut db, number, connections);
            eprintln!(
                "  round {}, {connections} connections: {:.2} times the INSERT, with the relay off {:.2}",
                number + 1,
                round.ratio(),
                round.ratio_relay_off()
            );
            measured.push(round);
        }
    }
    drop(db);
    stand.end();
    section(&measured)
}

/// One statement with its values as parameters of the same kinds.
fn script(statement: &str, aggregate_type: &str) -> String {
    format!(
        "\\set id random(1, {AGGREGATES})\n{statement}'{aggregate_type}', 'customer-' || :id, '{EVENT_TYPE}', :payload);\n"
    )
}

struct Bench<'a> {
    stand: &'a Stand,
    insert: String,
    emit: String,
    payload: String,
    /// Of a run.
    seconds: u32,
}

impl Bench<'_> {
    /// All three within seconds of each other, and none always first.
    fn round(&self, db: &mut Db, number: usize, connections: usize) -> Round {
        let (mut plain, mut emit, mut emit_relay_off) = (None, None, None);
        for turn in 0..3 {
            match (number + turn) % 3 {
                0 => plain = Some(self.plain(db, connections, self.seconds)),
                1 => emit = Some(self.emit(db, connections, self.seconds)),
                _ => emit_relay_off = Some(self.emit_relay_off(db, connections, self.seconds)),
            }
        }
        Round {
            connections,
            plain: plain.expect("one of three turns"),
            emit: emit.expect("one of three turns"),
            emit_relay_off: emit_relay_off.expect("one of three turns"),
        }
    }

    fn plain(&self, db: &mut Db, connections: usize, seconds: u32) -> Speed {
        settle_disks(db);
        let cluster = &self.stand.cluster;
        pgbench::measure(cluster, "insert", &self.insert, &self.payload, connections, seconds)
    }

    fn emit(&self, db: &mut Db, connections: usize, seconds: u32) -> Speed {
        settle_disks(db);
        let cluster = &self.stand.cluster;
        let speed = pgbench::measure(cluster, "emit", &self.emit, &self.payload, connections, seconds);
        db.wait_drained(DRAIN);
        speed
    }

    fn emit_relay_off(&self, db: &mut Db, connections: usize, seconds: u32) -> Speed {
        self.stand.publish(db, false);
        settle_disks(db);
        let cluster = &self.stand.cluster;
        let speed = pgbench::measure(cluster, "emit", &self.emit, &self.payload, connections, seconds);
        self.stand.publish(db, true);
        db.wait_drained(DRAIN);
        speed
    }
}

/// For what the relay has not published when a run ends.
const DRAIN: std::time::Duration = std::time::Duration::from_secs(60);

fn section(rounds: &[Round]) -> Section {
    let mut figures = Vec::new();
    for connections in CONNECTIONS {
        let over = |of: fn(&Round) -> f64| {
            let values = rounds.iter().filter(|round| round.connections == connections).map(of);
            median(&values.collect::<Vec<f64>>())
        };
        let on = if connections == 1 {
            "1 connection".to_owned()
        } else {
            format!("{connections} connections")
        };
        let most = connections == CONNECTIONS[CONNECTIONS.len() - 1];
        figures.extend([
            Figure::at_most(
                format!("outbox_emit / INSERT, {on}, relay off"),
                over(Round::ratio_relay_off),
                "times",
                TIMES_BAR,
            )
            .only(connections == 1),
            Figure::at_most(
                format!("outbox_emit / INSERT, {on}, relay publishing"),
                over(Round::ratio),
                "times",
                TIMES_BAR,
            )
            .only(connections == 1),
            Figure::at_least(
                format!("commits: outbox_emit / INSERT, {on}, relay off"),
                1.0 / over(Round::ratio_relay_off),
                "times",
                RATE_BAR,
            )
            .only(most),
            Figure::at_least(
                format!("commits: outbox_emit / INSERT, {on}, relay publishing"),
                1.0 / over(Round::ratio),
                "times",
                RATE_BAR,
            )
            .only(most),
            Figure::plain(format!("  INSERT, {on}"), over(|round| round.plain.milliseconds), "ms"),
            Figure::plain(
                format!("  outbox_emit, {on}, relay publishing"),
                over(|round| round.emit.milliseconds),
                "ms",
            ),
            Figure::plain(
                format!("  outbox_emit, {on}, relay off"),
                over(|round| round.emit_relay_off.milliseconds),
                "ms",
            ),
        ]);
    }
    let lines = rounds.iter().enumerate().map(|(number, round)| {
        vec![
            format!("{}", number / CONNECTIONS.len() + 1),
            format!("{}", round.connections),
            format!("{:.0}", round.plain.tps),
            format!("{:.0}", round.emit.tps),
            format!("{:.0}", round.emit_relay_off.tps),
            format!("{:.2}", round.ratio()),
            format!("{:.2}", round.ratio_relay_off()),
        ]
    });
    Section {
        name: "emit",
        title: "outbox_emit against a plain INSERT",
        method: format!(
            "pgbench on the same machine through the Unix socket, {SECONDS} s a run, statements prepared, payload of about \
             300 bytes as a parameter, autocommit, fsync and synchronous_commit on, a checkpoint before each run. The \
             INSERT writes id, types, aggregate id, payload and time into a table with only a primary key, its id from the \
             same function. Each ratio is of two runs of one round; the figure is the median of the rounds."
        ),
        figures,
        grid: Grid {
            head: vec![
                "round",
                "connections",
                "INSERT/s",
                "emit/s",
                "emit/s, relay off",
                "ratio",
                "ratio, relay off",
            ],
            lines: lines.collect(),
        },
        notes: Vec::new(),
        plots: Vec::new(),
        raw: json!({ "rounds": rounds.iter().map(Round::json).collect::<Vec<_>>() }),
    }
}
