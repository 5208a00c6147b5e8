//! Notices that the machine's clock was set back.
//!
//! librdkafka's threads wait until moments of that clock. Set back, such a wait lasts longer by as much, and with it a reconnection, a refresh of metadata, an
//! outage: the relay then starts a new client. Set forward it ends early, which harms nobody. Durations of our own are measured by the monotonic clock, which
//! nobody sets; both are slewed alike, so that only a step changes the difference.

use crate::pg::{runtime, txn};

/// A smaller step only delays by as much.
const WORTH_A_NEW_CLIENT_MS: i64 = 5_000;

pub struct Clock {
    /// The clock's lead over the monotonic one, when it was last looked at.
    lead_ms: i64,
}

impl Clock {
    pub fn new() -> Clock {
        Clock { lead_ms: lead_ms() }
    }

    /// By how many milliseconds the clock was set back since the last look, if it is worth a new client.
    pub fn set_back_by(&mut self) -> Option<i64> {
        let lead_ms = lead_ms();
        let back_ms = std::mem::replace(&mut self.lead_ms, lead_ms) - lead_ms;
        (back_ms >= WORTH_A_NEW_CLIENT_MS).then_some(back_ms)
    }
}

fn lead_ms() -> i64 {
    txn::now() / 1_000 - runtime::monotonic_ms() as i64
}
