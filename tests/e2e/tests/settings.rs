//! Settings that change under a running relay, and a server that was not told to load the library.

use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::check;
use outbox_e2e::{Broker, Db, Scenario, seconds, wait};

use crate::load::{Commits, Load};

trials![
    scenario brokers_put_right_by_alter_system,
    scenario brokers_put_right_by_alter_database,
    scenario no_brokers_set,
    alone switched_off_and_on_under_load,
    scenario without_preload,
    scenario topic_template_changes,
    scenario defaults_of_the_database_do_not_reach_the_relay,
];

/// Nobody listens there.
const WRONG: &str = "127.0.0.1:1";

fn wrong_at_first(name: &str, word: &str) -> (Scenario, Db, String) {
    let s = Scenario::with_brokers(name, WRONG, &[]);
    s.allow("outbox_ext relay WARNING", "it says that no broker answers");
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    let kind = s.aggregate_type(word);
    for n in 0..200 {
        db.emit_one(&kind, &(n % 3).to_string(), &n.to_string());
    }
    db.wait_state("outage", seconds(30));
    assert_eq!(db.pending(), 200);
    (s, db, kind)
}

fn assert_untouched_and_published(s: &Scenario, mut db: Db) {
    let (verdict, _) = s.judge_all(&mut db, seconds(30));
    verdict.assert_no_duplicates();
    let attempts: i64 = db.one("SELECT sum(attempts)::bigint FROM outbox_event");
    assert_eq!(attempts, 0, "an outage is no fault of an event");
}

fn brokers_put_right_by_alter_system(name: &str) {
    let (s, mut db, _) = wrong_at_first(name, "system");
    db.run(&format!(
        "ALTER SYSTEM SET outbox_ext.brokers = '{}'",
        Broker::shared().address()
    ));
    db.run("SELECT pg_reload_conf()");
    assert_untouched_and_published(&s, db);
}

fn brokers_put_right_by_alter_database(name: &str) {
    let (s, mut db, _) = wrong_at_first(name, "database");
    db.run(&format!(
        "ALTER DATABASE app SET outbox_ext.brokers = '{}'",
        Broker::shared().address()
    ));
    db.run("SELECT pg_reload_conf()");
    assert_untouched_and_published(&s, db);
}

/// Events wait, emits go on, one line says so.
fn no_brokers_set(name: &str) {
    let s = Scenario::with_brokers(name, "", &[]);
    s.allow("outbox_ext relay WARNING", "it may say so as a warning");
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    let kind = s.aggregate_type("nowhere");
    db.emit_one(&kind, "1", "1");
    db.wait_state("no brokers", seconds(20));
    db.emit_one(&kind, "1", "2");
    assert_eq!(db.pending(), 2);
    let said = s
        .cluster
        .log()
        .lines()
        .filter(|line| line.contains("outbox_ext.brokers"))
        .count();
    assert_eq!(said, 1, "one line in the log says so");
    s.cluster
        .configure(&[("outbox_ext.brokers", Broker::shared().address())]);
    s.cluster.reload();
    s.judge_all(&mut db, seconds(30));
}

/// Off means off within seconds, with the lease released; on means that everything arrives.
fn switched_off_and_on_under_load(name: &str) {
    let s = Scenario::begin(name);
    let types = [s.aggregate_type("switch")];
    let load = Load::start(&s, 4, &types, Commits::Mixed);
    let mut db = s.db();
    for round in 1..=3 {
        Broker::shared().wait_count(&topic_of(&types[0]), 500 * round, seconds(30));
        db.run("ALTER SYSTEM SET outbox_ext.enabled = off");
        db.run("SELECT pg_reload_conf()");
        db.wait_state("disabled", seconds(5));
        let sent = Broker::shared().count(&topic_of(&types[0]));
        let waiting = db.pending();
        wait("emits to go on", seconds(10), || {
            let now = db.pending();
            check(now > waiting + 100, || format!("{now} pending"))
        });
        let released: bool = db.one("SELECT pid IS NULL FROM outbox_lease");
        assert!(released, "the lease was released");
        assert_eq!(
            Broker::shared().count(&topic_of(&types[0])),
            sent,
            "nothing is sent when off"
        );
        db.run("ALTER SYSTEM RESET outbox_ext.enabled");
        db.run("SELECT pg_reload_conf()");
    }
    load.stop();
    s.judge_all(&mut db, seconds(30)).0.assert_no_duplicates();
}

/// Emit and inbox work, the session lives, at most one warning; with the library loaded the events go out.
fn without_preload(name: &str) {
    let s = Scenario::with_brokers(name, Broker::shared().address(), &[("shared_preload_libraries", "")]);
    s.allow("WARNING", "it says that the library is not preloaded");
    let mut db = s.db();
    db.run("LOAD 'outbox_ext'");
    db.run("CREATE EXTENSION outbox_ext");
    let kind = s.aggregate_type("unloaded");
    for n in 0..20 {
        db.emit_one(&kind, "1", &n.to_string());
    }
    assert!(db.one::<bool>("SELECT inbox_try_consume('c', gen_random_uuid())"));
    assert!(!db.one::<String>("SHOW outbox_ext.batch_size").is_empty());
    assert_eq!(db.one::<String>("SELECT state FROM outbox_status"), "no relay");
    assert_eq!(db.pending(), 20);
    let notices = db.take_notices();
    let warnings: Vec<&String> = notices.iter().filter(|notice| notice.starts_with("WARNING")).collect();
    assert!(warnings.len() <= 1, "{warnings:#?}");
    assert!(
        warnings
            .iter()
            .all(|warning| warning.contains("shared_preload_libraries")),
        "{warnings:?}"
    );
    drop(db);
    s.cluster.configure(&[("shared_preload_libraries", "outbox_ext")]);
    s.cluster.stop(outbox_e2e::Stop::Fast);
    s.cluster.start();
    let (verdict, _) = s.judge_all(&mut s.db(), seconds(30));
    assert_eq!(verdict.committed, 20);
}

/// The template is resolved when the relay reads: after a reload events go to the new topic.
fn topic_template_changes(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("template");
    db.emit_one(&kind, "1", "1");
    db.wait_drained(seconds(20));
    let word = s.topic("other");
    let other = format!("{word}.Happened.{kind}");
    db.run(&format!(
        "ALTER DATABASE app SET outbox_ext.topic = '{word}.{{event_type}}.{{aggregate_type}}'"
    ));
    db.run("SELECT pg_reload_conf()");
    wait("an event in the new topic", seconds(20), || {
        db.emit_one(&kind, "1", "2");
        db.wait_drained(seconds(10));
        let there = Broker::shared().count(&other);
        check(there > 0, || "none".to_owned())
    });
}

/// What a database sets for its sessions is not meant for the relay.
fn defaults_of_the_database_do_not_reach_the_relay(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    db.run(
        "CREATE SCHEMA evil;
         CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'epoch'::timestamptz $$;
         CREATE TABLE evil.outbox_log (LIKE public.outbox_log);
         CREATE TABLE evil.outbox_batch (LIKE public.outbox_batch);
         CREATE TABLE evil.outbox_parked (LIKE public.outbox_parked);
         CREATE TABLE evil.outbox_lease (LIKE public.outbox_lease);
         ALTER DATABASE app SET search_path = evil, public, pg_catalog;
         ALTER DATABASE app SET default_transaction_isolation = 'serializable';
         ALTER DATABASE app SET default_transaction_read_only = on;
         ALTER DATABASE app SET statement_timeout = '1ms';
         ALTER DATABASE app SET lock_timeout = '1ms';
         ALTER DATABASE app SET idle_in_transaction_session_timeout = '1ms';
         ALTER DATABASE app SET datestyle = 'SQL, DMY';
         ALTER DATABASE app SET synchronous_commit = off;
         ALTER DATABASE app SET enable_indexscan = off;",
    );
    db.run("SELECT pg_terminate_backend(relay_pid) FROM outbox_status");
    let kind = s.aggregate_type("defaults");
    for n in 0..300 {
        db.emit_one(&kind, &(n % 10).to_string(), &n.to_string());
    }
    s.judge_all(&mut db, seconds(20));
}
