//! Aggregates that are held: they have rows in `outbox_parked`, or events about to get one there.
//!
//! The order of one aggregate rests on two rules here.
//! - One row of an aggregate has a reason of its own, the first in the order of reading: its head. What
//!   comes after it is parked `behind`. An event that was in flight ahead of the head and fails
//!   afterwards (it goes to another topic, or its report came later) becomes the head instead, and
//!   the old one goes behind; it is not settled yet, for steps settle in order.
//! - The aggregate is free when no row is left, and a row counts until the settle that removes it.
//!
//! An aggregate *drains* while it has settled rows and none of them waits for something of its own:
//! then its rows are read and sent in seq order.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::event::AggregateKey;

/// The place of an event in the order of reading: its step's number, not wrapped, and its index.
pub(super) type Place = (u64, u32);

/// An aggregate key is a hash already.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}

#[derive(Debug, Default)]
struct Held {
    /// Events from here on are behind.
    from: Place,
    /// Rows that the next settles will add.
    pending: u64,
    /// Rows that are in the table.
    settled: u64,
    /// Rows, of both kinds, that wait for something of their own.
    blocking: u64,
    /// Events that are parked and may yet be published: their reports are due.
    abandoned: u64,
    /// Its place among those that drain.
    turn: Option<u64>,
}

#[derive(Default)]
pub(super) struct HeldAggregates {
    held: HashMap<AggregateKey, Held, BuildHasherDefault<KeyHasher>>,
    draining: BTreeMap<u64, AggregateKey>,
    turns: u64,
}

impl HeldAggregates {
    /// Whether the event at `place` must wait behind a parked one.
    pub fn holds(&self, aggregate: AggregateKey, place: Place) -> bool {
        // On the good path nothing is held: do not even hash.
        !self.held.is_empty() && self.held.get(&aggregate).is_some_and(|held| place >= held.from)
    }

    /// Rows found in the table at the start of a session.
    pub fn add_settled(&mut self, aggregate: AggregateKey, rows: u64, blocking: u64) {
        let held = self.held.entry(aggregate).or_default();
        held.settled += rows;
        held.blocking += blocking;
        self.review(aggregate);
    }

    /// An event that was not counted before is to get a row that holds its aggregate. Returns the place
    /// of the head that it is ahead of, if there is one.
    pub fn park(&mut self, aggregate: AggregateKey, place: Place, blocks: bool) -> Option<Place> {
        let new = || Held {
            from: place,
            ..Held::default()
        };
        let held = self.held.entry(aggregate).or_insert_with(new);
        held.pending += 1;
        held.blocking += u64::from(blocks);
        let later = (place < held.from).then(|| std::mem::replace(&mut held.from, place));
        self.review(aggregate);
        later
    }

    /// A counted row changes its reason.
    pub fn change(&mut self, aggregate: AggregateKey, blocked: bool, blocks: bool) {
        if let Some(held) = self.held.get_mut(&aggregate) {
            held.blocking += u64::from(blocks);
            held.blocking = held.blocking.saturating_sub(u64::from(blocked));
            self.review(aggregate);
        }
    }

    /// The row of an event given to [`Self::park`] is in the table now.
    pub fn settle_park(&mut self, aggregate: AggregateKey) {
        if let Some(held) = self.held.get_mut(&aggregate) {
            held.pending = held.pending.saturating_sub(1);
            held.settled += 1;
            self.review(aggregate);
        }
    }

    /// A counted row has left the table, or holds nobody any more.
    pub fn settle_unpark(&mut self, aggregate: AggregateKey, blocked: bool) {
        if let Some(held) = self.held.get_mut(&aggregate) {
            held.settled = held.settled.saturating_sub(1);
            held.blocking = held.blocking.saturating_sub(u64::from(blocked));
            // To the end of the line: others drain as well.
            if let Some(turn) = held.turn.take() {
                self.draining.remove(&turn);
            }
            self.review(aggregate);
        }
    }

    /// A counted event will not get its row: it was published.
    pub fn unpark(&mut self, aggregate: AggregateKey, blocked: bool) {
        if let Some(held) = self.held.get_mut(&aggregate) {
            held.pending = held.pending.saturating_sub(1);
            held.blocking = held.blocking.saturating_sub(u64::from(blocked));
            self.review(aggregate);
        }
    }

    /// A report of a counted event is due: the aggregate does not drain before.
    pub fn abandon(&mut self, aggregate: AggregateKey) {
        self.held.entry(aggregate).or_default().abandoned += 1;
        self.review(aggregate);
    }

    pub fn end_abandoned(&mut self, aggregate: AggregateKey) {
        if let Some(held) = self.held.get_mut(&aggregate) {
            held.abandoned = held.abandoned.saturating_sub(1);
            self.review(aggregate);
        }
    }

    pub fn draining(&self) -> impl Iterator<Item = AggregateKey> {
        self.draining.values().copied()
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Brings `draining` in line with the aggregate's counts, and forgets it when it is free.
    fn review(&mut self, aggregate: AggregateKey) {
        let Some(held) = self.held.get_mut(&aggregate) else {
            return;
        };
        let drains = held.settled > 0 && held.blocking == 0 && held.abandoned == 0;
        match (drains, held.turn) {
            (true, None) => {
                self.turns += 1;
                held.turn = Some(self.turns);
                self.draining.insert(self.turns, aggregate);
            }
            (false, Some(turn)) => {
                held.turn = None;
                self.draining.remove(&turn);
            }
            (true, Some(_)) | (false, None) => {}
        }
        if held.pending == 0 && held.settled == 0 && held.abandoned == 0 {
            self.held.remove(&aggregate);
        }
    }
}
