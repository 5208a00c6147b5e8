//! The lease: who has lost it settles nothing more, and nobody else loses it by slowness.

use std::time::Duration;

use outbox_e2e::judge::counters_backwards;
use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::{check, let_pass};
use outbox_e2e::{Broker, Db, Scenario, Stop, committed, judge, seconds, shell, wait};
use rdkafka::mocking::MockCluster;

use crate::load::{self, Commits, Load};

trials![
    alone frozen_in_the_middle_of_a_backlog,
    scenario lease_taken_away_under_load,
    scenario slow_acknowledgements_outlast_the_lease,
    scenario settles_wait_for_a_locked_ledger,
    scenario failover_to_an_asynchronous_standby,
];

/// The relay freezes with events in flight. Its successor publishes them; when it wakes up it changes
/// nothing that was settled.
fn frozen_in_the_middle_of_a_backlog(name: &str) {
    const BACKLOG: usize = 200_000;
    let s = Scenario::with(
        name,
        &[("outbox_ext.lease_duration", "2s"), ("outbox_ext.enabled", "off")],
    );
    let mut db = s.db();
    db.wait_state("disabled", seconds(10));
    let kind = s.aggregate_type("frozen");
    db.run(&format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload)
         SELECT '{kind}', (n % 500)::text, 'Happened', jsonb_build_object('n', n, 'filler', repeat('x', 200))
           FROM generate_series(1, {BACKLOG}) n"
    ));
    s.cluster.configure(&[("outbox_ext.enabled", "on")]);
    s.cluster.reload();
    let frozen = db.relay();
    let seen = Broker::shared().wait_count(&topic_of(&kind), BACKLOG / 10, seconds(30));
    freeze_between_settles(&mut db, frozen);
    assert!(seen < BACKLOG, "the relay was quicker than the test: {seen}");
    let lost: String = db.one("SELECT lease_token::text FROM outbox_lease");
    wait("its successor to publish the rest", seconds(60), || {
        let pending = db.pending();
        check(pending == 0, || format!("{pending} pending, {}", workers(&mut db)))
    });
    let settled = "SELECT md5(string_agg(b::text, ' ' ORDER BY batch_no)) FROM outbox_batch b";
    let before: String = db.one(settled);
    shell::signal(frozen, "CONT");
    wait("the frozen one to go", seconds(10), || {
        check(!shell::is_alive(frozen), || "it lives".to_owned())
    });
    assert_eq!(db.one::<String>(settled), before, "the ledger is as it was");
    let stale: i64 = db.one(&format!(
        "SELECT count(*) FROM outbox_batch b WHERE lease_token = '{lost}'
            AND batch_no > (SELECT min(batch_no) FROM outbox_batch WHERE lease_token <> '{lost}' AND batch_no > 1)"
    ));
    assert_eq!(stale, 0, "none of its settles came after its successor's first");
    let (verdict, _) = s.judge_all(&mut db, seconds(20));
    assert!(verdict.most_deliveries <= 2, "{}", verdict.summary());
    let attempts: i64 = db.one("SELECT sum(attempts)::bigint FROM outbox_event");
    assert_eq!(attempts, 0);
}

/// Frozen in the middle of a transaction that writes, a process holds locks that its successor must wait for: that is any
/// process's right, and not what is looked at here.
fn freeze_between_settles(db: &mut Db, pid: i32) {
    wait("a moment without a transaction that writes", seconds(10), || {
        shell::signal(pid, "STOP");
        let writes: bool = db.one(&format!(
            "SELECT backend_xid IS NOT NULL FROM pg_stat_activity WHERE pid = {pid}"
        ));
        if writes {
            shell::signal(pid, "CONT");
        }
        check(!writes, || "it writes".to_owned())
    });
}

/// What our workers do and wait for, for messages.
fn workers(db: &mut Db) -> String {
    db.one(
        "SELECT string_agg(concat_ws(' ', a.pid, a.backend_type, a.state, a.wait_event_type, a.wait_event,
                'blocked by', pg_blocking_pids(a.pid), a.xact_start), '; ')
           FROM pg_stat_activity a WHERE a.backend_type LIKE 'outbox%'",
    )
}

/// Another one's token stands in the table, at any moment of a relay's work: it settles, extends and releases nothing
/// more with its own.
fn lease_taken_away_under_load(name: &str) {
    const ROUNDS: usize = 8;
    let s = Scenario::begin(name);
    let kind = s.aggregate_type("taken");
    let load = Load::start(&s, 4, std::slice::from_ref(&kind), Commits::Mixed);
    let mut db = s.db();
    for round in 1..=ROUNDS {
        Broker::shared().wait_count(&topic_of(&kind), 200 * round, seconds(30));
        let taken: String =
            db.one("UPDATE outbox_lease SET lease_token = gen_random_uuid() RETURNING lease_token::text");
        // It finds out with its next read, and acquires the lease anew.
        db.wait_true(
            &format!("SELECT lease_token <> '{taken}' AND pid IS NOT NULL FROM outbox_lease"),
            seconds(10),
        );
        let_pass(Duration::from_millis(37 * round as u64));
    }
    let written = load.stop();
    load::finish_prepared(&mut db);
    let (verdict, records) = s.judge_all(&mut db, seconds(30));
    written.assert_all_in(&mut db);
    let backwards = counters_backwards(&records, load::counter);
    assert!(backwards.is_empty(), "{backwards:#?}");
    // What was not settled is sent again, once for each lease.
    assert!(verdict.most_deliveries <= 1 + ROUNDS, "{}", verdict.summary());
}

/// A broker that acknowledges 20 events a second, half a second each batch, and a lease of one second.
fn slow_acknowledgements_outlast_the_lease(name: &str) {
    let mock = MockCluster::new(1).expect("a mock cluster");
    let s = Scenario::with_brokers(
        name,
        &mock.bootstrap_servers(),
        &[
            ("outbox_ext.lease_duration", "1s"),
            ("outbox_ext.kafka_options", "batch.num.messages=10"),
            // What one step reads is settled together.
            ("outbox_ext.batch_size", "20"),
        ],
    );
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    let kind = s.aggregate_type("slow");
    mock.create_topic(&topic_of(&kind), 1, 1).expect("a topic");
    db.emit_one(&kind, "1", "0");
    db.wait_drained(seconds(20));
    let (relay, token) = holder(&mut db);
    mock.broker_round_trip_time(1, Duration::from_millis(500))
        .expect("a slow broker");
    db.run(&format!(
        "SELECT outbox_emit('{kind}', (n % 9)::text, 'Happened', to_jsonb(n)) FROM generate_series(1, 120) n"
    ));
    // Half of them are settled long before the last is.
    db.wait_true("SELECT count(*) BETWEEN 1 AND 60 FROM outbox_pending", seconds(30));
    db.wait_drained(seconds(30));
    assert_eq!(holder(&mut db), (relay, token), "the lease was its own all the while");
    let published: i64 = db.one("SELECT published_since_start FROM outbox_status");
    assert_eq!(published, 121, "each once");
}

/// Somebody has locked the ledger, the lease or what is parked, for longer than the lease lasts. What Kafka has acknowledged
/// meanwhile is settled afterwards, and goes out once.
fn settles_wait_for_a_locked_ledger(name: &str) {
    let s = Scenario::with(name, &[("outbox_ext.lease_duration", "2s")]);
    s.allow("cannot be", "it says what holds it up");
    let mut db = s.db();
    let kind = s.aggregate_type("locked");
    db.emit_one(&kind, "first", "0");
    db.wait_drained(seconds(20));
    let held_by = holder(&mut db);
    let load = Load::start(&s, 2, std::slice::from_ref(&kind), Commits::Mixed);
    let mut other = s.db();
    for (lock, held_up, flows) in [
        ("outbox_batch IN SHARE MODE", "settled", true),
        ("outbox_batch, outbox_lease IN SHARE MODE", "settled", true),
        ("outbox_parked IN ACCESS EXCLUSIVE MODE", "read", false),
    ] {
        let before = Broker::shared().count(&topic_of(&kind));
        other.run(&format!("BEGIN; LOCK {lock}"));
        // Not from outbox_status, which would wait for the lock.
        let says = format!("cannot be {held_up}: canceling statement due to lock timeout");
        wait(&says, seconds(10), || {
            let error: String = db.one("SELECT COALESCE(last_error, '') FROM outbox_relay()");
            check(error.contains(&says), || error)
        });
        if flows {
            Broker::shared().wait_count(&topic_of(&kind), before + 200, seconds(30));
        }
        let_pass(seconds(4));
        other.run("COMMIT");
        db.wait_true("SELECT last_error IS NULL FROM outbox_status", seconds(10));
    }
    let written = load.stop();
    load::finish_prepared(&mut db);
    let (verdict, _) = s.judge_all(&mut db, seconds(30));
    written.assert_all_in(&mut db);
    verdict.assert_no_duplicates();
    assert_eq!(holder(&mut db), held_by, "the same session all the while");
}

fn holder(db: &mut Db) -> (i32, String) {
    let row = db.rows("SELECT pid, lease_token::text FROM outbox_lease").remove(0);
    (row.get(0), row.get(1))
}

/// The primary is lost, and with it what the standby never got. What survived arrives, with the ids it had; what
/// did not is on the topic all the same: the price of asynchronous replication.
fn failover_to_an_asynchronous_standby(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("failover");
    let topic = topic_of(&kind);
    let emit = |db: &mut Db, from: i32| {
        for n in from..from + 200 {
            db.emit_one(&kind, &(n % 5).to_string(), &n.to_string());
        }
    };
    let standby = s.cluster.create_standby("follower");
    standby.start();
    emit(&mut db, 0);
    db.wait_drained(seconds(20));
    db.wait_true(
        "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication",
        seconds(20),
    );
    // It stands still while the primary goes on: these are published, and lost.
    standby.stop(Stop::Fast);
    emit(&mut db, 200);
    db.wait_drained(seconds(20));
    drop(db);
    s.cluster.stop(Stop::Immediate);

    standby.configure(&[("primary_conninfo", "")]);
    standby.start();
    let mut db = standby.connect(outbox_e2e::cluster::DATABASE);
    db.run("SELECT pg_promote()");
    emit(&mut db, 400);
    db.wait_drained(seconds(30));
    let survived = committed(&mut db);
    assert_eq!(survived.len(), 400, "the first and the last");
    let verdict = judge(&survived, &Broker::shared().read(&topic));
    eprintln!("  {name}: {}", verdict.summary());
    assert_eq!((verdict.missing.len(), verdict.altered.len()), (0, 0));
    assert_eq!(verdict.phantom.len(), 200, "published by the primary, and gone with it");
    verdict.assert_in_order();
    drop(db);
    standby.stop(Stop::Fast);
    standby.remove();
}
