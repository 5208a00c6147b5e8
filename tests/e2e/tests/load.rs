//! Writers that do what applications do, for the scenarios that need load: several aggregates in one transaction under
//! row locks, rollbacks, savepoints, two-phase commits, slow commits, asynchronous commits.
//!
//! Each aggregate has a row with a counter, raised under its lock in the transaction that emits; the payload carries
//! it. So the order of an aggregate is defined, and the counter tells it without leaning on seq.
//!
//! The transaction also writes each event into the table `written`: what was committed is known from there when
//! retention has deleted the event itself. And the writers keep what they were told: which commits were confirmed, which
//! events were rolled back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use outbox_e2e::cluster::DATABASE;
use outbox_e2e::wait::let_pass;
use outbox_e2e::{Cluster, Committed, Db, Random, Record, Scenario, seconds};

/// Aggregates that all writers share, in each type; the first few are hot.
const SHARED: u64 = 40;
const HOT: u64 = 4;
/// Aggregates of a writer's own, in each type: no lock is waited for.
const OWN: u64 = 15;
/// Events of one transaction.
const EMITS_MAX: usize = 5;

pub struct Load {
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<Written>>,
}

/// What the writers of a load were told by the server.
#[derive(Default)]
pub struct Written {
    /// Ids of events whose commit was confirmed to a session with synchronous_commit on.
    pub confirmed: Vec<String>,
    /// Ids of events whose transaction or savepoint was rolled back.
    pub rolled_back: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Commits {
    /// Every third writer commits asynchronously.
    Mixed,
    /// All do: what is published must be durable all the same.
    Asynchronous,
}

#[derive(Clone, Copy, Default)]
struct Manner {
    /// A writer ends when the server refuses a statement.
    until_error: bool,
    /// Between two transactions, on average.
    rest: Duration,
}

impl Load {
    /// Starts the writers. They outlive a crash of the server: they connect again until they are stopped.
    pub fn start(s: &Scenario, writers: u64, types: &[String], commits: Commits) -> Load {
        Load::start_with(s, writers, types, commits, Manner::default())
    }

    /// The same, each writer resting for so long on average between its transactions.
    pub fn start_paced(s: &Scenario, writers: u64, types: &[String], rest: Duration) -> Load {
        let manner = Manner {
            rest,
            ..Manner::default()
        };
        Load::start_with(s, writers, types, Commits::Mixed, manner)
    }

    /// The same, for a scenario that takes the extension away: a writer ends when the server refuses a statement.
    pub fn start_until_error(s: &Scenario, writers: u64, types: &[String]) -> Load {
        let manner = Manner {
            until_error: true,
            ..Manner::default()
        };
        Load::start_with(s, writers, types, Commits::Mixed, manner)
    }

    fn start_with(s: &Scenario, writers: u64, types: &[String], commits: Commits, manner: Manner) -> Load {
        let mut db = s.db();
        prepare_tables(&mut db);
        for kind in types {
            db.run(&format!(
                "INSERT INTO account SELECT '{kind}', 'shared-' || n, 0 FROM generate_series(0, {SHARED} - 1) n
                 UNION ALL SELECT '{kind}', w || '-' || n, 0
                      FROM generate_series(0, {writers} - 1) w, generate_series(0, {OWN} - 1) n"
            ));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let writers = (0..writers)
            .map(|number| {
                let writer = Writer {
                    cluster: s.cluster.clone(),
                    number,
                    types: types.to_vec(),
                    manner,
                    asynchronous: commits == Commits::Asynchronous || number % 3 == 0,
                    random: Random::from_clock(),
                    told: Written::default(),
                };
                let stop = Arc::clone(&stop);
                thread::spawn(move || writer.run(&stop))
            })
            .collect();
        Load { stop, writers }
    }

    pub fn run_for(self, time: Duration) -> Written {
        let_pass(time);
        self.stop()
    }

    /// Ends the writers after their transaction at hand.
    pub fn stop(self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Written::default();
        for writer in self.writers {
            let told = writer.join().expect("a writer");
            all.confirmed.extend(told.confirmed);
            all.rolled_back.extend(told.rolled_back);
        }
        all
    }
}

impl Written {
    /// Every confirmed event must be in the table: a test of the server and of this harness.
    #[track_caller]
    pub fn assert_all_in(&self, db: &mut Db) {
        let missing: i64 = db.one_with(
            "SELECT count(*) FROM unnest($1::text[]) confirmed
              WHERE NOT EXISTS (SELECT FROM written WHERE event_id = confirmed::uuid)",
            &[&self.confirmed],
        );
        assert_eq!(missing, 0, "confirmed commits that are gone");
    }
}

fn prepare_tables(db: &mut Db) {
    db.run(
        "CREATE TABLE IF NOT EXISTS account (type text, id text, n bigint, PRIMARY KEY (type, id));
         CREATE TABLE IF NOT EXISTS written (event_id uuid PRIMARY KEY, type text, id text, n bigint)",
    );
}

/// The committed events of these types, as the writers' own table has them: the counter in place of seq.
pub fn written(db: &mut Db, types: &[String]) -> Vec<Committed> {
    let rows = db.rows(&format!(
        "SELECT event_id::text, type, id, n FROM written WHERE type IN ('{}')",
        types.join("', '")
    ));
    rows.iter()
        .map(|row| {
            let n: i64 = row.get(3);
            Committed {
                id: row.get(0),
                aggregate_type: row.get(1),
                aggregate_id: row.get(2),
                seq: n,
                payload: format!("{{\"n\": {n}}}"),
            }
        })
        .collect()
}

/// Emits so many events of one more type, in a transaction of their own.
pub fn emit_some(db: &mut Db, kind: &str, events: u64) -> Result<(), postgres::Error> {
    db.try_run(&format!(
        "INSERT INTO account SELECT '{kind}', 'shared-' || n, 0 FROM generate_series(0, {SHARED} - 1) n"
    ))?;
    for n in 0..events {
        emit(db, kind, &format!("shared-{}", n % HOT))?;
    }
    Ok(())
}

/// The counter in a payload.
pub fn counter(record: &Record) -> i64 {
    let value = record.value_text();
    let digits = value.strip_prefix("{\"n\": ").and_then(|rest| rest.strip_suffix('}'));
    digits
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("a counter in {value}"))
}

/// Commits what writers that are gone left between PREPARE and COMMIT PREPARED.
pub fn finish_prepared(db: &mut Db) {
    for name in db.all::<String>("SELECT gid FROM pg_prepared_xacts") {
        db.run(&format!("COMMIT PREPARED '{name}'"));
    }
}

struct Writer {
    cluster: Cluster,
    number: u64,
    types: Vec<String>,
    manner: Manner,
    asynchronous: bool,
    random: Random,
    told: Written,
}

impl Writer {
    fn run(mut self, stop: &AtomicBool) -> Written {
        let stopped = || stop.load(Ordering::Relaxed);
        while !stopped() {
            // The server may be down or in recovery: that is some scenarios' business.
            let Ok(mut db) = self.cluster.connect_again(DATABASE, seconds(1)) else {
                continue;
            };
            if self.prepare(&mut db).is_err() {
                continue;
            }
            while !stopped() {
                if !self.manner.rest.is_zero() {
                    let longest_ms = 2 * self.manner.rest.as_millis() as u64;
                    let_pass(Duration::from_millis(self.random.below(longest_ms + 1)));
                }
                match self.transaction(&mut db) {
                    Ok(ids) if !self.asynchronous => self.told.confirmed.extend(ids),
                    Ok(_) => {}
                    Err(error) if is_of_connection(&error) => break,
                    Err(_) if self.manner.until_error => return self.told,
                    Err(error) => panic!("a writer's statement failed: {error:?}"),
                }
            }
        }
        self.told
    }

    /// A new session. What the one before left between PREPARE and COMMIT PREPARED would hold its locks for ever.
    fn prepare(&mut self, db: &mut Db) -> Result<(), postgres::Error> {
        let left: Option<Vec<String>> = db.try_one(&format!(
            "SELECT array_agg(gid) FROM pg_prepared_xacts WHERE gid LIKE '{}-%'",
            self.number
        ))?;
        for name in left.unwrap_or_default() {
            db.try_run(&format!("COMMIT PREPARED '{name}'"))?;
        }
        let commits = if self.asynchronous { "off" } else { "on" };
        db.try_run(&format!("SET synchronous_commit = {commits}"))
    }

    /// One transaction; the ids of the events it committed.
    fn transaction(&mut self, db: &mut Db) -> Result<Vec<String>, postgres::Error> {
        let mut aggregates: Vec<(String, String)> = (0..=self.random.below(2)).map(|_| self.aggregate()).collect();
        aggregates.sort();
        let mut ids = Vec::new();
        db.try_run("BEGIN")?;
        for (kind, id) in &aggregates {
            if self.random.percent(10) {
                // What a savepoint takes back takes the counter back with it.
                db.try_run("SAVEPOINT s")?;
                let taken_back = emit(db, kind, id)?;
                db.try_run("ROLLBACK TO s")?;
                self.told.rolled_back.push(taken_back);
            }
            for _ in 0..=self.random.below(3) {
                if ids.len() < EMITS_MAX {
                    ids.push(emit(db, kind, id)?);
                }
            }
        }
        if self.random.percent(5) {
            let length_ms = 5 + self.random.below(150);
            db.try_run(&format!("SELECT pg_sleep({})", length_ms as f64 / 1000.0))?;
        }
        match self.random.below(100) {
            0..10 => {
                db.try_run("ROLLBACK")?;
                self.told.rolled_back.append(&mut ids);
            }
            10..13 => {
                let name = format!("{}-{:x}", self.number, self.random.draw());
                db.try_run(&format!("PREPARE TRANSACTION '{name}'"))?;
                db.try_run(&format!("COMMIT PREPARED '{name}'"))?;
            }
            _ => db.try_run("COMMIT")?,
        }
        Ok(ids)
    }

    fn aggregate(&mut self) -> (String, String) {
        let kind = self.types[self.random.below(self.types.len() as u64) as usize].clone();
        let id = if self.random.percent(30) {
            let among = if self.random.percent(50) { HOT } else { SHARED };
            format!("shared-{}", self.random.below(among))
        } else {
            format!("{}-{}", self.number, self.random.below(OWN))
        };
        (kind, id)
    }
}

/// The server went away, or is about to (class 57P). A deadlock cannot come up, since locks are taken in order.
fn is_of_connection(error: &postgres::Error) -> bool {
    error.code().is_none_or(|code| code.code().starts_with("57P"))
}

fn emit(db: &mut Db, kind: &str, id: &str) -> Result<String, postgres::Error> {
    db.try_one(&format!(
        "WITH raised AS (UPDATE account SET n = n + 1 WHERE type = '{kind}' AND id = '{id}' RETURNING n),
              emitted AS (SELECT outbox_emit('{kind}', '{id}', 'Changed', jsonb_build_object('n', n)) AS event_id, n FROM raised)
         INSERT INTO written SELECT event_id, '{kind}', '{id}', n FROM emitted RETURNING event_id::text"
    ))
}
