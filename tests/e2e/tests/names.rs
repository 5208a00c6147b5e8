//! Names of brokers that cannot be resolved, or come to mean another machine.

use std::time::Instant;

use outbox_e2e::scenario::{STOP_SECONDS_MAX, topic_of};
use outbox_e2e::wait::{check, let_pass};
use outbox_e2e::{Broker, Scenario, Stop, StuckResolver, seconds, shell, wait};

trials![scenario name_server_that_does_not_answer];

/// A thread of librdkafka hangs in the resolver, and nobody waits for it; no restart is needed when it answers, or
/// answers something else.
fn name_server_that_does_not_answer(name: &str) {
    let port = Broker::shared().address().rsplit(':').next().expect("a port");
    let mut s = Scenario::with_brokers(
        name,
        &format!("kafka.test:{port}"),
        &[("outbox_ext.kafka_options", "reconnect.backoff.max.ms=1000")],
    );
    s.allow("outbox_ext relay WARNING", "it says that no broker can be reached");
    s.cluster.stop(Stop::Fast);
    let names = StuckResolver::of(&mut s.cluster);
    s.cluster.start();
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    let kind = s.aggregate_type("nameless");
    for n in 0..100 {
        db.emit_one(&kind, &(n % 3).to_string(), &n.to_string());
    }
    let relay = db.relay();
    // Until the resolver is asked.
    let_pass(seconds(1));
    let began = Instant::now();
    db.run("CREATE DATABASE stranger");
    db.run("DROP DATABASE stranger");
    assert!(began.elapsed() < seconds(5), "DROP DATABASE took {:?}", began.elapsed());
    shell::signal(relay, "TERM");
    wait("another relay", seconds(5), || {
        check(!shell::is_alive(relay), || "the old one lives".to_owned())
    });
    db.relay();
    let_pass(seconds(1));
    drop(db);
    let took = s.cluster.stop(Stop::Fast);
    assert!(took < seconds(STOP_SECONDS_MAX), "the stop took {took:?}");
    s.cluster.start();

    let mut db = s.db();
    assert_eq!(db.pending(), 100);
    let relay = db.relay();
    let_pass(seconds(1));
    // Nobody is there.
    names.tell("127.0.0.9");
    db.wait_state("outage", seconds(30));
    names.tell("127.0.0.1");
    let (verdict, _) = s.judge_all(&mut db, seconds(30));
    assert_eq!(verdict.records, 100);
    assert_eq!(db.relay(), relay, "without a restart");
    assert_eq!(Broker::shared().count(&topic_of(&kind)), 100);
}
