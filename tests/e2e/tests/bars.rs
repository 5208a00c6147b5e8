//! What the relay must keep within, measured: the end of a long outage, a topic that cannot be written beside many that
//! can, memory.
//!
//! A run of all tests has the proportions at a fraction of the length; `OUTBOX_E2E_FULL=1` the full length (15 minutes of
//! outage, 10 of an unwritable topic, backlogs of millions).

use std::thread;
use std::time::{Duration, Instant};

use outbox_e2e::memory::{MemoryWatch, private_bytes};
use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::{check, let_pass};
use outbox_e2e::{Arrivals, Broker, Db, Scenario, committed, judge, seconds, wait};

trials![
    stops_broker outage_of_a_quarter_of_an_hour,
    stops_broker_alone unwritable_topic_beside_50_good_ones,
    alone memory_of_a_backlog,
    scenario memory_of_large_payloads,
    scenario memory_of_parked_events,
    alone memory_of_a_late_transaction,
];

const FULL: &str = "OUTBOX_E2E_FULL";

fn of(short: u64, full: u64) -> u64 {
    if std::env::var_os(FULL).is_some() { full } else { short }
}

/// However long no broker is there, nothing is lost, given up or counted, the log stays short,
/// and everything is published within a minute of its return.
fn outage_of_a_quarter_of_an_hour(name: &str) {
    let (length, events) = (seconds(of(20, 900)), of(20_000, 200_000));
    let broker = Broker::prepare();
    broker.start();
    let s = Scenario::with_brokers(name, broker.address(), &[]);
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    let kind = s.aggregate_type("outage");
    emit(&mut db, &kind, 100);
    db.wait_drained(seconds(20));
    let relay = db.relay();

    broker.stop();
    let began = Instant::now();
    let logged = lines_of_ours(&s);
    emit(&mut db, &kind, events);
    db.wait_state("outage", seconds(60));
    // Emitting goes on all the while.
    let mut slowest = Duration::ZERO;
    while began.elapsed() < length {
        let emitting = Instant::now();
        emit(&mut db, &kind, 1);
        slowest = slowest.max(emitting.elapsed());
        let_pass(Duration::from_millis(500));
    }
    let lines = lines_of_ours(&s) - logged;
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    let waiting: i64 = db.one("SELECT count(*) FROM outbox_log WHERE seq > (SELECT max(pos) FROM outbox_batch)");
    broker.start();
    let back = Instant::now();
    db.wait_drained(seconds(60));
    eprintln!(
        "  {name}: {waiting} events waited {:.0} s, published {:.1} s after the broker's return; {lines} lines in the log; \
         slowest emit {slowest:?}",
        60.0 * minutes,
        back.elapsed().as_secs_f64()
    );
    // Within the first minute the beginning is told as well.
    assert!(
        lines as f64 <= 10.0 * minutes.max(1.0),
        "{lines} lines in {minutes:.1} minutes"
    );
    assert_eq!(db.relay(), relay, "the same process all the while");
    let verdict = judge(&committed(&mut db), &broker.read(&topic_of(&kind)));
    verdict.assert_complete();
    verdict.assert_in_order();
    let untouched: bool = db.one(
        "SELECT bool_and(attempts = 0) AND NOT EXISTS (SELECT FROM outbox_parked)
            AND NOT EXISTS (SELECT FROM outbox_batch WHERE unparked IS NOT NULL) FROM outbox_event",
    );
    assert!(untouched, "no attempt was counted, nothing was ever parked");
    drop((db, s));
    broker.stop();
}

fn lines_of_ours(s: &Scenario) -> usize {
    s.cluster
        .log()
        .lines()
        .filter(|line| line.contains("outbox_ext "))
        .count()
}

fn emit(db: &mut Db, kind: &str, events: u64) {
    db.run(&format!(
        "SELECT count(outbox_emit('{kind}', (n % 300)::text, 'Happened', to_jsonb(n))) FROM generate_series(1, {events}) n"
    ));
}

/// Events a second over all topics, and how many sessions emit them.
const RATE: u64 = 500;
const SESSIONS: u64 = 4;
const GOOD: u64 = 50;

/// The good topics' latency with a topic beside them that may not be written, and without.
fn unwritable_topic_beside_50_good_ones(name: &str) {
    let length = seconds(of(8, 600));
    let broker = Broker::prepare_with(&[
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found=true",
        "num.partitions=1",
    ]);
    broker.start();
    let s = Scenario::with_brokers(name, broker.address(), &[]);
    s.allow("outbox_ext relay WARNING", "it names the topic that may not be written");
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    let good: Vec<String> = (0..GOOD).map(|n| s.aggregate_type(&format!("good-{n}"))).collect();
    let denied = s.aggregate_type("denied");
    let everywhere: Vec<String> = good.iter().chain([&denied]).cloned().collect();
    for kind in &everywhere {
        broker.create_topic(&topic_of(kind), 1);
    }
    let topics: Vec<String> = good.iter().map(|kind| topic_of(kind)).collect();
    // All lanes are warm, and so is the machine.
    latencies(&s, &broker, &topics, &everywhere, seconds(4));
    db.wait_drained(seconds(20));
    let without = latencies(&s, &broker, &topics, &good, length);

    broker.deny_writes(&topic_of(&denied));
    let before = broker.count(&topic_of(&denied));
    db.emit_one(&denied, "first", "0");
    db.wait_true("SELECT parked ->> 'topic' = '1' FROM outbox_status", seconds(30));
    let with = latencies(&s, &broker, &topics, &everywhere, length);
    assert_eq!(broker.count(&topic_of(&denied)), before, "nothing of it is published");
    let parked: i64 = db.one("SELECT count(*) FROM outbox_parked");
    broker.allow_writes(&topic_of(&denied));
    let mended = Instant::now();
    db.wait_drained(seconds(60));
    eprintln!(
        "  {name}: good topics without: {without}; with: {with}; {parked} events of the other waited and were published \
         within {:.1} s",
        mended.elapsed().as_secs_f64()
    );
    assert!(
        parked as u64 >= length.as_secs() * RATE / (GOOD + 1) / 2,
        "{parked} waited"
    );
    let records: Vec<_> = everywhere
        .iter()
        .flat_map(|kind| broker.read(&topic_of(kind)))
        .collect();
    let verdict = judge(&committed(&mut db), &records);
    verdict.assert_complete();
    verdict.assert_in_order();
    // In a short run one hiccup of the machine is the p99.
    let slack = Duration::from_millis(of(20, 0));
    assert!(with.p99 <= 2 * without.p99 + slack, "without: {without}; with: {with}");
    drop((db, s));
    broker.stop();
}

struct Latencies {
    events: usize,
    median: Duration,
    p99: Duration,
    worst: Duration,
}

impl std::fmt::Display for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Latencies {
            events,
            median,
            p99,
            worst,
        } = self;
        write!(f, "{events} events, median {median:?}, p99 {p99:?}, worst {worst:?}")
    }
}

/// Emits at `RATE` over these types for a time. Of a short run the beginning does not count: brokers and producers that have just begun are busy with
/// themselves for a part of a second, of which ten minutes show nothing. How long it took, for those that go to these topics, from before the emit
/// until a waiting consumer had the record.
fn latencies(s: &Scenario, broker: &Broker, topics: &[String], kinds: &[String], time: Duration) -> Latencies {
    let arrivals = Arrivals::watch(broker, topics);
    let sent: Vec<(String, Instant)> = thread::scope(|scope| {
        let writers: Vec<_> = (0..SESSIONS)
            .map(|session| {
                let db = s.db();
                scope.spawn(move || emit_at_rate(db, session, kinds, time))
            })
            .collect();
        let sent = writers.into_iter().flat_map(|writer| writer.join().expect("a writer"));
        sent.filter(|(kind, ..)| topics.contains(&topic_of(kind)))
            .map(|(_, id, at)| (id, at))
            .collect()
    });
    wait("the last record", seconds(30), || {
        check(arrivals.count() >= sent.len(), || {
            format!("{} of {}", arrivals.count(), sent.len())
        })
    });
    let arrived = arrivals.stop();
    let first = sent.iter().map(|(_, at)| *at).min().expect("some were sent");
    let counts_from = first + seconds(of(2, 0));
    let mut took: Vec<Duration> = sent
        .iter()
        .filter(|(_, at)| *at >= counts_from)
        .map(|(id, at)| arrived[id].duration_since(*at))
        .collect();
    took.sort_unstable();
    Latencies {
        events: took.len(),
        median: took[took.len() / 2],
        p99: took[took.len() * 99 / 100],
        worst: took[took.len() - 1],
    }
}

/// One session's share: type, id and time of each event.
fn emit_at_rate(mut db: Db, session: u64, kinds: &[String], time: Duration) -> Vec<(String, String, Instant)> {
    let began = Instant::now();
    let mut sent = Vec::new();
    while began.elapsed() < time {
        let n = sent.len() as u64;
        let due = began + Duration::from_micros(1_000_000 * SESSIONS * n / RATE);
        let_pass(due.saturating_duration_since(Instant::now()));
        let number = n * SESSIONS + session;
        let kind = &kinds[number as usize % kinds.len()];
        let at = Instant::now();
        let id = db.emit_one(kind, &format!("{session}-{}", n % 5), &number.to_string());
        sent.push((kind.clone(), id, at));
    }
    sent
}

const PRIVATE_MAX: u64 = 128 << 20;

/// A scenario whose relay is off at first, with its database.
fn switched_off(name: &str, settings: &[(&str, &str)]) -> (Scenario, Db) {
    let s = Scenario::with(name, &[&[("outbox_ext.enabled", "off")], settings].concat());
    s.allow("outbox_ext relay WARNING", "it names the topic that does not exist");
    let mut db = s.db();
    db.wait_state("disabled", seconds(10));
    (s, db)
}

/// Switches it on and watches its memory until all of `done` is true.
#[track_caller]
fn watch(name: &str, what: &str, s: &Scenario, db: &mut Db, done: &str, deadline: Duration) {
    let relay = db.relay();
    let before = private_bytes(relay);
    let memory = MemoryWatch::start(relay);
    s.cluster.configure(&[("outbox_ext.enabled", "on")]);
    s.cluster.reload();
    db.wait_true(done, deadline);
    let after = private_bytes(relay);
    let most = memory.stop();
    assert_eq!(db.relay(), relay, "the same process all the while");
    let megabytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    eprintln!(
        "  {name}: {what}: private memory {:.0} MB before, {:.0} MB at most, {:.0} MB after",
        megabytes(before),
        megabytes(most),
        megabytes(after)
    );
    assert!(most < PRIVATE_MAX, "{:.0} MB", megabytes(most));
}

const DRAINED: &str = "SELECT NOT EXISTS (SELECT FROM outbox_pending)";

fn memory_of_a_backlog(name: &str) {
    let events = of(100_000, 2_000_000);
    let (s, mut db) = switched_off(name, &[]);
    let kind = s.aggregate_type("backlog");
    db.run(&format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload)
         SELECT '{kind}', (n % 5000)::text, 'Happened', jsonb_build_object('n', n, 'filler', repeat('x', 200))
           FROM generate_series(1, {events}) n"
    ));
    watch(
        name,
        &format!("a backlog of {events}"),
        &s,
        &mut db,
        DRAINED,
        seconds(120),
    );
    assert_eq!(Broker::shared().count(&topic_of(&kind)) as u64, events);
}

fn memory_of_large_payloads(name: &str) {
    let events = of(50, 600);
    let (s, mut db) = switched_off(name, &[]);
    let kind = s.aggregate_type("large");
    db.run(&format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload)
         SELECT '{kind}', (n % 20)::text, 'Happened', to_jsonb(repeat(chr(65 + n % 26), 990000))
           FROM generate_series(1, {events}) n"
    ));
    let what = format!("{events} payloads of 990 kB");
    watch(name, &what, &s, &mut db, DRAINED, seconds(120));
    assert_eq!(Broker::shared().count(&topic_of(&kind)) as u64, events);
}

/// Half of them scheduled, half behind an event whose topic does not exist.
fn memory_of_parked_events(name: &str) {
    let events = of(20_000, 100_000);
    let (s, mut db) = switched_off(name, &[("outbox_ext.kafka_options", "allow.auto.create.topics=false")]);
    let [kind, missing] = ["parked", "missing"].map(|word| s.aggregate_type(word));
    Broker::shared().create_topic(&topic_of(&kind), 3);
    db.run(&format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, available_at)
         SELECT CASE n % 2 WHEN 0 THEN '{kind}' ELSE '{missing}' END, (n % 1000)::text, 'Happened',
                jsonb_build_object('n', n, 'filler', repeat('x', 200)),
                CASE n % 2 WHEN 0 THEN '2100-01-01'::timestamptz END
           FROM generate_series(1, {events}) n"
    ));
    let parked = format!("SELECT count(*) = {events} FROM outbox_parked");
    watch(
        name,
        &format!("parking {events} events"),
        &s,
        &mut db,
        &parked,
        seconds(120),
    );
    let relay = db.relay();
    let memory = MemoryWatch::start(relay);
    Broker::shared().create_topic(&topic_of(&missing), 3);
    let half = format!("SELECT count(*) = {} FROM outbox_parked", events / 2);
    db.wait_true(&half, seconds(120));
    let most = memory.stop();
    eprintln!(
        "  {name}: {:.0} MB at most when half of them were released",
        most as f64 / f64::from(1 << 20)
    );
    assert!(most < PRIVATE_MAX);
    assert_eq!(Broker::shared().count(&topic_of(&missing)) as u64, events / 2);
}

fn memory_of_a_late_transaction(name: &str) {
    let events = of(100_000, 1_000_000);
    let (s, mut db) = switched_off(name, &[]);
    let kind = s.aggregate_type("late");
    let mut slow = s.db();
    slow.run("BEGIN");
    slow.run(&format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload)
         SELECT '{kind}', (n % 5000)::text, 'Happened', jsonb_build_object('n', n, 'filler', repeat('x', 200))
           FROM generate_series(1, {events}) n"
    ));
    db.emit_one(&kind, "newer", "{}");
    watch(name, "a newer event", &s, &mut db, DRAINED, seconds(60));
    let relay = db.relay();
    let memory = MemoryWatch::start(relay);
    slow.run("COMMIT");
    db.wait_drained(seconds(120));
    let most = memory.stop();
    eprintln!(
        "  {name}: {events} late events: {:.0} MB at most",
        most as f64 / f64::from(1 << 20)
    );
    assert!(most < PRIVATE_MAX);
    assert_eq!(Broker::shared().count(&topic_of(&kind)) as u64, events + 1);
}
