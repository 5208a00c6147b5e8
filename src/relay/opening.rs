//! How a session begins: producer, lease, and what the last one left in the tables.

use super::clock::Clock;
use super::exchange::{BATCH_RECOVERS_MS, Lesson, Reports};
use super::lanes::Lanes;
use super::report::Reporter;
use super::session::{End, Session};
use super::settling::Settling;
use super::store::Store;
use super::{Body, Teardowns};
use crate::foreign;
use crate::guc::{AfterGiveUp, Settings};
use crate::pg::spi;
use crate::pg::txn::{self, Isolation};
use crate::pg::{catalog, runtime, wal};
use crate::place::Place;
use crate::shmem::{Slot, State};
use outbox_core::cursor::Cursor;
use outbox_core::snapshot::Snapshot;
use outbox_core::topic::TopicTemplate;
use outbox_core::window::{Limits, Window};
use std::collections::HashSet;
use std::rc::Rc;

/// Events in flight; what is known of each takes about 100 bytes.
const IN_FLIGHT_EVENTS_MAX: usize = 200_000;
/// What an event in flight takes besides its bytes: librdkafka's message, and an object for each header.
const EVENT_OVERHEAD_BYTES: u64 = 512;
/// Of events that librdkafka holds for partitions that do not answer.
const ABANDONED_EVENTS_MAX: usize = IN_FLIGHT_EVENTS_MAX / 2;
/// Rows of outbox_parked between two heartbeats while a session loads them: some 10 ms.
const ROWS_PER_BEAT: usize = 4_096;
const COPIED: &str =
    "this database is a copy of another one, with its events; nothing is published until somebody calls outbox_arm()";
/// Before the first transaction: the cursor of an empty ledger.
const BEGINNING: &str = "3:3:";

impl<'a> Session<'a> {
    /// Acquires the lease and loads what was left. The caller has found the extension and brokers.
    pub fn open(
        settings: &'a Settings,
        index: usize,
        slot: &'a Slot,
        generation: u32,
        reporter: &'a mut Reporter,
        lesson: &'a mut Lesson,
        teardowns: &mut Teardowns,
    ) -> Result<Session<'a>, End> {
        let template = TopicTemplate::parse(&settings.topic)
            .map(Rc::new)
            .map_err(|error| End::Misconfigured(format!("outbox_ext.topic: {error}")))?;
        if settings.wait_for_standbys && !wal::knows_synchronous_standbys() {
            return Err(End::Misconfigured(
                "outbox_ext.wait_for_standbys needs PostgreSQL 15.13 or newer".to_owned(),
            ));
        }
        let options = super::options::gather(settings).map_err(End::Misconfigured)?;
        if runtime::monotonic_ms() > lesson.batch_shrunk_at_ms + BATCH_RECOVERS_MS {
            lesson.batch_bytes = None;
        }
        let lanes = Lanes::start(outbox_kafka::Settings {
            brokers: settings.brokers.clone(),
            options: options.clone(),
            max_message_bytes: settings.max_message_bytes,
            max_in_flight_bytes: settings.max_in_flight_bytes
                + abandoned_bytes(settings)
                + settings.batch_bytes
                + settings.max_message_bytes,
            max_in_flight_events: IN_FLIGHT_EVENTS_MAX + ABANDONED_EVENTS_MAX + settings.batch_size,
            batch_bytes: lesson.batch_bytes,
        })
        .map_err(|error| End::Misconfigured(error.to_string()))?;

        let now = runtime::monotonic_ms();
        let mut window = Window::new(Limits {
            max_bytes: settings.max_in_flight_bytes as u64,
            event_overhead_bytes: EVENT_OVERHEAD_BYTES,
            max_events: IN_FLIGHT_EVENTS_MAX,
            max_attempts: settings.max_attempts,
            partition_stall_ms: settings.partition_stall_ms,
            max_abandoned_bytes: abandoned_bytes(settings) as u64,
            max_abandoned_events: ABANDONED_EVENTS_MAX,
            max_parked: settings.max_parked,
            failed_holds: settings.after_give_up == AfterGiveUp::Hold,
            retry_backoff_ms: settings.retry_backoff_ms,
            retry_backoff_max_ms: settings.retry_backoff_max_ms,
            seed: now,
        });
        window.suspect(lesson.suspects.iter().copied());
        for (topic, error) in &lesson.topics {
            window.assume_missing(topic, error.as_str().into(), now);
        }
        let loaded = match load(settings, slot, &template, &mut window, now) {
            Ok(loaded) => loaded,
            Err(end) => {
                // Its threads are to be waited for before the process ends.
                lanes.shut_down().for_each(|teardown| teardowns.push(teardown));
                return Err(end);
            }
        };
        let Loaded {
            place,
            store,
            token,
            batch_no,
            cursor,
        } = loaded;
        // Only now: a session that cannot be opened leaves them to the next.
        lesson.suspects.clear();
        lesson.topics.clear();
        slot.set_state(State::Running);
        Ok(Session {
            settings,
            index,
            slot,
            generation,
            reporter,
            place,
            template,
            store,
            token,
            lease_until_ms: now + settings.lease_duration_ms,
            extend_not_before_ms: 0,
            waiter: runtime::Waiter::new(lanes.event_fd()),
            lanes,
            options,
            clock: Clock::new(),
            guilty: HashSet::new(),
            lesson,
            window,
            settled_cursor: cursor.clone(),
            cursor,
            batch_no,
            more: true,
            read_not_before_ms: 0,
            polled_at_ms: now,
            settings_checked_at_ms: now,
            settled_at_ms: 0,
            next_due: None,
            look_for_due: true,
            swept_at_ms: now,
            parked_not_before_ms: 0,
            orphans_at_ms: now,
            untrimmed_bytes: 0,
            read_error: None,
            settling: Settling::default(),
            held_for_standbys: None,
            held_since_ms: 0,
            hindrance: None,
            reports: Reports::default(),
        })
    }
}

/// What a session finds when it acquires the lease.
struct Loaded {
    place: Place,
    store: Store,
    token: [u8; 16],
    batch_no: i64,
    cursor: Cursor,
}

/// Acquires the lease, shows the window what is parked, and reads the settled cursor.
fn load(
    settings: &Settings,
    slot: &Slot,
    template: &TopicTemplate,
    window: &mut Window<Body>,
    now: u64,
) -> Result<Loaded, End> {
    let token = *uuid::Uuid::now_v7().as_bytes();
    let found = txn::run(Isolation::ReadCommitted, |transaction| {
        transaction.snapshot();
        spi::connected(|spi| {
            let place = Place::find(spi)?;
            transaction.become_owner(place.owner);
            let store = Store::prepare(spi, &place.schema);
            let (pid, database) = (std::process::id() as i32, catalog::my_database());
            if store.is_copy(spi, database) {
                // Both databases would publish the same events.
                foreign::stop(spi, &place.schema, COPIED);
            }
            store.acquire(spi, &token, settings.lease_duration_ms, pid, database);
            Some((place, store))
        })
    })?;
    let Some((place, store)) = found else {
        return Err(End::Extension);
    };
    let ledger = txn::run(Isolation::ReadCommitted, |transaction| {
        // Before the snapshot: after ALTER TABLE an older one does not see the rows that were rewritten, and who holds whom would be lost.
        catalog::lock_access_share(place.log);
        transaction.become_owner(place.owner);
        transaction.snapshot();
        spi::connected(|spi| {
            let failed_holds = settings.after_give_up == AfterGiveUp::Hold;
            let mut rows = 0;
            let (topics, orphans) = store.holders(spi, failed_holds, |aggregate, blocks| {
                window.hold(aggregate, 1, u64::from(blocks));
                rows += 1;
                if rows % ROWS_PER_BEAT == 0 {
                    slot.beat();
                }
            });
            store.drop_orphans(spi, &orphans);
            for (parked, rows) in topics {
                let topic = if parked.given {
                    parked.topic.clone()
                } else {
                    template.resolve(&parked.aggregate_type, &parked.event_type)
                };
                if topic != parked.topic {
                    store.retarget(spi, &parked, &topic);
                }
                if parked.cannot_be_written {
                    window.assume_missing(&topic, parked.error.into(), now);
                } else {
                    window.expect_rows(&topic, rows, now);
                }
            }
            store.ledger(spi)
        })
    })?;
    let (batch_no, cursor) = match ledger {
        Some(found) => found,
        None => {
            pgrx::warning!(
                "outbox_ext: the ledger {}.outbox_batch is empty; everything in outbox_log is published again",
                place.schema.quoted
            );
            (
                0,
                Cursor {
                    pos: 0,
                    snapshot: beginning(),
                    walk: None,
                },
            )
        }
    };
    Ok(Loaded {
        place,
        store,
        token,
        batch_no,
        cursor,
    })
}

/// Bytes of events that librdkafka may hold for partitions that do not answer.
fn abandoned_bytes(settings: &Settings) -> usize {
    settings.max_in_flight_bytes / 2 + settings.max_message_bytes
}

fn beginning() -> Snapshot {
    BEGINNING.parse().unwrap_or_else(|error| unreachable!("{error}"))
}
