//! Whether a broker's acknowledgement is of a new record.
//!
//! An idempotent producer numbers its records, and a broker answers one whose number it has seen with the offset of that
//! earlier record, as if it had stored it now. librdkafka (2.12.1) may give a number twice: when it takes a topic's
//! partitions away and gives them back, as it does when a broker denies the topic for a moment, a partition's numbers can
//! begin anew under the same producer id. The second record is then acknowledged and stored nowhere. Its offset tells:
//! what one producer appends to a partition has ever greater ones.
//!
//! A topic that was deleted and made again, or a log that lost its end, has smaller ones too: then the record is there,
//! and is sent once more.

use std::collections::HashMap;

use crate::native::Delivery;

/// Topics remembered. With more in one producer's life all are forgotten, and the next record of each is taken on trust.
const TOPICS_MAX: usize = 20_000;

/// The greatest offset acknowledged, for each partition of each topic.
#[derive(Default)]
pub(crate) struct Offsets {
    seen: HashMap<String, HashMap<i32, i64>>,
    /// The last one asked about, which is newer than in `seen`: reports come batch by batch, and so hardly ever need the name.
    last: Option<Last>,
}

struct Last {
    /// The topic's handle, and the partition.
    place: (usize, i32),
    topic: String,
    offset: i64,
}

impl Offsets {
    /// Takes the acknowledged offset; false if it is none, or not above all before it.
    pub(crate) fn advance(&mut self, delivery: &Delivery<'_>) -> bool {
        let place = (delivery.topic_handle(), delivery.partition);
        self.advance_to(place, delivery.offset, || delivery.topic_name())
    }

    fn advance_to(&mut self, place: (usize, i32), offset: i64, topic: impl FnOnce() -> String) -> bool {
        if let Some(last) = self.last.as_mut().filter(|last| last.place == place) {
            let before = last.offset;
            last.offset = before.max(offset);
            return offset > before;
        }
        self.handles_gone();
        let topic = topic();
        let known = self.seen.get(&topic).and_then(|partitions| partitions.get(&place.1));
        let before = known.copied().unwrap_or(-1);
        self.last = Some(Last {
            place,
            topic,
            offset: before.max(offset),
        });
        offset > before
    }

    /// Topics' handles may be others from here on.
    pub(crate) fn handles_gone(&mut self) {
        if let Some(last) = self.last.take() {
            if self.seen.len() >= TOPICS_MAX && !self.seen.contains_key(&last.topic) {
                self.seen.clear();
            }
            let partitions = self.seen.entry(last.topic).or_default();
            partitions.insert(last.place.1, last.offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advance(offsets: &mut Offsets, handle: usize, topic: &str, partition: i32, offset: i64) -> bool {
        offsets.advance_to((handle, partition), offset, || topic.to_owned())
    }

    #[test]
    fn only_a_greater_offset_of_the_same_partition_is_new() {
        let mut offsets = Offsets::default();
        assert!(advance(&mut offsets, 1, "a", 0, 0));
        assert!(advance(&mut offsets, 1, "a", 0, 1));
        assert!(!advance(&mut offsets, 1, "a", 0, 1), "the same again");
        assert!(advance(&mut offsets, 1, "a", 1, 0), "another partition");
        assert!(advance(&mut offsets, 2, "b", 0, 0), "another topic");
        assert!(!advance(&mut offsets, 1, "a", 0, 0), "remembered across others");
        assert!(advance(&mut offsets, 1, "a", 0, 9), "gaps are other producers' records");
        assert!(!advance(&mut offsets, 1, "a", 0, 8));
    }

    #[test]
    fn a_topic_is_known_by_its_name_and_not_by_its_handle() {
        let mut offsets = Offsets::default();
        assert!(advance(&mut offsets, 1, "a", 0, 5));
        offsets.handles_gone();
        assert!(
            advance(&mut offsets, 1, "b", 0, 0),
            "another topic where the first one was"
        );
        assert!(!advance(&mut offsets, 2, "a", 0, 5), "the same topic elsewhere");
    }

    #[test]
    fn no_offset_is_not_new() {
        let mut offsets = Offsets::default();
        assert!(!advance(&mut offsets, 1, "a", 0, -1));
        assert!(!advance(&mut offsets, 1, "a", 0, -1001));
        assert!(advance(&mut offsets, 1, "a", 0, 0));
    }
}
