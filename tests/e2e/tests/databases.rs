//! Databases and extensions that come and go while the server runs.

use std::time::{Duration, Instant};

use outbox_e2e::scenario::topic_of;
use outbox_e2e::silent_broker::SilentBroker;
use outbox_e2e::wait::check;
use outbox_e2e::{Broker, Db, Scenario, seconds, wait};

use crate::load::Load;

trials![
    alone create_extension_starts_the_relay,
    alone prepared_create_extension_starts_it_with_the_first_event,
    scenario two_databases,
    alone drop_extension_under_load,
    scenario drop_extension_waits_for_who_is_half_way,
    scenario drop_extension_after_locks_meets_nobody,
    scenario locked_database_keeps_no_relay_waiting,
    scenario drop_and_create_in_one_transaction,
    scenario extension_in_a_schema_with_an_odd_name,
    scenario drop_database_while_idle,
    scenario drop_database_while_the_broker_is_silent,
];

/// Runs a statement that must not take long.
#[track_caller]
fn quick(db: &mut Db, sql: &str, bound: Duration) {
    let began = Instant::now();
    db.run(sql);
    let took = began.elapsed();
    assert!(took < bound, "{sql} took {took:?}");
}

/// No restart, no further call: within a second or so of its commit there is a relay.
fn create_extension_starts_the_relay(name: &str) {
    let (s, mut db) = without_extension(name);
    db.run("CREATE EXTENSION outbox_ext");
    let began = Instant::now();
    db.relay();
    let took = began.elapsed();
    assert!(took < seconds(2), "the relay came after {took:?}");
    let kind = s.aggregate_type("first");
    db.emit_one(&kind, "1", "{}");
    s.judge_all(&mut db, seconds(20));
}

/// COMMIT PREPARED tells nobody: the first event that is committed does.
fn prepared_create_extension_starts_it_with_the_first_event(name: &str) {
    let (s, mut db) = without_extension(name);
    for sql in [
        "BEGIN",
        "CREATE EXTENSION outbox_ext",
        "PREPARE TRANSACTION 'create'",
        "COMMIT PREPARED 'create'",
    ] {
        db.run(sql);
    }
    let kind = s.aggregate_type("first");
    db.emit_one(&kind, "1", "{}");
    s.judge_all(&mut db, seconds(20));
}

/// A server whose launcher has looked at the databases, and found none with the extension.
fn without_extension(name: &str) -> (Scenario, Db) {
    let s = Scenario::with_brokers(name, Broker::shared().address(), &[]);
    let mut db = s.db();
    // It has when it sleeps, and nobody looks on its behalf.
    db.wait_true(
        "SELECT count(*) = 1 AND bool_and(backend_type LIKE '%launcher%' AND wait_event_type IN ('Extension', 'Activity', 'Client'))
           FROM pg_stat_activity WHERE backend_type LIKE 'outbox%'",
        seconds(10),
    );
    (s, db)
}

/// FORCE ends the relay, and the launcher may start another before the database is gone; PostgreSQL says so once.
fn allow_vanished(s: &Scenario) {
    s.allow(
        "outbox_ext relay FATAL:  database ",
        "a relay started while its database was being dropped",
    );
}

/// Each database has its own relay and its own cursor.
fn two_databases(name: &str) {
    let s = Scenario::begin(name);
    let mut first = s.db();
    first.run("CREATE DATABASE second");
    let mut second = s.cluster.connect("second");
    second.run("CREATE EXTENSION outbox_ext");
    let kinds = [s.aggregate_type("first"), s.aggregate_type("second")];
    for n in 0..500 {
        first.emit_one(&kinds[0], &(n % 5).to_string(), &n.to_string());
        second.emit_one(&kinds[1], &(n % 5).to_string(), &n.to_string());
    }
    for db in [&mut first, &mut second] {
        let (verdict, _) = s.judge_all(db, seconds(20));
        assert_eq!(verdict.committed, 500);
    }
    assert_ne!(first.relay(), second.relay());
    // One goes; the other does not notice.
    allow_vanished(&s);
    drop(second);
    quick(&mut first, "DROP DATABASE second WITH (FORCE)", seconds(5));
    first.emit_one(&kinds[0], "1", "\"after\"");
    s.judge_all(&mut first, seconds(20));
}

/// With messages in flight the extension goes at once; a new one starts from nothing.
fn drop_extension_under_load(name: &str) {
    let s = Scenario::begin(name);
    s.allow("client backend ERROR:  ", "the writers' functions vanish under them");
    let mut db = s.db();
    let types = [s.aggregate_type("doomed")];
    let load = Load::start_until_error(&s, 4, &types);
    Broker::shared().wait_count(&topic_of(&types[0]), 500, seconds(30));
    quick(&mut db, "DROP EXTENSION outbox_ext", seconds(5));
    load.stop();
    wait("the relay to go", seconds(10), || {
        let left: i64 = db.one("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%relay%'");
        check(left == 0, || format!("{left} relays"))
    });
    db.run("CREATE EXTENSION outbox_ext");
    let kind = s.aggregate_type("reborn");
    db.emit_one(&kind, "1", "{}");
    let (verdict, _) = s.judge_all(&mut db, seconds(20));
    assert_eq!(verdict.committed, 1);
}

/// DROP EXTENSION waits for a transaction that has come half-way through our tables, and neither is ended by a deadlock.
fn drop_extension_waits_for_who_is_half_way(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("doomed");
    let consume = "SELECT inbox_try_consume('worker', gen_random_uuid())";
    let insert = format!(
        "INSERT INTO outbox_log (aggregate_type, aggregate_id, event_type, payload) VALUES ('{kind}', '1', 'Happened', '{{}}')"
    );
    // The table is locked, the sequence is not, as in the middle of an INSERT; then the usual way of a consumer that emits.
    for first in ["LOCK TABLE outbox_log IN ROW EXCLUSIVE MODE", consume] {
        db.run("BEGIN");
        db.run(first);
        let mut other = s.db();
        let drop = std::thread::spawn(move || quick(&mut other, "DROP EXTENSION outbox_ext", seconds(5)));
        let mut observer = s.db();
        wait_blocked(&mut observer, "DROP EXTENSION");
        db.run(&insert);
        db.run("COMMIT");
        drop.join().expect("DROP EXTENSION to succeed");
        db.run("CREATE EXTENSION outbox_ext");
    }
}

/// As the manual has it: who inserts by the view meanwhile waits with empty hands.
fn drop_extension_after_locks_meets_nobody(name: &str) {
    let s = Scenario::begin(name);
    s.allow(
        "relation \"outbox_event\" does not exist",
        "it is gone when the INSERT's turn comes",
    );
    let (mut db, mut by_view, mut other) = (s.db(), s.db(), s.db());
    let kind = s.aggregate_type("doomed");
    db.run("BEGIN");
    db.emit_one(&kind, "1", "{}");
    let drop = std::thread::spawn(move || {
        other.run(
            "BEGIN;
             LOCK TABLE consumed_event, outbox_event, outbox_pending, outbox_status, outbox_log IN ACCESS EXCLUSIVE MODE;
             DROP EXTENSION outbox_ext;
             COMMIT",
        )
    });
    let mut observer = s.db();
    wait_blocked(&mut observer, "LOCK TABLE");
    let insert = format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('{kind}', '1', 'Happened', '{{}}')"
    );
    let inserted = std::thread::spawn(move || by_view.refused(&insert));
    wait_blocked(&mut observer, "INSERT INTO outbox_event");
    db.run("COMMIT");
    drop.join().expect("DROP EXTENSION to succeed");
    let (code, message) = inserted.join().expect("the INSERT to be refused");
    assert_eq!(code, "42P01", "{message}");
}

#[track_caller]
fn wait_blocked(observer: &mut Db, statement: &str) {
    wait(&format!("{statement} to wait"), seconds(5), || {
        let waits: bool = observer.one(&format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity
              WHERE query LIKE '%{statement}%' AND wait_event_type = 'Lock' AND pid <> pg_backend_pid())"
        ));
        check(waits, || "it does not".to_owned())
    });
}

/// As during a long CREATE DATABASE ... TEMPLATE: relays that cannot connect do not pile up, and when it is over one serves.
fn locked_database_keeps_no_relay_waiting(name: &str) {
    let s = Scenario::begin(name);
    s.allow("canceling statement due to lock timeout", "a relay gives up connecting");
    s.allow(
        "database \"app\" is being accessed by other users",
        "it is tried until the relay is gone",
    );
    let mut db = s.db();
    let kind = s.aggregate_type("locked");
    db.emit_one(&kind, "1", "{}");
    let relay = db.relay();
    drop(db);
    allow_vanished(&s);
    let mut admin = s.cluster.connect("postgres");
    wait("the database to be nobody's", seconds(10), || {
        admin.run(&format!("SELECT pg_terminate_backend({relay})"));
        admin.run("BEGIN");
        let locked = admin.try_run("ALTER DATABASE app RENAME TO moving");
        if locked.is_err() {
            admin.run("ROLLBACK");
        }
        check(locked.is_ok(), || format!("{locked:?}"))
    });
    let mut observer = s.cluster.connect("postgres");
    const WAITING: &str =
        "SELECT pid FROM pg_locks WHERE locktype = 'object' AND classid = 'pg_database'::regclass AND NOT granted";
    let mut waiting = 0;
    wait("a relay to wait for the database", seconds(10), || {
        waiting = observer.try_one::<i32>(WAITING).unwrap_or(0);
        check(waiting != 0, || "none".to_owned())
    });
    wait("it to give up", seconds(14), || {
        check(!outbox_e2e::shell::is_alive(waiting), || format!("{waiting} lives"))
    });
    admin.run("ROLLBACK");
    let mut db = s.db();
    db.emit_one(&kind, "1", "{}");
    s.judge_all(&mut db, seconds(60));
}

/// The relay never sees a moment without the extension, yet every OID is new.
fn drop_and_create_in_one_transaction(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    for round in 0..4 {
        let kind = s.aggregate_type("round");
        for n in 0..100 {
            db.emit_one(&kind, &round.to_string(), &n.to_string());
        }
        s.judge_all(&mut db, seconds(20)).0.assert_no_duplicates();
        quick(
            &mut db,
            "BEGIN; DROP EXTENSION outbox_ext; CREATE EXTENSION outbox_ext; COMMIT",
            seconds(5),
        );
    }
}

/// Nothing leans on search_path or on the schema's name.
fn extension_in_a_schema_with_an_odd_name(name: &str) {
    let s = Scenario::with_brokers(name, Broker::shared().address(), &[]);
    let mut db = s.db();
    db.run("CREATE SCHEMA \"My Schema\"; CREATE EXTENSION outbox_ext SCHEMA \"My Schema\"");
    let kind = s.aggregate_type("schema");
    db.run(&format!(
        "SELECT \"My Schema\".outbox_emit('{kind}', '1', 'Happened', '1')"
    ));
    db.run(&format!(
        "INSERT INTO \"My Schema\".outbox_event (aggregate_type, aggregate_id, event_type, payload)
         VALUES ('{kind}', '1', 'Happened', '2')"
    ));
    let records = Broker::shared().wait_records(&topic_of(&kind), 2, seconds(20));
    let values: Vec<&str> = records.iter().map(|record| record.value_text()).collect();
    assert_eq!(values, ["1", "2"]);
    // Until it settled, a stop would leave a duplicate: harmless, but look at the status as well.
    wait("the settle", seconds(10), || {
        let waiting: i64 = db.one("SELECT waiting FROM \"My Schema\".outbox_status");
        check(waiting == 0, || format!("{waiting} waiting"))
    });
}

/// With an idle relay.
fn drop_database_while_idle(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    db.emit_one(&s.aggregate_type("idle"), "1", "{}");
    db.wait_drained(seconds(20));
    drop_databases(&s, db);
}

/// The same while the relay waits for an answer that does not come.
fn drop_database_while_the_broker_is_silent(name: &str) {
    let silent = SilentBroker::start();
    let s = Scenario::with_brokers(name, silent.address(), &[]);
    s.allow("outbox_ext relay WARNING", "it says that the broker does not answer");
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    for n in 0..1_000 {
        db.emit_one("silent", "1", &n.to_string());
    }
    wait("the relay to try", seconds(20), || {
        check(silent.connections() > 0, || db.status())
    });
    drop_databases(&s, db);
}

fn drop_databases(s: &Scenario, served: Db) {
    drop(served);
    allow_vanished(s);
    let mut admin = s.cluster.connect("postgres");
    quick(&mut admin, "CREATE DATABASE stranger", seconds(5));
    quick(&mut admin, "DROP DATABASE stranger", seconds(5));
    quick(&mut admin, "CREATE DATABASE stranger", seconds(5));
    // The relay is connected: a plain DROP works or says why, and leaves the database as it was.
    if let Err(error) = admin.try_run("DROP DATABASE app") {
        s.allow(
            "database \"app\" is being accessed by other users",
            "a plain DROP may say so",
        );
        let error = error.as_db_error().expect("the server's refusal").message().to_owned();
        assert!(error.contains("being accessed"), "{error}");
        s.db().relay();
        quick(&mut admin, "DROP DATABASE app WITH (FORCE)", seconds(5));
    }
    let left: i64 = admin.one("SELECT count(*) FROM pg_database WHERE datname = 'app'");
    assert_eq!(left, 0);
    // The launcher goes on: it finds the next one.
    let mut db = s.cluster.connect("stranger");
    db.run("CREATE EXTENSION outbox_ext");
    db.relay();
}
