//! Faults of a real cluster of three brokers, and of the links to them.
//!
//! The cluster is shared: each scenario runs alone and leaves it whole (`Stage` sees to it).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use outbox_e2e::judge::counters_backwards;
use outbox_e2e::proxy::{Direction, Flow};
use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::{check, let_pass};
use outbox_e2e::{Db, KafkaCluster, Record, Scenario, Verdict, committed, judge, seconds, wait};

use crate::load::{Commits, Load, counter};

trials![
    stops_broker_alone three_brokers_one_down,
    stops_broker_alone three_brokers_too_few_replicas,
    stops_broker_alone three_brokers_leader_killed,
    stops_broker_alone three_brokers_leader_frozen,
    stops_broker_alone three_brokers_leader_moved,
    stops_broker_alone three_brokers_answers_lost,
    stops_broker_alone three_brokers_refusals,
    stops_broker_alone three_brokers_topic_recreated,
    stops_broker_alone three_brokers_stuck_partition,
    stops_broker_alone three_brokers_stuck_partition_under_load,
    stops_broker_alone three_brokers_stuck_partition_fills_the_producer,
];

/// A scenario on the shared cluster, with one topic of six partitions, two led by each broker.
struct Stage {
    s: Scenario,
    db: Db,
    cluster: &'static KafkaCluster,
    kind: String,
    topic: String,
}

const PARTITIONS: i32 = 6;

impl Stage {
    fn begin(name: &str, settings: &[(&str, &str)]) -> Stage {
        let cluster = KafkaCluster::shared();
        let s = Scenario::with_brokers(name, &cluster.address(), settings);
        s.allow("outbox_ext relay WARNING", "it says what holds it up");
        let mut db = s.db();
        db.run("CREATE EXTENSION outbox_ext");
        let kind = s.aggregate_type("cluster");
        let topic = topic_of(&kind);
        cluster.kafka().create_topic(&topic, PARTITIONS);
        let mut stage = Stage {
            s,
            db,
            cluster,
            kind,
            topic,
        };
        stage.make_whole();
        stage
    }

    fn make_whole(&mut self) {
        self.cluster.make_whole(std::slice::from_ref(&self.topic));
    }

    fn load(&self) -> Load {
        Load::start(&self.s, 4, std::slice::from_ref(&self.kind), Commits::Mixed)
    }

    fn records(&self) -> Vec<Record> {
        self.cluster.kafka().read(&self.topic)
    }

    /// Waits for so many more records than there are now.
    #[track_caller]
    fn wait_more(&self, more: usize, deadline: Duration) {
        let now = wait("a count", seconds(30), || self.try_count());
        wait(&format!("{more} more records"), deadline, || {
            let count = self.try_count()?;
            check(count >= now + more, || format!("{} more", count.saturating_sub(now)))
        });
    }

    fn try_count(&self) -> Result<usize, String> {
        self.cluster.kafka().try_count(&self.topic)
    }

    /// Puts the cluster right, waits for the rest, and judges it by seq and by the writers' counters.
    #[track_caller]
    fn finish(&mut self, load: Load) -> Verdict {
        let written = load.stop();
        self.make_whole();
        let (verdict, records) = self.s.judge_all_on(self.cluster.kafka(), &mut self.db, seconds(60));
        written.assert_all_in(&mut self.db);
        let backwards = counters_backwards(&records, counter);
        assert!(backwards.is_empty(), "{backwards:#?}");
        self.assert_unblamed();
        verdict
    }

    /// No attempt was used up, nothing was given up, nothing stays parked.
    #[track_caller]
    fn assert_unblamed(&mut self) {
        assert_eq!(self.attempts(), 0, "attempts are not used up");
        let parked: i64 = self.db.one("SELECT count(*) FROM outbox_parked");
        assert_eq!(parked, 0, "nothing stays parked");
    }

    fn attempts(&mut self) -> i64 {
        self.db
            .one("SELECT COALESCE(sum(attempts), 0)::bigint FROM outbox_event")
    }

    fn relay_lines(&self) -> usize {
        let log = self.s.cluster.log();
        log.lines().filter(|line| line.contains("outbox_ext relay")).count()
    }

    fn lease_token(&mut self) -> String {
        self.db.one("SELECT lease_token::text FROM outbox_lease")
    }

    /// Emits and waits until the record is there; how long that took.
    #[track_caller]
    fn round_trip(&mut self, id: &str, deadline: Duration) -> Duration {
        let mut ends = self.cluster.kafka().live_end(&self.topic);
        let began = Instant::now();
        let event = self.db.emit_one(&self.kind, id, "1");
        while ends.next(deadline.saturating_sub(began.elapsed())).id() != event {}
        began.elapsed()
    }

    /// One aggregate for each partition, by publishing a few and looking where they went.
    fn aggregate_by_partition(&mut self) -> BTreeMap<i32, String> {
        for n in 0..60 {
            self.db.emit_one(&self.kind, &format!("probe-{n}"), "0");
        }
        self.db.wait_drained(seconds(20));
        let found: BTreeMap<i32, String> = self
            .records()
            .iter()
            .map(|record| (record.partition, record.key_text().to_owned()))
            .collect();
        assert_eq!(found.len(), PARTITIONS as usize, "each partition got one");
        found
    }
}

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

/// The link to the leader of some partitions is a black hole; it still leads them. All the others flow as ever, and
/// when it answers again its own arrive in order.
fn three_brokers_stuck_partition(name: &str) {
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
fn three_brokers_stuck_partition_under_load(name: &str) {
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
fn three_brokers_stuck_partition_fills_the_producer(name: &str) {
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

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The next scenario needs its brokers all the same.
            for node in self.cluster.nodes() {
                node.link.heal();
                node.thaw();
            }
        }
    }
}
