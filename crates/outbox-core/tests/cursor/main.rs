//! Goal: with the cursor's rule no committed event is lost, none comes up twice without a restart, none
//! that did not commit comes up, and one aggregate's events come up in the order of emission.
//! Method: random schedules of writers, crashes and reads on a simulated PostgreSQL. The same
//! schedules must catch a rule that is known to be wrong.

mod postgres;
mod reader;
#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeSet, HashMap};

use outbox_core::cursor::{Cursor, LateRange};
use outbox_core::snapshot::Snapshot;
use postgres::{RowId, Server, Status};
use reader::{Reader, Rules};
use support::{Rng, run_schedules};

const AGGREGATES: usize = 5;
const WRITERS_MAX: usize = 6;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writers {
    Honest,
    /// They set seq by hand and the sequence back: order is lost, events must not be.
    Attackers,
}

struct World<'a> {
    rng: &'a mut Rng,
    server: Server<Cursor>,
    reader: Reader,
    writers: Writers,
}

impl World<'_> {
    fn act(&mut self) -> Result<(), String> {
        match self.rng.below(100) {
            0..40 => self.write(),
            40..55 => self.end_transaction(),
            55..61 => self.finish_commit(),
            61..72 => self.reader.begin_step(&self.server),
            72..88 => {
                self.reader.finish_step(&mut self.server)?;
                self.reader.check_passed(&self.server)?;
            }
            88..94 => {
                let steps = 1 + self.rng.below(4);
                self.reader.settle(&mut self.server, steps);
            }
            94..96 => self.reader.restart(&self.server),
            96 => {
                let lost_max = self.rng.below(30);
                self.server.crash(lost_max);
                self.reader.restart(&self.server);
            }
            97 => self.server.flush(self.server.log_end()),
            _ if self.writers == Writers::Attackers => {
                let value = self.rng.below(20) as i64;
                self.server.set_value(value);
            }
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self) {
        let open = self.server.in_status(Status::Open);
        if open.len() < WRITERS_MAX && self.rng.one_in(3) {
            self.server.begin();
            return;
        }
        if open.is_empty() {
            return;
        }
        let tx = open[self.rng.below(open.len())];
        match self.rng.below(12) {
            0 => drop(self.server.assign_xid(tx)),
            1 => self.server.savepoint(tx),
            2 => self.server.rollback_to_savepoint(tx),
            3 => {
                for _ in 0..self.rng.below(15) {
                    self.emit(tx);
                }
            }
            _ => self.emit(tx),
        }
    }

    fn emit(&mut self, tx: usize) {
        let attack = self.writers == Writers::Attackers && self.rng.one_in(3);
        let seqs = [0, 1_000_000, 7, i64::MIN, i64::MAX];
        let forced_seq = attack.then(|| seqs[self.rng.below(seqs.len())]);
        let aggregate = self.rng.below(AGGREGATES) as u32;
        self.server.emit(tx, aggregate, forced_seq);
    }

    fn end_transaction(&mut self) {
        let of_prepared = self.rng.one_in(5);
        let status = if of_prepared { Status::Prepared } else { Status::Open };
        let candidates = self.server.in_status(status);
        if candidates.is_empty() {
            return;
        }
        let tx = candidates[self.rng.below(candidates.len())];
        match self.rng.below(12) {
            0..2 => self.server.abort(tx),
            2..4 if !of_prepared => self.server.prepare(tx),
            _ => {
                let synchronous = self.rng.one_in(2);
                self.server.write_commit(tx, synchronous);
                if !self.rng.one_in(4) {
                    self.server.end_commit(tx);
                }
            }
        }
    }

    fn finish_commit(&mut self) {
        let committing = self.server.in_status(Status::Committing);
        if !committing.is_empty() {
            self.server.end_commit(committing[self.rng.below(committing.len())]);
        }
    }

    /// Ends all transactions and reads until nothing comes any more.
    fn wind_up(&mut self) -> Result<(), String> {
        for status in [Status::Open, Status::Prepared] {
            for tx in self.server.in_status(status) {
                self.server.write_commit(tx, true);
            }
        }
        for tx in self.server.in_status(Status::Committing) {
            self.server.end_commit(tx);
        }
        loop {
            let walking = self.reader.cursor.walk.is_some();
            self.reader.begin_step(&self.server);
            let events = self.reader.finish_step(&mut self.server)?;
            if events == 0 && !walking {
                return Ok(());
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        let committed: BTreeSet<RowId> = self.server.visible().map(|(id, _)| id).collect();
        let published: BTreeSet<RowId> = self.reader.published.iter().copied().collect();
        if let Some(id) = published.difference(&committed).next() {
            return Err(format!("phantom: row {id} {:?} was published", self.server.rows[*id]));
        }
        if let Some(id) = committed.difference(&published).next() {
            return Err(format!("lost: row {id} {:?}", self.server.rows[*id]));
        }
        if self.writers == Writers::Attackers {
            return Ok(());
        }
        let mut seen = BTreeSet::new();
        let mut newest: HashMap<u32, RowId> = HashMap::new();
        for &id in self.reader.published.iter().filter(|&&id| seen.insert(id)) {
            let aggregate = self.server.rows[id].aggregate;
            if let Some(before) = newest.insert(aggregate, id).filter(|&before| before > id) {
                return Err(format!(
                    "order: row {before} of aggregate {aggregate} came up before row {id}"
                ));
            }
        }
        Ok(())
    }
}

fn schedule(rng: &mut Rng, writers: Writers, rules: Rules) -> Result<(), String> {
    let mut server = Server::new(3 + rng.below(1_000) as u64);
    // Some transactions are older than the extension.
    for _ in 0..rng.below(3) {
        let tx = server.begin();
        server.assign_xid(tx);
    }
    let step_rows_max = 1 + if rng.one_in(2) { rng.below(2) } else { rng.below(8) };
    let reader = Reader::new(&server, step_rows_max, rules);
    server.append_ledger(reader.cursor.clone());
    server.flush(server.log_end());
    let actions = 50 + rng.below(250);
    let mut world = World {
        rng,
        server,
        reader,
        writers,
    };
    for _ in 0..actions {
        world.act()?;
    }
    world.wind_up()?;
    world.check()
}

const RIGHT: Rules = Rules {
    late: Cursor::late_ranges,
    value_before_snapshot: true,
};

#[test]
fn nothing_is_lost_doubled_or_out_of_order() {
    run_schedules(30_000, |rng| schedule(rng, Writers::Honest, RIGHT));
}

#[test]
fn nothing_is_lost_when_seq_is_set_by_hand() {
    run_schedules(15_000, |rng| schedule(rng, Writers::Attackers, RIGHT));
}

/// Leaves out the transactions that ran at or above the snapshot's xmax and were in no list.
fn only_listed_transactions(cursor: &Cursor, now: &Snapshot) -> Vec<LateRange> {
    let target = cursor.walk.as_ref().map_or(now, |walk| &walk.snapshot);
    let mut cursor = cursor.clone();
    cursor.snapshot.xmax = target.xmax;
    cursor.late_ranges(now)
}

#[test]
fn the_schedules_catch_a_rule_that_forgets_unlisted_transactions() {
    let rules = Rules {
        late: only_listed_transactions,
        ..RIGHT
    };
    let first = support::random_seed();
    let outcomes = (0..500).map(|n| schedule(&mut Rng::new(first + n), Writers::Honest, rules));
    let caught = outcomes
        .filter_map(Result::err)
        .filter(|error| error.starts_with("lost"))
        .count();
    assert!(
        caught > 50,
        "only {caught} of 500 schedules from seed {first} saw the wrong rule lose events"
    );
}

/// After the step has begun X emits and commits, then Y for the same aggregate; Y has the lower xid.
/// Each step brings one event.
fn two_commits_after_a_step_began(rules: Rules) -> Result<(), String> {
    let mut rng = Rng::new(0);
    let mut server = Server::new(10);
    let reader = Reader::new(&server, 1, rules);
    server.append_ledger(reader.cursor.clone());
    let mut world = World {
        rng: &mut rng,
        server,
        reader,
        writers: Writers::Honest,
    };
    let (y, x) = (world.server.begin(), world.server.begin());
    world.server.assign_xid(y);
    world.reader.begin_step(&world.server);
    for tx in [x, y] {
        assert!(world.server.emit(tx, 1, None), "the aggregate is not locked");
        world.server.write_commit(tx, true);
        world.server.end_commit(tx);
    }
    world.reader.finish_step(&mut world.server)?;
    world.wind_up()?;
    world.check()
}

#[test]
fn last_value_must_be_read_before_the_snapshot() {
    assert_eq!(two_commits_after_a_step_began(RIGHT), Ok(()));
    let wrong = two_commits_after_a_step_began(Rules {
        value_before_snapshot: false,
        ..RIGHT
    });
    assert!(wrong.is_err_and(|error| error.starts_with("order")));
}
