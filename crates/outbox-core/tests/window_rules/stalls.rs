//! Partitions that do not answer: told from an outage, parked, and taken up again.

use outbox_core::window::{Fate, Limits, ParkReason, Source, TopicAnswer};

use crate::{Story, limits, parks, unparks};

/// (number, aggregate, partition of topic "t").
type Placed = (u8, &'static str, u32);

impl Story {
    fn log_at(&mut self, events: &[Placed], now_ms: u64) {
        let meta = |&(number, aggregate, partition): &Placed| {
            let mut event = self.meta((number, aggregate, "t"), Source::Log, Fate::Send);
            event.key_hash = partition;
            event
        };
        let events = events.iter().map(meta).collect();
        self.log_metas(events, now_ms);
    }

    /// Two warm partitions; 1 and 2 are sent to the first at time 0 and not answered, while the second
    /// answers until it is declared stalled. The steps: 0 to 2 settled, 3 stalled, the rest answered.
    fn stalled() -> Story {
        Story::stalled_within(limits())
    }

    fn stalled_within(limits: Limits) -> Story {
        let stall_ms = limits.partition_stall_ms;
        let mut story = Story::within_with_topic(limits, 2);
        for n in 0..2 {
            story.log_at(&[(0, "z", n)], 0);
            story.deliver_all();
            story.settle();
        }
        story.log_at(&[(1, "a", 0), (2, "a", 0)], 0);
        assert_eq!(story.send_all().len(), 2);
        story.others_answer(0..=stall_ms);
        story
    }

    fn others_answer(&mut self, times: std::ops::RangeInclusive<u64>) {
        for now in times.step_by(1_000) {
            self.log_at(&[(200, "z", 1)], now);
            for place in self.send_all() {
                self.delivered(place);
            }
            self.window.check_stalls(now);
        }
    }

    /// For so many seconds somebody answers on another topic.
    fn another_topic_answers(&mut self, seconds: u64) {
        let first = self.bodies.len() as u32;
        for now in (1..=seconds).map(|second| second * 1_000) {
            let event = self.meta((100, "y", "other"), Source::Log, Fate::Send);
            self.log_metas(vec![event], now);
            self.answer("other", TopicAnswer::Partitions(1), now);
            for place in self.send_all().into_iter().filter(|&(step, _)| step >= first) {
                self.delivered(place);
            }
            self.window.check_stalls(now);
        }
    }

    /// A topic of two partitions, with 1 out on the first and 2 on the second, that became missing: 2 was denied, of 1 nothing is heard. Both are in
    /// step 1.
    fn denied_with_one_out() -> Story {
        let mut story = Story::with_topic(2);
        story.log_at(&[(1, "a", 0), (2, "b", 1)], 0);
        assert_eq!(story.send_all().len(), 2);
        story.fail((1, 1));
        story
    }
}

#[test]
fn a_silent_partition_is_parked_and_lets_the_others_settle() {
    let mut story = Story::stalled();
    let settlement = story.settle();
    assert_eq!(
        parks(&settlement),
        [(1, ParkReason::Partition), (2, ParkReason::Behind)]
    );
    let park = &settlement.parks[0];
    assert_eq!((park.attempts, park.topic), (0, Some(story.window.topic("t"))));
    let error = "partition 0 of topic \"t\" has not answered for 16000 ms";
    assert_eq!(park.error.as_deref(), Some(error));
    assert_eq!((settlement.steps, story.window.abandoned_events()), (18, 2));

    story.log_at(&[(3, "a", 0), (4, "b", 0), (5, "c", 1)], 20_000);
    assert_eq!(story.send_all().len(), 1, "only to the partition that answers");
    story.delivered((21, 2));
    let settlement = story.settle();
    assert_eq!(
        parks(&settlement),
        [(3, ParkReason::Behind), (4, ParkReason::Partition)]
    );
    assert_eq!(story.window.recovered_topics(), []);
    assert_eq!(story.window.stalled_partitions().count(), 1);
}

#[test]
fn if_nobody_answers_it_is_an_outage_and_nothing_is_parked() {
    let mut story = Story::with_topic(2);
    story.log_at(&[(0, "z", 1)], 0);
    story.deliver_all();
    story.log_at(&[(1, "a", 0), (2, "b", 1)], 100);
    assert_eq!(story.send_all().len(), 2);
    story.window.check_stalls(limits().partition_stall_ms);
    assert_eq!(story.window.silent_partition(), None, "it may be slow");
    for now in (0..1_000_000).step_by(500) {
        story.window.check_stalls(now);
    }
    assert!(story.window.silent_partition().is_some(), "somebody is to be told");
    // The first to come back does not put the blame on the others.
    story.delivered((2, 1));
    story.others_answer(1_000_000..=1_010_000);
    assert_eq!(story.window.stalled_partitions().count(), 0);
    story.delivered((2, 0));
    assert_eq!(parks(&story.settle()), []);
    story.window.check_stalls(1_020_000);
    assert_eq!(story.window.silent_partition(), None);
}

#[test]
fn when_the_window_is_full_of_a_silent_partition_the_others_need_not_answer_again() {
    let mut story = Story::with_topic(2);
    story.log_at(&[(0, "z", 1)], 0);
    story.deliver_all();
    let flood: Vec<Placed> = (1..=99).map(|number| (number, "a", 0)).collect();
    story.log_at(&flood, 100);
    story.log_at(&[(100, "z", 1)], 101);
    let sent = story.send_all();
    assert_eq!(sent.last(), Some(&(3, 0)));
    story.window.check_stalls(102);
    story.delivered((3, 0));
    assert!(!story.window.can_read(), "100 events");
    story.window.check_stalls(20_000);
    assert_eq!(story.settle().parks.len(), 99);
    assert!(story.window.can_read());
}

#[test]
fn a_step_out_of_parking_needs_no_further_answer_of_others() {
    let mut story = Story::with_topic(2);
    for n in 0..2 {
        story.log_at(&[(0, "z", n)], 0);
        story.deliver_all();
        story.settle();
    }
    let source = Source::Parked {
        reason: ParkReason::Scheduled,
        attempts: 0,
    };
    let mut due = |number, aggregate, partition| {
        let mut event = story.meta((number, aggregate, "t"), source, Fate::Send);
        event.key_hash = partition;
        event
    };
    let events = vec![due(1, "a", 0), due(2, "b", 1)];
    story.open(None, events, 100);
    assert_eq!(story.send_all(), [(3, 0), (3, 1)]);
    story.window.check_stalls(105);
    story.delivered((3, 1));
    assert!(story.window.parked_step_in_flight());
    story.window.check_stalls(20_000);
    let settlement = story.settle();
    assert_eq!(unparks(&settlement), [2]);
    assert_eq!(settlement.reparks.len(), 1);
    assert!(!story.window.parked_step_in_flight());
}

#[test]
fn a_late_report_takes_the_row_away() {
    let mut story = Story::stalled();
    story.delivered((3, 0));
    let settlement = story.settle();
    assert_eq!(
        parks(&settlement),
        [(2, ParkReason::Behind)],
        "1 is published, its step was not settled yet"
    );
    assert_eq!(settlement.events, 18);
    assert_eq!(story.window.draining().count(), 0, "the report of 2 is due");
    assert_eq!(story.window.recovered_topics(), []);

    story.delivered((3, 1));
    assert_eq!(story.window.draining().count(), 0, "its row is still there");
    let mut late = story.window.take_settlement().expect("2 was published");
    assert_eq!((unparks(&late), late.events, late.steps), (vec![2], 1, 0));
    assert_eq!(late.cursor.take(), None);
    story.window.settled(&late);
    assert_eq!(story.window.held_aggregates(), 0);

    let topic = story.window.topic("t");
    assert_eq!(story.window.recovered_topics(), [topic], "all its reports are in");
    story.log_at(&[(6, "d", 0), (7, "d", 0)], 30_000);
    assert_eq!(story.send_all().len(), 1, "the lane is cold again");
}

#[test]
fn an_abandoned_event_is_not_sent_again_before_its_report() {
    let mut story = Story::stalled();
    story.settle();
    let source = Source::Parked {
        reason: ParkReason::Partition,
        attempts: 0,
    };
    let mut event = story.meta((1, "a", "t"), source, Fate::Send);
    assert!(story.window.is_stalled(&event));
    event.key_hash = 1;
    assert!(story.window.is_stalled(&event), "wherever it would go now");
    story.open(None, vec![event], 0);
    assert_eq!(story.send_all(), []);
    assert_eq!(story.settle().reparks.len(), 0, "its row stays as it is");

    story.fail((3, 0));
    story.fail((3, 1));
    let topic = story.window.topic("t");
    assert_eq!(story.window.recovered_topics(), [topic]);
    story.parked(ParkReason::Partition, &[(1, "a", "t")]);
    assert_eq!(story.send_all().len(), 1, "the producer gave it up");
}

#[test]
fn what_comes_due_for_a_silent_partition_is_parked_for_it() {
    let mut story = Story::stalled();
    story.settle();
    for (number, aggregate, reason) in [
        (50, "due", ParkReason::Scheduled),
        (51, "in line", ParkReason::Behind),
        (52, "again", ParkReason::Retry),
    ] {
        let source = Source::Parked { reason, attempts: 0 };
        let mut event = story.meta((number, aggregate, "t"), source, Fate::Send);
        event.key_hash = 0;
        assert!(!story.window.is_stalled(&event), "it would be read again and again");
        let rows = u64::from(reason != ParkReason::Scheduled);
        story
            .window
            .hold(event.aggregate, rows, u64::from(reason == ParkReason::Retry));
        story.open(None, vec![event], 0);
        assert_eq!(story.send_all(), []);
        let reasons: Vec<_> = story.settle().reparks.iter().map(|repark| repark.reason).collect();
        assert_eq!(reasons, [ParkReason::Partition], "{reason:?}");
    }
}

#[test]
fn a_silent_partition_of_a_topic_that_cannot_be_written_holds_up_nobody() {
    // A topic that is missing has no lanes to watch.
    let mut story = Story::denied_with_one_out();
    story.another_topic_answers(20);
    let settlement = story.settle();
    assert_eq!(
        parks(&settlement),
        [(2, ParkReason::Topic), (1, ParkReason::Partition)],
        "and the others settle"
    );
    // Known again: the denied partition is tried, the silent one is not.
    story.answer("t", TopicAnswer::Partitions(2), 40_000);
    story.log_at(&[(3, "c", 0), (4, "d", 1)], 40_000);
    let sent = story.send_all();
    assert_eq!(sent.len(), 1);
    story.delivered(sent[0]);
    assert_eq!(parks(&story.settle()), [(3, ParkReason::Partition)]);
    // The silent one answers after all.
    story.delivered((1, 0));
    assert_eq!(story.window.stalled_partitions().count(), 0);
}

#[test]
fn a_missing_topic_that_is_there_again_does_not_wait_for_a_silent_partition() {
    // With nobody else's answers: the brokers themselves say that it is there.
    let mut story = Story::denied_with_one_out();
    for now in (1..=20).map(|second| second * 1_000) {
        story.answer("t", TopicAnswer::Partitions(2), now);
        story.window.check_stalls(now);
    }
    assert_eq!(
        parks(&story.settle()),
        [(2, ParkReason::Topic), (1, ParkReason::Partition)]
    );
    let topic = story.window.topic("t");
    story.answer("t", TopicAnswer::Partitions(2), 21_000);
    assert_eq!(story.window.recovered_topics(), [topic]);
}

#[test]
fn rows_of_a_silent_partition_are_read_when_the_topic_has_more() {
    let mut story = Story::stalled();
    story.settle();
    assert_eq!(story.window.recovered_topics(), []);
    let topic = story.window.topic("t");
    story.answer("t", TopicAnswer::Partitions(6), 40_000);
    assert_eq!(
        story.window.recovered_topics(),
        [topic],
        "their partition may be another one"
    );
}

#[test]
fn with_many_rows_of_silent_partitions_the_log_is_left_alone() {
    let mut story = Story::new();
    let max = limits().max_parked;
    let topic = story.window.expect_rows("t", max - 1, 0);
    story.log_at(&[(9, "z", 1)], 0);
    assert!(story.window.can_read());
    story.answer("t", TopicAnswer::Partitions(2), 0);
    assert_eq!(story.window.recovered_topics(), [topic]);

    let mut story = Story::stalled();
    story.window.expect_rows("t", max - 1, 0);
    assert!(story.window.parked_full() && !story.window.can_read());
    assert!(story.window.can_read_parked(), "or they would never be read");
    story.delivered((3, 0));
    assert!(!story.window.parked_full());
}

#[test]
fn what_is_left_with_the_producer_for_silent_partitions_is_bounded() {
    let mut limits = limits();
    let story = Story::stalled();
    assert!(!story.window.abandoned_full());
    limits.max_abandoned_events = 2;
    let mut story = Story::stalled_within(limits.clone());
    assert!(story.window.abandoned_full());
    story.delivered((3, 0));
    assert!(!story.window.abandoned_full(), "the report frees the producer's memory");
    (limits.max_abandoned_events, limits.max_abandoned_bytes) = (50, 20);
    let mut story = Story::stalled_within(limits.clone());
    assert!(story.window.abandoned_full(), "two events of 10 bytes");
    story.fail((3, 1));
    assert!(!story.window.abandoned_full());
    limits.max_abandoned_bytes = 10;
    let mut story = Story::stalled_within(limits);
    story.delivered((3, 0));
    assert!(!story.window.abandoned_full(), "a new producer would get that one too");
}

#[test]
fn a_new_partition_count_does_not_wait_for_a_partition_that_is_silent() {
    let mut story = Story::with_topic(2);
    // Hash 2 goes to the first of two, and to the third of four.
    story.log_at(&[(1, "a", 2)], 0);
    assert_eq!(story.send_all().len(), 1);
    story.answer("t", TopicAnswer::Partitions(4), 0);
    story.log_at(&[(2, "a", 2), (3, "b", 1)], 0);
    assert_eq!(story.send_all(), []);
    story.another_topic_answers(17);
    assert_eq!(story.window.stalled_partitions().count(), 1);
    story.delivered((2, 1));
    let settlement = story.settle();
    assert_eq!(
        parks(&settlement),
        [(1, ParkReason::Partition), (2, ParkReason::Behind)],
        "3 went on"
    );
}
