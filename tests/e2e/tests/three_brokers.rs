//! Faults of a real cluster of three brokers, and of the links to them.

use std::collections::BTreeSet;
use std::time::Instant;

use outbox_e2e::proxy::{Direction, Flow};
use outbox_e2e::wait::{check, let_pass};
use outbox_e2e::{Record, committed, judge, seconds, wait};

use crate::stage::{PARTITIONS, Stage};

trials![
    stops_broker_alone three_brokers_one_down,
    stops_broker_alone three_brokers_too_few_replicas,
    stops_broker_alone three_brokers_leader_killed,
    stops_broker_alone three_brokers_leader_frozen,
    stops_broker_alone three_brokers_leader_moved,
    stops_broker_alone three_brokers_answers_lost,
    stops_broker_alone three_brokers_refusals,
    stops_broker_alone three_brokers_topic_recreated,
];

/// Connections that the brokers closed for idleness, and then a broker that is gone, are no outage: the next
/// event arrives within two seconds, by the same producer.
fn three_brokers_one_down(name: &str) {
    let mut stage = Stage::begin(name, &[]);
    let aggregates = stage.aggregate_by_partition();
    let token = stage.lease_token();
    // Longer than the brokers' connections.max.idle.ms.
    let_pass(seconds(7));
    for (partition, id) in &aggregates {
        let took = stage.round_trip(id, seconds(10));
        assert!(took < seconds(2), "after idleness to {partition}: {took:?}");
    }
    let down = stage.cluster.leader(&stage.topic, 0).id;
    stage.cluster.node(down).kill();
    wait("leaders elsewhere", seconds(30), || {
        let found = stage.cluster.kafka().partitions(&stage.topic)?;
        let all = found
            .iter()
            .all(|found| found.leader.is_some_and(|leader| leader != down));
        check(all, || format!("{found:?}"))
    });
    for (partition, id) in &aggregates {
        let took = stage.round_trip(id, seconds(10));
        assert!(took < seconds(2), "one broker down, to {partition}: {took:?}");
    }
    let state: String = stage.db.one("SELECT state FROM outbox_status");
    assert!(["idle", "running"].contains(&state.as_str()), "{state}");
    assert_eq!(stage.lease_token(), token, "no producer was rebuilt");
    stage.make_whole();
    stage.assert_unblamed();
}

/// One replica of three is left and two are asked for. An outage: nothing counts, and all arrive afterwards.
fn three_brokers_too_few_replicas(name: &str) {
    let mut stage = Stage::begin(name, &[]);
    let load = stage.load();
    stage.wait_more(500, seconds(30));
    let left = stage.cluster.leader(&stage.topic, 0).id;
    for node in stage.cluster.nodes().filter(|node| node.id != left) {
        node.kill();
    }
    let_pass(seconds(9));
    let waiting = stage.db.pending();
    assert!(
        waiting > 1_000,
        "nothing can be acknowledged now, and only {waiting} wait"
    );
    stage.assert_unblamed();
    let verdict = stage.finish(load);
    eprintln!("  {name}: {waiting} waited; {}", verdict.summary());
}

/// The leader of two partitions dies at once, twice over. Nothing that counts as published is missing.
fn three_brokers_leader_killed(name: &str) {
    let mut stage = Stage::begin(name, &[]);
    let load = stage.load();
    for partition in 0..2 {
        stage.wait_more(500, seconds(60));
        let node = stage.cluster.leader(&stage.topic, partition);
        node.kill();
        let published: Vec<String> = stage
            .db
            .all("SELECT event_id::text FROM outbox_event WHERE state = 'published'");
        stage.wait_more(500, seconds(60));
        stage.make_whole();
        let there: BTreeSet<String> = stage.records().iter().map(|record| record.id().to_owned()).collect();
        let missing: Vec<&String> = published.iter().filter(|id| !there.contains(*id)).collect();
        assert!(missing.is_empty(), "published and not there: {missing:?}");
    }
    stage.finish(load);
}

/// The leader stands still, its connections open: another leads once the controller has missed it, and the relay
/// follows when its requests have timed out.
fn three_brokers_leader_frozen(name: &str) {
    let mut stage = Stage::begin(name, &[("outbox_ext.kafka_options", "socket.timeout.ms=4000")]);
    let load = stage.load();
    stage.wait_more(500, seconds(30));
    let node = stage.cluster.leader(&stage.topic, 0);
    node.freeze();
    let_pass(seconds(10));
    stage.wait_more(500, seconds(20));
    node.thaw();
    stage.finish(load);
}

/// An administrator has other brokers lead: not an event is sent twice.
fn three_brokers_leader_moved(name: &str) {
    let mut stage = Stage::begin(name, &[]);
    let load = stage.load();
    stage.wait_more(500, seconds(30));
    for partition in 0..2 {
        let to = stage.cluster.leader(&stage.topic, partition).id % 3 + 1;
        stage.cluster.move_leader(&stage.topic, partition, to);
        stage.wait_more(500, seconds(30));
    }
    stage.finish(load).assert_no_duplicates();
}

/// The brokers store what they get, and no answer comes back for longer than a request may take. What is sent
/// again has the same id, and an inbox takes each once.
fn three_brokers_answers_lost(name: &str) {
    let mut stage = Stage::begin(name, &[("outbox_ext.kafka_options", "socket.timeout.ms=3000")]);
    let load = stage.load();
    stage.wait_more(500, seconds(30));
    for _ in 0..2 {
        for node in stage.cluster.nodes() {
            node.link.set(Direction::ToClient, Flow::Held);
        }
        let_pass(seconds(7));
        for node in stage.cluster.nodes() {
            // The answers that were on their way are gone, as is the connection.
            node.link.cut();
            node.link.heal();
        }
        stage.wait_more(500, seconds(30));
    }
    // A relay that must begin anew does not know what was stored: its duplicates are the brokers' lost answers.
    for node in stage.cluster.nodes() {
        node.link.set(Direction::ToClient, Flow::Held);
    }
    let_pass(seconds(1));
    stage
        .db
        .all::<bool>("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%relay%'");
    let_pass(seconds(1));
    for node in stage.cluster.nodes() {
        node.link.heal();
    }
    let verdict = stage.finish(load);
    assert!(verdict.duplicates > 0, "nothing came twice: {}", verdict.summary());
    let ids: Vec<String> = stage.records().iter().map(|record| record.id().to_owned()).collect();
    let accepted: i64 = stage.db.one_with(
        "SELECT count(*) FROM unnest($1::text[]) id WHERE inbox_try_consume('consumer', id::uuid)",
        &[&ids],
    );
    assert_eq!(accepted as usize, verdict.committed, "each once");
}

/// Codes of Kafka's protocol that end a producer, or say that a record may be at fault.
const REFUSALS: [(i16, &str); 11] = [
    (-1, "unknown server error"),
    (10, "message too large"),
    (29, "topic authorization failed"),
    (31, "cluster authorization failed"),
    (44, "policy violation"),
    (45, "out of order sequence"),
    (46, "duplicate sequence"),
    (47, "invalid producer epoch"),
    (59, "unknown producer id"),
    (87, "invalid record"),
    (89, "throttling quota exceeded"),
];

/// A hundred events of five aggregates are with the producer, and one or a few requests are refused before the
/// broker sees them. What follows is the broker's to judge. The relay goes on, in order; a record is blamed only for a
/// refusal of its own, when it was sent alone.
fn three_brokers_refusals(name: &str) {
    let mut stage = Stage::begin(
        name,
        &[
            ("outbox_ext.retry_backoff", "20ms"),
            ("outbox_ext.retry_backoff_max", "200ms"),
        ],
    );
    stage.aggregate_by_partition();
    let relay = stage.db.relay();
    for (code, what) in REFUSALS {
        let lines = stage.relay_lines();
        let blamed = stage.attempts();
        let began = Instant::now();
        // A denied topic comes and goes with its partitions' sequence numbers: by chance it is in time for a loss.
        let rounds = if code == DENIED { DENIED_ROUNDS } else { REFUSAL_ROUNDS };
        for round in 0..rounds {
            for node in stage.cluster.nodes() {
                node.link.refuse(code, 1 + round % 2);
            }
            for _ in 0..2 {
                stage.db.run(&format!(
                    "SELECT outbox_emit('{}', (n % 5)::text, 'Happened', to_jsonb(n)) FROM generate_series(1, 50) n",
                    stage.kind
                ));
            }
            stage.db.wait_drained(seconds(30));
        }
        let verdict = judge(&committed(&mut stage.db), &stage.records());
        eprintln!(
            "  {name}: {what} ({code}): {:?}, {} lines, {}",
            began.elapsed() / rounds as u32,
            stage.relay_lines() - lines,
            verdict.summary()
        );
        verdict.assert_complete();
        verdict.assert_in_order();
        if !BLAMING.contains(&code) {
            assert_eq!(stage.attempts(), blamed, "{what}: attempts are not used up");
        }
        for node in stage.cluster.nodes() {
            node.link.heal();
        }
    }
    assert_eq!(stage.db.relay(), relay, "the same process");
    assert_eq!(stage.db.pending(), 0, "nothing was given up");
}

const REFUSAL_ROUNDS: usize = 2;
const DENIED: i16 = 29;
const DENIED_ROUNDS: usize = 8;
/// Of these codes, those that blame a record.
const BLAMING: [i16; 3] = [10, 44, 87];

/// A topic is deleted and made again with more partitions while events flow. What it held is gone with it, as
/// Kafka's users know; whatever counts as published later is on the new one.
fn three_brokers_topic_recreated(name: &str) {
    let mut stage = Stage::begin(
        name,
        &[
            ("outbox_ext.kafka_options", "allow.auto.create.topics=false"),
            ("outbox_ext.retry_backoff_max", "1s"),
        ],
    );
    let load = stage.load();
    // More batches than are known again by place and size: else one of the new topic's may by chance be taken for one of the old.
    stage.wait_more(8_000, seconds(60));
    stage.cluster.kafka().delete_topics(&[&stage.topic]);
    // The brokers delete at their leisure, and acknowledge until then.
    let_pass(seconds(1));
    let last_vanished: i64 = stage.db.one("SELECT max(seq) FROM outbox_log");
    let_pass(seconds(2));
    stage.cluster.kafka().create_topic(&stage.topic, 2 * PARTITIONS);
    let made = Instant::now();
    stage.wait_more(500, seconds(60));
    eprintln!("  {name}: it flows {:?} after the topic was made", made.elapsed());
    load.stop();
    stage.make_whole();
    stage.db.wait_drained(seconds(60));
    stage.assert_unblamed();
    let records = stage.records();
    let verdict = judge(&committed(&mut stage.db), &records);
    eprintln!("  {name}: {}", verdict.summary());
    verdict.assert_in_order();
    assert!(verdict.phantom.is_empty() && verdict.altered.is_empty());
    let there: BTreeSet<&str> = records.iter().map(Record::id).collect();
    // What was acknowledged by the old topic up to its very end is gone with it. Nothing that was emitted later is.
    let lost_later: Vec<i64> = committed(&mut stage.db)
        .iter()
        .filter(|event| event.seq > last_vanished && !there.contains(event.id.as_str()))
        .map(|event| event.seq)
        .collect();
    assert!(
        lost_later.is_empty(),
        "{} missing that were emitted after the topic was deleted",
        lost_later.len()
    );
}
