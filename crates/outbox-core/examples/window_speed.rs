//! What the window costs an event on the good path: `cargo run --release -p outbox-core --example window_speed`.
//! Steps of 2,000 events, 16 partitions, everything delivered; names interned and keys hashed per event.

use std::time::Instant;

use outbox_core::cursor::Cursor;
use outbox_core::partition::murmur2;
use outbox_core::snapshot::Snapshot;
use outbox_core::window::{AggregateKey, Fate, Limits, Meta, Source, Ticket, TopicAnswer, Window};

const STEPS: usize = 1_000;
const STEP_EVENTS: usize = 2_000;
const STEPS_IN_FLIGHT: usize = 8;

fn main() {
    let ids: Vec<String> = (0..50_000).map(|n| format!("order-{n:08}")).collect();
    let limits = Limits {
        max_bytes: 64 << 20,
        event_overhead_bytes: 0,
        max_events: 100_000,
        retry_backoff_ms: 1_000,
        retry_backoff_max_ms: 60_000,
        max_attempts: 5,
        failed_holds: true,
        partition_stall_ms: 16_000,
        max_abandoned_bytes: u64::MAX,
        max_abandoned_events: usize::MAX,
        max_parked: 1_000,
        seed: 1,
    };
    let mut window: Window<()> = Window::new(limits);
    let topic = window.topic("outbox.event.Order");
    let cursor = Cursor {
        pos: 0,
        snapshot: Snapshot {
            xmin: 3,
            xmax: 3,
            xip: Vec::new(),
        },
        walk: None,
    };
    let mut outstanding: Vec<Ticket> = Vec::new();
    let mut published = 0;
    let start = Instant::now();
    for step in 0..STEPS {
        let events = (0..STEP_EVENTS).map(|n| {
            let id = &ids[(step * STEP_EVENTS + n) % ids.len()];
            Meta {
                seq: n as i64,
                event_id: [0; 16],
                aggregate: AggregateKey::of("Order", id),
                topic: window.topic("outbox.event.Order"),
                key_hash: murmur2(id.as_bytes()),
                bytes: 450,
                source: Source::Log,
                fate: Fate::Send,
            }
        });
        let events = events.collect();
        window.open_step(Some(cursor.clone()), events, (), 0);
        if step == 0 {
            window.topics_to_ask(0);
            window.topic_answer(topic, TopicAnswer::Partitions(16), 0);
        }
        loop {
            while let Some(send) = window.next_send() {
                outstanding.push(send.ticket);
            }
            if outstanding.is_empty() || (step + 1 < STEPS && outstanding.len() < STEPS_IN_FLIGHT * STEP_EVENTS) {
                break;
            }
            outstanding.drain(..).for_each(|ticket| window.report_delivered(ticket));
        }
        if let Some(settlement) = window.take_settlement() {
            window.settled(&settlement);
            published += settlement.events;
        }
    }
    assert!(window.is_empty() && published as usize == STEPS * STEP_EVENTS);
    let ns = start.elapsed().as_nanos() as f64 / published as f64;
    println!("{published} events, {ns:.0} ns an event");
}
