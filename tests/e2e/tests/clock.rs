//! The machine's clock is set forward and back under a running server: durations do not care, and what is scheduled
//! follows the server's clock.

use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::{check, let_pass};
use outbox_e2e::{Broker, Db, Emit, Scenario, SteppedClock, Stop, committed, judge, seconds, wait};

trials![stops_broker clock_steps];

const STEP_SECONDS: i64 = 600;

/// Forward, back, and back in the middle of an outage.
fn clock_steps(name: &str) {
    let broker = Broker::prepare();
    broker.start();
    let mut s = Scenario::with_brokers(
        name,
        broker.address(),
        &[
            ("outbox_ext.lease_duration", "2s"),
            ("outbox_ext.max_attempts", "1000"),
            ("outbox_ext.retry_backoff_max", "1s"),
            ("outbox_ext.kafka_options", "reconnect.backoff.max.ms=1000"),
        ],
    );
    s.allow("outbox_ext relay WARNING", "it says that no broker answers");
    s.cluster.stop(Stop::Fast);
    let mut clock = SteppedClock::of(&mut s.cluster);
    s.cluster.start();
    let mut db = s.db();
    db.run("CREATE EXTENSION outbox_ext");
    let [kind, narrow] = ["clock", "narrow"].map(|word| s.aggregate_type(word));
    broker.create_topic(&topic_of(&kind), 2);
    broker.create_narrow_topic(&topic_of(&narrow), 1, "2000");
    flows(&mut db, &kind);
    let relay = db.relay();

    // One that is refused again and again, one that falls due by the step, one that does not.
    let mut random = outbox_e2e::Random::from_clock();
    let noise = random.noise();
    let refused = db.emit_one(&narrow, "refused", &format!("\"{noise}\""));
    tried_again(&mut db, &refused);
    // After the refusal, which begins a new session.
    let token: String = db.one("SELECT lease_token::text FROM outbox_lease");
    let soon = schedule(&mut db, &kind, "{}", STEP_SECONDS - 60);
    let later = schedule(&mut db, &kind, "{}", STEP_SECONDS + 60);
    db.wait_true("SELECT parked ->> 'scheduled' = '2' FROM outbox_status", seconds(10));
    clock.step(STEP_SECONDS);
    db.wait_true(&state_is(&soon, "published"), seconds(5));
    flows(&mut db, &kind);
    tried_again(&mut db, &refused);
    assert!(db.one::<bool>(&state_is(&later, "scheduled")), "it is not due yet");
    assert_eq!(db.one::<String>("SELECT lease_token::text FROM outbox_lease"), token);

    // Due once, refused, and scheduled for the future again by the clock that goes back.
    let was_due = schedule(&mut db, &narrow, &format!("\"{noise}\""), 1);
    tried_again(&mut db, &was_due);
    clock.step(-STEP_SECONDS);
    flows(&mut db, &kind);
    let due = schedule(&mut db, &kind, "{}", 2);
    db.wait_true(&state_is(&due, "published"), seconds(8));
    let early: bool = db.one(&format!(
        "SELECT published_at < available_at FROM outbox_event WHERE event_id = '{due}'"
    ));
    assert!(!early, "not before its time by the server's clock");
    // A pause between two tries is a duration, though the table tells its end as a time.
    tried_again(&mut db, &refused);
    tried_again(&mut db, &was_due);
    // Long enough for somebody to be succeeded, were the lease judged by that clock.
    let_pass(seconds(3));
    assert_eq!(db.relay(), relay, "nobody was succeeded");

    // What librdkafka waits for ends as well, set back in the middle of an outage.
    broker.stop();
    db.emit_one(&kind, "1", "{}");
    db.wait_state("outage", seconds(30));
    clock.step(-STEP_SECONDS);
    let age: String = db.one("SELECT oldest_due_age::text FROM outbox_status");
    assert_eq!(age, "00:00:00", "nothing is younger than new");
    broker.start();
    db.wait_true("SELECT state <> 'outage' FROM outbox_status", seconds(30));
    flows(&mut db, &kind);

    broker.limit_topic(&topic_of(&narrow), "1000000");
    db.wait_true(&state_is(&refused, "published"), seconds(10));
    db.wait_true(&state_is(&was_due, "published"), seconds(10));
    clock.step(3 * STEP_SECONDS);
    db.wait_drained(seconds(10));
    assert_eq!(db.relay(), relay);
    let records = [broker.read(&topic_of(&kind)), broker.read(&topic_of(&narrow))].concat();
    let verdict = judge(&committed(&mut db), &records);
    eprintln!("  {name}: {}", verdict.summary());
    verdict.assert_complete();
    verdict.assert_no_duplicates();
    drop((db, s));
    broker.stop();
}

/// Events are published at once.
#[track_caller]
fn flows(db: &mut Db, kind: &str) {
    for n in 0..20 {
        let id = db.emit_one(kind, &(n % 4).to_string(), &n.to_string());
        db.wait_true(&state_is(&id, "published"), seconds(5));
    }
}

fn state_is(id: &str, state: &str) -> String {
    format!("SELECT state = '{state}' FROM outbox_event WHERE event_id = '{id}'")
}

fn schedule(db: &mut Db, kind: &str, payload: &str, in_seconds: i64) -> String {
    let due: String = db.one(&format!(
        "SELECT (clock_timestamp() + {in_seconds} * interval '1 s')::text"
    ));
    db.emit(&Emit {
        available_at: Some(&due),
        ..Emit::new(kind, "scheduled", payload)
    })
}

/// A refused event is tried at least twice more.
#[track_caller]
fn tried_again(db: &mut Db, id: &str) {
    let attempts = format!("SELECT attempts FROM outbox_event WHERE event_id = '{id}'");
    let before: i32 = db.one(&attempts);
    wait("two more tries", seconds(10), || {
        let now: i32 = db.one(&attempts);
        check(now >= before + 2, || format!("{now} after {before}, {}", db.status()))
    });
}
