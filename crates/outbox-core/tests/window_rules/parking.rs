//! What is parked, what it holds, and how it drains.

use std::sync::Arc;

use outbox_core::window::{AggregateKey, Fate, ParkReason, Source};

use crate::{Story, parks, unparks};

#[test]
fn a_callers_delay_holds_nobody_back() {
    let mut story = Story::with_topic(1);
    let later = story.meta((1, "a", "t"), Source::Log, Fate::Scheduled);
    let now = story.meta((2, "a", "t"), Source::Log, Fate::Send);
    story.log_metas(vec![later, now], 0);
    story.deliver_all();
    let settlement = story.settle();
    assert_eq!(parks(&settlement), [(1, ParkReason::Scheduled)]);
    assert_eq!((settlement.events, story.window.held_aggregates()), (1, 0));

    story.parked(ParkReason::Scheduled, &[(1, "a", "t")]);
    story.deliver_all();
    assert_eq!(unparks(&story.settle()), [1]);
}

#[test]
fn many_rows_are_written_in_several_settlements() {
    let mut story = Story::with_topic(1);
    for _ in 0..4 {
        let event = |_| story.meta((1, "a", "t"), Source::Log, Fate::Scheduled);
        let events = (0..2_000).map(event).collect();
        story.log_metas(events, 0);
    }
    let rows: Vec<usize> = (0..2).map(|_| story.settle().parks.len()).collect();
    assert_eq!(rows, [6_000, 2_000], "whole steps, until there are enough");
    assert!(!story.window.settleable());
}

#[test]
fn a_due_event_waits_behind_a_held_aggregate() {
    let mut story = Story::with_topic(1);
    story.window.hold(AggregateKey::of("thing", "a"), 1, 1);
    story.parked(ParkReason::Scheduled, &[(1, "a", "t"), (2, "b", "t")]);
    story.deliver_all();
    let settlement = story.settle();
    let [repark] = &settlement.reparks[..] else {
        panic!("{:?}", settlement.reparks)
    };
    assert_eq!(
        (repark.event_id[0], repark.from, repark.reason),
        (1, ParkReason::Scheduled, ParkReason::Behind)
    );
    assert_eq!(unparks(&settlement), [2]);
}

#[test]
fn what_can_never_be_published_is_given_up_and_holds_its_aggregate() {
    let mut story = Story::with_topic(1);
    let reason: Arc<str> = "topic name is empty".into();
    let bad = story.meta((1, "a", "never asked for"), Source::Log, Fate::Defect(reason.clone()));
    let next = story.meta((2, "a", "t"), Source::Log, Fate::Send);
    story.log_metas(vec![bad, next], 0);
    let settlement = story.settle();
    assert_eq!(parks(&settlement), [(1, ParkReason::Failed), (2, ParkReason::Behind)]);
    assert_eq!(settlement.parks[0].error, Some(reason));
    assert_eq!(story.window.next_ask_at(), None);
    assert_eq!(story.window.draining().count(), 0);
}

#[test]
fn a_failure_ahead_of_a_given_up_event_does_not_wait_for_the_operator() {
    let mut story = Story::with_topic(1);
    story.log(&[(1, "a", "slow"), (2, "a", "slow")]);
    let bad = story.meta((3, "a", "t"), Source::Log, Fate::Defect("too large".into()));
    story.log_metas(vec![bad], 0);
    story.lose("slow");
    let settlement = story.settle();
    assert_eq!(
        parks(&settlement),
        [(1, ParkReason::Topic), (2, ParkReason::Behind), (3, ParkReason::Behind)],
        "3 is found faulty again when it is its turn"
    );
}

#[test]
fn a_held_aggregate_drains_in_order_and_is_free_only_after_the_settle() {
    let key = AggregateKey::of("thing", "a");
    let mut story = Story::with_topic(1);
    story.window.hold(key, 2, 1);
    assert_eq!(story.window.draining().count(), 0, "its head waits for something");
    story.parked(ParkReason::Topic, &[(1, "a", "t")]);
    assert!(story.window.parked_step_in_flight());
    story.deliver_all();
    assert_eq!(story.window.draining().count(), 0, "the head's row is still there");
    assert_eq!(unparks(&story.settle()), [1]);
    assert_eq!(story.window.draining().collect::<Vec<_>>(), [key]);

    story.parked(ParkReason::Behind, &[(2, "a", "t")]);
    story.deliver_all();
    story.log(&[(3, "a", "t")]);
    let settlement = story.settle();
    assert_eq!(
        (unparks(&settlement), parks(&settlement)),
        (vec![2], vec![(3, ParkReason::Behind)])
    );
    assert_eq!(story.window.draining().collect::<Vec<_>>(), [key], "3 is its turn now");

    story.parked(ParkReason::Behind, &[(3, "a", "t")]);
    story.deliver_all();
    story.settle();
    assert_eq!(story.window.held_aggregates(), 0);
    story.log(&[(4, "a", "t")]);
    assert_eq!(story.send_all().len(), 1);
}

#[test]
fn in_a_step_of_parked_events_what_follows_a_failure_stays_as_it_is() {
    let mut story = Story::with_topic(1);
    story.window.hold(AggregateKey::of("thing", "a"), 3, 0);
    story.parked(ParkReason::Behind, &[(1, "a", "slow"), (2, "a", "slow"), (3, "a", "t")]);
    story.lose("slow");
    story.deliver_all();
    let settlement = story.settle();
    let reparks: Vec<_> = settlement
        .reparks
        .iter()
        .map(|repark| (repark.event_id[0], repark.reason))
        .collect();
    assert_eq!(reparks, [(1, ParkReason::Topic)]);
    assert_eq!(
        unparks(&settlement),
        [3],
        "on another topic it was sent before the failure"
    );
    assert_eq!(story.window.draining().count(), 0);
}
