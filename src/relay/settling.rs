//! How a session settles: the cursor goes into the ledger, and what is parked or published out of parking moves, in one transaction fenced by the lease.
//!
//! What cannot be written now (somebody has locked the table, the disk is full) is kept and written later: to begin again at the ledger would publish
//! it a second time, and a third.

use super::session::{End, Session};
use crate::pg::error::ServerError;
use crate::pg::runtime;
use crate::pg::txn::{self, Isolation};
use outbox_core::window::{ParkReason, Settlement};

/// After a settle that could not be written. Each attempt may wait for a lock, during which nothing is sent.
const RETRY_MS: u64 = 1_000;

/// Most time for settles after the end of the process was asked for.
const LAST_SETTLES_MS: u64 = 3_000;

/// How far settling is.
#[derive(Default)]
pub(super) enum Settling {
    #[default]
    Ready,
    /// This could not be written, for this reason: again at that time.
    Kept {
        settlement: Box<Settlement>,
        error: String,
        retry_at_ms: u64,
    },
    /// A settle has begun and not committed: the window is of no more use.
    Broken,
}

impl Session<'_> {
    pub(super) fn settle_if_due(&mut self, now: u64) -> Result<(), End> {
        if self.settle_due_at_ms().is_some_and(|due| now >= due) {
            return self.settle();
        }
        if self.in_flight() && self.lease_needs_extension(now) {
            let extended = self.transaction(Isolation::ReadCommitted, |session, spi| {
                session
                    .store
                    .extend(spi, &session.token, session.settings.lease_duration_ms)
            });
            match extended {
                Ok(true) => self.lease_until_ms = now + self.settings.lease_duration_ms,
                Ok(false) => return Err(End::Superseded),
                // The next settle extends it as well. Meanwhile our heartbeat and the slot's generation keep others away.
                Err(error) if error.may_pass() => self.extend_not_before_ms = now + RETRY_MS,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// When there will be something to settle, if nothing else happens.
    pub(super) fn settle_due_at_ms(&self) -> Option<u64> {
        match self.settling {
            Settling::Kept { retry_at_ms, .. } => Some(retry_at_ms),
            Settling::Broken => None,
            Settling::Ready => {
                (self.window.settleable()).then_some(self.settled_at_ms + self.settings.settle_interval_ms)
            }
        }
    }

    /// Something was read and is not settled.
    pub(super) fn in_flight(&self) -> bool {
        !self.window.is_empty() || self.is_kept()
    }

    /// A settlement waits to be written. A session that ends now repeats what is in it, and what came after it.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self.settling, Settling::Kept { .. })
    }

    pub(super) fn lease_needs_extension(&self, now: u64) -> bool {
        now + self.settings.lease_duration_ms / 2 > self.lease_until_ms && now >= self.extend_not_before_ms
    }

    /// Settles at the end of a session what Kafka acknowledged in time, so that it need not be sent again.
    pub(super) fn settle_the_rest(&mut self) {
        let deadline = runtime::monotonic_ms() + LAST_SETTLES_MS;
        while self.is_kept() || self.window.settleable() {
            self.slot.beat();
            let hurries = runtime::shutdown_requested() && runtime::monotonic_ms() >= deadline;
            if hurries || self.settle().is_err() || !matches!(self.settling, Settling::Ready) {
                return;
            }
        }
    }

    /// Appends to the ledger what is complete, or keeps it for later. After an error the window is of no more use.
    fn settle(&mut self) -> Result<(), End> {
        let settlement = match std::mem::replace(&mut self.settling, Settling::Broken) {
            Settling::Ready => self.window.take_settlement().map(Box::new),
            Settling::Kept { settlement, .. } => Some(settlement),
            Settling::Broken => return Ok(()),
        };
        let Some(settlement) = settlement else {
            self.settling = Settling::Ready;
            return Ok(());
        };
        let extend = self.lease_needs_extension(runtime::monotonic_ms());
        match self.write(&settlement, extend) {
            Ok(Some(written)) => self.settled(&settlement, written),
            Ok(None) => Err(End::Superseded),
            Err(error) if error.may_pass() => {
                let retry_at_ms = runtime::monotonic_ms() + RETRY_MS;
                if extend {
                    // It may be the lease's table alone that is locked.
                    self.extend_not_before_ms = retry_at_ms + RETRY_MS;
                }
                self.settling = Settling::Kept {
                    settlement,
                    error: error.message,
                    retry_at_ms,
                };
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The transaction of a settle. None, with nothing written, when the lease is somebody else's.
    fn write(&mut self, settlement: &Settlement, extend: bool) -> Result<Option<Written>, ServerError> {
        let now = runtime::monotonic_ms();
        let cursor = settlement.cursor.clone().unwrap_or_else(|| self.settled_cursor.clone());
        let batch_no = self.batch_no + 1;
        let written = self.transaction(Isolation::ReadCommitted, |session, spi| {
            let store = &session.store;
            if !store.settle(spi, batch_no, &cursor, settlement, &session.token) {
                return None;
            }
            let parked = store.park(spi, settlement, &session.window);
            let reparked = store.repark(spi, settlement, &session.window);
            if extend {
                store.extend(spi, &session.token, session.settings.lease_duration_ms);
            }
            Some(Written {
                all_there: parked.all_there && reparked,
                replaced: parked.replaced,
            })
        })?;
        if written.is_some() {
            self.batch_no = batch_no;
            self.settled_cursor = cursor;
            self.settled_at_ms = now;
            if extend {
                self.lease_until_ms = now + self.settings.lease_duration_ms;
            }
        }
        Ok(written)
    }

    /// What follows from the transaction of a settle.
    fn settled(&mut self, settlement: &Settlement, written: Written) -> Result<(), End> {
        self.settling = Settling::Ready;
        self.window.settled(settlement);
        self.after_settle(settlement);
        if !written.all_there {
            return Err(End::Trouble(
                "events were deleted before they were published".to_owned(),
            ));
        }
        if written.replaced {
            Err(End::StartAfresh)
        } else {
            Ok(())
        }
    }

    fn after_settle(&mut self, settlement: &Settlement) {
        self.slot.add_published(settlement.events, txn::now());
        self.untrimmed_bytes += settlement.bytes;
        let parks = settlement.parks.iter().map(|park| (park.event_id, park.reason));
        let reparks = settlement.reparks.iter().map(|repark| (repark.event_id, repark.reason));
        let mut given_up = 0;
        for (event_id, reason) in parks.chain(reparks) {
            self.guilty.remove(&event_id);
            given_up += usize::from(reason == ParkReason::Failed);
        }
        if given_up > 0 {
            self.reporter.given_up(given_up);
        }
        if !settlement.parks.is_empty() || !settlement.unparks.is_empty() || !settlement.reparks.is_empty() {
            self.look_for_due = true;
            self.parked_not_before_ms = 0;
        }
    }
}

/// What a settle found when it was written.
struct Written {
    /// Each event that was parked still has its row in the log.
    all_there: bool,
    /// One took the place of a parked row whose event had been deleted.
    replaced: bool,
}
