//! pg_dump and restore, and databases copied as files: nothing is lost, and a copy does not publish by itself.

use std::process::Stdio;

use outbox_e2e::scenario::topic_of;
use outbox_e2e::{Broker, Db, Record, Scenario, committed, judge, seconds, shell, wait};

trials![
    scenario restored_copy_waits_for_outbox_arm,
    scenario restore_of_data_only,
    scenario copy_by_template_waits_for_outbox_arm,
];

const PUBLISHED: i64 = 50;
const PENDING: i64 = 60;

fn numbers(records: &[Record]) -> Vec<i64> {
    records
        .iter()
        .map(|record| record.value_text().parse().expect("a number"))
        .collect()
}

/// A database with published and pending events and consumed keys, whose relay is switched off.
fn lay_out(s: &Scenario, db: &mut Db, kind: &str) {
    s.allow(
        "nothing is published until somebody calls outbox_arm()",
        "the copy's relay says why it waits",
    );
    for n in 0..PUBLISHED {
        db.emit_one(kind, &(n % 3).to_string(), &n.to_string());
    }
    db.wait_drained(seconds(20));
    db.run(
        "SELECT inbox_try_consume('mailer', ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid)
           FROM generate_series(1, 20) n",
    );
    db.run("ALTER DATABASE app SET outbox_ext.enabled = off");
    s.cluster.reload();
    db.wait_state("disabled", seconds(20));
    for n in PUBLISHED..PUBLISHED + PENDING {
        db.emit_one(kind, &(n % 3).to_string(), &n.to_string());
    }
}

fn dump_into(s: &Scenario, options: &[&str], database: &str) {
    let dump = s.cluster.data().with_file_name("dump.sql");
    shell::run(
        s.cluster
            .client("pg_dump")
            .args(options)
            .arg("-f")
            .arg(&dump)
            .arg("app"),
    );
    let restored = shell::try_run(
        s.cluster
            .client("psql")
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database, "-f"])
            .arg(&dump)
            .stdout(Stdio::null()),
    );
    assert!(
        restored.status.success(),
        "{}",
        String::from_utf8_lossy(&restored.stderr)
    );
}

/// What was pending comes along, and nothing is published before somebody says so.
fn restored_copy_waits_for_outbox_arm(name: &str) {
    let s = Scenario::begin(name);
    let (mut original, kind) = (s.db(), s.aggregate_type("original"));
    lay_out(&s, &mut original, &kind);
    // What the copy publishes goes to a topic of its own, to tell the two apart.
    original.run("CREATE DATABASE copy");
    let copies = s.topic("copy");
    original.run(&format!("ALTER DATABASE copy SET outbox_ext.topic = '{copies}'"));
    s.cluster.reload();
    dump_into(&s, &[], "copy");
    assert_foreign(&s, "copy", &kind);

    // The original goes on; what it publishes from here shows that time has passed for the copy as well.
    original.run("ALTER DATABASE app SET outbox_ext.enabled = on");
    s.cluster.reload();
    original.emit_one(&kind, "sentinel", "1000");
    let (verdict, records) = s.judge_all(&mut original, seconds(20));
    verdict.assert_no_duplicates();
    assert_eq!(records.len() as i64, PUBLISHED + PENDING + 1);
    let mut copy = s.cluster.connect("copy");
    copy.wait_state("foreign rows", seconds(20));
    assert_eq!(copy.pending(), PENDING, "all of them still wait");
    assert_eq!(Broker::shared().count(&copies), 0, "the copy has published nothing");

    assert!(copy.one::<bool>("SELECT outbox_arm()"), "there was a stop to lift");
    let mut copied = committed(&mut copy);
    copied.retain(|event| event.aggregate_type == kind);
    copy.emit_one("new-in-the-copy", "1", "2000");
    copy.wait_drained(seconds(20));
    let mut records = Broker::shared().read(&copies);
    records.retain(|record| record.value_text() != "2000");
    let verdict = judge(&copied, &records);
    verdict.assert_complete();
    verdict.assert_in_order();
    verdict.assert_no_duplicates();
    let mut seen = numbers(&records);
    seen.sort_unstable();
    assert_eq!(
        seen,
        (PUBLISHED..PUBLISHED + PENDING).collect::<Vec<_>>(),
        "the pending ones, no others"
    );
}

/// The copy has the pending events, the consumed keys and the sequence's place, and waits.
fn assert_foreign(s: &Scenario, database: &str, kind: &str) {
    let mut copy = s.cluster.connect(database);
    assert_eq!(copy.one::<i64>("SELECT count(*) FROM outbox_log"), PENDING);
    assert_eq!(copy.pending(), PENDING);
    assert_eq!(copy.one::<i64>("SELECT count(*) FROM outbox_stop"), 1);
    assert_eq!(copy.one::<i64>("SELECT count(*) FROM consumed_event"), 20);
    let again: bool = copy.one("SELECT inbox_try_consume('mailer', '00000000-0000-0000-0000-000000000007')");
    assert!(!again, "a key consumed before the dump stays consumed");
    let above: bool = copy.one("SELECT (SELECT last_value FROM outbox_log_seq) >= (SELECT max(seq) FROM outbox_log)");
    assert!(above, "the sequence goes on above what was restored");
    wait("the copy's relay to refuse", seconds(20), || {
        let state: String = copy.one("SELECT state FROM outbox_status");
        if state == "foreign rows" {
            Ok(())
        } else {
            Err(copy.status())
        }
    });
    let pending: i64 = copy.one_with(
        "SELECT count(*) FROM outbox_pending WHERE aggregate_type = $1",
        &[&kind],
    );
    assert_eq!(pending, PENDING);
}

/// A dump of data alone, into a database that has the extension, with the triggers switched off by the dump itself.
fn restore_of_data_only(name: &str) {
    let s = Scenario::begin(name);
    let (mut original, kind) = (s.db(), s.aggregate_type("data-only"));
    lay_out(&s, &mut original, &kind);
    original.run("CREATE DATABASE copy");
    let mut copy = s.cluster.connect("copy");
    copy.run("CREATE EXTENSION outbox_ext");
    copy.relay();
    dump_into(&s, &["--data-only"], "copy");
    assert_foreign(&s, "copy", &kind);
    assert_eq!(Broker::shared().count(&topic_of(&kind)) as i64, PUBLISHED);
    copy.run("SELECT outbox_arm()");
    copy.wait_drained(seconds(20));
    let records = Broker::shared().read(&topic_of(&kind));
    assert_eq!(records.len() as i64, PUBLISHED + PENDING);
}

/// What CREATE DATABASE copies has no foreign rows: the relay itself sees that the tables are another database's.
fn copy_by_template_waits_for_outbox_arm(name: &str) {
    let s = Scenario::begin(name);
    let (mut original, kind) = (s.db(), s.aggregate_type("template"));
    lay_out(&s, &mut original, &kind);
    s.allow("terminating", "its relay is in the way of the copy");
    drop(original);
    let mut admin = s.cluster.connect("postgres");
    wait("nobody to be connected", seconds(20), || {
        admin.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'app'");
        admin
            .try_run("CREATE DATABASE copy TEMPLATE app")
            .map_err(|error| error.to_string())
    });
    let copies = s.topic("copy");
    admin.run(&format!("ALTER DATABASE copy SET outbox_ext.topic = '{copies}'"));
    let mut copy = s.cluster.connect("copy");
    copy.emit_one("new-in-the-copy", "1", "2000");
    copy.wait_state("foreign rows", seconds(20));

    // The original is none, whoever restarts its relay.
    admin.run("ALTER DATABASE app SET outbox_ext.enabled = on");
    s.cluster.reload();
    let mut original = s.db();
    let (verdict, records) = s.judge_all(&mut original, seconds(20));
    verdict.assert_no_duplicates();
    assert_eq!(records.len() as i64, PUBLISHED + PENDING);
    assert_eq!(copy.pending(), PENDING + 1, "all of them still wait");
    assert_eq!(Broker::shared().count(&copies), 0, "the copy has published nothing");

    assert!(copy.one::<bool>("SELECT outbox_arm()"), "there was a stop to lift");
    copy.wait_drained(seconds(20));
    assert_eq!(Broker::shared().count(&copies) as i64, PENDING + 1);
    // For good: the next session does not set it again.
    copy.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox_ext relay' AND datname = 'copy'");
    copy.emit_one("new-in-the-copy", "1", "2001");
    copy.wait_drained(seconds(20));
}
