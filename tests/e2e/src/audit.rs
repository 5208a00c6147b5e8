//! What the judge says of a run with faults: which deliveries beyond the first a fault explains, which events counted as
//! published too early, and what else the writers know.
//!
//! Times are milliseconds since 1970 by the clock of this machine: the topics carry the time at which the leader
//! appended a record (`message.timestamp.type=LogAppendTime`), the faults the time at which the harness acted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::topic::Record;

/// How long after its end a fault may still show: requests time out, leaders are looked for, a relay comes back.
const AFTERMATH_MS: i64 = 15_000;
/// What was delivered so long before a crash may not be settled on disk: the interval of settles, and three rounds of
/// the WAL writer, since settles do not wait for the disk.
const UNSETTLED_MS: i64 = 1_500;
/// Between two looks at the same clock.
const SKEW_MS: i64 = 20;

pub fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("the clock is past 1970").as_millis() as i64
}

/// Something the harness did to the parts under test.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: &'static str,
    pub began_ms: i64,
    pub ended_ms: i64,
    /// Whether it can be the reason of a second delivery. A stop in order, say, cannot.
    pub may_repeat: bool,
    /// Events that were committed and not settled just before it.
    pub unsettled_before: usize,
    /// Whether it ended the relay at one moment, so that no more can come twice than was not settled then.
    pub is_crash: bool,
}

/// Deliveries beyond the first, by the fault that explains each.
#[derive(Debug, Default)]
pub struct Repeats {
    /// For each fault, in their order.
    pub of_fault: Vec<usize>,
    /// The most that each may have.
    pub allowed: Vec<usize>,
    pub unexplained: Vec<String>,
}

impl Repeats {
    pub fn total(&self) -> usize {
        self.of_fault.iter().sum::<usize>() + self.unexplained.len()
    }

    /// Faults with more deliveries than was in flight or not settled then.
    pub fn excessive(&self, faults: &[Fault]) -> Vec<String> {
        let each = faults.iter().zip(self.of_fault.iter().zip(&self.allowed));
        each.filter(|(_, (found, allowed))| found > allowed)
            .map(|(fault, (found, allowed))| format!("{}: {found} repeated, {allowed} were not settled", fault.kind))
            .collect()
    }
}

/// Gives each delivery beyond the first to a fault between it and the first one: to the latest, as that is what made
/// the relay send again.
pub fn explain(records: &[Record], faults: &[Fault]) -> Repeats {
    let first = first_appended(records);
    let mut repeats = Repeats {
        of_fault: vec![0; faults.len()],
        allowed: faults.iter().map(|fault| allowance(fault, &first)).collect(),
        unexplained: Vec::new(),
    };
    let mut seen: HashSet<&str> = HashSet::new();
    let mut in_time: Vec<&Record> = records.iter().collect();
    in_time.sort_by_key(|record| time(record));
    for record in in_time.into_iter().filter(|record| !seen.insert(record.id())) {
        let (before, at) = (first[record.id()], time(record));
        let cause = faults.iter().rposition(|fault| {
            fault.may_repeat && fault.began_ms <= at + SKEW_MS && fault.ended_ms + AFTERMATH_MS >= before
        });
        match cause {
            Some(cause) => repeats.of_fault[cause] += 1,
            None => repeats.unexplained.push(format!(
                "{} {}[{}]@{} first at {before}, again at {at}",
                record.id(),
                record.topic,
                record.partition,
                record.offset
            )),
        }
    }
    repeats
}

/// What was waiting then, and what was delivered a moment before or, for a fault that lasts, until its aftermath.
fn allowance(fault: &Fault, first: &HashMap<&str, i64>) -> usize {
    let end = if fault.is_crash {
        fault.began_ms + SKEW_MS
    } else {
        fault.ended_ms + AFTERMATH_MS
    };
    let span = fault.began_ms - UNSETTLED_MS..=end;
    fault.unsettled_before + first.values().filter(|at| span.contains(at)).count()
}

fn time(record: &Record) -> i64 {
    record.timestamp_ms.unwrap_or(0)
}

/// When each event was first appended, whatever the order in which its records were read.
fn first_appended(records: &[Record]) -> HashMap<&str, i64> {
    let mut first: HashMap<&str, i64> = HashMap::new();
    for record in records {
        let at = time(record);
        first
            .entry(record.id())
            .and_modify(|known| *known = at.min(*known))
            .or_insert(at);
    }
    first
}

/// An event that the database called published at a moment.
#[derive(Clone, Debug)]
pub struct Sample {
    pub id: String,
    pub at_ms: i64,
}

/// Samples whose record was not on a topic at that moment.
pub fn published_too_early(records: &[Record], samples: &[Sample]) -> Vec<String> {
    let first = first_appended(records);
    let early = samples.iter().filter_map(|sample| match first.get(&*sample.id) {
        None => Some(format!("{} is on no topic", sample.id)),
        Some(at) if *at > sample.at_ms + SKEW_MS => {
            Some(format!("{} was appended {} ms later", sample.id, at - sample.at_ms))
        }
        Some(_) => None,
    });
    early.collect()
}

/// Records of events whose transaction or savepoint was rolled back.
pub fn rolled_back_and_published(records: &[Record], rolled_back: &[String]) -> Vec<String> {
    let there: HashSet<&str> = records.iter().map(Record::id).collect();
    rolled_back
        .iter()
        .filter(|id| there.contains(id.as_str()))
        .cloned()
        .collect()
}

/// What an inbox's consumer applied, against what was committed: those applied not once.
pub fn not_applied_once(applied: &[String], committed: impl Iterator<Item = String>) -> Vec<String> {
    let mut times: BTreeMap<String, i64> = committed.map(|id| (id, 0)).collect();
    for id in applied {
        // One that was never committed has 99 at least.
        *times.entry(id.clone()).or_insert(98) += 1;
    }
    let wrong = times.into_iter().filter(|(_, times)| *times != 1);
    wrong.map(|(id, times)| format!("{id} {times} times")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str, at_ms: i64) -> Record {
        Record {
            topic: "t".into(),
            partition: 0,
            offset: at_ms,
            key: Some("1".into()),
            value: Some("{}".into()),
            headers: vec![("id".into(), Some(id.into()))],
            timestamp_ms: Some(at_ms),
        }
    }

    fn fault(kind: &'static str, began_ms: i64, ended_ms: i64) -> Fault {
        Fault {
            kind,
            began_ms,
            ended_ms,
            may_repeat: true,
            unsettled_before: 0,
            is_crash: false,
        }
    }

    #[test]
    fn a_repeat_belongs_to_the_latest_fault_before_it() {
        let faults = [
            fault("one", 1_000, 1_100),
            fault("two", 5_000, 5_100),
            fault("three", 90_000, 90_100),
        ];
        let records = [
            record("a", 900),
            record("a", 6_000),
            record("b", 5_050),
            record("b", 5_200),
        ];
        let repeats = explain(&records, &faults);
        assert_eq!(repeats.of_fault, [0, 2, 0]);
        assert!(repeats.unexplained.is_empty());
        assert_eq!(repeats.total(), 2);
    }

    #[test]
    fn a_repeat_without_a_fault_is_unexplained() {
        let mut orderly = fault("stop in order", 1_000, 1_100);
        orderly.may_repeat = false;
        let records = [record("a", 900), record("a", 1_200)];
        assert_eq!(explain(&records, &[orderly]).unexplained.len(), 1);
        assert_eq!(explain(&records, &[]).unexplained.len(), 1);
        // The first delivery came long after the fault had passed.
        let records = [record("a", 50_000), record("a", 50_100)];
        assert_eq!(explain(&records, &[fault("old", 1_000, 1_100)]).unexplained.len(), 1);
        // The fault came after both.
        let records = [record("a", 100), record("a", 200)];
        assert_eq!(explain(&records, &[fault("later", 1_000, 1_100)]).unexplained.len(), 1);
    }

    #[test]
    fn the_order_of_reading_does_not_matter() {
        // Partition by partition, the second delivery may be read before the first.
        let records = [record("a", 1_200), record("a", 900)];
        assert_eq!(explain(&records, &[fault("one", 1_000, 1_100)]).of_fault, [1]);
    }

    #[test]
    fn a_crash_repeats_no_more_than_was_not_settled() {
        let mut crash = fault("crash", 10_000, 12_000);
        crash.is_crash = true;
        crash.unsettled_before = 1;
        let old = ["a", "b", "c"].map(|id| record(id, 2_000));
        let again = ["a", "b", "c"].map(|id| record(id, 12_500));
        let faults = [crash];
        let repeats = explain(&[old, again.clone()].concat(), &faults);
        assert_eq!((repeats.of_fault[0], repeats.allowed[0]), (3, 1));
        assert_eq!(repeats.excessive(&faults).len(), 1);
        // Delivered a moment before, so settled in memory at best.
        let fresh = ["a", "b", "c"].map(|id| record(id, 9_500));
        let repeats = explain(&[fresh, again].concat(), &faults);
        assert_eq!(repeats.allowed[0], 4);
        assert!(repeats.excessive(&faults).is_empty());
    }

    #[test]
    fn sees_an_event_that_counted_as_published_too_early() {
        let sample = |id: &str, at_ms| Sample { id: id.into(), at_ms };
        let records = [record("a", 900), record("a", 5_000), record("b", 3_000)];
        let early = published_too_early(&records, &[sample("a", 1_000), sample("b", 1_000), sample("c", 1_000)]);
        assert_eq!(early.len(), 2, "{early:?}");
    }

    #[test]
    fn sees_an_event_of_a_rollback() {
        let rolled_back = ["x".to_owned(), "a".to_owned()];
        assert_eq!(rolled_back_and_published(&[record("a", 1)], &rolled_back), ["a"]);
    }

    #[test]
    fn sees_what_an_inbox_applied_twice_or_never_or_wrongly() {
        let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let committed = owned(&["a", "b", "c"]);
        let applied = owned(&["a", "b", "b", "x"]);
        let wrong = not_applied_once(&applied, committed.clone().into_iter());
        assert_eq!(wrong, ["b 2 times", "c 0 times", "x 99 times"]);
        assert!(not_applied_once(&committed, committed.clone().into_iter()).is_empty());
    }
}
