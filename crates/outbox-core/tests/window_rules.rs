//! The window's rules one by one, as small stories: for each what it is that a user would lose without it.

use std::rc::{Rc, Weak};
use std::sync::Arc;

use outbox_core::cursor::Cursor;
use outbox_core::snapshot::Snapshot;
use outbox_core::window::{
    AggregateKey, Dispatch, Fate, Limits, Meta, ParkReason, Settlement, Source, TOPIC_GRACE_MS, Ticket, TopicAnswer,
    Window,
};

type Body = Rc<&'static str>;

struct Story {
    window: Window<Body>,
    pos: i64,
    bodies: Vec<Weak<&'static str>>,
}

/// An event as a test writes it: number, aggregate, topic.
type Written = (u8, &'static str, &'static str);

fn limits() -> Limits {
    Limits {
        max_bytes: 1_000,
        max_events: 100,
        retry_backoff_ms: 1_000,
        retry_backoff_max_ms: 60_000,
        seed: 1,
    }
}

impl Story {
    fn new() -> Story {
        Story {
            window: Window::new(limits()),
            pos: 0,
            bodies: Vec::new(),
        }
    }

    /// With topic "t" known to have this many partitions.
    fn with_topic(partitions: u32) -> Story {
        let mut story = Story::new();
        story.log(&[(0, "first", "t")]);
        story.answer("t", TopicAnswer::Partitions(partitions), 0);
        story.deliver_all();
        story.settle();
        story
    }

    fn meta(&mut self, (number, aggregate, topic): Written, source: Source, fate: Fate) -> Meta {
        Meta {
            seq: i64::from(number),
            event_id: [number; 16],
            aggregate: AggregateKey::of("thing", aggregate),
            topic: self.window.topic(topic),
            // One partition for all, whatever their number.
            key_hash: 0,
            bytes: 10,
            source,
            fate,
        }
    }

    fn log(&mut self, events: &[Written]) {
        let events = events
            .iter()
            .map(|&event| self.meta(event, Source::Log, Fate::Send))
            .collect();
        self.log_metas(events, 0);
    }

    fn log_metas(&mut self, events: Vec<Meta>, now_ms: u64) {
        self.pos += 1;
        let snapshot = Snapshot {
            xmin: 3,
            xmax: 3,
            xip: Vec::new(),
        };
        let cursor = Cursor {
            pos: self.pos,
            snapshot,
            walk: None,
        };
        self.open(Some(cursor), events, now_ms);
    }

    fn parked(&mut self, reason: ParkReason, events: &[Written]) {
        let source = Source::Parked { reason, attempts: 1 };
        let events = events
            .iter()
            .map(|&event| self.meta(event, source, Fate::Send))
            .collect();
        self.open(None, events, 0);
    }

    fn open(&mut self, cursor: Option<Cursor>, events: Vec<Meta>, now_ms: u64) {
        let body = Rc::new("rows");
        self.bodies.push(Rc::downgrade(&body));
        self.window.open_step(cursor, events, body, now_ms);
    }

    fn answer(&mut self, topic: &str, answer: TopicAnswer, now_ms: u64) {
        let topic = self.window.topic(topic);
        self.window.topics_to_ask(now_ms);
        self.window.topic_answer(topic, answer, now_ms);
    }

    /// A topic answered as missing, the grace over.
    fn lose(&mut self, topic: &str) {
        self.answer(topic, TopicAnswer::Denied("not authorized".into()), 0);
    }

    /// Hands over all that is ready; the places (step, index) of it.
    fn send_all(&mut self) -> Vec<(u32, u32)> {
        let sent = std::iter::from_fn(|| self.window.next_send());
        sent.map(|dispatch| (dispatch.ticket.step, dispatch.ticket.index))
            .collect()
    }

    fn delivered(&mut self, (step, index): (u32, u32)) {
        self.window.report_delivered(Ticket { step, index });
    }

    fn fail(&mut self, (step, index): (u32, u32)) {
        self.window
            .report_topic_failure(Ticket { step, index }, "unknown topic".into(), 0);
    }

    fn deliver_all(&mut self) {
        loop {
            let sent = self.send_all();
            if sent.is_empty() {
                return;
            }
            sent.into_iter().for_each(|place| self.delivered(place));
        }
    }

    fn settle(&mut self) -> Settlement {
        let settlement = self.window.take_settlement().expect("a complete step");
        self.window.settled(&settlement);
        settlement
    }
}

fn parks(settlement: &Settlement) -> Vec<(u8, ParkReason)> {
    settlement
        .parks
        .iter()
        .map(|park| (park.event_id[0], park.reason))
        .collect()
}

fn unparks(settlement: &Settlement) -> Vec<u8> {
    settlement.unparks.iter().map(|unpark| unpark.event_id[0]).collect()
}

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
    // 4 and 5 were not sent and are parked now; 2 fails only afterwards, and is ahead of 4 all the same.
    assert_eq!(story.send_all(), []);
    story.fail((1, 1));
    story.fail((1, 2));
    let settlement = story.settle();
    let reasons = parks(&settlement);
    assert_eq!(
        reasons[..3],
        [(1, ParkReason::Topic), (2, ParkReason::Topic), (3, ParkReason::Behind)]
    );
    assert_eq!(reasons[3..], [(4, ParkReason::Topic), (5, ParkReason::Topic)]);
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
        [(1, ParkReason::Topic), (2, ParkReason::Topic), (3, ParkReason::Failed)]
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
