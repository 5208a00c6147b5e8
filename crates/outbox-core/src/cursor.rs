//! How far the stream of events has been read: a position in `seq` and the snapshot of that read.
//!
//! The rule. One step reads, under one snapshot C,
//! 1. the *late* events: `seq <= pos`, and C sees their transaction, and the cursor's snapshot S
//!    did not. They are those of S.xip and of [S.xmax, C.xmax) that C sees. The second part
//!    matters: transactions that ran at or above S.xmax are in no list of S;
//! 2. the *new* events: `seq > pos`, and C sees them, in seq order, up to the step's limit, which
//!    must not cut through equal seqs;
//!
//! and moves the cursor to (highest seq read, C). So each committed event comes up exactly once,
//! whenever its transaction commits.
//!
//! Late events are read in (xid, seq) order, the order of their index; a step that reads them all
//! in one go sorts them by seq. When there are too many for one step they are *walked*: the
//! snapshot C of the first such step is kept as the target of the walk, with the last (xid, seq)
//! read, and S stays. At the end of the walk S becomes that target, and no later snapshot. No new
//! events are read while a walk is open.
//!
//! Why (xid, seq) order is good enough for the order of one aggregate. Let X have committed before
//! Y was emitted. If Y is late, its seq was at most pos, so it was drawn before S was taken: either
//! S saw a higher seq, or pos came from the sequence's last_value, which must be read *before* the
//! snapshot is taken. Then S saw X, and X is not late. Two late transactions of one aggregate
//! therefore never have a defined order between them, and inside one transaction seq order holds.

use crate::snapshot::{Snapshot, Xid};

/// How far the stream was read. Settled in the ledger; whoever starts, starts here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The highest seq that was read past.
    pub pos: i64,
    /// The snapshot of that read.
    pub snapshot: Snapshot,
    /// Set while late events are read in several steps.
    pub walk: Option<Walk>,
}

/// The position inside a walk over late events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The last event read: all late ones up to (xid, seq), inclusive, were read.
    pub xid: Xid,
    pub seq: i64,
    /// What the walk goes up to; the cursor's snapshot once it has ended.
    pub snapshot: Snapshot,
}

/// One index range of late events: `(xid, seq) > (after_xid, after_seq) and xid < end_xid`, to be
/// read in (xid, seq) order and with `seq <= pos`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateRange {
    pub after_xid: Xid,
    pub after_seq: i64,
    pub end_xid: Xid,
}

impl LateRange {
    /// All events of the transactions `first..end`. Its lower bound is the greatest seq of the
    /// transaction before, so that every bigint is above it.
    fn whole(first: Xid, end: Xid) -> LateRange {
        LateRange {
            after_xid: first.saturating_sub(1),
            after_seq: i64::MAX,
            end_xid: end,
        }
    }
}

impl Cursor {
    /// The ranges that hold the late events a step under the snapshot `now` has to read, ascending
    /// and apart; empty when nothing can be late. With a walk open, only what lies beyond it.
    pub fn late_ranges(&self, now: &Snapshot) -> Vec<LateRange> {
        let target = self.walk.as_ref().map_or(now, |walk| &walk.snapshot);
        let mut ranges: Vec<LateRange> = Vec::new();
        let mut add = |first: Xid, end: Xid| {
            if first >= end {
                return;
            }
            match ranges.last_mut() {
                Some(last) if last.end_xid == first => last.end_xid = end,
                _ => ranges.push(LateRange::whole(first, end)),
            }
        };
        for &xid in self.snapshot.xip.iter().filter(|&&xid| target.sees(xid)) {
            add(xid, xid + 1);
        }
        let mut first = self.snapshot.xmax;
        for &running in target.xip.iter().filter(|&&xid| xid >= self.snapshot.xmax) {
            add(first, running);
            first = running + 1;
        }
        add(first, target.xmax);
        if let Some(walk) = &self.walk {
            ranges.retain(|range| range.end_xid > walk.xid);
            if let Some(range) = ranges.first_mut()
                && (range.after_xid, range.after_seq) < (walk.xid, walk.seq)
            {
                (range.after_xid, range.after_seq) = (walk.xid, walk.seq);
            }
        }
        ranges
    }

    /// The cursor after a step under `now` that did not read the late events to their end: `last`
    /// is the (xid, seq) of its last event. Pos stays, and no new event may be in that step.
    pub fn cut_walk(&self, now: &Snapshot, last: (Xid, i64)) -> Cursor {
        let snapshot = self.walk.as_ref().map_or(now, |walk| &walk.snapshot).clone();
        let walk = Walk {
            xid: last.0,
            seq: last.1,
            snapshot,
        };
        Cursor {
            walk: Some(walk),
            ..self.clone()
        }
    }

    /// The cursor after a step that read an open walk to its end. Pos stays, and no new event may
    /// be in that step: what committed since the walk began is late for the next one.
    pub fn end_walk(&self) -> Cursor {
        let snapshot = self.walk.as_ref().map_or(&self.snapshot, |walk| &walk.snapshot).clone();
        Cursor {
            pos: self.pos,
            snapshot,
            walk: None,
        }
    }

    /// The cursor after a step under `now` that read all late events, and the new ones up to `pos`:
    /// the seq of the last one read; or, if the read came to the end, the sequence's last_value,
    /// read before the snapshot was taken. Pos never goes back.
    pub fn advance(&self, now: Snapshot, pos: i64) -> Cursor {
        debug_assert!(self.walk.is_none(), "a walk must end before new events are read");
        Cursor {
            pos: self.pos.max(pos),
            snapshot: now,
            walk: None,
        }
    }

    /// Whether the event was read already.
    pub fn passed(&self, xid: Xid, seq: i64) -> bool {
        if seq > self.pos {
            return false;
        }
        let walked = |walk: &Walk| walk.snapshot.sees(xid) && (xid, seq) <= (walk.xid, walk.seq);
        self.snapshot.sees(xid) || self.walk.as_ref().is_some_and(walked)
    }
}
