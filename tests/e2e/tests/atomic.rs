//! An event exists if and only if its transaction committed, by whatever way it was written.

use outbox_e2e::scenario::topic_of;
use outbox_e2e::{Broker, Record, Scenario, Stop, seconds};

trials![
    scenario rolled_back_events_are_not_published,
    scenario plain_insert_through_the_view,
    scenario copy_of_ten_thousand_rows,
    scenario prepared_transactions,
    scenario prepared_transactions_across_restarts,
    scenario emit_from_a_trigger,
];

fn values(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.value_text()).collect()
}

/// Transaction, savepoint, PL/pgSQL exception block: exactly what survives is published, in order.
fn rolled_back_events_are_not_published(name: &str) {
    let s = Scenario::begin(name);
    s.allow("ERROR:  deliberate", "the scenario raises it");
    let mut db = s.db();
    let kind = s.aggregate_type("rollback");
    let emit = |n: &str| format!("SELECT outbox_emit('{kind}', '1', 'Happened', '\"{n}\"');");
    db.run(&format!("BEGIN; {} ROLLBACK;", emit("drop")));
    db.run(&format!(
        "BEGIN; {} SAVEPOINT s; {} ROLLBACK TO s; {} COMMIT;",
        emit("keep"),
        emit("drop"),
        emit("keep2")
    ));
    db.run(&format!(
        "DO $$ BEGIN
             PERFORM outbox_emit('{kind}', '1', 'Happened', '\"keep3\"');
             BEGIN
                 PERFORM outbox_emit('{kind}', '1', 'Happened', '\"drop\"');
                 RAISE EXCEPTION 'deliberate';
             EXCEPTION WHEN raise_exception THEN NULL;
             END;
         END $$"
    ));
    let many: String = (0..500)
        .map(|n| format!("SAVEPOINT s; {} ROLLBACK TO s; RELEASE s;", emit(&format!("drop {n}"))))
        .collect();
    db.run(&format!("BEGIN; {many} {} COMMIT;", emit("keep4")));
    assert_eq!(
        db.refused(&format!("BEGIN; {} SELECT 1/0; COMMIT;", emit("drop"))).0,
        "22012"
    );
    db.run("ROLLBACK");
    s.allow("ERROR:  division by zero", "the scenario asks for it");
    db.run(&emit("last"));

    let (_, records) = s.judge_all(&mut db, seconds(20));
    let expected = ["keep", "keep2", "keep3", "keep4", "last"].map(|word| format!("\"{word}\""));
    assert_eq!(values(&records), expected);
}

/// The INSERT of an ORM, with RETURNING, with several rows, with ON CONFLICT.
fn plain_insert_through_the_view(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("insert");
    let columns = "(event_id, aggregate_type, aggregate_id, event_type, payload)";
    let id: String = db.one(&format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload)
         VALUES ('{kind}', '1', 'Happened', '1') RETURNING event_id::text"
    ));
    db.run(&format!(
        "INSERT INTO outbox_event {columns} VALUES
             (gen_random_uuid(), '{kind}', '1', 'Happened', '2'),
             (gen_random_uuid(), '{kind}', '1', 'Happened', '3')"
    ));
    let again = format!(
        "INSERT INTO outbox_event {columns} VALUES ('{id}', '{kind}', '1', 'Happened', '4')
         ON CONFLICT (event_id) DO NOTHING"
    );
    assert_eq!(db.touched(&again, &[]), 0, "the second of one id is left out");
    let (_, records) = s.judge_all(&mut db, seconds(20));
    assert_eq!(values(&records), ["1", "2", "3"]);
    assert_eq!(records[0].id(), id);
}

/// Rows that came in by COPY, without any call of ours, are published like others.
fn copy_of_ten_thousand_rows(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("copy");
    let lines: String = (0..10_000)
        .map(|n| format!("{kind}\t{}\tHappened\t{{\"n\": {n}}}\n", n % 97))
        .collect();
    let copied = db.copy_in(
        "COPY outbox_log (aggregate_type, aggregate_id, event_type, payload) FROM STDIN",
        &lines,
    );
    assert_eq!(copied, 10_000);
    let (verdict, _) = s.judge_all(&mut db, seconds(15));
    assert_eq!(verdict.records, 10_000);
}

/// Two-phase commit: published at COMMIT PREPARED, never before, never after ROLLBACK PREPARED.
fn prepared_transactions(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("prepared");
    db.run("BEGIN");
    db.emit_one(&kind, "1", "1");
    db.run("PREPARE TRANSACTION 'keep'; BEGIN");
    db.emit_one(&kind, "2", "2");
    db.run("PREPARE TRANSACTION 'drop'");
    db.emit_one(&kind, "3", "3");
    let records = Broker::shared().wait_records(&topic_of(&kind), 1, seconds(20));
    assert_eq!(values(&records), ["3"], "what is only prepared is not published");
    db.run("ROLLBACK PREPARED 'drop'");
    db.run("COMMIT PREPARED 'keep'");
    let (_, records) = s.judge_all(&mut db, seconds(15));
    assert_eq!(records.len(), 2);
}

/// A prepared transaction outlives the server that prepared it, and so do its events.
fn prepared_transactions_across_restarts(name: &str) {
    let s = Scenario::begin(name);
    let kind = s.aggregate_type("prepared");
    let mut expected = 0;
    for stop in [Stop::Fast, Stop::Immediate] {
        let mut db = s.db();
        db.run("BEGIN");
        db.emit_one(&kind, "held", "\"prepared\"");
        db.run("PREPARE TRANSACTION 'held'");
        db.emit_one(&kind, "before", "\"before\"");
        db.wait_drained(seconds(20));
        drop(db);
        s.cluster.stop(stop);
        s.cluster.start();
        let mut db = s.db();
        db.emit_one(&kind, "after", "\"after\"");
        db.wait_drained(seconds(20));
        db.run("COMMIT PREPARED 'held'");
        expected += 3;
        let (verdict, _) = s.judge_all(&mut db, seconds(20));
        assert_eq!(verdict.committed, expected);
    }
}

/// A trigger of the application's own table emits: the event shares the fate of the row.
fn emit_from_a_trigger(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("trigger");
    db.run(&format!(
        "CREATE TABLE orders (id int PRIMARY KEY, state text);
         CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM public.outbox_emit('{kind}', NEW.id::text, 'OrderChanged', to_jsonb(NEW));
             RETURN NEW;
         END $$;
         CREATE TRIGGER announce AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION announce()"
    ));
    db.run("INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 3) n");
    db.run("BEGIN; UPDATE orders SET state = 'lost'; ROLLBACK");
    db.run("UPDATE orders SET state = 'paid' WHERE id = 2");
    let (_, records) = s.judge_all(&mut db, seconds(20));
    let of_two: Vec<&str> = records
        .iter()
        .filter(|record| record.key_text() == "2")
        .map(|record| record.value_text())
        .collect();
    assert_eq!(
        of_two,
        [r#"{"id": 2, "state": "new"}"#, r#"{"id": 2, "state": "paid"}"#]
    );
}
