//! Ends of processes and servers at the worst moment: nothing lost, order kept, duplicates bounded.

use std::time::Instant;

use outbox_e2e::judge::counters_backwards;
use outbox_e2e::scenario::{STOP_SECONDS_MAX, topic_of};
use outbox_e2e::{Broker, Db, Scenario, Stop, seconds, shell, wait};

use crate::load::{Commits, Load, counter, finish_prepared};

trials![
    alone killed_relay_in_a_backlog,
    alone immediate_stop_in_a_backlog,
    alone immediate_stop_under_asynchronous_commits,
    alone fast_stop_under_load,
    scenario terminated_workers_come_back,
    scenario killed_client_takes_the_relay_along,
    scenario frozen_relay_is_succeeded,
];

/// Enough that the relay is in the middle of it for a second or more.
const BACKLOG: usize = 300_000;

/// After a relay's death its events are on their way again this soon after the server takes connections.
const AGAIN_WITHIN: std::time::Duration = seconds(5);

/// A backlog on 500 aggregates that nothing publishes yet.
fn lay_backlog(s: &Scenario, kind: &str) {
    let mut db = s.db();
    db.wait_state("disabled", seconds(10));
    db.run(&format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload)
         SELECT '{kind}', (n % 500)::text, 'Happened', jsonb_build_object('n', n, 'filler', repeat('x', 200))
           FROM generate_series(1, {BACKLOG}) n"
    ));
}

fn switch_on(s: &Scenario) {
    s.cluster.configure(&[("outbox_ext.enabled", "on")]);
    s.cluster.reload();
}

/// The server takes connections again, be it by itself or by our start.
fn connect_again(s: &Scenario) -> Db {
    wait("the server to recover", seconds(60), || {
        s.cluster.try_connect("app").map_err(|error| error.to_string())
    })
}

/// Waits until the topic holds some, and not all, of the backlog.
fn in_the_middle(kind: &str) {
    let seen = Broker::shared().wait_count(&topic_of(kind), BACKLOG / 10, seconds(30));
    assert!(seen < BACKLOG, "the relay was quicker than the test: {seen}");
}

/// The kernel's out-of-memory killer, say, ends the relay; PostgreSQL restarts all its processes. Events
/// are on their way again at once, not after the lease.
fn killed_relay_in_a_backlog(name: &str) {
    let s = Scenario::with(name, &[("outbox_ext.enabled", "off")]);
    s.allow("was terminated by signal 9", "the scenario kills the relay");
    s.allow(
        "terminating any other active server processes",
        "the server's answer to that",
    );
    let kind = s.aggregate_type("backlog");
    lay_backlog(&s, &kind);
    switch_on(&s);
    let relay = s.db().relay();
    in_the_middle(&kind);
    shell::signal(relay, "KILL");
    wait("the relay's end", seconds(10), || {
        if shell::is_alive(relay) {
            Err("it lives".to_owned())
        } else {
            Ok(())
        }
    });
    let stood = Broker::shared().count(&topic_of(&kind));
    let mut db = connect_again(&s);
    // A dead relay's lease of 30 seconds is nobody's: found by liveness, not waited for.
    let back = Instant::now();
    Broker::shared().wait_count(&topic_of(&kind), stood + 1, AGAIN_WITHIN);
    eprintln!(
        "  {name}: the next record {:?} after the server was back",
        back.elapsed()
    );
    let (verdict, _) = s.judge_all(&mut db, seconds(60));
    assert!(
        verdict.most_deliveries <= 2,
        "once before, once after: {}",
        verdict.summary()
    );
}

/// The whole server crashes; it starts at the last settled cursor that survived.
fn immediate_stop_in_a_backlog(name: &str) {
    let s = Scenario::with(name, &[("outbox_ext.enabled", "off")]);
    let kind = s.aggregate_type("backlog");
    lay_backlog(&s, &kind);
    switch_on(&s);
    in_the_middle(&kind);
    s.cluster.stop(Stop::Immediate);
    s.cluster.start();
    let (verdict, _) = s.judge_all(&mut s.db(), seconds(60));
    assert!(
        verdict.most_deliveries <= 2,
        "once before, once after: {}",
        verdict.summary()
    );
}

/// No phantom: a commit that was not flushed may be gone after a crash, and then its events were never published.
fn immediate_stop_under_asynchronous_commits(name: &str) {
    // A lazy WAL writer leaves much to lose.
    let s = Scenario::with(
        name,
        &[("wal_writer_delay", "1000"), ("wal_writer_flush_after", "100MB")],
    );
    let types = [s.aggregate_type("fleeting")];
    let load = Load::start(&s, 8, &types, Commits::Asynchronous);
    for round in 1..=3 {
        Broker::shared().wait_count(&topic_of(&types[0]), 1_500 * round, seconds(60));
        s.cluster.stop(Stop::Immediate);
        s.cluster.start();
    }
    load.stop();
    let mut db = connect_again(&s);
    finish_prepared(&mut db);
    let (_, records) = s.judge_all(&mut db, seconds(60));
    let backwards = counters_backwards(&records, counter);
    assert!(backwards.is_empty(), "{backwards:#?}");
}

/// The relay hands over what it has, settles and goes; nothing is published twice.
fn fast_stop_under_load(name: &str) {
    let s = Scenario::begin(name);
    let types = [s.aggregate_type("busy")];
    let load = Load::start(&s, 8, &types, Commits::Mixed);
    for round in 1..=3 {
        Broker::shared().wait_count(&topic_of(&types[0]), 1_500 * round, seconds(60));
        let took = s.cluster.stop(Stop::Fast);
        assert!(took < seconds(STOP_SECONDS_MAX), "the stop took {took:?}");
        s.cluster.start();
    }
    let written = load.stop();
    let mut db = connect_again(&s);
    finish_prepared(&mut db);
    let (verdict, records) = s.judge_all(&mut db, seconds(60));
    written.assert_all_in(&mut db);
    verdict.assert_no_duplicates();
    let backwards = counters_backwards(&records, counter);
    assert!(backwards.is_empty(), "{backwards:#?}");
}

/// pg_terminate_backend on every worker of ours, as maintenance scripts do.
fn terminated_workers_come_back(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("after");
    db.emit_one(&kind, "1", "1");
    db.wait_drained(seconds(20));
    for (round, who) in ["launcher", "relay", "%"].into_iter().enumerate() {
        let terminated: Vec<i32> = db.all(&format!(
            "SELECT pid FROM pg_stat_activity
              WHERE backend_type LIKE 'outbox%{who}%' AND pg_terminate_backend(pid)"
        ));
        assert!(!terminated.is_empty(), "there is a {who}");
        wait("both to be back", seconds(20), || {
            let now: Vec<i32> = db.all("SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox%'");
            let back = now.len() == 2 && terminated.iter().all(|pid| !now.contains(pid));
            if back {
                Ok(())
            } else {
                Err(format!("terminated {terminated:?}, now {now:?}"))
            }
        });
        db.emit_one(&kind, "1", &(round + 2).to_string());
        s.judge_all(&mut db, seconds(20));
        // A client made in the postmaster would have threads there, and none in its children.
        let threads = std::fs::read_dir(format!("/proc/{}/task", s.cluster.postmaster())).expect("it runs");
        assert_eq!(threads.count(), 1, "threads of the postmaster");
    }
}

/// A killed session makes the server restart everybody; the relay comes back with work to do.
fn killed_client_takes_the_relay_along(name: &str) {
    let s = Scenario::begin(name);
    s.allow("was terminated by signal 9", "the scenario kills a session");
    s.allow(
        "terminating any other active server processes",
        "the server's answer to that",
    );
    let kind = s.aggregate_type("survivor");
    let mut victim = s.db();
    let pid: i32 = victim.one("SELECT pg_backend_pid()");
    for n in 0..100 {
        victim.emit_one(&kind, "1", &n.to_string());
    }
    shell::signal(pid, "KILL");
    wait("the session's end", seconds(10), || {
        if shell::is_alive(pid) {
            Err("it lives".to_owned())
        } else {
            Ok(())
        }
    });
    drop(victim);
    let (verdict, _) = s.judge_all(&mut connect_again(&s), seconds(60));
    assert_eq!(verdict.committed, 100);
}

/// A relay that does not move is succeeded; when it wakes up it settles nothing and goes.
fn frozen_relay_is_succeeded(name: &str) {
    let s = Scenario::with(name, &[("outbox_ext.lease_duration", "2s")]);
    let mut db = s.db();
    let kind = s.aggregate_type("frozen");
    let emit = |db: &mut Db, from: i32| {
        for n in from..from + 100 {
            db.emit_one(&kind, &(n % 5).to_string(), &n.to_string());
        }
    };
    emit(&mut db, 0);
    db.wait_drained(seconds(20));
    let frozen = db.relay();
    shell::signal(frozen, "STOP");
    emit(&mut db, 100);
    db.wait_drained(seconds(30));
    assert_ne!(db.relay(), frozen, "another one did it");
    let token: String = db.one("SELECT lease_token::text FROM outbox_lease");
    shell::signal(frozen, "CONT");
    wait("the frozen one to go", seconds(10), || {
        if shell::is_alive(frozen) {
            Err("it lives".to_owned())
        } else {
            Ok(())
        }
    });
    assert_eq!(
        db.one::<String>("SELECT lease_token::text FROM outbox_lease"),
        token,
        "it took nothing back"
    );
    emit(&mut db, 200);
    let (verdict, _) = s.judge_all(&mut db, seconds(20));
    assert_eq!(verdict.committed, 300);
}
