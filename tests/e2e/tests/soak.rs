//! The soak: a load of writers, an inbox consumer, retention of seconds, and one fault after the other, drawn from a
//! seed; then the judge.
//!
//! `make soak SECONDS=1800 SEED=1` runs it for half an hour; `make test` for a minute or so. The seed and every fault are
//! printed with their time; the figures go to target/soak/report.md.

mod acts;
mod plan;
mod report;
mod watch;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outbox_e2e::audit::{explain, not_applied_once, now_ms, published_too_early, rolled_back_and_published};
use outbox_e2e::judge::{counters_backwards, counters_backwards_by_partition};
use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::let_pass;
use outbox_e2e::{KafkaCluster, Random, Record, Scenario, judge, seconds, shell};

use self::acts::{Acts, Done};
use self::plan::Plan;
use self::report::Figures;
use crate::load::{Load, counter, finish_prepared, written};

trials![stops_broker_alone soak_complete_and_in_order];

/// Seconds of faults, and the seed to draw them from.
const SECONDS: &str = "OUTBOX_E2E_SOAK_SECONDS";
const SEED: &str = "OUTBOX_E2E_SOAK_SEED";
const SECONDS_DEFAULT: u64 = 60;

const WRITERS: u64 = 8;
/// Between two transactions of a writer, on average: less than the machine can do, so that what piles up in a fault goes
/// again on two cores that also carry the brokers.
const REST: Duration = Duration::from_millis(10);
const LEASE_SECONDS: u64 = 3;
/// From the server's taking connections to the first record, after the relay was killed.
const FIRST_RECORD_MS_MAX: i64 = 5_000;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Requests time out sooner than by default, so that a run of a minute sees it. `variant` changes something harmless.
fn kafka_options(variant: i32) -> String {
    format!("allow.auto.create.topics=false, socket.timeout.ms=5000, client.id=soak-{variant}")
}

/// With the time of the append: the judge needs it.
fn create_topic(cluster: &KafkaCluster, topic: &str, partitions: i32) {
    cluster
        .kafka()
        .create_topic_with(topic, partitions, "message.timestamp.type", "LogAppendTime");
}

fn soak_complete_and_in_order(name: &str) {
    let length = variable(SECONDS).unwrap_or(SECONDS_DEFAULT);
    let seed = variable(SEED).unwrap_or_else(|| Random::from_clock().draw() % 1_000_000);
    eprintln!("  {name}: seed {seed}, {length} seconds");
    let cluster = KafkaCluster::shared();
    cluster.make_whole(&[]);
    let s = begin(name, cluster);
    let steady: Vec<String> = ["order", "payment", "parcel"].map(|word| s.aggregate_type(word)).into();
    let growing = s.aggregate_type("growing");
    for kind in &steady {
        create_topic(cluster, &topic_of(kind), 6);
    }
    create_topic(cluster, &topic_of(&growing), 3);
    let stop = Arc::new(AtomicBool::new(false));
    let consumers: Vec<_> = steady
        .iter()
        .map(|kind| watch::consume(&s.cluster, cluster.kafka(), &topic_of(kind), &stop))
        .collect();
    let sampler = watch::sample(&s.cluster, &stop);
    let types = [&steady[..], std::slice::from_ref(&growing)].concat();
    let load = Load::start_paced(&s, WRITERS, &types, REST);
    let mut acts = Acts {
        s: &s,
        cluster,
        steady: topic_of(&steady[0]),
        growing: topic_of(&growing),
        late_types: Vec::new(),
        done: Vec::new(),
    };
    let mut plan = Plan::new(seed, length);
    let began = Instant::now();
    let began_ms = now_ms();
    loop {
        let step = plan.next();
        let_pass(step.pause);
        if began.elapsed() >= seconds(length) {
            break;
        }
        let meanwhile = step
            .meanwhile
            .map_or(String::new(), |kind| format!(", meanwhile {}", kind.name()));
        eprintln!(
            "  {name}: {:6.1} s: {} (broker {}, {:?}){meanwhile}",
            began.elapsed().as_secs_f64(),
            step.kind.name(),
            step.broker,
            step.lasts
        );
        acts.act(step);
    }

    let told = load.stop();
    cluster.make_whole(&types.iter().map(|kind| topic_of(kind)).collect::<Vec<_>>());
    let mut db = acts.connect();
    finish_prepared(&mut db);
    db.wait_drained(seconds(120));
    stop.store(true, Ordering::Relaxed);
    let samples = sampler.join().expect("the sampler");
    consumers
        .into_iter()
        .for_each(|consumer| consumer.join().expect("a consumer"));

    let in_order = [&steady[..], &acts.late_types].concat();
    let read = |kinds: &[String]| -> Vec<Record> {
        let each = kinds.iter();
        each.flat_map(|kind| cluster.kafka().read(&topic_of(kind))).collect()
    };
    let records = read(&in_order);
    let verdict = judge(&written(&mut db, &in_order), &records);
    let moved = read(std::slice::from_ref(&growing));
    let verdict_moved = judge(&written(&mut db, std::slice::from_ref(&growing)), &moved);
    let applied: Vec<String> = db.all("SELECT event_id::text FROM applied");
    let to_apply = written(&mut db, &steady).into_iter().map(|event| event.id);
    let not_once = not_applied_once(&applied, to_apply);
    let backwards = [
        counters_backwards(&records, counter),
        counters_backwards_by_partition(&moved, counter),
    ]
    .concat();
    let all = [records, moved].concat();
    let faults: Vec<_> = acts.done.iter().map(|done| done.fault.clone()).collect();
    let repeats = explain(&all, &faults);
    let excessive = repeats.excessive(&faults);
    let early = published_too_early(&all, &samples);
    let rolled_back = rolled_back_and_published(&all, &told.rolled_back);
    let first_after_ms = first_after(&all, &acts.done);
    let left: i64 = db.one("SELECT count(*) FROM outbox_log");
    let attempts: i64 = db.one("SELECT count(*) FROM outbox_event WHERE attempts > 0");
    let parked: i64 = db.one("SELECT count(*) FROM outbox_parked");
    let log = s.cluster.log();
    let relay_lines = log.lines().filter(|line| line.contains("] outbox_ext relay ")).count();
    let minutes = (now_ms() - began_ms) as f64 / 60_000.0;
    let count = |found: &[String]| found.len().to_string();
    let figures = Figures {
        seed,
        seconds: length,
        lines: vec![
            (
                "events committed",
                (verdict.committed + verdict_moved.committed).to_string(),
            ),
            ("records", all.len().to_string()),
            (
                "lost",
                (verdict.missing.len() + verdict_moved.missing.len()).to_string(),
            ),
            (
                "phantom",
                (verdict.phantom.len() + verdict_moved.phantom.len()).to_string(),
            ),
            ("of a rollback", count(&rolled_back)),
            (
                "out of order, by seq and by counter",
                (verdict.out_of_order.len() + backwards.len()).to_string(),
            ),
            (
                "called published before it was there",
                format!("{} of {} looked at", early.len(), samples.len()),
            ),
            ("not applied exactly once by the inbox's consumer", count(&not_once)),
            ("confirmed commits", told.confirmed.len().to_string()),
            ("delivered again", repeats.total().to_string()),
            (
                "delivered again without a fault that explains it",
                count(&repeats.unexplained),
            ),
            ("faults", acts.done.len().to_string()),
            ("events left by retention", left.to_string()),
            (
                "log lines of the relay",
                format!("{relay_lines}, {:.1} a minute", relay_lines as f64 / minutes),
            ),
        ],
        done: &acts.done,
        repeats: &repeats,
        first_after_ms,
    };
    keep(&figures.markdown());

    for verdict in [&verdict, &verdict_moved] {
        verdict.assert_complete();
    }
    verdict.assert_in_order();
    told.assert_all_in(&mut db);
    for (what, found) in [
        ("order by counter", &backwards),
        ("of a rollback", &rolled_back),
        ("called published too early", &early),
        ("not applied once", &not_once),
        ("delivered again for no reason", &repeats.unexplained),
        ("delivered again too often", &excessive),
    ] {
        let some: Vec<_> = found.iter().take(10).collect();
        assert!(found.is_empty(), "{what}: {} of them, {some:#?}", found.len());
    }
    assert_eq!((attempts, parked), (0, 0), "attempts and parked events");
    for (done, first) in acts.done.iter().zip(&figures.first_after_ms) {
        if done.kind == plan::Kind::RelayKilled && done.caught_up_ms.is_some() {
            let first = first.unwrap_or(i64::MAX);
            assert!(
                first <= FIRST_RECORD_MS_MAX,
                "after the relay was killed, {first} ms to the first record"
            );
        }
    }
}

fn begin(name: &str, cluster: &KafkaCluster) -> Scenario {
    let s = Scenario::with_brokers(
        name,
        &cluster.address(),
        &[
            ("outbox_ext.kafka_options", &kafka_options(0)),
            ("outbox_ext.retry_backoff_max", "2s"),
            ("outbox_ext.batch_size", "500"),
            ("outbox_ext.lease_duration", &format!("{LEASE_SECONDS}s")),
            ("outbox_ext.partition_stall", "5s"),
            ("outbox_ext.retention", "20"),
        ],
    );
    for expected in [
        "was terminated by signal 9",
        "terminating any other active server processes",
        "outbox_ext relay WARNING",
        "administrator command",
        "because of crash of another server process",
        "terminating connection due to unexpected postmaster exit",
    ] {
        s.allow(
            expected,
            "the scenario ends processes and takes brokers and topics away",
        );
    }
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    db.run("CREATE TABLE applied (event_id uuid)");
    s
}

/// How long after each fault the first record was appended.
fn first_after(records: &[Record], done: &[Done]) -> Vec<Option<i64>> {
    let mut times: Vec<i64> = records.iter().filter_map(|record| record.timestamp_ms).collect();
    times.sort_unstable();
    let after = |done: &Done| {
        let at = times.partition_point(|time| *time < done.over_ms);
        times.get(at).map(|time| time - done.over_ms)
    };
    done.iter().map(after).collect()
}

fn keep(markdown: &str) {
    eprintln!("{markdown}");
    let folder = shell::target().join("soak");
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(folder.join("report.md"), markdown))
        .expect("write the report");
}
