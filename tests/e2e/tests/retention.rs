//! Retention: what was published goes after its time, and nothing else ever does.

use std::time::Instant;

use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::{check, let_pass};
use outbox_e2e::{Broker, Committed, Db, Emit, Scenario, judge, seconds, wait};

use crate::load::{self, Commits, Load};

trials![alone retention_deletes_what_was_published_and_nothing_else];

/// Keeps a copy of what is inserted: the judge needs it after the events are gone.
/// outbox_emit runs under a search_path of its own, hence the schema.
const WITNESS: &str = "
    CREATE TABLE public.witness (id text, aggregate_type text, aggregate_id text, seq bigint, payload text);
    CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.witness VALUES (NEW.event_id, NEW.aggregate_type, NEW.aggregate_id, NEW.seq, NEW.payload::text);
        RETURN NULL;
    END $$;
    CREATE TRIGGER witness AFTER INSERT ON outbox_log FOR EACH ROW EXECUTE FUNCTION witness()";

fn witnessed(db: &mut Db, condition: &str) -> Vec<Committed> {
    let rows = db.rows(&format!(
        "SELECT id, aggregate_type, aggregate_id, seq, payload FROM witness WHERE {condition} ORDER BY seq"
    ));
    rows.iter()
        .map(|row| Committed {
            id: row.get(0),
            aggregate_type: row.get(1),
            aggregate_id: row.get(2),
            seq: row.get(3),
            payload: row.get(4),
        })
        .collect()
}

fn retention_deletes_what_was_published_and_nothing_else(name: &str) {
    let s = Scenario::with(
        name,
        &[
            ("outbox_ext.kafka_options", "allow.auto.create.topics=false"),
            ("outbox_ext.max_attempts", "2"),
            ("outbox_ext.retry_backoff", "20ms"),
            ("outbox_ext.retry_backoff_max", "1s"),
        ],
    );
    s.allow(
        "outbox_ext relay WARNING",
        "it says what was given up and which topic is missing",
    );
    let mut db = s.db();
    db.run(WITNESS);
    let broker = Broker::shared();
    let (kind, narrow, missing) = (
        s.aggregate_type("kept"),
        s.aggregate_type("narrow"),
        s.aggregate_type("missing"),
    );
    broker.create_topic(&topic_of(&kind), 3);
    broker.create_narrow_topic(&topic_of(&narrow), 1, "2000");
    db.run("ALTER DATABASE app SET outbox_ext.retention = 2");
    db.run("SELECT pg_reload_conf()");

    // What must stay: given up, behind it, scheduled, and one whose topic is missing.
    let mut random = outbox_e2e::Random::from_clock();
    let large = random.noise();
    let scheduled = Emit {
        available_at: Some("2100-01-01"),
        ..Emit::new(&kind, "scheduled", "1")
    };
    let mut stay = vec![
        db.emit_one(&narrow, "1", &format!("\"{large}\"")),
        db.emit_one(&narrow, "1", "\"behind\""),
        db.emit(&scheduled),
        db.emit_one(&missing, "1", "1"),
    ];
    stay.sort();

    // It emits at once and commits when others of its age are long gone.
    let mut slow = s.db();
    slow.run("BEGIN");
    let late = slow.emit_one(&kind, "late", "\"late\"");
    let load = Load::start(&s, 6, std::slice::from_ref(&kind), Commits::Mixed);
    wait("older events to be deleted under load", seconds(30), || {
        let deleted: i64 = db.one("SELECT (SELECT count(*) FROM witness) - (SELECT count(*) FROM outbox_log)");
        check(deleted > 1_000, || format!("{deleted} deleted, {}", db.status()))
    });
    let_pass(seconds(3));
    slow.run("COMMIT");
    let committed_at = Instant::now();
    let is_there = format!("SELECT EXISTS (SELECT FROM outbox_log WHERE event_id = '{late}')");
    wait("the late event to be deleted", seconds(20), || {
        check(!db.one::<bool>(&is_there), || db.status())
    });
    let stayed = committed_at.elapsed();
    assert!(
        stayed >= seconds(2),
        "the late event was deleted {stayed:?} after its commit"
    );
    load.stop();
    load::finish_prepared(&mut db);

    wait("all published events to be deleted", seconds(30), || {
        let left: Vec<String> = db.all("SELECT event_id::text FROM outbox_log ORDER BY 1");
        check(left == stay, || format!("{} left, {}", left.len(), db.status()))
    });
    let states: Vec<String> = db.all("SELECT state FROM outbox_event ORDER BY created_at");
    assert_eq!(states, ["failed", "behind", "scheduled", "retrying"]);
    let excluded = format!("id NOT IN ('{}')", stay.join("', '"));
    let verdict = judge(&witnessed(&mut db, &excluded), &broker.read(&topic_of(&kind)));
    eprintln!("  {name}: {}", verdict.summary());
    verdict.assert_complete();
    verdict.assert_in_order();

    // The ledger: short, and its newest row is there for the next start.
    let newest: i64 = db.one("SELECT max(batch_no) FROM outbox_batch");
    wait("the ledger to be short", seconds(20), || {
        let rows: i64 = db.one("SELECT count(*) FROM outbox_batch");
        check(rows <= 30, || format!("{rows} rows"))
    });
    assert!(newest > 30, "{newest} settles are too few to tell");
    let kept: i64 = db.one("SELECT max(batch_no) FROM outbox_batch");
    assert!(kept >= newest, "the newest row {newest} is gone, {kept} is the highest");
    let records_before = broker.count(&topic_of(&kind));
    s.cluster.stop(outbox_e2e::Stop::Fast);
    s.cluster.start();
    let mut db = s.db();
    let last = db.emit_one(&kind, "last", "\"last\"");
    let records = broker.wait_records(&topic_of(&kind), records_before + 1, seconds(20));
    assert_eq!(records.len(), records_before + 1, "nothing comes again after a restart");
    assert!(records.iter().any(|record| record.id() == last));

    // An id is free when its event was deleted, and refused for as long as it is there, published or not.
    db.wait_true(
        &format!("SELECT NOT EXISTS (SELECT FROM outbox_log WHERE event_id = '{last}')"),
        seconds(20),
    );
    db.run("ALTER DATABASE app RESET outbox_ext.retention");
    db.run("SELECT pg_reload_conf()");
    let again = Emit {
        event_id: Some(&last),
        ..Emit::new(&kind, "last", "\"again\"")
    };
    assert_eq!(db.emit(&again), last);
    db.wait_true(
        &format!("SELECT state = 'published' FROM outbox_event WHERE event_id = '{last}'"),
        seconds(10),
    );
    s.allow("outbox_log_pkey", "asked for");
    let (code, _) = db.refused(&format!(
        "SELECT outbox_emit('{kind}', 'last', 'Happened', '{{}}', event_id => '{last}')"
    ));
    assert_eq!(code, "23505");

    // What stayed is published when it can be.
    broker.limit_topic(&topic_of(&narrow), "1000000");
    assert_eq!(db.one::<i64>("SELECT outbox_retry_all()"), 1);
    broker.create_topic(&topic_of(&missing), 1);
    broker.wait_count(&topic_of(&missing), 1, seconds(30));
    let pair = broker.wait_records(&topic_of(&narrow), 2, seconds(30));
    assert_eq!(pair[1].value_text(), "\"behind\"");
}
