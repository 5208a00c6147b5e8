//! How a session finds rows of outbox_parked whose event is gone: stretch by stretch, since there may be millions. Those that hold an aggregate it
//! leaves out at its start (`opening`).

use super::session::{End, Session};
use crate::guc::AfterGiveUp;
use crate::pg::catalog;
use crate::pg::spi;
use crate::pg::txn::{self, Isolation};

/// A stretch of outbox_parked is looked through for rows whose event is gone this often: events may be deleted without our being told (in a
/// prepared transaction, with triggers disabled).
const ORPHANS_MS: u64 = 10_000;
/// The same after we were told, until all of it was.
const ORPHANS_HURRY_MS: u64 = 1_000;

/// How far outbox_parked was looked through for rows whose event is gone, by event id, round after round.
#[derive(Default)]
pub struct OrphanSearch {
    pub after: [u8; 16],
    /// Ends of the table to come to in a hurry.
    hurried_ends: u8,
}

impl OrphanSearch {
    /// Somebody has deleted events: the rest of this round and another whole one are to come soon.
    pub fn hurry(&mut self) {
        self.hurried_ends = 2;
    }

    pub fn hurries(&self) -> bool {
        self.hurried_ends > 0
    }

    /// Up to this row, or to the table's end.
    pub fn looked_through(&mut self, last: Option<[u8; 16]>) {
        if last.is_none() {
            self.hurried_ends = self.hurried_ends.saturating_sub(1);
        }
        self.after = last.unwrap_or_default();
    }
}

impl Session<'_> {
    pub(super) fn orphans_due_at_ms(&self) -> u64 {
        let hurries = self.lesson.orphans.hurries();
        self.orphans_at_ms + if hurries { ORPHANS_HURRY_MS } else { ORPHANS_MS }
    }

    pub(super) fn drop_orphans_if_due(&mut self, now: u64) -> Result<(), End> {
        if now < self.orphans_due_at_ms() {
            return Ok(());
        }
        self.orphans_at_ms = now;
        let after = self.lesson.orphans.after;
        let failed_holds = self.settings.after_give_up == AfterGiveUp::Hold;
        let stretch = txn::run(Isolation::ReadCommitted, |transaction| {
            // Before the snapshot: after ALTER TABLE an older one does not see the rows that were rewritten.
            if !catalog::lock_access_share_if_free(self.place.log) {
                return None;
            }
            transaction.become_owner(self.place.owner);
            transaction.snapshot();
            spi::connected(|spi| {
                let stretch = self.store.stretch(spi, &after, failed_holds);
                self.store.drop_orphans(spi, &stretch.orphans);
                Some(stretch)
            })
        });
        let stretch = match stretch {
            Ok(Some(stretch)) => stretch,
            // Somebody has locked a table: it can wait.
            Ok(None) => return Ok(()),
            Err(error) if error.may_pass() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.lesson.orphans.looked_through(stretch.last);
        if stretch.holds { Err(End::StartAfresh) } else { Ok(()) }
    }
}
