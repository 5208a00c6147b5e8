//! The events of a step as the window sees them: no bodies, no names, some 80 bytes each.

use std::fmt;
use std::sync::Arc;

use super::topics::TopicId;

/// Names an event in flight: its step and its place in it. Goes through librdkafka as the
/// message's opaque value and comes back with the delivery report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The step's number, counted from 0 by `open_step`; wraps around.
    pub step: u32,
    /// The place in the `events` given to `open_step`.
    pub index: u32,
}

impl Ticket {
    pub fn to_u64(self) -> u64 {
        (u64::from(self.step) << 32) | u64::from(self.index)
    }

    pub fn from_u64(value: u64) -> Ticket {
        Ticket {
            step: (value >> 32) as u32,
            index: value as u32,
        }
    }
}

/// Which of the relay's two producers takes an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Gapless, many events in a request: a refusal is fatal and says nothing of the single event.
    Fast,
    /// One message in a request: a refusal is that event's own ([`super::Window::report_refused`]).
    Careful,
}

/// Stands for an (aggregate_type, aggregate_id). Two aggregates with the same key would only hold
/// back each other.
///
/// Stored in `outbox_parked.aggregate_key` (big-endian), so it never changes: FNV-1a of 128 bits over
/// the type's length (8 bytes, little-endian), the type and the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AggregateKey(pub u128);

impl AggregateKey {
    pub fn of(aggregate_type: &str, aggregate_id: &str) -> AggregateKey {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let length = (aggregate_type.len() as u64).to_le_bytes();
        let bytes = length
            .iter()
            .chain(aggregate_type.as_bytes())
            .chain(aggregate_id.as_bytes());
        AggregateKey(bytes.fold(OFFSET, |hash, &byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)))
    }
}

/// Why an event has a row in `outbox_parked`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParkReason {
    /// The caller's own delay: holds nobody back.
    Scheduled,
    /// To be sent again later.
    Retry,
    /// Waits for an earlier event of its aggregate.
    Behind,
    /// Its topic cannot be written now.
    Topic,
    /// Its partition does not answer.
    Partition,
    /// Given up: can never be published as it is.
    Failed,
    /// An operator's decision: will never be published, and holds nobody back.
    Discarded,
}

impl ParkReason {
    pub const ALL: [ParkReason; 7] = [
        ParkReason::Scheduled,
        ParkReason::Retry,
        ParkReason::Behind,
        ParkReason::Topic,
        ParkReason::Partition,
        ParkReason::Failed,
        ParkReason::Discarded,
    ];

    /// As in the column `outbox_parked.reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            ParkReason::Scheduled => "scheduled",
            ParkReason::Retry => "retry",
            ParkReason::Behind => "behind",
            ParkReason::Topic => "topic",
            ParkReason::Partition => "partition",
            ParkReason::Failed => "failed",
            ParkReason::Discarded => "discarded",
        }
    }

    /// Whether later events of the aggregate wait behind such a row. `failed_holds`: as in [`super::Limits`].
    pub fn holds(self, failed_holds: bool) -> bool {
        match self {
            ParkReason::Scheduled | ParkReason::Discarded => false,
            ParkReason::Failed => failed_holds,
            _ => true,
        }
    }

    /// Whether the row waits for something of its own, so that what waits behind it cannot go yet.
    pub fn blocks(self, failed_holds: bool) -> bool {
        self.holds(failed_holds) && self != ParkReason::Behind
    }
}

impl fmt::Display for ParkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where an event was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `outbox_log`, beyond the cursor.
    Log,
    /// `outbox_parked`: the row's reason, and the attempts counted so far.
    Parked { reason: ParkReason, attempts: i32 },
}

/// What the reader knows of the event's prospects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Send,
    /// The caller's `available_at` is in the future.
    Scheduled,
    /// Can never be published as it is, for this reason (an illegal topic name, too large, ...).
    Defect(Arc<str>),
}

/// One event of a step.
#[derive(Clone, Debug)]
pub struct Meta {
    pub seq: i64,
    pub event_id: [u8; 16],
    pub aggregate: AggregateKey,
    pub topic: TopicId,
    /// [`crate::partition::murmur2`] of the record's key.
    pub key_hash: u32,
    /// Key, payload and headers.
    pub bytes: u32,
    pub source: Source,
    pub fate: Fate,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_survives_the_way_through_librdkafka() {
        for ticket in [
            Ticket { step: 0, index: 1 },
            Ticket {
                step: u32::MAX,
                index: 7,
            },
        ] {
            assert_eq!(Ticket::from_u64(ticket.to_u64()), ticket);
        }
    }

    #[test]
    fn type_and_id_do_not_run_into_each_other() {
        assert_ne!(AggregateKey::of("ab", "c"), AggregateKey::of("a", "bc"));
        assert_ne!(AggregateKey::of("", "a"), AggregateKey::of("a", ""));
        assert_eq!(AggregateKey::of("Order", "1"), AggregateKey::of("Order", "1"));
    }

    #[test]
    fn a_stored_key_stays_what_it_is() {
        // Of the eight bytes of length 0 and nothing else; computed by hand with Python's integers.
        assert_eq!(AggregateKey::of("", "").0, 0x9d30c1f78465995be47dda5e4e4e77ed);
    }
}
