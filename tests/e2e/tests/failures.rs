//! Brokers that are away, topics that do not exist, events that can never be published.

use std::time::Duration;

use outbox_e2e::scenario::topic_of;
use outbox_e2e::silent_broker::SilentBroker;
use outbox_e2e::wait::{check, let_pass};
use outbox_e2e::{Broker, Db, Emit, Scenario, committed, judge, seconds, wait};

trials![
    stops_broker broker_absent_at_start_and_again_later,
    scenario unknown_topic_holds_back_its_aggregates_only,
    scenario event_for_another_topic_waits_behind_its_aggregate,
    scenario unpublishable_events_are_given_up_visibly,
    scenario no_transaction_is_open_while_waiting_for_kafka,
];

/// An outage costs nothing but time, at the start and in the middle.
fn broker_absent_at_start_and_again_later(name: &str) {
    let broker = Broker::prepare();
    let s = Scenario::with_brokers(name, broker.address(), &[]);
    s.allow("outbox_ext relay WARNING", "it says that no broker answers");
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    let kind = s.aggregate_type("outage");
    emit_many(&mut db, &kind, 0);
    db.wait_state("outage", seconds(30));
    broker.start();
    assert_unharmed(&broker, &mut db, &kind);

    broker.stop();
    emit_many(&mut db, &kind, 1_000);
    db.wait_state("outage", seconds(60));
    assert_eq!(db.pending(), 1_000);
    let lines = s
        .cluster
        .log()
        .lines()
        .filter(|line| line.contains("outbox_ext relay"))
        .count();
    assert!(lines < 40, "{lines} lines of the relay for two outages");
    broker.start();
    assert_unharmed(&broker, &mut db, &kind);
    drop(db);
    // Not at the end of the run: it takes memory and a core from the others.
    broker.stop();
}

fn emit_many(db: &mut Db, kind: &str, from: i32) {
    db.run(&format!(
        "SELECT outbox_emit('{kind}', (n % 7)::text, 'Happened', to_jsonb(n))
           FROM generate_series({from} + 1, {from} + 1000) n"
    ));
}

/// Everything arrived, nothing was counted against an event, nothing was parked.
#[track_caller]
fn assert_unharmed(broker: &Broker, db: &mut Db, kind: &str) {
    db.wait_drained(seconds(60));
    let verdict = judge(&committed(db), &broker.read(&topic_of(kind)));
    verdict.assert_complete();
    verdict.assert_in_order();
    let attempts: i64 = db.one("SELECT sum(attempts)::bigint FROM outbox_event");
    assert_eq!(attempts, 0, "attempts are not used up");
    assert_eq!(
        db.one::<i64>("SELECT count(*) FROM outbox_parked"),
        0,
        "nothing was parked"
    );
    let ever: i64 = db.one("SELECT count(*) FROM outbox_batch WHERE unparked IS NOT NULL");
    assert_eq!(ever, 0, "nor has anything ever been");
}

/// A topic that is not there parks its events and those behind them; the others flow; once it is
/// there, all arrive in order.
fn unknown_topic_holds_back_its_aggregates_only(name: &str) {
    let s = Scenario::with(
        name,
        &[
            ("outbox_ext.kafka_options", "allow.auto.create.topics=false"),
            ("outbox_ext.retry_backoff_max", "2s"),
        ],
    );
    s.allow("outbox_ext relay WARNING", "it names the topic that does not exist");
    let mut db = s.db();
    let (missing, present) = (s.aggregate_type("missing"), s.aggregate_type("present"));
    Broker::shared().create_topic(&topic_of(&present), 3);
    for n in 0..100 {
        db.emit_one(&missing, &(n % 4).to_string(), &n.to_string());
        db.emit_one(&present, &(n % 4).to_string(), &n.to_string());
    }
    Broker::shared().wait_count(&topic_of(&present), 100, seconds(20));
    db.wait_true(
        "SELECT parked ->> 'topic' = '4' AND parked ->> 'behind' = '96' FROM outbox_status",
        seconds(30),
    );
    let (states, reasons): (Vec<String>, i64) = {
        let rows = db.rows(&format!(
            "SELECT array_agg(DISTINCT state ORDER BY state), count(last_error)
               FROM outbox_event WHERE aggregate_type = '{missing}'"
        ));
        (rows[0].get(0), rows[0].get(1))
    };
    assert_eq!(states, ["behind", "retrying"]);
    assert!(reasons >= 4, "the status of an event says why it waits");
    // Events that come now wait behind theirs; strangers still flow.
    for n in 100..150 {
        db.emit_one(&missing, &(n % 6).to_string(), &n.to_string());
        db.emit_one(&present, &(n % 6).to_string(), &n.to_string());
    }
    Broker::shared().wait_count(&topic_of(&present), 150, seconds(20));
    Broker::shared().create_topic(&topic_of(&missing), 3);
    let (verdict, _) = s.judge_all(&mut db, seconds(60));
    verdict.assert_no_duplicates();
    assert_eq!(verdict.committed, 300);
    assert_eq!(
        db.one::<i64>("SELECT count(*) FROM outbox_parked"),
        0,
        "nothing stays parked"
    );
    let published: bool = db.one("SELECT bool_and(state = 'published') FROM outbox_event");
    assert!(published);
}

/// An aggregate's first event is for a topic that does not exist, its next ones for one that does. They wait;
/// another aggregate does not.
fn event_for_another_topic_waits_behind_its_aggregate(name: &str) {
    let s = Scenario::with(
        name,
        &[
            ("outbox_ext.kafka_options", "allow.auto.create.topics=false"),
            ("outbox_ext.retry_backoff_max", "1s"),
        ],
    );
    s.allow("outbox_ext relay WARNING", "it names the topic that does not exist");
    let mut db = s.db();
    let kind = s.aggregate_type("mixed");
    let (good, missing) = (topic_of(&kind), s.topic("missing"));
    Broker::shared().create_topic(&good, 3);
    db.emit(&Emit {
        topic: Some(&missing),
        ..Emit::new(&kind, "x", "\"first\"")
    });
    // Between topics there is no order; but what waits holds back what comes after.
    db.wait_true("SELECT parked ->> 'topic' = '1' FROM outbox_status", seconds(20));
    for n in 0..5 {
        db.emit_one(&kind, "x", &n.to_string());
    }
    for n in 0..100 {
        db.emit_one(&kind, "y", &n.to_string());
    }
    Broker::shared().wait_count(&good, 100, seconds(20));
    let states = "SELECT array_agg(DISTINCT state ORDER BY state) FROM outbox_event WHERE aggregate_id = 'x'";
    db.wait_true(&format!("SELECT ({states}) = '{{behind,retrying}}'"), seconds(10));
    let_pass(seconds(3));
    let records = Broker::shared().read(&good);
    assert_eq!(records.len(), 100, "none of x");
    assert!(records.iter().all(|record| record.key_text() == "y"));
    Broker::shared().create_topic(&missing, 1);
    db.wait_drained(seconds(20));
    let records = [Broker::shared().read(&good), Broker::shared().read(&missing)].concat();
    let verdict = judge(&committed(&mut db), &records);
    verdict.assert_complete();
    verdict.assert_in_order();
    verdict.assert_no_duplicates();
    let order: bool = db.one(
        "SELECT (SELECT published_at FROM outbox_event WHERE topic IS NOT NULL)
              <= (SELECT min(published_at) FROM outbox_event WHERE aggregate_id = 'x' AND topic IS NULL)",
    );
    assert!(order, "the first one went first");
}

/// What can never be published is given up at once, with the reason; it holds its own aggregate.
fn unpublishable_events_are_given_up_visibly(name: &str) {
    let s = Scenario::with(name, &[("outbox_ext.max_message_bytes", "10000")]);
    s.allow("outbox_ext relay WARNING", "it says what was given up");
    let mut db = s.db();
    let kind = s.aggregate_type("good");
    let insert = |kind: &str, id: &str, payload: &str| {
        format!(
            "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload)
             VALUES ('{kind}', '{id}', 'Happened', {payload})"
        )
    };
    db.emit_one(&kind, "large", "\"first\"");
    // 6,000 characters of two bytes each.
    db.run(&insert(&kind, "large", "to_jsonb(repeat('é', 6000))"));
    db.emit_one(&kind, "large", "\"behind it\"");
    for illegal in ["Order Line", "a/b", "Zürich", "x;y"] {
        db.run(&insert(illegal, "1", "'{}'"));
    }
    db.run(&insert(&"a".repeat(250), "1", "'{}'"));
    // So large that the relay does not even write its text.
    db.run(&insert("huge", "1", "to_jsonb(repeat('x', 200000))"));
    for n in 0..200 {
        db.emit_one(&kind, &(n % 5).to_string(), &n.to_string());
    }
    let records = Broker::shared().wait_records(&topic_of(&kind), 201, seconds(20));
    assert_eq!(
        records.len(),
        201,
        "the first of the held aggregate and all of the others"
    );
    db.wait_true(
        "SELECT parked ->> 'failed' = '7' AND parked ->> 'behind' = '1' FROM outbox_status",
        seconds(10),
    );
    let errors: Vec<String> =
        db.all("SELECT last_error FROM outbox_event WHERE state = 'failed' ORDER BY aggregate_type");
    assert_eq!(errors.len(), 7);
    let large: String = db.one(&format!(
        "SELECT last_error FROM outbox_event WHERE state = 'failed' AND aggregate_type = '{kind}'"
    ));
    assert!(
        large.contains("10000") && large.contains("12"),
        "size and limit: {large}"
    );
}

/// A relay whose broker has gone silent holds neither a transaction nor a snapshot.
fn no_transaction_is_open_while_waiting_for_kafka(name: &str) {
    let silent = SilentBroker::start();
    let s = Scenario::with_brokers(name, silent.address(), &[]);
    s.allow("outbox_ext relay WARNING", "it says that the broker does not answer");
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    emit_many(&mut db, "silent", 0);
    wait("the relay to try", seconds(20), || {
        check(silent.connections() > 0, || db.status())
    });
    for _ in 0..200 {
        let old: i64 = db.one(
            "SELECT count(*) FROM pg_stat_activity
              WHERE backend_type LIKE 'outbox%' AND xact_start < clock_timestamp() - interval '1 s'",
        );
        assert_eq!(old, 0, "a worker of ours has a transaction older than a second");
        let_pass(Duration::from_millis(20));
    }
    assert_eq!(db.pending(), 1_000);
}
