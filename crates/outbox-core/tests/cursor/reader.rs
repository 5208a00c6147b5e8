//! A simulated relay: it reads steps by the cursor's rule, publishes at once, and settles later.

use std::collections::{BTreeSet, VecDeque};

use outbox_core::cursor::{Cursor, LateRange};
use outbox_core::snapshot::Snapshot;

use crate::postgres::{RowId, Server};

pub type LateRule = fn(&Cursor, &Snapshot) -> Vec<LateRange>;

/// A rule to follow; the wrong ones must be caught.
#[derive(Clone, Copy)]
pub struct Rules {
    pub late: LateRule,
    /// The sequence's last_value is read before the snapshot is taken, as it must be.
    pub value_before_snapshot: bool,
}

pub struct Reader {
    pub cursor: Cursor,
    unsettled: VecDeque<Cursor>,
    /// The sequence's last_value and the snapshot when the step began.
    begun: Option<(i64, Snapshot)>,
    step_rows_max: usize,
    rules: Rules,
    /// Read in this session, or before the cursor that it began with.
    covered: BTreeSet<RowId>,
    /// In the order of delivery, over all sessions.
    pub published: Vec<RowId>,
}

impl Reader {
    pub fn new(server: &Server<Cursor>, step_rows_max: usize, rules: Rules) -> Reader {
        let cursor = Cursor {
            pos: 0,
            snapshot: server.snapshot(),
            walk: None,
        };
        Reader {
            cursor,
            unsettled: VecDeque::new(),
            begun: None,
            step_rows_max,
            rules,
            covered: BTreeSet::new(),
            published: Vec::new(),
        }
    }

    /// Another relay takes over: it knows the ledger only.
    pub fn restart(&mut self, server: &Server<Cursor>) {
        self.cursor = server.newest_ledger_entry().expect("the ledger is never empty");
        self.unsettled.clear();
        self.begun = None;
        let passed = server.visible().filter(|(_, row)| self.cursor.passed(row.xid, row.seq));
        self.covered = passed.map(|(id, _)| id).collect();
    }

    pub fn begin_step(&mut self, server: &Server<Cursor>) {
        self.begun = Some((server.last_value(), server.snapshot()));
    }

    /// The step's read. Returns how many events it brought.
    pub fn finish_step(&mut self, server: &mut Server<Cursor>) -> Result<usize, String> {
        let Some((value_then, snapshot_then)) = self.begun.take() else {
            return Ok(0);
        };
        let (last_value, now) = if self.rules.value_before_snapshot {
            (value_then, server.snapshot())
        } else {
            (server.last_value(), snapshot_then)
        };
        let ranges = (self.rules.late)(&self.cursor, &now);
        let mut late = self.read_late(server, &now, &ranges);
        let complete = late.len() <= self.step_rows_max;
        if !complete {
            let edge = late[self.step_rows_max - 1];
            late.retain(|&(at, _)| at <= edge.0);
        }
        let last_late = late.last().map(|&(at, _)| at);
        let mut ids: Vec<RowId> = late.into_iter().map(|(_, id)| id).collect();
        self.cursor = if !complete {
            self.cursor
                .cut_walk(&now, last_late.expect("a step has room for one event"))
        } else if self.cursor.walk.is_some() {
            self.cursor.end_walk()
        } else {
            ids.sort_by_key(|&id| server.rows[id].seq);
            let room = self.step_rows_max - ids.len();
            let (new, pos) = self.read_new(server, &now, room, last_value);
            ids.extend(new);
            self.cursor.advance(now, pos)
        };
        self.unsettled.push_back(self.cursor.clone());
        let commits = ids.iter().map(|&id| server.txs[server.rows[id].tx].commit_lsn);
        server.flush(commits.max().unwrap_or(0));
        for &id in &ids {
            if !self.covered.insert(id) {
                return Err(format!("row {id} came up twice without a restart"));
            }
        }
        self.published.extend(&ids);
        Ok(ids.len())
    }

    /// Range by range in (xid, seq) order, as the index is; ranges must be ascending and apart.
    fn read_late(&self, server: &Server<Cursor>, now: &Snapshot, ranges: &[LateRange]) -> Vec<((u64, i64), RowId)> {
        let mut late = Vec::new();
        for range in ranges {
            let inside = |xid, seq| (xid, seq) > (range.after_xid, range.after_seq) && xid < range.end_xid;
            let rows = server
                .visible_to(now)
                .filter(|(_, row)| inside(row.xid, row.seq) && row.seq <= self.cursor.pos);
            let mut part: Vec<_> = rows.map(|(id, row)| ((row.xid, row.seq), id)).collect();
            part.sort();
            late.extend(part);
        }
        assert!(late.is_sorted(), "ranges overlap or are out of order: {ranges:?}");
        late
    }

    fn read_new(&self, server: &Server<Cursor>, now: &Snapshot, room: usize, last_value: i64) -> (Vec<RowId>, i64) {
        if room == 0 {
            return (Vec::new(), self.cursor.pos);
        }
        let rows = server.visible_to(now).filter(|(_, row)| row.seq > self.cursor.pos);
        let mut new: Vec<_> = rows.map(|(id, row)| (row.seq, id)).collect();
        new.sort();
        let exhausted = new.len() <= room;
        if !exhausted {
            let edge = new[room - 1].0;
            new.retain(|&(seq, _)| seq <= edge);
        }
        let last = new.last().map_or(self.cursor.pos, |&(seq, _)| seq);
        let pos = if exhausted { last.max(last_value) } else { last };
        (new.into_iter().map(|(_, id)| id).collect(), pos)
    }

    /// Settles up to `steps` of the steps that were read.
    pub fn settle(&mut self, server: &mut Server<Cursor>, steps: usize) {
        let steps = steps.min(self.unsettled.len());
        if let Some(cursor) = self.unsettled.drain(..steps).next_back() {
            server.append_ledger(cursor);
        }
    }

    /// `Cursor::passed` must say of each row exactly whether it has come up.
    pub fn check_passed(&self, server: &Server<Cursor>) -> Result<(), String> {
        for (id, row) in server.visible() {
            let passed = self.cursor.passed(row.xid, row.seq);
            match (passed, self.covered.contains(&id)) {
                (true, false) => return Err(format!("lost: row {id} {row:?} was passed unread by {:?}", self.cursor)),
                (false, true) => return Err(format!("row {id} {row:?} was read but not passed by {:?}", self.cursor)),
                _ => {}
            }
        }
        Ok(())
    }
}
