//! Order per aggregate, and events that commit after the relay has passed their place.

use std::time::Instant;

use outbox_e2e::judge::counters_backwards_by_partition;
use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::check;
use outbox_e2e::{Broker, Db, Emit, Scenario, Stop, seconds, wait};

use crate::load::{Commits, Load, counter};

trials![
    scenario events_of_one_transaction_in_order,
    scenario late_commit_is_not_lost,
    scenario late_commits_at_random,
    alone late_transaction_of_100000_events,
    alone late_walk_across_restarts,
    scenario scheduled_event_holds_nobody,
    scenario forgotten_transactions_stall_nothing,
    scenario partitions_added_under_load,
];

/// One transaction has one created_at; its events keep the order of emission.
fn events_of_one_transaction_in_order(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("abc");
    let emit = |id, word| format!("SELECT outbox_emit('{kind}', '{id}', 'Happened', '\"{word}\"');");
    for id in 0..500 {
        db.run(&format!(
            "BEGIN; {} SELECT pg_sleep(0.001); {} {} COMMIT;",
            emit(id, "a"),
            emit(id, "b"),
            emit(id, "c")
        ));
    }
    let (verdict, records) = s.judge_all(&mut db, seconds(20));
    verdict.assert_no_duplicates();
    for id in 0..500 {
        let words: Vec<&str> = records
            .iter()
            .filter(|record| record.key_text() == id.to_string())
            .map(|record| record.value_text())
            .collect();
        assert_eq!(words, ["\"a\"", "\"b\"", "\"c\""], "aggregate {id}");
    }
}

/// A transaction that commits after newer events were published, alone and with 500 rows in between.
fn late_commit_is_not_lost(name: &str) {
    let s = Scenario::begin(name);
    let (mut slow, mut db) = (s.db(), s.db());
    let kind = s.aggregate_type("late");
    for between in [0, 500] {
        let before = db.one::<i64>("SELECT count(*) FROM outbox_log") as usize;
        slow.run("BEGIN");
        slow.emit_one(&kind, &format!("late-{between}"), "1");
        slow.emit_one(&kind, &format!("late-{between}"), "2");
        for n in 0..=between {
            db.emit_one(&kind, &format!("quick-{between}-{}", n % 7), "{}");
        }
        // The newer ones are on Kafka while the older ones are still uncommitted.
        Broker::shared().wait_count(&topic_of(&kind), before + between + 1, seconds(20));
        db.wait_drained(seconds(10));
        slow.run("COMMIT");
        s.judge_all(&mut db, seconds(20)).0.assert_no_duplicates();
    }
}

/// Many sessions that commit in another order than they emitted.
fn late_commits_at_random(name: &str) {
    let s = Scenario::begin(name);
    let kind = s.aggregate_type("shuffled");
    let mut random = outbox_e2e::Random::from_clock();
    let mut sessions: Vec<(Db, bool)> = (0..20).map(|_| (s.db(), false)).collect();
    for n in 0..2_000 {
        let chosen = random.below(20) as usize;
        let (session, open) = &mut sessions[chosen];
        if !*open {
            session.run("BEGIN");
        }
        // Each session has aggregates of its own: the order within them is defined.
        session.emit_one(&kind, &format!("{chosen}-{}", random.below(3)), &n.to_string());
        *open = random.percent(70);
        if !*open {
            session.run(if random.percent(20) { "ROLLBACK" } else { "COMMIT" });
        }
    }
    for (session, _) in sessions.iter_mut().filter(|(_, open)| *open) {
        session.run("COMMIT");
    }
    let (verdict, _) = s.judge_all(&mut s.db(), seconds(30));
    assert!(verdict.committed > 1_000, "{}", verdict.summary());
    verdict.assert_no_duplicates();
}

/// A backlog in one transaction that commits late is walked in steps, not read at once.
fn late_transaction_of_100000_events(name: &str) {
    let s = Scenario::with(name, &[("outbox_ext.batch_size", "1000")]);
    let (mut slow, mut db) = (s.db(), s.db());
    let kind = s.aggregate_type("walk");
    slow.run("BEGIN");
    slow.run(&emit_many(&kind, 100_000));
    db.emit_one(&kind, "newer", "{}");
    db.wait_drained(seconds(30));
    slow.run("COMMIT");
    // Newer ones go on being emitted while the late ones are walked.
    for _ in 0..50 {
        db.emit_one(&kind, "newer", "{}");
    }
    let (verdict, _) = s.judge_all(&mut db, seconds(60));
    assert_eq!(verdict.committed, 100_051);
    verdict.assert_no_duplicates();
    let steps: i64 = db.one("SELECT count(*) FROM outbox_batch WHERE walk_seq IS NOT NULL");
    assert!(steps > 0, "the ledger shows that a walk took place");
}

/// The walk goes on where it stood: stopped fast it repeats nothing, stopped hard it loses nothing.
fn late_walk_across_restarts(name: &str) {
    let s = Scenario::with(
        name,
        &[
            ("outbox_ext.batch_size", "200"),
            ("outbox_ext.max_in_flight_bytes", "128kB"),
        ],
    );
    let (mut slow, mut db) = (s.db(), s.db());
    let kind = s.aggregate_type("walk");
    slow.run("BEGIN");
    slow.run(&emit_many(&kind, 100_000));
    db.emit_one(&kind, "newer", "{}");
    db.wait_drained(seconds(30));
    slow.run("COMMIT");
    drop((slow, db));
    for (stop, reached) in [(Stop::Fast, 10_000), (Stop::Immediate, 40_000)] {
        let seen = Broker::shared().wait_count(&topic_of(&kind), reached, seconds(30));
        assert!(seen < 100_000, "the stop comes in the middle, not after {seen}");
        s.cluster.stop(stop);
        s.cluster.start();
    }
    let (verdict, _) = s.judge_all(&mut s.db(), seconds(60));
    assert_eq!(verdict.committed, 100_001);
}

/// One transaction's worth of events on 100 aggregates.
fn emit_many(kind: &str, events: u32) -> String {
    format!(
        "SELECT count(outbox_emit('{kind}', (n % 100)::text, 'Happened', jsonb_build_object('n', n)))
           FROM generate_series(1, {events}) n"
    )
}

/// A delay that the caller asked for holds back neither its aggregate nor anybody else.
fn scheduled_event_holds_nobody(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("scheduled");
    let due: String = db.one("SELECT (clock_timestamp() + '4 s')::text");
    let later = db.emit(&Emit {
        available_at: Some(&due),
        ..Emit::new(&kind, "1", "\"later\"")
    });
    db.emit_one(&kind, "1", "\"at once\"");
    db.emit_one(&kind, "2", "\"at once\"");
    let records = Broker::shared().wait_records(&topic_of(&kind), 2, seconds(20));
    assert!(
        records.iter().all(|record| record.value_text() == "\"at once\""),
        "{records:#?}"
    );
    let early: bool = db.one(&format!("SELECT clock_timestamp() < '{due}'"));
    assert!(early, "the others did not wait for it");
    db.wait_true(
        &format!("SELECT state = 'scheduled' FROM outbox_event WHERE event_id = '{later}'"),
        seconds(3),
    );
    let records = Broker::shared().wait_records(&topic_of(&kind), 3, seconds(20));
    assert_eq!(records.iter().filter(|record| record.id() == later).count(), 1);
    db.wait_drained(seconds(5));
    let (early, late): (bool, bool) = {
        let rows = db.rows(&format!(
            "SELECT published_at < '{due}', published_at > timestamptz '{due}' + '2 s'
               FROM outbox_event WHERE event_id = '{later}'"
        ));
        (rows[0].get(0), rows[0].get(1))
    };
    assert!(!early && !late, "published when due: early {early}, late {late}");
}

/// Neither an unrelated transaction left open nor a forgotten prepared one holds anything up.
fn forgotten_transactions_stall_nothing(name: &str) {
    let s = Scenario::begin(name);
    let (mut open, mut snapshot, mut db) = (s.db(), s.db(), s.db());
    db.run("CREATE TABLE unrelated (n int)");
    db.run("BEGIN; INSERT INTO unrelated VALUES (1); PREPARE TRANSACTION 'forgotten'");
    open.run("BEGIN; INSERT INTO unrelated VALUES (2)");
    snapshot.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
    snapshot.one::<i64>("SELECT count(*) FROM outbox_log");
    let kind = s.aggregate_type("stall");
    for n in 0..500 {
        db.emit_one(&kind, &(n % 10).to_string(), &n.to_string());
    }
    s.judge_all(&mut db, seconds(5)).0.assert_no_duplicates();
    open.run("COMMIT");
    snapshot.run("COMMIT");
    db.run("ROLLBACK PREPARED 'forgotten'");
}

/// From 3 to 6 partitions under load. No error; the new ones are used; the order is kept where it is defined.
fn partitions_added_under_load(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("growing");
    let topic = topic_of(&kind);
    let broker = Broker::shared();
    broker.create_topic(&topic, 3);
    let load = Load::start(&s, 2, std::slice::from_ref(&kind), Commits::Mixed);
    broker.wait_count(&topic, 500, seconds(30));
    broker.grow_topic(&topic, 6);
    let grown = Instant::now();
    wait("all partitions to be used", seconds(120), || {
        let used = broker.counts(&topic)?;
        check(used.len() == 6 && used.iter().all(|count| *count > 0), || {
            format!("{used:?}")
        })
    });
    // The manual says within a minute.
    assert!(grown.elapsed() < seconds(70), "{:?}", grown.elapsed());
    load.stop();
    let (verdict, records) = s.judge_complete(&mut db, seconds(60));
    verdict.assert_no_duplicates();
    assert!(!verdict.split.is_empty(), "aggregates moved");
    let backwards = counters_backwards_by_partition(&records, counter);
    assert!(backwards.is_empty(), "{backwards:#?}");
    assert_eq!(
        db.one::<i64>("SELECT count(*) FROM outbox_parked"),
        0,
        "nothing was parked"
    );
}
