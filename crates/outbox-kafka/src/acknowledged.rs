//! Whether a broker's acknowledgement is of a new batch.
//!
//! An idempotent producer numbers its records, and a broker answers a batch whose numbers it has seen with the offset of
//! that earlier batch, as if it had stored it now. librdkafka (2.12.1) may give numbers twice: when it takes a topic's
//! partitions away and gives them back, as it does when a broker denies the topic for a moment, a partition's numbers can
//! begin anew under the same producer id. The second batch is then acknowledged and stored nowhere.
//!
//! Such an answer names the place of one of the last batches, and the two have as many records: else the broker would not
//! take one for the other. In a topic that was deleted and made again a new batch may by chance have the place and the
//! size of an old one: then it is sent once more.

use std::collections::HashMap;

use crate::native::Delivery;

/// Topics remembered. With more in one producer's life all are forgotten, and the next batch of each is taken on trust.
const TOPICS_MAX: usize = 20_000;
/// A broker knows a producer's last five batches again (ProducerStateEntry.NUM_BATCHES_TO_RETAIN); some more do no harm.
const BATCHES: usize = 8;

/// The last batches acknowledged, for each partition of each topic.
#[derive(Default)]
pub(crate) struct Acknowledged {
    seen: HashMap<String, HashMap<i32, Tail>>,
    /// The partition of the last call, which is newer than in `seen`: batches of one come in a row, and then need no name.
    last: Option<Last>,
}

struct Last {
    /// The topic's handle, and the partition.
    place: (usize, i32),
    topic: String,
    tail: Tail,
}

/// The last batches of one partition, the oldest in front: first offset, records.
type Tail = [Option<(i64, usize)>; BATCHES];

impl Acknowledged {
    /// Takes an acknowledged batch by its first record; false if it is one of the last ones over again.
    pub(crate) fn add(&mut self, first: &Delivery<'_>, records: usize) -> bool {
        let place = (first.topic_handle(), first.partition);
        self.add_batch(place, (first.offset, records), || first.topic_name())
    }

    fn add_batch(&mut self, place: (usize, i32), batch: (i64, usize), topic: impl FnOnce() -> String) -> bool {
        if self.last.as_ref().is_none_or(|last| last.place != place) {
            self.handles_gone();
            let topic = topic();
            let known = self.seen.get(&topic).and_then(|partitions| partitions.get(&place.1));
            let tail = known.copied().unwrap_or_default();
            self.last = Some(Last { place, topic, tail });
        }
        let Some(Last { tail, .. }) = &mut self.last else {
            unreachable!("it was set above");
        };
        if tail.contains(&Some(batch)) {
            return false;
        }
        tail.rotate_left(1);
        tail[BATCHES - 1] = Some(batch);
        true
    }

    /// Topics' handles may be others from here on.
    pub(crate) fn handles_gone(&mut self) {
        if let Some(last) = self.last.take() {
            if self.seen.len() >= TOPICS_MAX && !self.seen.contains_key(&last.topic) {
                self.seen.clear();
            }
            let partitions = self.seen.entry(last.topic).or_default();
            partitions.insert(last.place.1, last.tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(known: &mut Acknowledged, handle: usize, topic: &str, partition: i32, batch: (i64, usize)) -> bool {
        known.add_batch((handle, partition), batch, || topic.to_owned())
    }

    #[test]
    fn one_of_the_last_batches_is_known_again() {
        let mut known = Acknowledged::default();
        for n in 0..20 {
            assert!(add(&mut known, 1, "a", 0, (n * 10, 10)));
        }
        for n in 15..20 {
            assert!(!add(&mut known, 1, "a", 0, (n * 10, 10)), "{n}");
        }
        assert!(add(&mut known, 1, "a", 1, (190, 10)), "another partition");
        assert!(add(&mut known, 2, "b", 0, (190, 10)), "another topic");
        assert!(!add(&mut known, 1, "a", 0, (190, 10)), "remembered across others");
        assert!(add(&mut known, 1, "a", 0, (205, 10)), "gaps are others' records");
    }

    #[test]
    fn the_only_batch_is_known_again() {
        let mut known = Acknowledged::default();
        assert!(add(&mut known, 1, "a", 0, (0, 1)));
        assert!(!add(&mut known, 1, "a", 0, (0, 1)));
        assert!(add(&mut known, 1, "a", 0, (1, 1)));
        assert!(!add(&mut known, 1, "a", 0, (0, 1)));
    }

    #[test]
    fn a_log_that_begins_anew_is_believed() {
        let mut known = Acknowledged::default();
        assert!(add(&mut known, 1, "a", 0, (0, 1)));
        assert!(add(&mut known, 1, "a", 0, (1, 182)));
        assert!(add(&mut known, 1, "a", 0, (0, 3)), "the same place and another size");
        assert!(add(&mut known, 1, "a", 0, (3, 1)));
    }

    #[test]
    fn a_topic_is_known_by_its_name_and_not_by_its_handle() {
        let mut known = Acknowledged::default();
        assert!(add(&mut known, 1, "a", 0, (5, 1)));
        known.handles_gone();
        assert!(
            add(&mut known, 1, "b", 0, (5, 1)),
            "another topic where the first one was"
        );
        assert!(!add(&mut known, 2, "a", 0, (5, 1)), "the same topic elsewhere");
    }
}
