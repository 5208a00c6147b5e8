//! What the extension costs when little happens: latency, idle work, lines in the log.

use std::time::{Duration, Instant};

use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::let_pass;
use outbox_e2e::{Broker, Db, Scenario, seconds};

trials![
    alone latency_of_a_single_event,
    alone idle_uses_no_transaction_ids_and_no_wal,
    alone one_event_then_silence,
    scenario usual_work_logs_next_to_nothing,
    alone waiting_does_not_spin,
    stops_broker outage_does_not_spin,
];

/// From the commit's return to the record in a waiting consumer's hands. The bound is loose: it catches a lost wake-up,
/// the benchmark measures.
fn latency_of_a_single_event(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("latency");
    db.emit_one(&kind, "1", "\"creates the topic\"");
    db.wait_drained(seconds(20));
    let mut consumer = Broker::shared().live(&topic_of(&kind));
    consumer.next(seconds(20));
    // One aggregate, one partition: after the first the producer is warm.
    let mut took: Vec<Duration> = (0..60)
        .map(|_| {
            let id = db.emit_one(&kind, "1", "{}");
            let committed = Instant::now();
            let record = consumer.next(seconds(10));
            assert_eq!(record.id(), id);
            committed.elapsed()
        })
        .skip(10)
        .collect();
    took.sort_unstable();
    let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
    eprintln!("  latency: median {median:?}, worst {worst:?}");
    assert!(median < Duration::from_millis(50), "median {median:?}, worst {worst:?}");
}

/// The server's own writers of WAL are switched off, so that every byte would be ours.
fn idle_uses_no_transaction_ids_and_no_wal(name: &str) {
    let s = Scenario::with(
        name,
        &[
            ("wal_level", "minimal"),
            ("max_wal_senders", "0"),
            ("autovacuum", "off"),
            ("checkpoint_timeout", "1h"),
            ("outbox_ext.poll_interval", "500ms"),
        ],
    );
    let mut db = s.db();
    db.emit_one(&s.aggregate_type("idle"), "1", "{}");
    db.wait_drained(seconds(20));
    db.wait_state("idle", seconds(10));
    // The relay's last settle is asynchronous: it is in the WAL's buffers, which the pointer counts, at once.
    let before = used(&mut db);
    let_pass(seconds(10));
    assert_eq!(
        used(&mut db),
        before,
        "transaction id and end of WAL after 10 s of nothing"
    );
}

/// The next transaction id and the end of WAL, by a query that uses neither.
fn used(db: &mut Db) -> (String, String) {
    let rows = db.rows("SELECT pg_snapshot_xmax(pg_current_snapshot())::text, pg_current_wal_insert_lsn()::text");
    (rows[0].get(0), rows[0].get(1))
}

/// The acknowledgement is noticed when it comes, not with the next event.
fn one_event_then_silence(name: &str) {
    let s = Scenario::with(name, &[("outbox_ext.poll_interval", "60s")]);
    let mut db = s.db();
    let kind = s.aggregate_type("single");
    db.emit_one(&kind, "1", "\"creates the topic\"");
    db.wait_drained(seconds(20));
    for _ in 0..3 {
        let id = db.emit_one(&kind, "1", "{}");
        let sql = format!("SELECT published_at IS NOT NULL FROM outbox_event WHERE event_id = '{id}'");
        db.wait_true(&sql, seconds(2));
        assert_eq!(
            db.one::<String>("SELECT state FROM outbox_event WHERE published_at IS NOT NULL LIMIT 1"),
            "published"
        );
    }
}

/// A day like any other: events, a reload, a restart. Each line of ours must be worth reading.
fn usual_work_logs_next_to_nothing(name: &str) {
    let s = Scenario::begin(name);
    let kind = s.aggregate_type("usual");
    for _ in 0..2 {
        let mut db = s.db();
        for n in 0..500 {
            db.emit_one(&kind, &(n % 20).to_string(), &n.to_string());
        }
        s.cluster.reload();
        db.wait_drained(seconds(20));
        drop(db);
        s.cluster.stop(outbox_e2e::Stop::Fast);
        s.cluster.start();
    }
    s.judge_all(&mut s.db(), seconds(20));
    let log = s.cluster.log();
    let ours: Vec<&str> = log.lines().filter(|line| line.contains("] outbox_ext ")).collect();
    assert!(
        ours.len() <= 20,
        "{} lines of ours for three starts:\n{}",
        ours.len(),
        ours.join("\n")
    );
}

/// A relay that may not send what is due, or nothing at all, sleeps: it neither reads in vain again and again nor is woken by each commit.
fn waiting_does_not_spin(name: &str) {
    let s = Scenario::begin(name);
    s.allow("outbox_ext publishes nothing", "the stop is said once");
    let mut db = s.db();
    let kind = s.aggregate_type("spin");
    db.emit_one(&kind, "1", "{}");
    db.wait_drained(seconds(20));

    // An event falls due while foreign rows have stopped everything.
    db.run(&format!(
        "SELECT outbox_emit('{kind}', '2', 't', '{{}}', available_at => now() + interval '1 second')"
    ));
    db.run(&format!(
        "INSERT INTO outbox_log (aggregate_type, aggregate_id, event_type, payload, xid) VALUES ('{kind}', '3', 't', '{{}}', '3')"
    ));
    db.wait_state("foreign rows", seconds(10));
    let_pass(seconds(2));
    assert_mostly_asleep(&mut db, "a due event behind a stop");
    db.run("SELECT outbox_arm()");
    db.wait_drained(seconds(20));

    // A scheduled event is deleted by a transaction that tells nobody.
    db.run(&format!(
        "SELECT outbox_emit('{kind}', '4', 't', '{{}}', available_at => now() + interval '2 seconds')"
    ));
    db.wait_true("SELECT EXISTS (SELECT FROM outbox_parked)", seconds(10));
    db.run("BEGIN; DELETE FROM outbox_log WHERE available_at > now(); PREPARE TRANSACTION 'quiet'");
    db.run("COMMIT PREPARED 'quiet'");
    let_pass(seconds(3));
    assert_mostly_asleep(&mut db, "a parked row without its event");

    // Nothing can be published, and many emit.
    db.run("ALTER SYSTEM SET outbox_ext.enabled = off");
    s.cluster.reload();
    db.wait_state("disabled", seconds(10));
    let before = cpu_ms(&mut db);
    for _ in 0..2_000 {
        db.emit_one(&kind, "5", "{}");
    }
    let spent = cpu_ms(&mut db) - before;
    assert!(
        spent < 200,
        "{spent} ms of CPU for 2,000 commits that a switched off relay has no use for"
    );
}

/// While no broker answers and events are out, the relay sleeps; and what it did carefully before does not keep it from seeing the end.
fn outage_does_not_spin(name: &str) {
    let broker = Broker::prepare();
    broker.start();
    let s = Scenario::with_brokers(name, broker.address(), &[("outbox_ext.max_attempts", "1")]);
    s.allow(
        "outbox_ext relay WARNING",
        "it says that no broker answers, and what was given up",
    );
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    let [kind, narrow] = ["outage", "narrow"].map(|word| s.aggregate_type(word));
    broker.create_topic(&topic_of(&kind), 2);
    broker.create_narrow_topic(&topic_of(&narrow), 1, "2000");
    let mut random = outbox_e2e::Random::from_clock();
    let noise = random.noise();
    // Refused in the end by the careful producer, which sends nothing more afterwards.
    db.emit_one(&narrow, "refused", &format!("\"{noise}\""));
    db.wait_true("SELECT parked ->> 'failed' = '1' FROM outbox_status", seconds(20));
    db.emit_one(&kind, "1", "{}");
    db.wait_true("SELECT waiting = 0 AND state = 'idle' FROM outbox_status", seconds(20));

    broker.stop();
    for n in 0..50 {
        db.emit_one(&kind, "1", &n.to_string());
    }
    db.wait_state("outage", seconds(60));
    // The next look for partitions that do not answer would be due.
    let_pass(seconds(3));
    assert_mostly_asleep(&mut db, "an outage with events out");

    broker.start();
    db.wait_true("SELECT waiting = 0 AND state = 'idle' FROM outbox_status", seconds(60));
    drop((db, s));
    broker.stop();
}

fn assert_mostly_asleep(db: &mut Db, when: &str) {
    let before = cpu_ms(db);
    let_pass(seconds(3));
    let spent = cpu_ms(db) - before;
    assert!(spent < 600, "{when}: {spent} ms of CPU in 3 s");
}

/// CPU time of the relay's process so far, its threads included.
fn cpu_ms(db: &mut Db) -> u64 {
    let pid: i32 = db.all("SELECT relay_pid FROM outbox_status")[0];
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the relay runs");
    // Fields 14 and 15, counted from behind the name, which may hold blanks: user and system time in ticks of 10 ms.
    let fields: Vec<&str> = stat[stat.rfind(')').expect("a name in parentheses") + 2..]
        .split(' ')
        .collect();
    let ticks = |field: usize| fields[field].parse::<u64>().expect("a number");
    (ticks(11) + ticks(12)) * 10
}
