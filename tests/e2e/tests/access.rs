//! What a broker does not let the relay do, and secrets it needs to be let in.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use outbox_e2e::scenario::topic_of;
use outbox_e2e::shell::give_to_server_user;
use outbox_e2e::wait::{check, let_pass};
use outbox_e2e::{Broker, Scenario, committed_of, judge, seconds, wait};

trials![
    stops_broker denied_topic_holds_back_its_aggregates_only,
    scenario options_file_and_its_secret,
];

/// A topic that may not be written: its events wait without a fault of theirs, others flow, and it goes on by itself.
fn denied_topic_holds_back_its_aggregates_only(name: &str) {
    let broker = Broker::prepare_with(&[
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found=true",
    ]);
    broker.start();
    let s = Scenario::with_brokers(name, broker.address(), &[("outbox_ext.retry_backoff_max", "1s")]);
    s.allow("outbox_ext relay WARNING", "it names the topic that may not be written");
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    let (denied, open) = (s.aggregate_type("denied"), s.aggregate_type("open"));
    let (denied_topic, open_topic) = (topic_of(&denied), topic_of(&open));
    broker.create_topic(&denied_topic, 2);
    broker.create_topic(&open_topic, 2);
    // Once a topic has an ACL, only what one allows is allowed; a denial goes before it.
    broker.tool(
        outbox_e2e::broker::ACLS,
        &[
            "--add",
            "--topic",
            &denied_topic,
            "--allow-principal",
            "User:*",
            "--operation",
            "All",
        ],
    );
    broker.deny_writes(&denied_topic);

    for n in 0..10 {
        db.emit_one(&denied, &(n % 2).to_string(), &n.to_string());
        for m in 0..10 {
            db.emit_one(&open, &(m % 4).to_string(), &(10 * n + m).to_string());
        }
    }
    broker.wait_count(&open_topic, 100, seconds(30));
    db.wait_true(
        "SELECT parked ->> 'topic' = '2' AND parked ->> 'behind' = '8' FROM outbox_status",
        seconds(30),
    );
    let errors: Vec<Option<String>> = db.all("SELECT last_error FROM outbox_parked WHERE reason = 'topic'");
    for error in errors.into_iter().map(Option::unwrap_or_default) {
        assert!(error.contains("may not write"), "{error}");
    }
    // Between two tries the status may be without it.
    db.wait_true(
        &format!("SELECT last_error LIKE '%{denied_topic}%may not write%' FROM outbox_status"),
        seconds(10),
    );

    // Others flow all the while: no producer is started again and again for the sake of the denied topic, and the log
    // is not flooded.
    let said = |what: &str| s.cluster.log().lines().filter(|line| line.contains(what)).count();
    let before = (said("gap-less guarantee"), said("outbox_ext relay"));
    for n in 100..400 {
        db.emit_one(&open, &(n % 4).to_string(), &n.to_string());
        let_pass(Duration::from_millis(20));
    }
    broker.wait_count(&open_topic, 400, seconds(20));
    let (rebuilds, lines) = (
        said("gap-less guarantee") - before.0,
        said("outbox_ext relay") - before.1,
    );
    assert!(
        rebuilds <= 1 && lines <= 40,
        "{rebuilds} new producers, {lines} lines in six seconds:\n{}",
        s.cluster.log()
    );
    assert_eq!(broker.count(&denied_topic), 0);

    broker.allow_writes(&denied_topic);
    db.wait_drained(seconds(30));
    for (kind, topic) in [(&denied, &denied_topic), (&open, &open_topic)] {
        let verdict = judge(&committed_of(&mut db, kind), &broker.read(topic));
        eprintln!("  {name}: {}", verdict.summary());
        verdict.assert_complete();
        verdict.assert_in_order();
    }
    let blamed: i64 = db.one("SELECT count(*) FROM outbox_event WHERE attempts > 0");
    assert_eq!(blamed, 0, "a denial is no fault of an event");
    db.wait_true("SELECT last_error IS NULL FROM outbox_status", seconds(10));
    drop(db);
    broker.stop();
}

/// Whatever is wrong with the file, what it holds is told to nobody.
fn options_file_and_its_secret(name: &str) {
    const SECRET: &str = "Marker5ecret";
    let s = Scenario::begin(name);
    s.allow("outbox_ext relay WARNING", "it says that the file is wrong");
    let mut db = s.db();
    let kind = s.aggregate_type("secret");
    let file = s.cluster.folder().join("kafka.options");
    let write = |text: &str| {
        fs::write(&file, text).expect("write the file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("close the file");
        give_to_server_user(&file);
    };
    let right = format!("# for Kafka\nsasl.password={SECRET}\nclient.id=from-file\n");
    let wrong = [
        (format!("{right}no.such.property=1\n"), "no.such.property"),
        (format!("{right}linger.ms={SECRET}\n"), "linger.ms"),
        (format!("{right}{SECRET}\n"), "line 4 is not key=value"),
        (format!("{right}\n{SECRET}=1\n"), "line 5 is not key=value"),
        (format!("{right}acks=1 # {SECRET}\n"), "acks"),
    ];
    db.run(&format!(
        "ALTER SYSTEM SET outbox_ext.kafka_options_file = '{}'",
        file.display()
    ));
    db.run("SELECT pg_reload_conf()");
    db.wait_true(
        "SELECT state = 'misconfigured' AND last_error LIKE '%outbox_ext.kafka_options_file%' FROM outbox_status",
        seconds(15),
    );
    db.emit_one(&kind, "1", "1");
    let mut spoken = Vec::new();
    for (text, word) in &wrong {
        write(text);
        db.run("SELECT pg_reload_conf()");
        wait(word, seconds(15), || {
            let status = db.status();
            spoken.push(status.clone());
            check(status.contains("misconfigured") && status.contains(word), || status)
        });
    }
    assert_eq!(db.pending(), 1, "nothing is published with wrong properties");
    write(&right);
    db.run("SELECT pg_reload_conf()");
    let (verdict, _) = s.judge_all(&mut db, seconds(20));
    assert_eq!(verdict.records, 1);
    // While it publishes, a file that became wrong is no reason to stop.
    write(&wrong[0].0);
    db.run("SELECT pg_reload_conf()");
    wait("the warning", seconds(15), || {
        let log = s.cluster.log();
        check(log.contains("goes on with the Kafka properties it has"), || log)
    });
    db.emit_one(&kind, "1", "2");
    let (verdict, _) = s.judge_all(&mut db, seconds(20));
    assert_eq!(verdict.records, 2);
    spoken.push(db.status());
    spoken.push(s.cluster.log());
    for text in spoken {
        assert!(!text.contains(SECRET), "a secret in: {text}");
    }
}
