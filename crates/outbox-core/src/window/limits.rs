//! What a window is given for its life: bounds, and the settings that its rules depend on.

use super::event::ParkReason;

#[derive(Clone, Debug)]
pub struct Limits {
    /// No further step is read above this many bytes in bodies or handed to the producer.
    pub max_bytes: u64,
    /// What an event in flight takes in memory besides its bytes; counted with them.
    pub event_overhead_bytes: u64,
    /// No further step is read above this many events in steps that are not settled.
    pub max_events: usize,
    /// The first delay before a missing topic is asked for again, or a refused event is tried again; doubles.
    pub retry_backoff_ms: u64,
    pub retry_backoff_max_ms: u64,
    /// An event that was refused so often is given up.
    pub max_attempts: i32,
    /// Whether an event that was given up holds the later ones of its aggregate back.
    pub failed_holds: bool,
    /// A partition that is silent for so long, while others answer, is taken for stalled.
    pub partition_stall_ms: u64,
    /// With so much abandoned to partitions that do not answer the window asks for a new producer.
    pub max_abandoned_bytes: u64,
    pub max_abandoned_events: usize,
    /// With so many rows parked for partitions nothing more is read from the log.
    pub max_parked: usize,
    /// For the jitter.
    pub seed: u64,
}

impl Limits {
    pub(super) fn holds(&self, reason: ParkReason) -> bool {
        reason.holds(self.failed_holds)
    }

    pub(super) fn blocks(&self, reason: ParkReason) -> bool {
        reason.blocks(self.failed_holds)
    }
}
