//! The window must not allocate for each event on the good path, and an event in flight must stay small:
//! both are counted here with an allocator that counts. One test only: others would be counted too.

// A global allocator is an unsafe trait; this one only adds counting to the system's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use outbox_core::cursor::Cursor;
use outbox_core::snapshot::Snapshot;
use outbox_core::window::{AggregateKey, Fate, Limits, Meta, Source, Ticket, TopicAnswer, Window};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        LIVE_BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller keeps to the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the pointer came from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const EVENTS: usize = 20_000;

fn open_step(window: &mut Window<()>) {
    let topic = window.topic("t");
    let mut events = Vec::with_capacity(EVENTS);
    for number in 0..EVENTS {
        events.push(Meta {
            seq: number as i64,
            event_id: [0; 16],
            aggregate: AggregateKey(number as u128 % 1_000),
            topic,
            key_hash: number as u32 % 1_000,
            bytes: 400,
            source: Source::Log,
            fate: Fate::Send,
        });
    }
    let cursor = Cursor {
        pos: 1,
        snapshot: Snapshot {
            xmin: 3,
            xmax: 3,
            xip: Vec::new(),
        },
        walk: None,
    };
    window.open_step(Some(cursor), events, (), 0);
}

/// Sends and delivers everything; the most bytes that were live on the way.
fn publish(window: &mut Window<()>, sent: &mut Vec<Ticket>) -> usize {
    let mut most = 0;
    loop {
        while let Some(dispatch) = window.next_send() {
            sent.push(dispatch.ticket);
        }
        most = most.max(LIVE_BYTES.load(Relaxed));
        if sent.is_empty() {
            return most;
        }
        sent.drain(..).for_each(|ticket| window.report_delivered(ticket));
    }
}

#[test]
fn the_good_path_allocates_by_the_step_and_not_by_the_event() {
    let mut window = Window::new(Limits {
        max_bytes: 1 << 30,
        event_overhead_bytes: 0,
        max_events: 1 << 20,
        retry_backoff_ms: 1_000,
        retry_backoff_max_ms: 60_000,
        max_attempts: 5,
        failed_holds: true,
        partition_stall_ms: 16_000,
        max_abandoned_bytes: u64::MAX,
        max_abandoned_events: usize::MAX,
        max_parked: 1_000,
        seed: 1,
    });
    let mut sent = Vec::with_capacity(EVENTS);
    for round in 0..3 {
        let (allocations, bytes) = (ALLOCATIONS.load(Relaxed), LIVE_BYTES.load(Relaxed));
        open_step(&mut window);
        if round == 0 {
            let topic = window.topics_to_ask(0)[0];
            window.topic_answer(topic, TopicAnswer::Partitions(16), 0);
        }
        let most = publish(&mut window, &mut sent);
        let settlement = window.take_settlement().expect("the step is complete");
        assert_eq!(settlement.events, EVENTS as u64);
        window.settled(&settlement);
        if round > 0 {
            let allocations = ALLOCATIONS.load(Relaxed) - allocations;
            assert!(allocations < 100, "{allocations} allocations for {EVENTS} events");
            let each = (most - bytes) / EVENTS;
            assert!(each < 100, "{each} bytes for an event in flight");
        }
    }
}
