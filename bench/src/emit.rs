//! Row emit: `outbox_emit` against a plain INSERT of the same row into a table with only a primary key. Autocommit, fsync
//! on, 1, 16 and 64 connections; the relay publishes meanwhile, as in production, and once more with the relay switched off,
//! which tells the statement's own cost from that of sharing the cores with relay and broker. Beside it: an INSERT of the same
//! columns into a table with the same indexes, without trigger and checks: what the indexes alone cost.

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
pub const PLAIN_TABLE: &str = "CREATE TABLE plain_event (
    event_id uuid PRIMARY KEY DEFAULT outbox_new_event_id(),
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now())";

/// Two tables with outbox_log's columns, a number from a sequence and the transaction's among them, and nothing else: one with its
/// indexes, one with only the primary key.
pub const LOG_LIKE_TABLES: &str = "CREATE SEQUENCE indexed_event_seq;
    CREATE TABLE unindexed_event (
    event_id uuid PRIMARY KEY DEFAULT outbox_new_event_id(),
    seq bigint NOT NULL DEFAULT nextval('indexed_event_seq'),
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    created_at timestamptz NOT NULL DEFAULT now(),
    available_at timestamptz,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    topic text,
    headers jsonb,
    payload jsonb NOT NULL);
    CREATE TABLE indexed_event (LIKE unindexed_event INCLUDING ALL);
    CREATE INDEX ON indexed_event (seq);
    CREATE INDEX ON indexed_event (xid, seq)";

struct Round {
    connections: usize,
    plain: Speed,
    indexed: Speed,
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

    fn ratio_indexed(&self) -> f64 {
        self.plain.tps / self.indexed.tps
    }

    fn json(&self) -> Value {
        let speed = |speed: Speed| json!({ "tps": speed.tps, "ms": speed.milliseconds });
        json!({
            "connections": self.connections, "insert": speed(self.plain), "insert_indexed": speed(self.indexed),
            "emit": speed(self.emit), "emit_relay_off": speed(self.emit_relay_off), "ratio": self.ratio(),
            "ratio_relay_off": self.ratio_relay_off(), "ratio_indexed": self.ratio_indexed(),
        })
    }
}

pub fn measure(rounds: usize, scale: Scale) -> Section {
    let seconds = scale.seconds(SECONDS) as u32;
    eprintln!("emit: {rounds} rounds of 4 times {seconds} s, on {CONNECTIONS:?} connections");
    let stand = Stand::new(&[]);
    let mut db = stand.db();
    db.run(PLAIN_TABLE);
    db.run(LOG_LIKE_TABLES);
    let (aggregate_type, _) = stand.new_topic("emit");
    let bench = Bench {
        stand: &stand,
        insert: script(&insert_into("plain_event"), &aggregate_type),
        insert_indexed: script(&insert_into("indexed_event"), &aggregate_type),
        emit: script("SELECT outbox_emit(", &aggregate_type),
        payload: payload(123_456),
        seconds,
    };
    // Files grown, connections and plans known: none of this belongs to the first round.
    for statement in [&bench.insert, &bench.insert_indexed] {
        bench.insert(&mut db, statement, 1, 1);
    }
    bench.emit(&mut db, 1, 1);
    let mut measured = Vec::new();
    for number in 0..rounds {
        for connections in CONNECTIONS {
            let round = bench.round(&mut db, number, connections);
            eprintln!(
                "  round {}, {connections} connections: {:.2} times the INSERT, with the relay off {:.2}; INSERT with the same indexes {:.2}",
                number + 1,
                round.ratio(),
                round.ratio_relay_off(),
                round.ratio_indexed()
            );
            measured.push(round);
        }
    }
    drop(db);
    stand.end();
    section(&measured)
}

fn insert_into(table: &str) -> String {
    format!("INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload) VALUES (")
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
    insert_indexed: String,
    emit: String,
    payload: String,
    /// Of a run.
    seconds: u32,
}

impl Bench<'_> {
    /// All four within seconds of each other, and none always first.
    fn round(&self, db: &mut Db, number: usize, connections: usize) -> Round {
        let (mut plain, mut indexed, mut emit, mut emit_relay_off) = (None, None, None, None);
        for turn in 0..4 {
            match (number + turn) % 4 {
                0 => plain = Some(self.insert(db, &self.insert, connections, self.seconds)),
                1 => emit = Some(self.emit(db, connections, self.seconds)),
                2 => indexed = Some(self.insert(db, &self.insert_indexed, connections, self.seconds)),
                _ => emit_relay_off = Some(self.emit_relay_off(db, connections, self.seconds)),
            }
        }
        let taken = |speed: Option<Speed>| speed.expect("one of four turns");
        Round {
            connections,
            plain: taken(plain),
            indexed: taken(indexed),
            emit: taken(emit),
            emit_relay_off: taken(emit_relay_off),
        }
    }

    fn insert(&self, db: &mut Db, statement: &str, connections: usize, seconds: u32) -> Speed {
        settle_disks(db);
        pgbench::measure(
            &self.stand.cluster,
            "insert",
            statement,
            &self.payload,
            connections,
            seconds,
        )
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
            Figure::plain(
                format!("INSERT with the same columns and indexes / INSERT, {on}"),
                over(Round::ratio_indexed),
                "times",
            ),
            Figure::plain(
                format!("commits: INSERT with the same columns and indexes / INSERT, {on}"),
                1.0 / over(Round::ratio_indexed),
                "times",
            ),
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
            format!("{:.0}", round.indexed.tps),
            format!("{:.0}", round.emit.tps),
            format!("{:.0}", round.emit_relay_off.tps),
            format!("{:.2}", round.ratio()),
            format!("{:.2}", round.ratio_relay_off()),
            format!("{:.2}", round.ratio_indexed()),
        ]
    });
    Section {
        name: "emit",
        title: "outbox_emit against a plain INSERT",
        method: format!(
            "pgbench on the same machine through the Unix socket, {SECONDS} s a run, statements prepared, payload of about \
             300 bytes as a parameter, autocommit, fsync and synchronous_commit on, a checkpoint before each run. The \
             INSERT writes id, types, aggregate id, payload and time into a table with only a primary key, its id from the \
             same function. Beside it an INSERT of outbox_log's columns into a table with its indexes, \
             without trigger and checks. Each ratio is of two runs of one round; the figure is the median of the rounds."
        ),
        figures,
        grid: Grid {
            head: vec![
                "round",
                "connections",
                "INSERT/s",
                "INSERT with indexes/s",
                "emit/s",
                "emit/s, relay off",
                "ratio",
                "ratio, relay off",
                "ratio, INSERT with indexes",
            ],
            lines: lines.collect(),
        },
        notes: Vec::new(),
        plots: Vec::new(),
        raw: json!({ "rounds": rounds.iter().map(Round::json).collect::<Vec<_>>() }),
    }
}
