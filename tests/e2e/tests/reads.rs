//! What a step reads: the events it publishes, whatever the log holds and whatever the planner knows of it.

use outbox_e2e::scenario::topic_of;
use outbox_e2e::{Broker, Db, Scenario, seconds};

trials![
    scenario statistics_do_not_change_what_a_step_reads,
    scenario parked_events_are_looked_up,
];

const KEPT: usize = 60_000;
const STEPS: usize = 20;
const PER_STEP: usize = 50;

/// Published events that are kept cost the relay nothing: with statistics never gathered, gathered while the log was full, and gathered while it
/// was nearly empty. Measured by what the indexes of outbox_log handed out.
fn statistics_do_not_change_what_a_step_reads(name: &str) {
    let s = Scenario::with(name, &[("autovacuum", "off")]);
    let mut db = s.db();
    let kind = s.aggregate_type("reads");
    let topic = topic_of(&kind);
    Broker::shared().create_topic(&topic, 1);
    let mut sent = 0;
    let mut emit = |db: &mut Db, events: usize| {
        let emit_all = format!(
            "SELECT count(outbox_emit('{kind}', (n % 100)::text, 'Happened', '{{}}')) FROM generate_series(1, {events}) n"
        );
        db.one::<i64>(&emit_all);
        sent += events;
        Broker::shared().wait_count(&topic, sent, seconds(60));
    };
    emit(&mut db, 1);
    db.run("ANALYZE outbox_log");
    emit(&mut db, KEPT);
    for (statistics, command) in [
        ("gathered from one row", "SELECT 1"),
        ("gathered from all", "ANALYZE outbox_log"),
        (
            "never gathered",
            "DELETE FROM pg_statistic WHERE starelid = 'outbox_log'::regclass;
                            UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE relname LIKE 'outbox_log%'",
        ),
    ] {
        db.run(command);
        // A new relay plans anew. Its predecessor's reads are in the statistics when it is gone.
        let relay = db.relay();
        db.run(&format!("SELECT pg_terminate_backend({relay}, 10000)"));
        emit(&mut db, 1);
        let before = read(&mut db);
        for _ in 0..STEPS {
            emit(&mut db, PER_STEP);
        }
        let relay = db.relay();
        db.run(&format!("SELECT pg_terminate_backend({relay}, 10000)"));
        let entries = read(&mut db) - before;
        let events = (STEPS * PER_STEP) as i64;
        eprintln!("  {name}: statistics {statistics}: {entries} index entries for {events} events");
        assert!(entries >= events, "the statistics of {entries} reads are not all there");
        // Once to publish it, and again where a relay that ended had not settled it or a late range went over it.
        assert!(
            entries <= 3 * events,
            "statistics {statistics}: {entries} index entries for {events} events"
        );
    }
    s.judge_complete(&mut db, seconds(30));
}

/// Plans that were made when the tables were empty, and known to be, look parked events up one by one when they are not any more.
fn parked_events_are_looked_up(name: &str) {
    const PARKED: i64 = 200;
    let s = Scenario::with(name, &[("autovacuum", "off")]);
    let mut db = s.db();
    let kind = s.aggregate_type("parked");
    let topic = topic_of(&kind);
    Broker::shared().create_topic(&topic, 1);
    db.run("VACUUM ANALYZE");
    let relay = db.relay();
    db.run(&format!("SELECT pg_terminate_backend({relay}, 10000)"));
    let emit = |db: &mut Db, events: i64, available_at: &str| {
        let emit_all = format!(
            "SELECT count(outbox_emit('{kind}', n::text, 'Happened', '{{}}', available_at => {available_at})) FROM generate_series(1, {events}) n"
        );
        db.one::<i64>(&emit_all);
    };
    // A plan is made when it is first run.
    emit(&mut db, 1, "now() + interval '1 second'");
    db.wait_drained(seconds(20));
    let relay = db.relay();
    emit(&mut db, KEPT as i64, "NULL");
    db.wait_drained(seconds(60));
    db.wait_true("SELECT state = 'idle' FROM outbox_status", seconds(10));
    // The relay tells its statistics before it sleeps; ours would come late.
    db.run("SELECT pg_stat_force_next_flush()");
    let before = read(&mut db);
    emit(&mut db, PARKED, "now() + interval '2 seconds'");
    Broker::shared().wait_count(&topic, 1 + KEPT + PARKED as usize, seconds(30));
    let parked: bool = db.one("SELECT count(*) > 0 FROM outbox_batch WHERE unparked IS NOT NULL");
    assert!(parked, "they were parked");
    assert_eq!(db.relay(), relay, "the plans are those of the beginning");
    db.run(&format!("SELECT pg_terminate_backend({relay}, 10000)"));
    let looked_up = read(&mut db) - before;
    eprintln!("  {name}: {looked_up} index entries for {PARKED} parked events");
    // A few each: read, parked, looked for orphans, read again. A plan that goes through the log has 60,000 for one.
    assert!(
        looked_up >= PARKED,
        "the statistics of {looked_up} reads are not all there"
    );
    assert!(
        looked_up <= 20 * PARKED,
        "{looked_up} index entries for {PARKED} parked events"
    );
    s.judge_complete(&mut db, seconds(30));
}

fn read(db: &mut Db) -> i64 {
    db.run("SELECT pg_stat_clear_snapshot()");
    db.one("SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'outbox_log'")
}
