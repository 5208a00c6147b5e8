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

use crate::native::Place;

/// Partitions remembered. With more topics than a relay has at any time all are forgotten, and what follows is taken on trust.
const PLACES_MAX: usize = 100_000;

/// The greatest offset acknowledged, for each partition.
#[derive(Default)]
pub(crate) struct Offsets {
    seen: HashMap<Place, i64>,
    /// The last one asked about, with its offset, which is newer than in `seen`: reports come batch by batch.
    last: Option<(Place, i64)>,
}

impl Offsets {
    /// Takes an acknowledged offset; false if it is none, or not above all before it.
    pub(crate) fn advance(&mut self, place: Place, offset: i64) -> bool {
        let before = match self.last {
            Some((last, before)) if last == place => before,
            _ => {
                if let Some((last, offset)) = self.last {
                    if self.seen.len() >= PLACES_MAX {
                        self.seen.clear();
                    }
                    self.seen.insert(last, offset);
                }
                self.seen.get(&place).copied().unwrap_or(-1)
            }
        };
        self.last = Some((place, before.max(offset)));
        offset > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(topic: usize, partition: i32) -> Place {
        Place { topic, partition }
    }

    #[test]
    fn only_a_greater_offset_of_the_same_partition_is_new() {
        let mut offsets = Offsets::default();
        assert!(offsets.advance(place(1, 0), 0));
        assert!(offsets.advance(place(1, 0), 1));
        assert!(!offsets.advance(place(1, 0), 1), "the same again");
        assert!(offsets.advance(place(1, 1), 0), "another partition");
        assert!(offsets.advance(place(2, 0), 0), "another topic");
        assert!(!offsets.advance(place(1, 0), 0), "remembered across others");
        assert!(offsets.advance(place(1, 0), 9), "gaps are other producers' records");
        assert!(!offsets.advance(place(1, 0), 8));
    }

    #[test]
    fn no_offset_is_not_new() {
        let mut offsets = Offsets::default();
        assert!(!offsets.advance(place(1, 0), -1));
        assert!(!offsets.advance(place(1, 0), -1001));
        assert!(offsets.advance(place(1, 0), 0));
    }
}
