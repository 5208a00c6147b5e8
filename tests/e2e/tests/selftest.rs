//! The tests tested: a loss that is brought about on the real parts is seen.

use outbox_e2e::scenario::topic_of;
use outbox_e2e::{Broker, Scenario, committed, judge, seconds};

trials![scenario cursor_moved_by_hand_is_seen_by_the_judge];

/// With the relay off, the ledger is made to say that ten events were published. They never arrive, and the judge
/// must say which.
fn cursor_moved_by_hand_is_seen_by_the_judge(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("cheated");
    db.emit_one(&kind, "1", "0");
    db.wait_drained(seconds(20));
    db.run("ALTER DATABASE app SET outbox_ext.enabled = off");
    s.cluster.reload();
    db.wait_state("disabled", seconds(10));
    for n in 1..=10 {
        db.emit_one(&kind, "1", &n.to_string());
    }
    db.run(
        "INSERT INTO outbox_batch (batch_no, pos, events, bytes, published_at, snapshot)
         SELECT max(batch_no) + 1, (SELECT max(seq) FROM outbox_log), 10, 0, now(), pg_current_snapshot()
           FROM outbox_batch",
    );
    db.run("ALTER DATABASE app SET outbox_ext.enabled = on");
    s.cluster.reload();
    db.emit_one(&kind, "1", "11");
    db.wait_drained(seconds(20));
    let verdict = judge(&committed(&mut db), &Broker::shared().read(&topic_of(&kind)));
    assert_eq!(
        (verdict.committed, verdict.records, verdict.missing.len()),
        (12, 2, 10),
        "{}",
        verdict.summary()
    );
}
