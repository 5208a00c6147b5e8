//! Suspects, refusals, giving up, and topics that may be seen but not written.

use outbox_core::window::{AggregateKey, Fate, ParkReason, Settlement, Source, Ticket, TopicAnswer, Via};

use crate::{Story, limits, parks, unparks};

impl Story {
    fn refuse(&mut self, (step, index): (u32, u32)) {
        self.window
            .report_refused(Ticket { step, index }, "message too large".into(), 0);
    }

    fn send_all_via(&mut self) -> Vec<(u32, u32, Via)> {
        let sent = std::iter::from_fn(|| self.window.next_send());
        sent.map(|dispatch| (dispatch.ticket.step, dispatch.ticket.index, dispatch.via))
            .collect()
    }
}

fn reparks(settlement: &Settlement) -> Vec<(u8, ParkReason, i32)> {
    let reparks = settlement.reparks.iter();
    reparks
        .map(|repark| (repark.event_id[0], repark.reason, repark.attempts))
        .collect()
}

#[test]
fn suspects_go_alone_and_innocents_pass() {
    let mut story = Story::with_topic(1);
    story.log(&[(1, "a", "t"), (2, "b", "t"), (3, "c", "t"), (4, "d", "t")]);
    story.send_all();
    let refused: Vec<Ticket> = [0, 1].map(|index| Ticket { step: 1, index }).into();
    let suspects = story.window.refused(refused);
    assert_eq!(suspects, [[1; 16], [2; 16]]);

    let mut story = Story::with_topic(1);
    story.window.suspect(suspects);
    story.log(&[
        (0, "z", "t"),
        (1, "a", "t"),
        (2, "b", "t"),
        (3, "c", "t"),
        (4, "d", "t"),
    ]);
    assert_eq!(story.send_all_via(), [(1, 0, Via::Fast)], "1 waits for what is out");
    story.delivered((1, 0));
    assert_eq!(story.send_all_via(), [(1, 1, Via::Careful)]);
    story.delivered((1, 1));
    assert_eq!(story.window.suspects_left().len(), 1);
    assert_eq!(story.send_all_via(), [(1, 2, Via::Careful)]);
    story.log(&[(5, "e", "t")]);
    assert_eq!(story.send_all_via(), [], "all that is behind a suspect waits");
    story.refuse((1, 2));
    assert_eq!(
        story.send_all_via(),
        [(1, 3, Via::Fast), (1, 4, Via::Fast), (2, 0, Via::Fast)]
    );
    story.deliver_all();
    assert_eq!(story.window.suspects_left().len(), 0);
}

#[test]
fn suspects_of_other_partitions_hold_nobody_up() {
    let mut story = Story::with_topic(2);
    story.window.suspect([[1; 16]]);
    let suspect = story.meta((1, "a", "t"), Source::Log, Fate::Send);
    let mut other = story.meta((2, "b", "t"), Source::Log, Fate::Send);
    other.key_hash = 1;
    story.log_metas(vec![suspect, other], 0);
    assert_eq!(story.send_all_via(), [(1, 0, Via::Careful), (1, 1, Via::Fast)]);
}

#[test]
fn a_refused_event_holds_its_aggregate_and_is_tried_again_until_it_is_given_up() {
    let mut story = Story::with_topic(1);
    story.window.suspect([[1; 16]]);
    story.log(&[(1, "a", "t"), (2, "a", "t"), (3, "b", "t")]);
    assert_eq!(story.send_all(), [(1, 0)]);
    story.refuse((1, 0));
    assert_eq!(story.send_all(), [(1, 2)]);
    story.delivered((1, 2));
    let settlement = story.settle();
    assert_eq!(parks(&settlement), [(1, ParkReason::Retry), (2, ParkReason::Behind)]);
    let park = &settlement.parks[0];
    assert_eq!((park.attempts, park.error.as_deref()), (1, Some("message too large")));
    assert!(park.retry_in_ms.is_some_and(|delay| (500..=1_000).contains(&delay)));
    assert_eq!(
        (settlement.parks[1].attempts, settlement.parks[1].retry_in_ms),
        (0, None)
    );

    for attempts in 1..limits().max_attempts {
        let source = Source::Parked {
            reason: ParkReason::Retry,
            attempts,
        };
        let event = story.meta((1, "a", "t"), source, Fate::Send);
        story.open(None, vec![event], 0);
        let sent = story.send_all_via();
        assert!(matches!(sent[..], [(_, 0, Via::Careful)]), "{sent:?}");
        story.refuse((sent[0].0, 0));
        let settlement = story.settle();
        let given_up = attempts + 1 == limits().max_attempts;
        let reason = if given_up {
            ParkReason::Failed
        } else {
            ParkReason::Retry
        };
        assert_eq!(reparks(&settlement), [(1, reason, attempts + 1)]);
        assert_eq!(settlement.reparks[0].retry_in_ms.is_none(), given_up);
    }
    assert_eq!(story.window.draining().count(), 0, "2 is held");
    story.log(&[(4, "a", "t")]);
    assert_eq!(parks(&story.settle()), [(4, ParkReason::Behind)]);
}

#[test]
fn a_given_up_event_that_is_to_hold_nobody_lets_the_rest_of_its_aggregate_go() {
    let mut story = Story::with_topic(1);
    let mut pass = limits();
    (pass.failed_holds, pass.max_attempts) = (false, 2);
    story.window = outbox_core::window::Window::new(pass);
    story.window.suspect([[1; 16]]);
    story.log(&[(1, "a", "t"), (2, "a", "t")]);
    story.answer("t", TopicAnswer::Partitions(1), 0);
    assert_eq!(story.send_all(), [(0, 0)]);
    story.refuse((0, 0));
    assert_eq!(
        parks(&story.settle()),
        [(1, ParkReason::Retry), (2, ParkReason::Behind)]
    );

    story.parked(ParkReason::Retry, &[(1, "a", "t")]);
    assert_eq!(story.send_all(), [(1, 0)]);
    story.refuse((1, 0));
    let key = AggregateKey::of("thing", "a");
    assert_eq!(reparks(&story.settle()), [(1, ParkReason::Failed, 2)]);
    assert_eq!(story.window.draining().collect::<Vec<_>>(), [key]);

    let defect = story.meta((3, "b", "t"), Source::Log, Fate::Defect("too large".into()));
    let next = story.meta((4, "b", "t"), Source::Log, Fate::Send);
    story.log_metas(vec![defect, next], 0);
    story.parked(ParkReason::Behind, &[(2, "a", "t")]);
    story.deliver_all();
    let settlement = story.settle();
    assert_eq!(parks(&settlement), [(3, ParkReason::Failed)]);
    assert_eq!((unparks(&settlement), settlement.events), (vec![2], 2));
    assert_eq!(story.window.held_aggregates(), 0);
}

#[test]
fn a_refusal_ahead_of_a_given_up_event_puts_that_behind() {
    let mut story = Story::with_topic(1);
    story.window.suspect([[1; 16]]);
    story.log(&[(1, "a", "t"), (2, "a", "t")]);
    let bad = story.meta((3, "a", "t"), Source::Log, Fate::Defect("too large".into()));
    story.log_metas(vec![bad], 0);
    assert_eq!(story.send_all(), [(1, 0)]);
    story.refuse((1, 0));
    let settlement = story.settle();
    let expected = [(1, ParkReason::Retry), (2, ParkReason::Behind), (3, ParkReason::Behind)];
    assert_eq!(parks(&settlement), expected);
    assert_eq!(settlement.parks[2].attempts, 0);
}

#[test]
fn a_suspect_whose_topic_fails_is_not_blamed_and_stays_a_suspect() {
    let mut story = Story::with_topic(1);
    story.window.suspect([[1; 16]]);
    story.log(&[(1, "a", "t")]);
    story.send_all();
    story.fail((1, 0));
    assert_eq!(parks(&story.settle()), [(1, ParkReason::Topic)]);
    assert_eq!(story.window.suspects_left().collect::<Vec<_>>(), [[1; 16]]);
}

#[test]
fn a_topic_that_was_missing_is_tried_with_one_careful_event_a_partition() {
    let mut story = Story::new();
    story.window.assume_missing("denied", "not authorized".into(), 0);
    story.answer("denied", TopicAnswer::Partitions(1), 0);
    story.log(&[(1, "a", "denied"), (2, "b", "denied")]);
    assert_eq!(story.send_all_via(), [(0, 0, Via::Careful)]);
    story.fail((0, 0));
    assert_eq!(
        parks(&story.settle()),
        [(1, ParkReason::Topic), (2, ParkReason::Topic)],
        "it is visible, and may not be written"
    );
    assert!(story.window.next_ask_at().is_some_and(|at| at > 0), "with a back-off");

    let at = story.window.next_ask_at().expect("it is asked for again");
    story.answer("denied", TopicAnswer::Partitions(1), at);
    story.log(&[(3, "c", "denied"), (4, "d", "denied"), (5, "e", "denied")]);
    assert_eq!(story.send_all_via(), [(1, 0, Via::Careful)]);
    story.delivered((1, 0));
    assert_eq!(
        story.send_all_via(),
        [(1, 1, Via::Fast)],
        "and cold for the fast producer"
    );
    story.delivered((1, 1));
    assert_eq!(story.send_all_via(), [(1, 2, Via::Fast)]);
}
