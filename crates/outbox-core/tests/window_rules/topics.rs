//! Topics that are unknown, missing, failing, and back again.

use outbox_core::window::{AggregateKey, Fate, ParkReason, Source, TOPIC_GRACE_MS, TopicAnswer};

use crate::{Story, parks};

#[test]
fn an_unknown_topic_has_a_grace_and_then_its_events_are_parked_in_order() {
    let mut story = Story::new();
    story.log(&[(1, "a", "new"), (2, "a", "new"), (3, "b", "new")]);
    let topic = story.window.topic("new");
    let mut now = 0;
    let mut asked = 0;
    while !story.window.settleable() {
        now = story.window.next_ask_at().expect("the topic is asked for again");
        assert_eq!(story.window.topics_to_ask(now), [topic]);
        assert_eq!(story.window.topics_to_ask(now + 60_000), [], "one question at a time");
        story
            .window
            .topic_answer(topic, TopicAnswer::Missing("unknown topic".into()), now);
        asked += 1;
    }
    assert_eq!(now, TOPIC_GRACE_MS);
    assert!((5..10).contains(&asked), "asked {asked} times");
    let settlement = story.settle();
    assert_eq!(
        parks(&settlement),
        [(1, ParkReason::Topic), (2, ParkReason::Behind), (3, ParkReason::Topic)]
    );
    assert_eq!(settlement.parks[0].error.as_deref(), Some("unknown topic"));
    assert_eq!(settlement.events, 0);
    assert!(
        story.window.next_ask_at().is_some_and(|at| at > now),
        "it is asked for again later"
    );
}

#[test]
fn a_topic_that_is_created_within_the_grace_costs_nothing() {
    let mut story = Story::new();
    story.log(&[(1, "a", "new")]);
    story.answer("new", TopicAnswer::Missing("unknown topic".into()), 0);
    story.answer("new", TopicAnswer::Partitions(1), 100);
    story.deliver_all();
    assert_eq!(parks(&story.settle()), []);
}

#[test]
fn a_topic_in_use_is_asked_for_before_thousands_that_are_missing() {
    let mut story = Story::new();
    for n in 0..1_000 {
        story
            .window
            .assume_missing(&format!("gone-{n}"), "unknown topic".into(), 0);
    }
    let missing = story.window.topics_to_ask(0);
    assert!(missing.len() < 100, "{} questions at once", missing.len());
    assert_eq!(story.window.topics_to_ask(0), [], "the next when one is answered");
    story.log(&[(1, "a", "new")]);
    let new = story.window.topic("new");
    assert_eq!(story.window.topics_to_ask(0), [new]);
    for topic in missing {
        story
            .window
            .topic_answer(topic, TopicAnswer::Missing("unknown topic".into()), 0);
    }
    let mut asked = 0;
    while story.window.next_ask_at() == Some(0) {
        for topic in story.window.topics_to_ask(0) {
            story.window.topic_answer(topic, TopicAnswer::Partitions(1), 0);
            asked += 1;
        }
    }
    assert!(asked > 900, "all come to their turn, not {asked}");
}

#[test]
fn an_outage_parks_nothing_however_long() {
    let mut story = Story::new();
    story.log(&[(1, "a", "t")]);
    let topic = story.window.topic("t");
    for _ in 0..50 {
        let now = story.window.next_ask_at().expect("it asks again");
        story.window.topics_to_ask(now);
        story.window.topic_answer(topic, TopicAnswer::NoAnswer, now);
    }
    assert!(!story.window.settleable());
    let now = story.window.next_ask_at().expect("it asks again");
    story.answer("t", TopicAnswer::Missing("unknown topic".into()), now);
    assert!(!story.window.settleable(), "the grace begins when somebody answers");
    story.answer("t", TopicAnswer::Partitions(1), now + 100);
    story.deliver_all();
    assert_eq!(story.settle().events, 1);
}

#[test]
fn a_missing_topic_holds_its_aggregates_and_nobody_else() {
    let mut story = Story::with_topic(1);
    story.log(&[(1, "x", "bad")]);
    story.lose("bad");
    story.log(&[(2, "x", "t"), (3, "y", "t"), (4, "z", "bad")]);
    assert_eq!(story.send_all(), [(2, 1)]);
    story.delivered((2, 1));
    let settlement = story.settle();
    assert_eq!(
        parks(&settlement),
        [(1, ParkReason::Topic), (2, ParkReason::Behind), (4, ParkReason::Topic)]
    );
    assert_eq!(story.window.held_aggregates(), 2);
}

#[test]
fn a_failure_report_parks_the_event_and_what_waits_for_the_topic() {
    let mut story = Story::with_topic(1);
    story.log(&[(1, "a", "t"), (2, "b", "t"), (3, "a", "t")]);
    assert_eq!(story.send_all().len(), 3);
    story.log(&[(4, "b", "t"), (5, "c", "t")]);
    story.fail((1, 0));
    // 4 and 5 were not sent and are parked now; 2 fails only afterwards, and is ahead of 4 all the same: 4 waits behind it.
    assert_eq!(story.send_all(), []);
    story.fail((1, 1));
    story.fail((1, 2));
    let settlement = story.settle();
    let reasons = parks(&settlement);
    assert_eq!(
        reasons[..3],
        [(1, ParkReason::Topic), (2, ParkReason::Topic), (3, ParkReason::Behind)]
    );
    assert_eq!(reasons[3..], [(4, ParkReason::Behind), (5, ParkReason::Topic)]);
}

#[test]
fn a_failed_topic_is_used_again_only_when_no_report_of_it_is_due() {
    let mut story = Story::with_topic(1);
    story.log(&[(1, "a", "t"), (2, "b", "t")]);
    story.send_all();
    story.fail((1, 0));
    story.answer("t", TopicAnswer::Partitions(1), 10_000);
    story.log(&[(3, "c", "t")]);
    assert_eq!(story.send_all(), [], "the report of 2 is due");
    story.fail((1, 1));
    assert_eq!(story.window.recovered_topics(), []);
    story.answer("t", TopicAnswer::Partitions(1), 20_000);
    let topic = story.window.topic("t");
    assert_eq!(story.window.recovered_topics(), [topic]);
    story.log(&[(4, "d", "t"), (5, "e", "t")]);
    assert_eq!(story.send_all(), [(3, 0)], "its lanes are cold again");
}

#[test]
fn an_answer_from_before_the_failure_is_not_believed() {
    let mut story = Story::with_topic(1);
    story.log(&[(1, "a", "t")]);
    story.send_all();
    // The count is old by now, so the topic's use makes a question due.
    let event = story.meta((2, "a", "t"), Source::Log, Fate::Send);
    story.log_metas(vec![event], 600_000);
    let topic = story.window.topic("t");
    assert_eq!(story.window.topics_to_ask(600_000), [topic]);
    story.fail((1, 0));
    story.window.topic_answer(topic, TopicAnswer::Partitions(1), 600_001);
    assert_eq!(story.window.recovered_topics(), []);
    assert_eq!(story.window.missing_topics().count(), 1);
}

#[test]
fn rows_of_a_topic_that_was_missing_in_an_earlier_session_are_read_when_it_is_known() {
    let mut story = Story::new();
    let topic = story.window.assume_missing("t", "unknown topic".into(), 0);
    story.window.hold(AggregateKey::of("thing", "a"), 1, 1);
    story.log(&[(2, "a", "t")]);
    assert_eq!(parks(&story.settle()), [(2, ParkReason::Behind)]);
    assert_eq!(story.window.recovered_topics(), []);
    story.answer("t", TopicAnswer::Partitions(1), 0);
    assert!(story.window.has_recovered_topics());
    assert_eq!(story.window.recovered_topics(), [topic]);
    assert_eq!(
        story.window.recovered_topics(),
        [],
        "named once, until a step of parked events is settled"
    );

    story.parked(ParkReason::Topic, &[(1, "a", "t")]);
    story.deliver_all();
    story.settle();
    assert_eq!(
        story.window.recovered_topics(),
        [topic],
        "its read may have been cut by a limit"
    );
}

#[test]
fn rows_that_reach_the_table_after_their_topic_is_back_are_not_forgotten() {
    let mut story = Story::with_topic(1);
    story.log(&[(1, "a", "t"), (2, "a", "slow")]);
    story.send_all();
    story.fail((1, 0));
    story.answer("t", TopicAnswer::Partitions(1), 5_000);
    let topic = story.window.topic("t");
    assert_eq!(
        story.window.recovered_topics(),
        [topic],
        "but the row of 1 is not settled, the relay finds nothing"
    );
    story.lose("slow");
    story.settle();
    assert_eq!(story.window.recovered_topics(), [topic]);
}
