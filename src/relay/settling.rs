//! How a session settles: the cursor goes into the ledger, and what is parked or published out of parking moves, in one transaction fenced by the lease.

use super::session::{End, Session};
use crate::pg::runtime;
use crate::pg::txn::{self, Isolation};
use outbox_core::window::{ParkReason, Settlement};

impl Session<'_> {
    pub(super) fn settle_if_due(&mut self, now: u64) -> Result<(), End> {
        if self.window.settleable() && now >= self.settled_at_ms + self.settings.settle_interval_ms {
            return self.settle();
        }
        if !self.window.is_empty() && self.lease_needs_extension(now) {
            let held = self.transaction(Isolation::ReadCommitted, |session, spi| {
                session
                    .store
                    .extend(spi, &session.token, session.settings.lease_duration_ms)
            })?;
            self.lease_until_ms = now + self.settings.lease_duration_ms;
            if !held {
                return Err(End::Superseded);
            }
        }
        Ok(())
    }

    pub(super) fn lease_needs_extension(&self, now: u64) -> bool {
        now + self.settings.lease_duration_ms / 2 > self.lease_until_ms
    }

    /// Appends to the ledger what is complete. After an error the window is of no more use.
    pub(super) fn settle(&mut self) -> Result<(), End> {
        if self.settling {
            return Ok(());
        }
        let Some(settlement) = self.window.take_settlement() else {
            return Ok(());
        };
        self.settling = true;
        let now = runtime::monotonic_ms();
        let extend = self.lease_needs_extension(now);
        let cursor = settlement.cursor.clone().unwrap_or_else(|| self.settled_cursor.clone());
        let batch_no = self.batch_no + 1;
        let (held, all_there, replaced) = self.transaction(Isolation::ReadCommitted, |session, spi| {
            let store = &session.store;
            if !store.settle(spi, batch_no, &cursor, &settlement, &session.token) {
                return (false, true, false);
            }
            let parked = store.park(spi, &settlement, &session.window);
            let reparked = store.repark(spi, &settlement, &session.window);
            if extend {
                store.extend(spi, &session.token, session.settings.lease_duration_ms);
            }
            (true, parked.all_there && reparked, parked.replaced)
        })?;
        if !held {
            return Err(End::Superseded);
        }
        if extend {
            self.lease_until_ms = now + self.settings.lease_duration_ms;
        }
        self.settling = false;
        self.batch_no = batch_no;
        self.settled_cursor = cursor;
        self.settled_at_ms = now;
        self.window.settled(&settlement);
        self.after_settle(&settlement);
        if !all_there {
            return Err(End::Trouble(
                "events were deleted before they were published".to_owned(),
            ));
        }
        if replaced { Err(End::Settings) } else { Ok(()) }
    }

    pub(super) fn after_settle(&mut self, settlement: &Settlement) {
        self.slot.add_published(settlement.events, txn::now());
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
