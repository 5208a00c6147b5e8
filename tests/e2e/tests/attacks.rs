//! What people do to tables: none of it loses an event.

use outbox_e2e::scenario::topic_of;
use outbox_e2e::{Broker, Emit, Scenario, seconds};

use crate::load::{Commits, Load};

trials![
    scenario truncate_restart_identity,
    scenario parked_events_are_replaced,
    scenario wrong_seqs_cost_order_never_events,
    scenario sequence_with_a_cache,
    alone rewriting_the_table_under_load,
    scenario relay_refuses_without_its_trigger,
    scenario relay_refuses_without_its_check,
];

/// Everything is thrown away, the sequence too as far as PostgreSQL can; what comes after arrives.
fn truncate_restart_identity(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let before = s.aggregate_type("before");
    for n in 0..200 {
        db.emit_one(&before, "1", &n.to_string());
    }
    db.wait_drained(seconds(20));
    db.run("TRUNCATE outbox_log RESTART IDENTITY");
    let after = s.aggregate_type("after");
    for n in 0..20 {
        db.emit_one(&after, "1", &n.to_string());
    }
    let (verdict, _) = s.judge_all(&mut db, seconds(20));
    assert_eq!(verdict.records, 20);
    assert_eq!(
        Broker::shared().count(&topic_of(&before)),
        200,
        "nothing of before comes again"
    );
}

/// Parked events are deleted and emitted again with the same id, by transactions that tell the relay and by such that do not (COMMIT PREPARED): what
/// waited behind them goes on, then they do, and nothing of what they were stays parked.
fn parked_events_are_replaced(name: &str) {
    let s = Scenario::with(name, &[("outbox_ext.kafka_options", "allow.auto.create.topics=false")]);
    s.allow("outbox_ext relay WARNING", "it names the topic that does not exist");
    let mut db = s.db();
    let kind = s.aggregate_type("parked");
    let nowhere = format!("{}.nowhere", topic_of(&kind));
    Broker::shared().create_topic(&topic_of(&kind), 3);
    for (round, told) in [true, false].into_iter().enumerate() {
        let aggregate = round.to_string();
        let emit = Emit::new(&kind, &aggregate, "{}");
        let head = db.emit(&Emit {
            topic: Some(&nowhere),
            ..emit
        });
        let head_parked = format!("SELECT EXISTS (SELECT FROM outbox_parked WHERE event_id = '{head}')");
        db.wait_true(&head_parked, seconds(20));
        let behind = db.emit(&emit);
        let later = db.emit(&Emit {
            available_at: Some("2100-01-01"),
            ..emit
        });
        let parked = |rows: usize| format!("SELECT count(*) = {rows} FROM outbox_parked");
        db.wait_true(&parked(3 + round), seconds(20));
        let again = [
            Emit {
                event_id: Some(&head),
                ..emit
            },
            Emit {
                event_id: Some(&later),
                available_at: Some("2100-01-02"),
                ..emit
            },
        ];
        db.run("BEGIN");
        db.run(&format!(
            "DELETE FROM outbox_log WHERE event_id IN ('{head}', '{later}')"
        ));
        if told {
            again.iter().for_each(|emit| drop(db.emit(emit)));
            db.run("COMMIT");
        } else {
            db.run("PREPARE TRANSACTION 'parked'");
            db.run("COMMIT PREPARED 'parked'");
            again.iter().for_each(|emit| drop(db.emit(emit)));
        }
        for event_id in [&behind, &head] {
            let published = format!("SELECT state = 'published' FROM outbox_event WHERE event_id = '{event_id}'");
            db.wait_true(&published, seconds(30));
        }
        db.wait_true(&parked(1 + round), seconds(20));
        let due = "SELECT bool_and(available_at = '2100-01-02') FROM outbox_parked";
        db.wait_true(due, seconds(20));
    }
    let records = Broker::shared().read(&topic_of(&kind));
    assert_eq!(records.len(), 4, "each once");
}

/// Rows that bring a seq of their own, far below and far above, and a sequence that is set back.
fn wrong_seqs_cost_order_never_events(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("attack");
    let insert = |id: &str, seq: i64| {
        format!(
            "INSERT INTO outbox_log (aggregate_type, aggregate_id, event_type, payload, seq)
             VALUES ('{kind}', '{id}', 'Happened', '{{}}', {seq})"
        )
    };
    let rounds = [0, 1_000_000, -5, 1, i64::MIN, 0, 1_000_000];
    for (round, seq) in rounds.into_iter().enumerate() {
        db.emit_one(&kind, "usual", "{}");
        db.run(&insert(&format!("set-{round}"), seq));
        db.emit_one(&kind, "usual", "{}");
        s.judge_complete(&mut db, seconds(30));
    }
    // Below the cursor from here on: each comes up as late.
    db.run("SELECT setval('outbox_log_seq', 1)");
    for _ in 0..50 {
        db.emit_one(&kind, "after setval", "{}");
    }
    s.judge_complete(&mut db, seconds(30));
    // Beside open transactions, and in one that stays open over several steps.
    let mut open = s.db();
    open.run("BEGIN");
    open.run(&insert("open", 0));
    open.emit_one(&kind, "open", "{}");
    db.run(&insert("beside", 0));
    db.wait_drained(seconds(20));
    db.run("SELECT setval('outbox_log_seq', 5000000)");
    db.emit_one(&kind, "jumped", "{}");
    db.wait_drained(seconds(20));
    open.run(&insert("open", 4_000_000));
    open.run("COMMIT");
    s.judge_complete(&mut db, seconds(30));
    let equal: String = (0..3_000).map(|_| insert("equal", 77) + ";").collect();
    db.run(&format!("BEGIN; {equal} COMMIT"));
    s.judge_complete(&mut db, seconds(30));
}

/// Two sessions draw their numbers in blocks of 50: committed in another order than numbered, all the time.
fn sequence_with_a_cache(name: &str) {
    let s = Scenario::begin(name);
    let (mut one, mut two) = (s.db(), s.db());
    one.run("ALTER SEQUENCE outbox_log_seq CACHE 50");
    let kind = s.aggregate_type("cache");
    for n in 0..300 {
        one.emit_one(&kind, "one", &n.to_string());
        two.emit_one(&kind, "two", &n.to_string());
    }
    let (verdict, _) = s.judge_all(&mut one, seconds(20));
    assert_eq!(verdict.committed, 600);
}

/// Commands that rewrite the table or take it for themselves get their lock soon, and the relay loses nothing to them.
fn rewriting_the_table_under_load(name: &str) {
    let s = Scenario::begin(name);
    let types = [s.aggregate_type("rewrite")];
    let load = Load::start(&s, 6, &types, Commits::Mixed);
    let mut db = s.db();
    let statements = [
        "ALTER TABLE outbox_log ADD COLUMN extra float8 DEFAULT random()",
        "VACUUM FULL outbox_log",
        "ALTER TABLE outbox_log SET (fillfactor = 80)",
        "ALTER TABLE outbox_log DROP COLUMN extra",
        "CLUSTER outbox_log USING outbox_log_pkey",
        "REINDEX TABLE outbox_log",
        "VACUUM FULL outbox_batch",
    ];
    for (round, statement) in statements.iter().enumerate() {
        Broker::shared().wait_count(&topic_of(&types[0]), 300 * (round + 1), seconds(30));
        let began = std::time::Instant::now();
        db.run(statement);
        assert!(began.elapsed() < seconds(10), "{statement} took {:?}", began.elapsed());
    }
    load.stop();
    s.judge_all(&mut db, seconds(30)).0.assert_no_duplicates();
}

/// Without the trigger rows could bring a foreign xid: the relay says so and publishes nothing until it is back.
fn relay_refuses_without_its_trigger(name: &str) {
    let s = Scenario::begin(name);
    refuses(
        &s,
        "ALTER TABLE outbox_log DISABLE TRIGGER outbox_log_restamp",
        "ALTER TABLE outbox_log ENABLE ALWAYS TRIGGER outbox_log_restamp",
    );
}

/// Likewise without the CHECK.
fn relay_refuses_without_its_check(name: &str) {
    let s = Scenario::begin(name);
    refuses(
        &s,
        "ALTER TABLE outbox_log DROP CONSTRAINT outbox_log_event_is_sound",
        "ALTER TABLE outbox_log ADD CONSTRAINT outbox_log_event_is_sound CHECK (outbox_event_is_sound(
             xid, created_at, aggregate_type, aggregate_id, event_type, topic, headers)) NOT VALID",
    );
}

fn refuses(s: &Scenario, damage: &str, repair: &str) {
    s.allow("outbox_log_", "the relay names what is damaged");
    let mut db = s.db();
    let kind = s.aggregate_type("guarded");
    db.emit_one(&kind, "1", "1");
    db.wait_drained(seconds(20));
    db.run(damage);
    db.emit_one(&kind, "1", "2");
    db.wait_state("damaged", seconds(20));
    let reason: String = db.one("SELECT last_error FROM outbox_status");
    assert!(reason.contains("outbox_log_"), "the status names it: {reason}");
    assert_eq!(
        Broker::shared().count(&topic_of(&kind)),
        1,
        "nothing was published meanwhile"
    );
    db.run(repair);
    let (verdict, _) = s.judge_all(&mut db, seconds(30));
    assert_eq!(verdict.records, 2);
}
