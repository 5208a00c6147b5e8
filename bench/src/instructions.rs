//! Row: instructions, counted by valgrind's callgrind: of a statement in a server in single-user mode, and of the relay's
//! main thread for an event of a drain. They hardly vary from run to run, where times do by a tenth: what creeps shows here
//! first.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use outbox_e2e::cluster::DATABASE;
use outbox_e2e::shell::{as_server_user, pg_program, run};
use outbox_e2e::{Stop, seconds};
use serde_json::json;

use crate::backlog::{self, AGGREGATES, EVENT_TYPE, Size, payload};
use crate::emit::{LOG_LIKE_TABLES, PLAIN_TABLE};
use crate::report::{Figure, Grid, Section};
use crate::stand::Stand;
use crate::table::Table;

/// Statements of the shorter and of the longer run: their difference is free of what a start costs.
const STATEMENTS: [usize; 2] = [200, 1_200];
/// The same, events of a drain.
const EVENTS: [usize; 2] = [10_000, 40_000];

/// What was counted when these were set, and a twentieth: what goes beyond has crept.
const EMIT_BAR: f64 = 184_500.0;
const DRAIN_BAR: f64 = 17_000.0;

pub fn measure() -> Section {
    eprintln!("instructions: of {} statements, of drains of {EVENTS:?}", STATEMENTS[1]);
    let stand = Stand::new(&[]);
    let (aggregate_type, topic) = stand.new_topic("count");
    let mut db = stand.db();
    db.run(PLAIN_TABLE);
    db.run(LOG_LIKE_TABLES);
    stand.publish(&mut db, false);
    drop(db);
    stand.cluster.stop(Stop::Fast);
    let count = Count { stand: &stand };
    let values = format!("'{aggregate_type}', 'customer-' || $1, '{EVENT_TYPE}', $2");
    let insert_into =
        |table| format!("INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload) VALUES ({values})");
    let insert = count.statement(&insert_into("plain_event"));
    let unindexed = count.statement(&insert_into("unindexed_event"));
    let indexed = count.statement(&insert_into("indexed_event"));
    let emit = count.statement(&format!("SELECT outbox_emit({values})"));
    stand.cluster.start();
    let mut db = stand.db();
    let inserted: i64 = db.one("SELECT count(*) FROM plain_event");
    assert_eq!(inserted as usize, STATEMENTS.iter().sum::<usize>(), "each INSERT once");
    stand.publish(&mut db, true);
    db.wait_drained(seconds(60));
    drop(db);
    let drain = count.drain(&aggregate_type);
    let published = stand.broker.count(&topic);
    let emitted: usize = STATEMENTS.iter().chain(&EVENTS).sum();
    assert_eq!(published, emitted, "each event once");
    stand.end();
    section([insert, unindexed, indexed], emit, drain)
}

struct Count<'a> {
    stand: &'a Stand,
}

impl Count<'_> {
    /// Instructions of one execution of a statement with the parameters text and jsonb, prepared, autocommit.
    fn statement(&self, statement: &str) -> f64 {
        let [few, many] = STATEMENTS.map(|times| self.single_user(statement, times));
        (many - few) / (STATEMENTS[1] - STATEMENTS[0]) as f64
    }

    fn single_user(&self, statement: &str, times: usize) -> f64 {
        let folder = self.stand.cluster.folder();
        let (script, counted) = (folder.join("statements.sql"), folder.join("callgrind.single"));
        let mut sql = format!("SET plan_cache_mode = force_generic_plan\nPREPARE it(text, jsonb) AS {statement}\n");
        for number in 0..times {
            writeln!(sql, "EXECUTE it('{}', '{}')", number % AGGREGATES, payload(number)).expect("a string takes it");
        }
        fs::write(&script, sql).expect("write the statements");
        run(as_server_user("sh")
            .args(["-c", r#"script=$1; shift; exec "$@" <"$script" >/dev/null"#, "sh"])
            .arg(&script)
            .args(["valgrind", "--tool=callgrind"])
            .arg(format!("--callgrind-out-file={}", counted.display()))
            .arg(pg_program("postgres"))
            .arg("--single")
            .arg("-D")
            .arg(self.stand.cluster.data())
            .arg(DATABASE));
        total(&counted)
    }

    /// Instructions of the relay's main thread for one event.
    fn drain(&self, aggregate_type: &str) -> f64 {
        let [few, many] = EVENTS.map(|events| self.drained(aggregate_type, events));
        (many - few) / (EVENTS[1] - EVENTS[0]) as f64
    }

    fn drained(&self, aggregate_type: &str, events: usize) -> f64 {
        let cluster = &self.stand.cluster;
        let mut db = self.stand.db();
        self.stand.publish(&mut db, false);
        backlog::insert(&mut db, Table::Event, aggregate_type, Size::Usual, events);
        db.run("CHECKPOINT");
        drop(db);
        cluster.stop(Stop::Fast);
        cluster.configure(&[("outbox_ext.enabled", "on")]);
        let (server, counted) = self.counted_server();
        cluster.start_program(&server);
        let mut db = self.stand.db();
        db.wait_drained(seconds(120));
        let relay = db.relay();
        drop(db);
        cluster.stop(Stop::Fast);
        cluster.start();
        // Each thread has a file of its own, the first one's is the main thread's.
        total(&PathBuf::from(format!("{}.{relay}-01", counted.display())))
    }

    /// A program that is the server under valgrind, and how the files begin that its processes leave.
    fn counted_server(&self) -> (PathBuf, PathBuf) {
        let folder = self.stand.cluster.folder();
        let (program, counted) = (folder.join("counted-postgres"), folder.join("callgrind.server"));
        let text = format!(
            "#!/bin/sh\nexec valgrind --tool=callgrind --separate-threads=yes --callgrind-out-file={}.%p {} \"$@\"\n",
            counted.display(),
            pg_program("postgres").display()
        );
        fs::write(&program, text)
            .and_then(|()| fs::set_permissions(&program, fs::Permissions::from_mode(0o755)))
            .expect("write the program");
        (program, counted)
    }
}

/// All instructions that callgrind counted.
fn total(counted: &PathBuf) -> f64 {
    let text = fs::read_to_string(counted).unwrap_or_else(|error| panic!("{}: {error}", counted.display()));
    text.lines()
        .find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
        .expect("callgrind writes the total")
}

fn section([insert, unindexed, indexed]: [f64; 3], emit: f64, drain: f64) -> Section {
    Section {
        name: "instructions",
        title: "Instructions",
        method: format!(
            "valgrind --tool=callgrind. Statements: the server in single-user mode, autocommit, prepared, the same event as in the row emit; the \
             difference between {} and {} of them; reading the literals of EXECUTE and printing the result are counted. Drain: the relay's main thread in a server under valgrind, the difference between \
             drains of {} and {} events. The bar is what was counted when it was set, and a twentieth.",
            STATEMENTS[0], STATEMENTS[1], EVENTS[0], EVENTS[1]
        ),
        figures: vec![
            Figure::at_most("outbox_emit", emit, "instructions", EMIT_BAR),
            Figure::plain("  the plain INSERT", insert, "instructions"),
            Figure::plain("  outbox_emit / INSERT", emit / insert, "times"),
            Figure::plain(
                "  an INSERT with outbox_log's columns and only a primary key",
                unindexed,
                "instructions",
            ),
            Figure::plain(
                "  an INSERT with outbox_log's columns and indexes",
                indexed,
                "instructions",
            ),
            Figure::plain("  outbox_emit / that", emit / indexed, "times"),
            Figure::at_most(
                "relay, main thread, an event of a drain",
                drain,
                "instructions",
                DRAIN_BAR,
            ),
        ],
        grid: Grid {
            head: Vec::new(),
            lines: Vec::new(),
        },
        notes: Vec::new(),
        plots: Vec::new(),
        raw: json!({ "insert": insert, "insert_unindexed": unindexed, "insert_indexed": indexed, "emit": emit, "drain": drain }),
    }
}
