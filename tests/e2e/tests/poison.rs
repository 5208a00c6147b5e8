//! Events that Kafka refuses for their own fault: their neighbours lose nothing, and an operator decides what becomes
//! of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::{check, let_pass, try_wait};
use outbox_e2e::{Broker, Db, Random, Record, Scenario, committed, judge, seconds, wait};

use crate::load::{self, Commits, Load};

trials![
    scenario refused_event_is_retried_after_the_limit_was_raised,
    scenario refused_event_is_discarded,
    scenario refused_event_is_passed,
    alone retry_and_discard_race_with_load,
];

/// What the topic takes in one batch at first, and what it takes when somebody has seen to it.
const NARROW: &str = "2000";
const WIDE: &str = "1000000";

const QUICK: [(&str, &str); 3] = [
    ("outbox_ext.max_attempts", "3"),
    ("outbox_ext.retry_backoff", "20ms"),
    ("outbox_ext.retry_backoff_max", "100ms"),
];

/// A payload that no topic of ours takes at first, however it is compressed.
fn large(n: u64) -> String {
    let mut random = Random::new(n + 1);
    let text = random.noise();
    format!("{{\"n\": {n}, \"text\": \"{text}\"}}")
}

/// Large events of the race: each is decided upon, some more than once.
const RACE_LARGE: u64 = 10;
const RACE_DECISIONS: u64 = 12;

/// Each refused batch makes the relay begin anew with batches a quarter as large, from 256 kB to 1 kB: what was acknowledged and not yet settled is
/// repeated so often at most.
const DELIVERIES_MAX: usize = 6;

struct Poisoned {
    s: Scenario,
    db: Db,
    topic: String,
    /// The one that Kafka refuses.
    large: String,
    /// The later one of its aggregate.
    later: String,
}

impl Poisoned {
    /// Small events, a large one, a later one of its aggregate, small ones, all in one transaction; waits until the
    /// large one was given up.
    fn begin(name: &str, settings: &[(&str, &str)]) -> Poisoned {
        let s = Scenario::with(name, &[&QUICK[..], settings].concat());
        s.allow("outbox_ext relay WARNING", "it says what was given up");
        let mut db = s.db();
        let kind = s.aggregate_type("poison");
        let topic = topic_of(&kind);
        Broker::shared().create_narrow_topic(&topic, 1, NARROW);
        let small = |db: &mut Db, from: i32| {
            for n in from..from + 25 {
                db.emit_one(&kind, &(n % 5).to_string(), &n.to_string());
            }
        };
        db.run("BEGIN");
        small(&mut db, 0);
        let large = db.emit_one(&kind, "poisoned", &large(0));
        let later = db.emit_one(&kind, "poisoned", "\"later\"");
        small(&mut db, 25);
        db.run("COMMIT");
        wait("the large one to be given up", seconds(20), || {
            let given_up: Vec<String> = db.all("SELECT event_id::text FROM outbox_dead_letter");
            check(given_up == [large.as_str()], || {
                format!("{given_up:?}, {}", db.status())
            })
        });
        Poisoned {
            s,
            db,
            topic,
            large,
            later,
        }
    }

    fn state(&mut self, id: &str) -> String {
        self.db
            .one(&format!("SELECT state FROM outbox_event WHERE event_id = '{id}'"))
    }

    fn records(&self) -> Vec<Record> {
        Broker::shared().read(&self.topic)
    }

    fn call(&mut self, function: &str) -> bool {
        self.db.one(&format!("SELECT {function}"))
    }

    /// Everything but `without` is on the topic, in order, and unharmed.
    #[track_caller]
    fn assert_others_published(&mut self, without: &[&str]) {
        let expected: Vec<_> = committed(&mut self.db)
            .into_iter()
            .filter(|event| !without.contains(&event.id.as_str()))
            .collect();
        let broker = Broker::shared();
        broker.wait_count(&self.topic, expected.len(), seconds(20));
        self.db.wait_true(
            &format!(
                "SELECT count(*) = {} FROM outbox_event WHERE state = 'published'",
                expected.len()
            ),
            seconds(20),
        );
        let verdict = judge(&expected, &self.records());
        verdict.assert_complete();
        verdict.assert_in_order();
        assert!(
            verdict.most_deliveries <= DELIVERIES_MAX,
            "sent again and again: {}",
            verdict.summary()
        );
        let blamed: i64 = self.db.one(&format!(
            "SELECT count(*) FROM outbox_event WHERE attempts > 0 AND event_id <> '{}'",
            self.large
        ));
        assert_eq!(blamed, 0, "attempts of the innocent");
    }
}

fn refused_event_is_retried_after_the_limit_was_raised(name: &str) {
    let mut p = Poisoned::begin(name, &[]);
    let (large, later) = (p.large.clone(), p.later.clone());
    p.assert_others_published(&[&large, &later]);
    assert_eq!(p.state(&large), "failed");
    assert_eq!(p.state(&later), "behind");
    let row =
        p.db.rows("SELECT attempts, last_error, aggregate_id FROM outbox_dead_letter")
            .remove(0);
    assert_eq!(row.get::<_, i32>(0), 3, "attempts before it was given up");
    let reason: String = row.get(1);
    assert!(reason.to_lowercase().contains("too large"), "the reason: {reason}");
    assert_eq!(row.get::<_, String>(2), "poisoned");

    // Nothing was mended: it fails again, and holds what is behind it still.
    assert!(p.call(&format!("outbox_retry('{large}')")));
    p.db.wait_true("SELECT attempts > 3 FROM outbox_dead_letter", seconds(20));
    assert_eq!(p.state(&later), "behind");
    p.assert_others_published(&[&large, &later]);

    Broker::shared().limit_topic(&p.topic, WIDE);
    assert!(p.call(&format!("outbox_retry('{large}')")));
    p.db.wait_drained(seconds(20));
    p.assert_others_published(&[]);
    assert_eq!(p.state(&large), "published");
    assert!(
        !p.call(&format!("outbox_retry('{large}')")),
        "it is not given up any more"
    );
    let records = p.records();
    let times = |id: &str| records.iter().filter(|record| record.id() == id).count();
    assert_eq!((times(&large), times(&later)), (1, 1));
    drop(p.db);
    drop(p.s);
}

fn refused_event_is_discarded(name: &str) {
    let mut p = Poisoned::begin(name, &[]);
    let (large, later) = (p.large.clone(), p.later.clone());
    assert!(
        !p.call(&format!("outbox_discard('{later}', 'not this one')")),
        "it was not given up"
    );
    assert!(p.call(&format!("outbox_discard('{large}', 'nobody wants it')")));
    p.db.wait_drained(seconds(20));
    p.assert_others_published(&[&large]);
    assert_eq!(p.state(&large), "discarded");
    let why: String = p.db.one(&format!(
        "SELECT last_error FROM outbox_event WHERE event_id = '{large}'"
    ));
    assert!(
        why.contains("nobody wants it") && why.contains("postgres"),
        "who and why: {why}"
    );
    for function in ["outbox_retry('ID')", "outbox_discard('ID', 'again')"] {
        assert!(
            !p.call(&function.replace("ID", &large)),
            "{function} of a discarded one"
        );
    }
    assert_eq!(p.db.one::<i64>("SELECT count(*) FROM outbox_dead_letter"), 0);
    // The aggregate is free: also after a restart, which finds all of this in the tables.
    p.s.cluster.stop(outbox_e2e::Stop::Fast);
    p.s.cluster.start();
    p.db = p.s.db();
    let kind = p.topic[topic_of("").len()..].to_owned();
    p.db.emit_one(&kind, "poisoned", "\"after the restart\"");
    p.db.wait_drained(seconds(20));
    p.assert_others_published(&[&large]);
}

/// after_give_up = pass: the later one does not wait. The order of that aggregate is given up, nothing else.
fn refused_event_is_passed(name: &str) {
    let mut p = Poisoned::begin(name, &[("outbox_ext.after_give_up", "pass")]);
    let large = p.large.clone();
    p.assert_others_published(&[&large]);
    assert_eq!(p.state(&large), "failed");
    assert_eq!(p.db.pending(), 1);
    Broker::shared().limit_topic(&p.topic, WIDE);
    assert_eq!(
        p.db.one::<i64>("SELECT outbox_retry_all(error_pattern => '%too large%')"),
        1
    );
    p.db.wait_drained(seconds(20));
    let verdict = judge(&committed(&mut p.db), &p.records());
    verdict.assert_complete();
    assert_eq!(verdict.out_of_order.len(), 1, "{}", verdict.summary());
}

/// Operators at work beside writers and a relay: nothing lost but what was discarded, order kept.
fn retry_and_discard_race_with_load(name: &str) {
    let s = Scenario::with(name, &QUICK);
    s.allow("outbox_ext relay WARNING", "it says what was given up");
    let mut db = s.db();
    let (good, mixed) = (s.aggregate_type("good"), s.aggregate_type("mixed"));
    let broker = Broker::shared();
    broker.create_topic(&topic_of(&good), 3);
    broker.create_narrow_topic(&topic_of(&mixed), 3, NARROW);
    let load = Load::start(&s, 4, std::slice::from_ref(&good), Commits::Mixed);
    let stop = AtomicBool::new(false);
    let calls = AtomicU64::new(0);
    thread::scope(|scope| {
        let (stop, calls) = (&stop, &calls);
        let mut emitter = s.db();
        let mixed = &mixed;
        scope.spawn(move || {
            let mut random = Random::from_clock();
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let id = random.below(12).to_string();
                let payload = if n % 30 == 29 && n / 30 < RACE_LARGE {
                    large(n)
                } else {
                    n.to_string()
                };
                emitter.emit_one(mixed, &id, &payload);
                n += 1;
                let_pass(Duration::from_millis(10));
            }
        });
        for _ in 0..2 {
            let mut db = s.db();
            scope.spawn(move || {
                let mut random = Random::from_clock();
                while !stop.load(Ordering::Relaxed) {
                    let failed: Vec<String> = db.all("SELECT event_id::text FROM outbox_dead_letter");
                    for id in failed {
                        let function = match random.below(3) {
                            0 => format!("outbox_discard('{id}', 'by chance')"),
                            _ => format!("outbox_retry('{id}')"),
                        };
                        let done: bool = db.one(&format!("SELECT {function}"));
                        calls.fetch_add(u64::from(done), Ordering::Relaxed);
                    }
                    let_pass(Duration::from_millis(50));
                }
            });
        }
        let seen = try_wait(seconds(60), || {
            let calls = calls.load(Ordering::Relaxed);
            check(calls >= RACE_DECISIONS, || format!("{calls} decisions"))
        });
        // Whatever was seen, the threads must end.
        stop.store(true, Ordering::Relaxed);
        seen.unwrap_or_else(|seen| panic!("waited for {RACE_DECISIONS} decisions of operators; last seen: {seen}"));
    });
    let written = load.stop();
    load::finish_prepared(&mut db);
    broker.limit_topic(&topic_of(&mixed), WIDE);
    wait("everything to be published or discarded", seconds(60), || {
        db.one::<i64>("SELECT outbox_retry_all()");
        let pending = db.pending();
        check(pending == 0, || format!("{pending} pending, {}", db.status()))
    });
    written.assert_all_in(&mut db);
    let discarded: Vec<String> = db.all("SELECT event_id::text FROM outbox_event WHERE state = 'discarded'");
    let expected: Vec<_> = committed(&mut db)
        .into_iter()
        .filter(|event| !discarded.contains(&event.id))
        .collect();
    let records = [broker.read(&topic_of(&good)), broker.read(&topic_of(&mixed))].concat();
    let verdict = judge(&expected, &records);
    eprintln!(
        "  {name}: {calls:?} calls, {} discarded, {}",
        discarded.len(),
        verdict.summary()
    );
    verdict.assert_complete();
    verdict.assert_in_order();
    let blamed: i64 =
        db.one("SELECT count(*) FROM outbox_event WHERE attempts > 0 AND octet_length(payload::text) < 1000");
    assert_eq!(blamed, 0, "attempts of the innocent");
}
