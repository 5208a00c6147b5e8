//! The judge: compares what was committed with what a topic holds.
//!
//! Complete: every committed event is there. No phantom: nothing else is. In order: for each aggregate the first
//! deliveries follow seq. Unaltered: the value is the payload's text, the key the aggregate's id. Duplicates are legal
//! and counted. It knows nothing of how the relay works.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use crate::topic::Record;

#[derive(Clone, Debug)]
pub struct Committed {
    pub id: String,
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub seq: i64,
    /// `payload::text`
    pub payload: String,
}

#[derive(Debug, Default)]
pub struct Verdict {
    pub committed: usize,
    pub records: usize,
    /// Committed and not on the topic.
    pub missing: Vec<String>,
    /// On the topic and not committed.
    pub phantom: Vec<String>,
    /// Delivered first after a later event of its aggregate.
    pub out_of_order: Vec<String>,
    /// Aggregates whose records lie in more than one partition, where no order is defined.
    pub split: Vec<String>,
    /// Key or value differs.
    pub altered: Vec<String>,
    /// Records beyond the first of their event.
    pub duplicates: usize,
    /// The most often that one event was delivered.
    pub most_deliveries: usize,
}

/// `records` of one or more topics; those of one partition must be in the order of their offsets.
pub fn judge(committed: &[Committed], records: &[Record]) -> Verdict {
    let by_id: HashMap<&str, &Committed> = committed.iter().map(|event| (event.id.as_str(), event)).collect();
    let mut verdict = Verdict {
        committed: committed.len(),
        records: records.len(),
        ..Verdict::default()
    };
    let mut deliveries: HashMap<&str, usize> = HashMap::new();
    let mut homes: HashMap<(&str, &str, &str), (i32, i64)> = HashMap::new();

    for record in records {
        let Some(event) = by_id.get(record.id()) else {
            verdict.phantom.push(describe(record));
            continue;
        };
        let times = deliveries.entry(&event.id).or_default();
        *times += 1;
        verdict.most_deliveries = verdict.most_deliveries.max(*times);
        if record.key_text() != event.aggregate_id || record.value_text() != event.payload {
            verdict.altered.push(describe(record));
        }
        if *times > 1 {
            verdict.duplicates += 1;
            continue;
        }
        // The order is a promise about one topic: an aggregate may write to several.
        let aggregate = (record.topic.as_str(), &*event.aggregate_type, &*event.aggregate_id);
        match homes.entry(aggregate) {
            Entry::Vacant(entry) => {
                entry.insert((record.partition, event.seq));
            }
            Entry::Occupied(mut entry) => {
                let (partition, seq) = *entry.get();
                if partition != record.partition {
                    verdict.split.push(describe(record));
                } else if event.seq < seq {
                    verdict
                        .out_of_order
                        .push(format!("{} after seq {seq}", describe(record)));
                }
                entry.insert((record.partition, seq.max(event.seq)));
            }
        }
    }
    verdict.missing = committed
        .iter()
        .filter(|event| !deliveries.contains_key(event.id.as_str()))
        .map(|event| format!("{} {} seq {}", event.aggregate_type, event.id, event.seq))
        .collect();
    verdict
}

impl Verdict {
    /// Nothing lost, nothing invented, nothing changed.
    #[track_caller]
    pub fn assert_complete(&self) {
        let faults = [
            ("missing", &self.missing),
            ("phantom", &self.phantom),
            ("altered", &self.altered),
        ];
        self.assert_none(&faults);
    }

    /// First deliveries follow seq, aggregate by aggregate.
    #[track_caller]
    pub fn assert_in_order(&self) {
        self.assert_none(&[("split", &self.split), ("out of order", &self.out_of_order)]);
    }

    #[track_caller]
    pub fn assert_no_duplicates(&self) {
        assert_eq!(self.duplicates, 0, "{}", self.summary());
    }

    #[track_caller]
    fn assert_none(&self, faults: &[(&str, &Vec<String>)]) {
        for (name, found) in faults {
            let some: Vec<&String> = found.iter().take(10).collect();
            assert!(
                found.is_empty(),
                "{name}: {} of them, {some:#?}\n{}",
                found.len(),
                self.summary()
            );
        }
    }

    pub fn summary(&self) -> String {
        format!(
            "{} committed, {} records: {} missing, {} phantom, {} altered, {} out of order, {} split, \
             {} duplicates, at most {} deliveries of one",
            self.committed,
            self.records,
            self.missing.len(),
            self.phantom.len(),
            self.altered.len(),
            self.out_of_order.len(),
            self.split.len(),
            self.duplicates,
            self.most_deliveries,
        )
    }
}

/// How often each aggregate's own counter, carried in the payload as `"n": ...`, goes backwards at a first delivery.
/// A second judge of order that does not lean on seq.
pub fn counters_backwards(records: &[Record], counter: impl Fn(&Record) -> i64) -> Vec<String> {
    let mut seen: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    let mut ids: std::collections::HashSet<&str> = std::collections::HashSet::new();
    let mut backwards = Vec::new();
    for record in records.iter().filter(|record| ids.insert(record.id())) {
        let aggregate = (record.topic.as_str(), record.key_text());
        let n = counter(record);
        let last = seen.entry(aggregate).or_insert(n);
        if n < *last {
            backwards.push(format!("{} n {n} after {last}", describe(record)));
        }
        *last = n.max(*last);
    }
    backwards
}

/// The same where an aggregate may have moved to another partition: within each, its counter goes forwards.
pub fn counters_backwards_by_partition(records: &[Record], counter: impl Fn(&Record) -> i64) -> Vec<String> {
    let mut by_partition: BTreeMap<(&str, i32), Vec<Record>> = BTreeMap::new();
    for record in records {
        let partition = (record.topic.as_str(), record.partition);
        by_partition.entry(partition).or_default().push(record.clone());
    }
    let each = by_partition.values();
    each.flat_map(|records| counters_backwards(records, &counter)).collect()
}

fn describe(record: &Record) -> String {
    format!(
        "{}[{}]@{} key {} id {}",
        record.topic,
        record.partition,
        record.offset,
        record.key_text(),
        record.id()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, aggregate_id: &str, seq: i64) -> Committed {
        Committed {
            id: id.into(),
            aggregate_type: "order".into(),
            aggregate_id: aggregate_id.into(),
            seq,
            payload: "{}".into(),
        }
    }

    fn record(id: &str, key: &str, partition: i32, offset: i64) -> Record {
        Record {
            topic: "outbox.event.order".into(),
            partition,
            offset,
            key: Some(key.into()),
            value: Some("{}".into()),
            headers: vec![("id".into(), Some(id.into()))],
            timestamp_ms: Some(0),
        }
    }

    fn three() -> Vec<Committed> {
        vec![event("a", "1", 1), event("b", "1", 2), event("c", "2", 3)]
    }

    #[test]
    fn accepts_what_is_right() {
        let records = [record("c", "2", 1, 0), record("a", "1", 0, 0), record("b", "1", 0, 1)];
        let verdict = judge(&three(), &records);
        verdict.assert_complete();
        verdict.assert_in_order();
        verdict.assert_no_duplicates();
    }

    #[test]
    fn sees_a_lost_event() {
        let verdict = judge(&three(), &[record("a", "1", 0, 0), record("c", "2", 1, 0)]);
        assert_eq!(verdict.missing, ["order b seq 2"]);
        assert!(std::panic::catch_unwind(|| verdict.assert_complete()).is_err());
    }

    #[test]
    fn sees_a_phantom() {
        let records = [
            record("a", "1", 0, 0),
            record("b", "1", 0, 1),
            record("c", "2", 1, 0),
            record("x", "2", 1, 1),
        ];
        assert_eq!(judge(&three(), &records).phantom.len(), 1);
    }

    #[test]
    fn sees_a_changed_value_and_a_changed_key() {
        let mut value = record("a", "1", 0, 0);
        value.value = Some("{ }".into());
        let records = [value, record("b", "2", 0, 1), record("c", "2", 1, 0)];
        assert_eq!(judge(&three(), &records).altered.len(), 2);
    }

    #[test]
    fn sees_a_swapped_pair_within_an_aggregate_only() {
        let records = [record("b", "1", 0, 0), record("a", "1", 0, 1), record("c", "2", 0, 2)];
        assert_eq!(judge(&three(), &records).out_of_order.len(), 1);
        let strangers = [record("c", "2", 0, 0), record("a", "1", 0, 1), record("b", "1", 0, 2)];
        assert_eq!(judge(&three(), &strangers).out_of_order.len(), 0);
    }

    #[test]
    fn sees_an_aggregate_in_two_partitions() {
        let records = [record("a", "1", 0, 0), record("b", "1", 1, 0), record("c", "2", 1, 1)];
        assert_eq!(judge(&three(), &records).split.len(), 1);
    }

    #[test]
    fn counts_repeats_and_does_not_take_them_for_disorder() {
        let records = [
            record("a", "1", 0, 0),
            record("b", "1", 0, 1),
            record("a", "1", 0, 2),
            record("b", "1", 0, 3),
            record("a", "1", 0, 4),
            record("c", "2", 1, 0),
        ];
        let verdict = judge(&three(), &records);
        verdict.assert_complete();
        verdict.assert_in_order();
        assert_eq!((verdict.duplicates, verdict.most_deliveries), (3, 3));
    }

    #[test]
    fn sees_a_counter_that_goes_back() {
        let n = |record: &Record| record.offset;
        let records = [record("a", "1", 0, 1), record("b", "1", 0, 0), record("a", "1", 0, 0)];
        assert_eq!(counters_backwards(&records, n).len(), 1);
        assert_eq!(counters_backwards_by_partition(&records, n).len(), 1);
        let moved = [record("a", "1", 0, 1), record("b", "1", 1, 0)];
        assert!(counters_backwards_by_partition(&moved, n).is_empty());
    }
}
