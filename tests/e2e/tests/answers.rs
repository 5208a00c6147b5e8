//! What the relay makes of each answer that brokers can give to a produce request. The answers come from a mock
//! cluster, which gives them on demand and stores nothing that it refuses.
//!
//! The mock checks no sequence numbers: where a real broker refuses what follows a refused request of a producer, the mock
//! stores it. So order is judged here only for what is sent again as it was.

use std::time::Instant;

use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::check;
use outbox_e2e::{Db, MockKafka, Scenario, Verdict, committed, judge, seconds, wait};

trials![
    scenario answers_cost_no_attempt,
    scenario answer_that_refuses_is_given_up_and_retried,
    scenario answer_that_is_the_clusters_fault_never_gives_up,
];

/// What the relay is to do about an answer that comes twice and then no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// librdkafka tries again by itself: the producer stays.
    Retried,
    /// The events are read again.
    ReadAgain,
}

use Course::{ReadAgain, Retried};

/// Codes of Kafka's protocol; -195 has the mock broker drop the connection.
const ANSWERS: [(i32, &str, Course); 17] = [
    (-195, "connection dropped", Retried),
    (6, "not leader", Retried),
    (7, "request timed out", Retried),
    (19, "not enough replicas", Retried),
    (20, "not enough replicas after append", Retried),
    (56, "storage error", Retried),
    (-1, "unknown server error", ReadAgain),
    (10, "message too large", ReadAgain),
    (29, "topic authorization failed", ReadAgain),
    (31, "cluster authorization failed", ReadAgain),
    (44, "policy violation", ReadAgain),
    (45, "out of order sequence", ReadAgain),
    (46, "duplicate sequence", ReadAgain),
    (47, "invalid producer epoch", ReadAgain),
    (59, "unknown producer id", ReadAgain),
    (87, "invalid record", ReadAgain),
    (89, "throttling quota exceeded", ReadAgain),
];

/// Those that blame a record.
const BLAMING: [i32; 3] = [10, 44, 87];

const AGGREGATES: i32 = 5;

struct Mocked {
    mock: MockKafka,
    s: Scenario,
    db: Db,
    kind: String,
}

impl Mocked {
    fn begin(name: &str, settings: &[(&str, &str)]) -> Mocked {
        let mock = MockKafka::start(env!("CARGO_BIN_EXE_mock_kafka"));
        let quick = [
            ("outbox_ext.retry_backoff", "20ms"),
            ("outbox_ext.retry_backoff_max", "200ms"),
        ];
        let s = Scenario::with_brokers(name, mock.kafka().address(), &[&quick[..], settings].concat());
        s.allow("outbox_ext relay WARNING", "it says what it was answered");
        let mut db = s.db();
        db.run("CREATE EXTENSION outbox_ext");
        let kind = s.aggregate_type("mocked");
        mock.tell(&format!("topic {} 4", topic_of(&kind)));
        let mut mocked = Mocked { mock, s, db, kind };
        mocked.emit(20);
        mocked.db.wait_drained(seconds(20));
        mocked
    }

    /// So many events of a few aggregates in one transaction.
    fn emit(&mut self, events: i32) {
        let kind = &self.kind;
        self.db.run(&format!(
            "SELECT outbox_emit('{kind}', (n % {AGGREGATES})::text, 'Happened', to_jsonb(n))
               FROM generate_series(1, {events}) n"
        ));
    }

    fn refuse(&self, code: i32, times: u32) {
        self.mock.tell(&format!("fail {code} {times}"));
    }

    /// Everything is there, and nobody was blamed.
    #[track_caller]
    fn assert_unharmed(&mut self, why: &str) -> Verdict {
        self.db.wait_drained(seconds(30));
        let records = self.mock.kafka().read(&topic_of(&self.kind));
        let verdict = judge(&committed(&mut self.db), &records);
        let right = verdict.missing.is_empty()
            && verdict.phantom.is_empty()
            && verdict.altered.is_empty()
            && verdict.split.is_empty();
        assert!(right, "{why}: {verdict:#?}");
        let blamed: i64 = self
            .db
            .one("SELECT count(*) FROM outbox_event WHERE attempts > 0 OR state <> 'published'");
        assert_eq!(blamed, 0, "{why}: attempts or states");
        verdict
    }

    fn relay_lines(&self) -> usize {
        let log = self.s.cluster.log();
        log.lines().filter(|line| line.contains("outbox_ext relay")).count()
    }
}

/// Each answer comes twice in the middle of a load, one that blames a record once: its record alone would be blamed. None is an event's own fault for certain, so none counts against
/// an event.
fn answers_cost_no_attempt(name: &str) {
    let mut m = Mocked::begin(name, &[]);
    for (code, what, course) in ANSWERS {
        let lines = m.relay_lines();
        let batches: i64 = m.db.one("SELECT max(batch_no) FROM outbox_batch");
        m.refuse(code, if BLAMING.contains(&code) { 1 } else { 2 });
        let began = Instant::now();
        for _ in 0..4 {
            m.emit(30);
        }
        let verdict = m.assert_unharmed(what);
        let (took, lines) = (began.elapsed(), m.relay_lines() - lines);
        let settles: i64 = m.db.one::<i64>("SELECT max(batch_no) FROM outbox_batch") - batches;
        m.mock.tell("forget-failures");
        eprintln!(
            "  {name}: {what} ({code}): {took:?}, {} duplicates and {} out of order in all, {settles} settles, {lines} lines",
            verdict.duplicates,
            verdict.out_of_order.len()
        );
        assert!(took < seconds(15), "{what}: {took:?}");
        if course == Retried {
            verdict.assert_in_order();
            assert_eq!(lines, 0, "{what}: librdkafka sees to it");
        }
        assert!(lines <= 6, "{what}: {lines} lines");
    }
}

/// An answer that blames the record, for ever: it is given up with the reason, holds its aggregate and nobody else's,
/// and goes when an operator sends it again.
fn answer_that_refuses_is_given_up_and_retried(name: &str) {
    for (code, reason) in [(87, "validation rejected"), (44, "policy")] {
        let mut m = Mocked::begin(name, &[("outbox_ext.max_attempts", "3")]);
        m.refuse(code, 1_000);
        let event = m.db.emit_one(&m.kind, "1", "\"refused\"");
        m.db.emit_one(&m.kind, "1", "\"behind it\"");
        m.db.wait_true(
            "SELECT parked ->> 'failed' = '1' AND parked ->> 'behind' = '1' FROM outbox_status",
            seconds(30),
        );
        let row =
            m.db.rows("SELECT event_id::text, attempts, last_error FROM outbox_dead_letter")
                .remove(0);
        assert_eq!((row.get::<_, String>(0), row.get::<_, i32>(1)), (event.clone(), 3));
        let error: String = row.get(2);
        assert!(error.contains(reason), "{error}");
        m.mock.tell("forget-failures");
        let others = m.db.emit_one(&m.kind, "2", "\"a stranger\"");
        wait("the stranger's event", seconds(20), || {
            let records = m.mock.kafka().read(&topic_of(&m.kind));
            check(records.iter().any(|record| record.id() == others), || m.db.status())
        });
        assert!(m.db.one::<bool>(&format!("SELECT outbox_retry('{event}')")));
        m.db.wait_drained(seconds(20));
        let verdict = judge(&committed(&mut m.db), &m.mock.kafka().read(&topic_of(&m.kind)));
        verdict.assert_complete();
        verdict.assert_in_order();
    }
}

/// An answer that blames the client, for ever: events wait, the status says why, no attempt is used up; all goes on
/// when it is mended.
fn answer_that_is_the_clusters_fault_never_gives_up(name: &str) {
    let mut m = Mocked::begin(
        name,
        &[
            ("outbox_ext.max_attempts", "2"),
            ("outbox_ext.retry_backoff", "500ms"),
            ("outbox_ext.retry_backoff_max", "4s"),
        ],
    );
    m.refuse(31, 10_000);
    m.emit(50);
    m.db.wait_true(
        "SELECT waiting = 50 AND last_error LIKE '%may not use this cluster%' FROM outbox_status",
        seconds(20),
    );
    let lines = m.relay_lines();
    let began = Instant::now();
    while began.elapsed() < seconds(5) {
        let used: i64 = m.db.one("SELECT count(*) FROM outbox_event WHERE attempts > 0");
        assert_eq!(used, 0, "attempts");
        m.db.wait_true("SELECT true FROM outbox_status WHERE waiting = 50", seconds(1));
    }
    let lines = m.relay_lines() - lines;
    assert!(lines <= 10, "{lines} lines in five seconds");
    m.mock.tell("forget-failures");
    m.assert_unharmed("mended");
}
