//! Lanes, order of settling, bounds.

use outbox_core::window::{Dispatch, Fate, Source, Ticket, TopicAnswer};

use crate::{Story, Written};

#[test]
fn the_first_event_of_a_lane_goes_alone_until_its_report() {
    let mut story = Story::new();
    story.log(&[(1, "a", "t"), (2, "a", "t"), (3, "b", "t")]);
    assert_eq!(story.send_all(), [], "nothing goes before the partitions are known");
    story.answer("t", TopicAnswer::Partitions(1), 0);
    assert_eq!(story.send_all(), [(0, 0)]);
    story.delivered((0, 0));
    assert_eq!(story.send_all(), [(0, 1), (0, 2)]);
    story.log(&[(4, "a", "t")]);
    assert_eq!(story.send_all(), [(1, 0)], "a warm lane takes what comes");
}

#[test]
fn an_event_goes_to_the_partition_of_its_hash() {
    let mut story = Story::with_topic(7);
    let mut event = story.meta((1, "a", "t"), Source::Log, Fate::Send);
    event.key_hash = 0x8000_0000 + 9;
    story.log_metas(vec![event], 0);
    let Some(Dispatch { partition, .. }) = story.window.next_send() else {
        panic!("nothing to send")
    };
    assert_eq!(partition, 2);
}

#[test]
fn steps_settle_in_order_and_together() {
    let mut story = Story::with_topic(1);
    story.log(&[(1, "a", "t")]);
    story.log(&[(2, "b", "t")]);
    story.send_all();
    story.delivered((2, 0));
    assert!(!story.window.settleable(), "the first step is still out");
    assert_eq!(story.window.take_settlement(), None);
    story.delivered((1, 0));
    let settlement = story.settle();
    assert_eq!((settlement.steps, settlement.events, settlement.bytes), (2, 2, 20));
    assert_eq!(settlement.cursor.map(|cursor| cursor.pos), Some(3));
}

#[test]
fn a_step_without_events_is_complete_at_once() {
    let mut story = Story::new();
    story.log(&[]);
    assert_eq!(story.settle().cursor.map(|cursor| cursor.pos), Some(1));
}

#[test]
fn a_full_producer_queue_changes_nothing() {
    let mut story = Story::with_topic(1);
    story.log(&[(1, "a", "t"), (2, "a", "t")]);
    for _ in 0..3 {
        let dispatch = story.window.next_send().expect("the first");
        assert_eq!(dispatch.ticket, Ticket { step: 1, index: 0 });
        story.window.unsend(dispatch.ticket);
    }
    assert_eq!(story.send_all(), [(1, 0), (1, 1)]);
    assert_eq!((story.window.outstanding(), story.window.waiting_events()), (2, 0));
}

#[test]
fn a_new_partition_count_waits_for_what_is_outstanding() {
    let mut story = Story::with_topic(1);
    story.log(&[(1, "a", "t"), (2, "a", "t")]);
    assert!(story.window.next_send().is_some());
    story.answer("t", TopicAnswer::Partitions(4), 0);
    story.log(&[(3, "a", "t")]);
    assert_eq!(story.send_all(), [], "2 and 3 may go elsewhere, and 1 is not there yet");
    story.delivered((1, 0));
    assert_eq!(story.send_all(), [(1, 1)], "the new lane is cold");
    story.delivered((1, 1));
    assert_eq!(story.send_all(), [(2, 0)]);
}

#[test]
fn the_window_is_bounded_and_a_body_goes_with_its_last_event() {
    let mut story = Story::with_topic(1);
    let events: Vec<Written> = (0..100).map(|number| (number, "a", "t")).collect();
    assert!(story.window.can_read());
    story.log(&events);
    assert!(!story.window.can_read(), "1,000 bytes are the limit");
    let body = story.bodies.last().expect("a body").clone();
    for _ in 0..99 {
        story.window.next_send();
    }
    story.delivered((1, 0));
    assert_eq!(
        story.window.in_flight_bytes(),
        1_000,
        "the rows are still held for the last one"
    );
    let last = story.window.next_send().expect("the last one");
    assert_eq!(**story.window.body(last.ticket.step), "rows");
    assert_eq!(story.window.next_send(), None);
    assert!(body.upgrade().is_none(), "everything was handed over");
    assert_eq!(story.window.in_flight_bytes(), 990);
    (1..100).for_each(|index| story.delivered((1, index)));
    assert_eq!(
        (story.window.in_flight_bytes(), story.window.in_flight_events()),
        (0, 0)
    );
    assert!(
        !story.window.can_read(),
        "100 events are the limit until they are settled"
    );
    story.settle();
    assert!(story.window.can_read() && story.window.is_empty());
}

#[test]
fn a_report_for_no_event_in_flight_is_ignored() {
    let mut story = Story::with_topic(1);
    story.log(&[(1, "a", "t")]);
    for place in [(1, 0), (0, 0), (7, 0), (1, 9), (u32::MAX, 0)] {
        story.delivered(place);
        story.fail(place);
    }
    story.deliver_all();
    assert_eq!(story.settle().events, 1);
}

#[test]
fn at_its_end_a_window_completes_what_it_has_begun_and_nothing_else() {
    let mut story = Story::with_topic(1);
    // Two steps; of the first one event is out.
    story.log(&[(1, "a", "t"), (2, "b", "t")]);
    story.log(&[(3, "c", "t")]);
    let first = story.window.next_send().expect("an event").ticket;
    assert_eq!((first.step, first.index), (1, 0));
    story.window.finish_begun();
    assert_eq!(story.send_all(), [(1, 1)], "or 1 would be published again");
    story.delivered((1, 0));
    story.delivered((1, 1));
    assert_eq!(story.send_all(), []);
    assert_eq!(story.settle().events, 2);
}

#[test]
fn at_its_end_a_cold_lane_goes_on_within_its_step() {
    let mut story = Story::new();
    story.log(&[(1, "a", "t"), (2, "b", "t"), (3, "c", "t")]);
    story.log(&[(4, "d", "t")]);
    story.answer("t", TopicAnswer::Partitions(1), 0);
    assert_eq!(story.send_all(), [(0, 0)], "alone until its report");
    story.window.finish_begun();
    story.delivered((0, 0));
    assert_eq!(story.send_all(), [(0, 1), (0, 2)]);
    story.window.finish_begun();
    assert_eq!(story.send_all(), []);
}
