//! The long one: 24 writers for a minute, then the judge.

use outbox_e2e::judge::counters_backwards;
use outbox_e2e::{Scenario, seconds};

use crate::load::{Commits, Load, counter};

/// Seconds of writing; set it lower for a quick look, higher for a soak.
const SECONDS: &str = "OUTBOX_E2E_WRITER_SECONDS";

trials![
    alone writers_24_complete_and_in_order,
];

/// Complete, in order by aggregate, no phantom, and, since nothing fails, no duplicate.
fn writers_24_complete_and_in_order(name: &str) {
    let time = std::env::var(SECONDS)
        .ok()
        .map_or(60, |text| text.parse().expect("seconds"));
    let s = Scenario::begin(name);
    let types: Vec<String> = ["order", "payment", "parcel"].map(|word| s.aggregate_type(word)).into();
    let written = Load::start(&s, 24, &types, Commits::Mixed).run_for(seconds(time));
    let mut db = s.db();
    let (verdict, records) = s.judge_all(&mut db, seconds(60));
    written.assert_all_in(&mut db);
    verdict.assert_no_duplicates();
    assert!(verdict.committed as u64 > 100 * time, "{}", verdict.summary());
    let backwards = counters_backwards(&records, counter);
    assert!(backwards.is_empty(), "{backwards:#?}");
    let exceptions: i64 = db.one("SELECT count(*) FROM outbox_parked");
    assert_eq!(exceptions, 0, "nothing was parked");
}
