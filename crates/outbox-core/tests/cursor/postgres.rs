//! A simulated PostgreSQL: what matters of its transactions, snapshots, sequence and log to a reader
//! that must not lose an event.
//!
//! True to the server: transaction ids are given out lazily and also to savepoints; a snapshot's xmax
//! is one past the newest completed id; a commit is in the log before it is visible; an asynchronous
//! commit, and whatever else is not flushed, can be lost in a crash; ids without a trace in the log
//! come back after it; the sequence is logged ahead; prepared transactions outlive a crash.

use std::collections::{BTreeSet, HashMap};

use outbox_core::snapshot::{Snapshot, Xid};

pub type TxId = usize;
pub type RowId = usize;
pub type Lsn = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Open,
    Prepared,
    /// Its commit is in the log, and not yet visible.
    Committing,
    Committed,
    Aborted,
}

/// A row of `outbox_log`. Row ids are in the order of emission.
#[derive(Clone, Debug)]
pub struct Row {
    pub tx: TxId,
    pub xid: Xid,
    pub seq: i64,
    pub aggregate: u32,
    /// Taken back by ROLLBACK TO SAVEPOINT.
    pub undone: bool,
}

pub struct Tx {
    pub status: Status,
    xid: Option<Xid>,
    children: Vec<Xid>,
    /// For each savepoint the number of its transaction's rows before it.
    savepoints: Vec<usize>,
    rows: Vec<RowId>,
    pub commit_lsn: Lsn,
}

#[derive(Clone)]
enum Record<L> {
    Xid(Xid),
    Sequence(i64),
    Prepare(TxId),
    Commit(TxId),
    Ledger(L),
}

/// `L` is what the reader keeps in its ledger.
pub struct Server<L> {
    pub rows: Vec<Row>,
    pub txs: Vec<Tx>,
    next_xid: Xid,
    latest_completed: Xid,
    running: BTreeSet<Xid>,
    last_value: i64,
    sequence_logged: i64,
    locks: HashMap<u32, TxId>,
    log: Vec<Record<L>>,
    flushed: Lsn,
}

impl<L: Clone> Server<L> {
    pub fn new(first_xid: Xid) -> Server<L> {
        Server {
            rows: Vec::new(),
            txs: Vec::new(),
            next_xid: first_xid,
            latest_completed: first_xid - 1,
            running: BTreeSet::new(),
            last_value: 0,
            sequence_logged: 0,
            locks: HashMap::new(),
            log: vec![Record::Xid(first_xid - 1)],
            flushed: 1,
        }
    }

    pub fn begin(&mut self) -> TxId {
        self.txs.push(Tx {
            status: Status::Open,
            xid: None,
            children: Vec::new(),
            savepoints: Vec::new(),
            rows: Vec::new(),
            commit_lsn: 0,
        });
        self.txs.len() - 1
    }

    fn new_xid(&mut self) -> Xid {
        let xid = self.next_xid;
        self.next_xid += 1;
        self.running.insert(xid);
        xid
    }

    /// The top-level transaction's id, as `pg_current_xact_id()` gives it: not logged yet.
    pub fn assign_xid(&mut self, tx: TxId) -> Xid {
        if let Some(xid) = self.txs[tx].xid {
            return xid;
        }
        let xid = self.new_xid();
        self.txs[tx].xid = Some(xid);
        xid
    }

    /// Draws a seq and inserts a row, unless another transaction has locked the aggregate.
    pub fn emit(&mut self, tx: TxId, aggregate: u32, forced_seq: Option<i64>) -> bool {
        if *self.locks.entry(aggregate).or_insert(tx) != tx {
            return false;
        }
        let drawn = self.next_value();
        let xid = self.assign_xid(tx);
        let last = self.txs[tx].children.last().copied().unwrap_or(xid);
        self.log.extend([Record::Xid(xid), Record::Xid(last)]);
        self.rows.push(Row {
            tx,
            xid,
            seq: forced_seq.unwrap_or(drawn),
            aggregate,
            undone: false,
        });
        let row = self.rows.len() - 1;
        self.txs[tx].rows.push(row);
        true
    }

    fn next_value(&mut self) -> i64 {
        self.last_value += 1;
        if self.last_value > self.sequence_logged {
            self.sequence_logged = self.last_value + 32;
            self.log.push(Record::Sequence(self.sequence_logged));
        }
        self.last_value
    }

    pub fn last_value(&self) -> i64 {
        self.last_value
    }

    pub fn set_value(&mut self, value: i64) {
        (self.last_value, self.sequence_logged) = (value, value);
        self.log.push(Record::Sequence(value));
    }

    pub fn savepoint(&mut self, tx: TxId) {
        self.assign_xid(tx);
        let child = self.new_xid();
        let tx = &mut self.txs[tx];
        tx.children.push(child);
        tx.savepoints.push(tx.rows.len());
    }

    pub fn rollback_to_savepoint(&mut self, tx: TxId) {
        let Some(kept) = self.txs[tx].savepoints.pop() else {
            return;
        };
        for row in self.txs[tx].rows.split_off(kept) {
            self.rows[row].undone = true;
        }
        if let Some(child) = self.txs[tx].children.pop() {
            self.complete(child);
        }
    }

    pub fn prepare(&mut self, tx: TxId) {
        self.assign_xid(tx);
        self.txs[tx].status = Status::Prepared;
        self.log.push(Record::Prepare(tx));
        self.flush(self.log.len());
    }

    /// The commit's first half: it is in the log, flushed if it is a synchronous one, as COMMIT
    /// PREPARED always is.
    pub fn write_commit(&mut self, tx: TxId, synchronous: bool) {
        let synchronous = synchronous || self.txs[tx].status == Status::Prepared;
        self.txs[tx].status = Status::Committing;
        self.log.push(Record::Commit(tx));
        self.txs[tx].commit_lsn = self.log.len();
        if synchronous {
            self.flush(self.log.len());
        }
    }

    /// Its second half: it is visible, and its locks are free.
    pub fn end_commit(&mut self, tx: TxId) {
        self.end(tx, Status::Committed);
    }

    pub fn abort(&mut self, tx: TxId) {
        self.end(tx, Status::Aborted);
    }

    fn end(&mut self, tx: TxId, status: Status) {
        self.txs[tx].status = status;
        self.locks.retain(|_, holder| *holder != tx);
        let xids: Vec<Xid> = self.txs[tx].children.drain(..).collect();
        for xid in xids.into_iter().chain(self.txs[tx].xid) {
            self.complete(xid);
        }
    }

    fn complete(&mut self, xid: Xid) {
        self.running.remove(&xid);
        self.latest_completed = self.latest_completed.max(xid);
    }

    pub fn in_status(&self, status: Status) -> Vec<TxId> {
        (0..self.txs.len())
            .filter(|&tx| self.txs[tx].status == status)
            .collect()
    }

    pub fn snapshot(&self) -> Snapshot {
        let xmax = self.latest_completed + 1;
        // As pg_current_snapshot(): top-level transactions only.
        let top = |xid: &Xid| self.txs.iter().any(|tx| tx.xid == Some(*xid));
        let xip: Vec<Xid> = self.running.range(..xmax).copied().filter(top).collect();
        let xmin = xip.first().copied().unwrap_or(xmax);
        Snapshot { xmin, xmax, xip }
    }

    /// The rows that a statement sees now.
    pub fn visible(&self) -> impl Iterator<Item = (RowId, &Row)> {
        let committed = |row: &Row| !row.undone && self.txs[row.tx].status == Status::Committed;
        self.rows.iter().enumerate().filter(move |(_, row)| committed(row))
    }

    /// The rows that a statement under this snapshot sees.
    pub fn visible_to(&self, snapshot: &Snapshot) -> impl Iterator<Item = (RowId, &Row)> {
        self.visible().filter(|(_, row)| snapshot.sees(row.xid))
    }

    pub fn flush(&mut self, up_to: Lsn) {
        self.flushed = self.flushed.max(up_to);
    }

    pub fn log_end(&self) -> Lsn {
        self.log.len()
    }

    /// Appends to the ledger in a transaction of its own that commits asynchronously.
    pub fn append_ledger(&mut self, entry: L) {
        let xid = self.new_xid();
        self.log.extend([Record::Xid(xid), Record::Ledger(entry)]);
        self.complete(xid);
    }

    pub fn newest_ledger_entry(&self) -> Option<L> {
        self.log.iter().rev().find_map(|record| match record {
            Record::Ledger(entry) => Some(entry.clone()),
            _ => None,
        })
    }

    /// A crash and its recovery: of the log, `lost_max` records at most are gone, none of them flushed.
    pub fn crash(&mut self, lost_max: usize) {
        let end = self.flushed.max(self.log.len().saturating_sub(lost_max));
        self.log.truncate(end);
        let (mut prepared, mut committed) = (BTreeSet::new(), BTreeSet::new());
        let mut newest_xid = 0;
        for record in &self.log {
            match record {
                Record::Xid(xid) => newest_xid = newest_xid.max(*xid),
                Record::Sequence(value) => self.last_value = *value,
                Record::Prepare(tx) => drop(prepared.insert(*tx)),
                Record::Commit(tx) => {
                    committed.insert(*tx);
                    newest_xid = newest_xid.max(self.txs[*tx].xid.unwrap_or(0));
                }
                Record::Ledger(_) => {}
            }
        }
        // A prepared transaction's state file names its ids.
        for &tx in &prepared {
            let xids = self.txs[tx].children.iter().copied().chain(self.txs[tx].xid);
            newest_xid = newest_xid.max(xids.max().unwrap_or(0));
        }
        self.sequence_logged = self.last_value;
        for tx in 0..self.txs.len() {
            match self.txs[tx].status {
                Status::Aborted => {}
                _ if committed.contains(&tx) => self.end(tx, Status::Committed),
                Status::Prepared if prepared.contains(&tx) => {}
                _ => self.end(tx, Status::Aborted),
            }
        }
        self.next_xid = newest_xid + 1;
        self.latest_completed = newest_xid;
        self.running.retain(|&xid| xid <= newest_xid);
        // What was aborted or lost has no row any more; its ids may come back.
        for tx in self.txs.iter_mut().filter(|tx| tx.status == Status::Aborted) {
            tx.xid = None;
            for &row in &tx.rows {
                self.rows[row].undone = true;
            }
        }
    }
}
