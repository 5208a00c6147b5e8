//! Everything at once: writers, and at random whatever can end or hinder a relay.

use std::process::Command;
use std::time::{Duration, Instant};

use outbox_e2e::judge::counters_backwards;
use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::{let_pass, try_wait};
use outbox_e2e::{Broker, Db, Random, Scenario, Stop, seconds, shell, wait};

use crate::load::{Commits, Load, counter, finish_prepared};

trials![stops_broker_alone chaos_complete_and_in_order];

/// Seconds of trouble; more for a soak.
const SECONDS: &str = "OUTBOX_E2E_CHAOS_SECONDS";

/// Crashes of relay, session, server and broker, terminations, reloads, rewrites, and a topic that comes late: at the
/// end everything is there, in order, and nothing else.
fn chaos_complete_and_in_order(name: &str) {
    let time = std::env::var(SECONDS)
        .ok()
        .map_or(40, |text| text.parse().expect("seconds"));
    let time = seconds(time);
    let broker = Broker::prepare();
    broker.start();
    let s = Scenario::with_brokers(
        name,
        broker.address(),
        &[
            ("outbox_ext.kafka_options", "allow.auto.create.topics=false"),
            ("outbox_ext.retry_backoff_max", "2s"),
            ("outbox_ext.batch_size", "200"),
        ],
    );
    for expected in [
        "was terminated by signal 9",
        "terminating any other active server processes",
        "outbox_ext relay WARNING",
        "administrator command",
    ] {
        s.allow(
            expected,
            "the scenario ends processes and takes brokers and topics away",
        );
    }
    s.db().run("CREATE EXTENSION outbox_ext");
    let types: Vec<String> = ["steady", "other", "late-topic"]
        .map(|word| s.aggregate_type(word))
        .into();
    for kind in &types[..2] {
        broker.create_topic(&topic_of(kind), 3);
    }
    let load = Load::start(&s, 6, &types, Commits::Mixed);
    let mut random = Random::from_clock();
    let began = Instant::now();
    let mut done = Vec::new();
    let mut topic_came = false;
    while began.elapsed() < time {
        let_pass(Duration::from_millis(300 + random.below(1_500)));
        if began.elapsed() > time / 2 && !topic_came {
            broker.create_topic(&topic_of(&types[2]), 3);
            topic_came = true;
        }
        done.push(trouble(&s, &broker, random.below(9)));
    }
    if !topic_came {
        broker.create_topic(&topic_of(&types[2]), 3);
    }
    eprintln!("  {name}: {}", done.join(", "));
    let written = load.stop();
    let mut db = connect(&s);
    finish_prepared(&mut db);
    let (_, records) = s.judge_all_on(&broker, &mut db, seconds(90));
    written.assert_all_in(&mut db);
    let backwards = counters_backwards(&records, counter);
    assert!(backwards.is_empty(), "{backwards:#?}");
    let parked: i64 = db.one("SELECT count(*) FROM outbox_parked");
    assert_eq!(parked, 0, "nothing stays parked");
    drop(db);
    // Not at the end of the run: it takes memory and a core from the others.
    broker.stop();
}

fn connect(s: &Scenario) -> Db {
    wait("the server", seconds(60), || {
        s.cluster.try_connect("app").map_err(|error| error.to_string())
    })
}

/// One kind of trouble; its name. A process that is gone before we reach it is no fault.
fn trouble(s: &Scenario, broker: &Broker, kind: u64) -> &'static str {
    let mut db = connect(s);
    let relay = "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox%relay%'";
    match kind {
        0 => {
            if let Some(pid) = db.all::<i32>(relay).first() {
                shell::try_run(Command::new("kill").args(["-KILL", &pid.to_string()]));
            }
            "relay killed"
        }
        1 => {
            drop(db);
            s.cluster.stop(Stop::Immediate);
            s.cluster.start();
            "immediate stop"
        }
        2 => {
            drop(db);
            s.cluster.stop(Stop::Fast);
            s.cluster.start();
            "fast stop"
        }
        3 => {
            db.all::<bool>("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%'");
            "workers terminated"
        }
        4 => {
            broker.kill();
            let_pass(seconds(1));
            broker.start();
            "broker killed"
        }
        5 => {
            // The reload comes after the commit: statements sent as one text would be one transaction.
            db.run("ALTER DATABASE app SET outbox_ext.enabled = off");
            s.cluster.reload();
            let_pass(seconds(1));
            db.run("ALTER DATABASE app RESET outbox_ext.enabled");
            s.cluster.reload();
            "off and on"
        }
        6 => {
            db.run("VACUUM FULL outbox_log");
            "vacuum full"
        }
        7 => {
            db.run("ALTER TABLE outbox_log ADD COLUMN extra float8 DEFAULT random()");
            db.run("ALTER TABLE outbox_log DROP COLUMN extra");
            "rewrite"
        }
        _ => {
            // A relay that stands still for a while and goes on.
            if let Some(pid) = db.all::<i32>(relay).first() {
                shell::signal(*pid, "STOP");
                let_pass(seconds(1));
                shell::signal(*pid, "CONT");
            }
            let _ = try_wait(
                seconds(1),
                || if db.pending() == 0 { Ok(()) } else { Err(String::new()) },
            );
            "relay frozen"
        }
    }
}
