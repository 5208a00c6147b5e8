//! The window's rules one by one, as small stories: for each what it is that a user would lose without it.

mod careful;
mod parking;
mod sending;
mod stalls;
mod topics;

use std::rc::{Rc, Weak};

use outbox_core::cursor::Cursor;
use outbox_core::snapshot::Snapshot;
use outbox_core::window::{
    AggregateKey, Fate, Limits, Meta, ParkReason, Settlement, Source, Ticket, TopicAnswer, Window,
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
        event_overhead_bytes: 0,
        max_events: 100,
        retry_backoff_ms: 1_000,
        retry_backoff_max_ms: 60_000,
        max_attempts: 5,
        failed_holds: true,
        partition_stall_ms: 16_000,
        max_abandoned_bytes: 500,
        max_abandoned_events: 50,
        max_parked: 1_000,
        seed: 1,
    }
}

impl Story {
    fn new() -> Story {
        Story::within(limits())
    }

    fn within(limits: Limits) -> Story {
        Story {
            window: Window::new(limits),
            pos: 0,
            bodies: Vec::new(),
        }
    }

    /// With topic "t" known to have this many partitions.
    fn with_topic(partitions: u32) -> Story {
        Story::within_with_topic(limits(), partitions)
    }

    fn within_with_topic(limits: Limits, partitions: u32) -> Story {
        let mut story = Story::within(limits);
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
