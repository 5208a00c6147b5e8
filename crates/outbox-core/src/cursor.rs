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

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().expect("a snapshot")
    }

    fn cursor(text: &str) -> Cursor {
        Cursor {
            pos: 100,
            snapshot: snapshot(text),
            walk: None,
        }
    }

    fn whole_ranges(cursor: &Cursor, now: &str) -> Vec<(Xid, Xid)> {
        let ranges = cursor.late_ranges(&snapshot(now));
        assert!(ranges.iter().all(|range| range.after_seq == i64::MAX));
        ranges
            .iter()
            .map(|range| (range.after_xid + 1, range.end_xid))
            .collect()
    }

    #[test]
    fn late_are_the_listed_that_ended_and_the_unlisted_that_came_after() {
        // 12 still runs, 15 has ended; 20 to 29 were in no list, and 22 and 25 run.
        assert_eq!(
            whole_ranges(&cursor("12:20:12,15"), "12:30:12,22,25"),
            [(15, 16), (20, 22), (23, 25), (26, 30)]
        );
    }

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(whole_ranges(&cursor("17:20:17,18,19"), "25:25:"), [(17, 25)]);
        assert_eq!(whole_ranges(&cursor("10:20:10,11,13"), "20:20:"), [(10, 12), (13, 14)]);
    }

    #[test]
    fn nothing_is_late_when_nothing_ended() {
        assert_eq!(whole_ranges(&cursor("20:20:"), "20:20:"), []);
        assert_eq!(whole_ranges(&cursor("12:20:12"), "12:20:12"), []);
        assert_eq!(whole_ranges(&cursor("12:20:12"), "12:21:12,20"), []);
    }

    #[test]
    fn a_range_holds_every_bigint_of_its_transactions_and_none_of_the_one_before() {
        let ranges = cursor("15:20:15").late_ranges(&snapshot("16:20:16"));
        let [range] = ranges[..] else { panic!("{ranges:?}") };
        let inside = |xid, seq| (xid, seq) > (range.after_xid, range.after_seq) && xid < range.end_xid;
        assert!(inside(15, i64::MIN) && inside(15, i64::MAX));
        assert!(!inside(14, i64::MAX) && !inside(16, i64::MIN));
    }

    #[test]
    fn a_walk_goes_on_where_it_was_cut_and_keeps_its_target() {
        let now = snapshot("30:30:");
        let cut = cursor("12:20:12,15").cut_walk(&now, (15, 7));
        let later = snapshot("40:40:");
        let rest = |xid, seq, end_xid| LateRange {
            after_xid: xid,
            after_seq: seq,
            end_xid,
        };
        assert_eq!(cut.late_ranges(&later), [rest(15, 7, 16), rest(19, i64::MAX, 30)]);
        assert!(cut.passed(12, 50) && cut.passed(15, 7) && !cut.passed(15, 8) && !cut.passed(20, 1));

        let cut = cut.cut_walk(&later, (22, 9));
        assert_eq!(cut.late_ranges(&later), [rest(22, 9, 30)]);
        let ended = cut.end_walk();
        assert_eq!((ended.pos, &ended.snapshot, &ended.walk), (100, &now, &None));
        assert_eq!(whole_ranges(&ended, "40:40:"), [(30, 40)]);
    }

    #[test]
    fn pos_never_goes_back() {
        let advanced = cursor("20:20:").advance(snapshot("30:30:"), 7);
        assert_eq!(advanced.pos, 100);
        assert!(advanced.passed(29, 100) && !advanced.passed(29, 101) && !advanced.passed(30, 5));
    }
}
