//! A synchronous standby: whether an event may be published before the standby has it.

use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::let_pass;
use outbox_e2e::{Broker, Scenario, Stop, seconds};

trials![alone event_waits_for_the_standby_or_not];

fn event_waits_for_the_standby_or_not(name: &str) {
    let s = Scenario::with(name, &[("outbox_ext.wait_for_standbys", "on")]);
    let mut db = s.db();
    // What is stopped is the standby: our own sessions must not hang on it.
    db.run("SET synchronous_commit = local");
    let kind = s.aggregate_type("standby");
    let topic = topic_of(&kind);
    let broker = Broker::shared();
    broker.create_topic(&topic, 1);
    db.emit_one(&kind, "1", "\"without a standby\"");
    broker.wait_count(&topic, 1, seconds(10));

    let standby = s.cluster.create_standby("follower");
    standby.start();
    s.cluster.configure(&[("synchronous_standby_names", "follower")]);
    s.cluster.reload();
    let in_sync = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming')";
    db.wait_true(in_sync, seconds(20));
    db.emit_one(&kind, "1", "\"with it\"");
    broker.wait_count(&topic, 2, seconds(10));
    db.wait_drained(seconds(10));

    standby.stop(Stop::Fast);
    db.emit_one(&kind, "1", "\"while it is away\"");
    let_pass(seconds(3));
    assert_eq!(broker.count(&topic), 2, "published before the standby had it");
    assert_eq!(db.pending(), 1);
    standby.start();
    broker.wait_count(&topic, 3, seconds(20));
    db.wait_drained(seconds(10));

    db.wait_true(in_sync, seconds(20));
    standby.stop(Stop::Fast);
    s.cluster.configure(&[("outbox_ext.wait_for_standbys", "off")]);
    s.cluster.reload();
    db.emit_one(&kind, "1", "\"not waited for\"");
    broker.wait_count(&topic, 4, seconds(5));
    // Nor does its own bookkeeping wait.
    db.wait_drained(seconds(5));
    let (verdict, _) = s.judge_all(&mut db, seconds(10));
    verdict.assert_no_duplicates();
    standby.remove();
}
