//! Partitions whose broker does not answer, though it leads them, while the other brokers do.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use outbox_e2e::proxy::Flow;
use outbox_e2e::seconds;
use outbox_e2e::wait::let_pass;

use crate::stage::{PARTITIONS, Stage};

trials![
    stops_broker_alone stuck_partition,
    stops_broker_alone stuck_partition_under_load,
    stops_broker_alone stuck_partition_fills_the_producer,
];

/// The link to the leader of some partitions is a black hole; it still leads them. All the others flow as ever, and
/// when it answers again its own arrive in order.
fn stuck_partition(name: &str) {
    let mut stage = Stage::begin(
        name,
        &[
            ("outbox_ext.partition_stall", "3s"),
            ("outbox_ext.lease_duration", "5s"),
        ],
    );
    let aggregates = stage.aggregate_by_partition();
    let stuck = stage.cluster.leader(&stage.topic, 0);
    let of_stuck: BTreeSet<i32> = (0..PARTITIONS)
        .filter(|partition| stage.cluster.leader(&stage.topic, *partition).id == stuck.id)
        .collect();
    let (bad, good): (Vec<_>, Vec<_>) = aggregates
        .iter()
        .partition(|(partition, _)| of_stuck.contains(partition));
    assert!(!bad.is_empty() && !good.is_empty());
    for round in 0..2 {
        stuck.link.set_both(Flow::Held);
        let began = Instant::now();
        let mut slowest = Duration::ZERO;
        let mut n = 0;
        // Before it counts as stalled, at that moment, and after.
        while began.elapsed() < seconds(9) {
            for (_, id) in &bad {
                stage.db.emit_one(&stage.kind, id, &n.to_string());
            }
            for (_, id) in &good {
                slowest = slowest.max(stage.round_trip(id, seconds(5)));
            }
            n += 1;
            let_pass(Duration::from_millis(50));
        }
        assert!(slowest < seconds(1), "a stranger's event took {slowest:?}");
        stage.db.wait_true(
            "SELECT (parked ->> 'partition')::int > 0 AND last_error LIKE '%set aside%' FROM outbox_status",
            seconds(5),
        );
        if round == 1 {
            // A new relay finds what is parked in the table.
            stage.db.all::<bool>(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%relay%'",
            );
            stage.db.relay();
        }
        let parked: i64 = stage.db.one("SELECT count(*) FROM outbox_parked");
        stuck.link.heal();
        let healed = Instant::now();
        stage.db.wait_drained(seconds(60));
        eprintln!(
            "  {name}: a stranger's event took at most {slowest:?}; {parked} parked, all there {:?} after it answered",
            healed.elapsed()
        );
    }
    let (verdict, _) = stage.s.judge_all_on(stage.cluster.kafka(), &mut stage.db, seconds(20));
    eprintln!("  {name}: {}", verdict.summary());
    stage.assert_unblamed();
}

/// The same under load: when the partition answers again, what was set aside and what waits behind it catches up though
/// the load goes on.
fn stuck_partition_under_load(name: &str) {
    let mut stage = Stage::begin(name, &[("outbox_ext.partition_stall", "3s")]);
    let load = stage.load();
    stage.wait_more(500, seconds(30));
    let stuck = stage.cluster.leader(&stage.topic, 0);
    stuck.link.set_both(Flow::Held);
    let_pass(seconds(6));
    stuck.link.heal();
    let healed = Instant::now();
    stage.db.wait_true(
        "SELECT COALESCE(oldest_due_age < '1 s', true) FROM outbox_status",
        seconds(20),
    );
    eprintln!("  {name}: caught up {:?} after it answered", healed.elapsed());
    stage.finish(load);
}

/// What comes for a partition that does not answer fills what the producer may hold. The relay gives that producer up, and
/// the others flow; what follows for the partition is set aside without filling the next one.
fn stuck_partition_fills_the_producer(name: &str) {
    let mut stage = Stage::begin(
        name,
        &[
            ("outbox_ext.partition_stall", "1s"),
            ("outbox_ext.max_in_flight_bytes", "128kB"),
            ("outbox_ext.max_message_bytes", "4kB"),
        ],
    );
    let aggregates = stage.aggregate_by_partition();
    let stuck = stage.cluster.leader(&stage.topic, 0);
    let others = aggregates
        .iter()
        .find(|(partition, _)| stage.cluster.leader(&stage.topic, **partition).id != stuck.id);
    let (bad, good) = (&aggregates[&0], others.expect("partitions of the other brokers").1);
    let first = stage.lease_token();
    stuck.link.set_both(Flow::Held);
    let mut tokens = Vec::new();
    for _ in 0..3 {
        for _ in 0..20 {
            stage.db.run(&format!(
                "SELECT outbox_emit('{}', '{bad}', 'Happened', to_jsonb(repeat('x', 1000))) FROM generate_series(1, 20)",
                stage.kind
            ));
            let took = stage.round_trip(good, seconds(10));
            assert!(took < seconds(3), "a stranger's event took {took:?}");
            let_pass(Duration::from_millis(200));
        }
        stage.db.wait_true(
            "SELECT NOT EXISTS (SELECT FROM outbox_pending WHERE state IN ('pending', 'leased'))",
            seconds(10),
        );
        tokens.push(stage.lease_token());
    }
    assert_ne!(tokens[0], first, "a new producer, without what the old one held");
    assert_eq!(tokens[0], tokens[2], "and no further one");
    stuck.link.heal();
    stage.s.judge_all_on(stage.cluster.kafka(), &mut stage.db, seconds(60));
    stage.assert_unblamed();
}
