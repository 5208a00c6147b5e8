//! The reads of a step: fence, late and new events, parked events that may go.

use super::Store;
use super::ledger::reason_of;
use crate::pg::spi::{Access, Plan, Spi, text_datum, uuid_datum};
use crate::relay::Body;
use crate::relay::step::{COLUMN_COUNT, Reader};
use outbox_core::cursor::LateRange;
use outbox_core::window::{AggregateKey, ParkReason, TopicId, Window};
use pgrx::pg_sys::{Datum, Oid};

/// What a step must know before it reads.
pub struct Fence {
    pub lease_held: bool,
    pub stopped: bool,
    /// Trigger and check that keep `xid` true are in place.
    pub guarded: bool,
}

impl Store {
    /// What stands in the step's way, under its snapshot.
    pub fn fence(&self, spi: &Spi, token: &[u8; 16], log: Oid) -> Fence {
        let rows = spi.execute(&self.fence, &[Some(uuid_datum(token)), Some(log.into())], Access::Read);
        let flag = |column| rows.bool(0, column).unwrap_or(false);
        Fence {
            lease_held: flag(0),
            stopped: flag(1),
            guarded: flag(2),
        }
    }

    /// Reads late events of one range. Some((xid, seq)) of the last one when the step became full before the range's end; equal (xid, seq) are
    /// never divided.
    pub fn late(
        &self,
        spi: &Spi,
        range: &LateRange,
        pos: i64,
        reader: &mut Reader,
        window: &mut Window<Body>,
    ) -> Option<(u64, i64)> {
        let values = [
            Some(Datum::from(range.after_xid)),
            Some(range.after_seq.into()),
            Some(Datum::from(range.end_xid)),
            Some(pos.into()),
        ];
        self.read(spi, &self.late, &values, reader, window)
    }

    /// Reads new events; as [`Store::late`].
    pub fn new_events(
        &self,
        spi: &Spi,
        pos: i64,
        reader: &mut Reader,
        window: &mut Window<Body>,
    ) -> Option<(u64, i64)> {
        self.read(spi, &self.new, &[Some(pos.into())], reader, window)
    }

    fn read(
        &self,
        spi: &Spi,
        plan: &Plan,
        values: &[Option<Datum>],
        reader: &mut Reader,
        window: &mut Window<Body>,
    ) -> Option<(u64, i64)> {
        let by_seq_only = std::ptr::eq(plan, &self.new);
        let (mut last, mut cut): (Option<(u64, i64)>, _) = (None, None);
        spi.for_each(plan, values, |row| {
            let (xid, seq) = Reader::position(row);
            if reader.is_full() && last.is_none_or(|last| last.1 != seq || (last.0 != xid && !by_seq_only)) {
                cut = Some(last.unwrap_or((0, i64::MIN)));
                return false;
            }
            reader.push(row, None, window);
            last = Some((xid, seq));
            true
        });
        cut
    }

    /// When the next scheduled or retried event is due, microseconds since 2000.
    pub fn next_due(&self, spi: &Spi) -> Option<i64> {
        spi.execute(&self.next_due, &[], Access::Read).i64(0, 0)
    }

    /// Reads parked events that are due at `now`: those whose time has come, and those that wait for their next try longer than the longest pause (in
    /// microseconds). Their pause is kept as a time, which is wrong when the clock was set back.
    pub fn due(&self, spi: &Spi, now: i64, pause_max: i64, reader: &mut Reader, window: &mut Window<Body>) {
        for reason in [ParkReason::Retry, ParkReason::Scheduled] {
            let values = [Some(text_datum(reason.as_str())), Some(now.into())];
            self.read_parked(spi, &self.due, &values, reader, window);
        }
        let too_far = now.saturating_add(pause_max);
        self.read_parked(spi, &self.set_back, &[Some(too_far.into())], reader, window);
    }

    /// Reads the events parked for a topic.
    pub fn of_topic(&self, spi: &Spi, topic: TopicId, reader: &mut Reader, window: &mut Window<Body>) {
        let name = window.topic_name(topic).clone();
        self.read_parked(spi, &self.of_topic, &[Some(text_datum(&name))], reader, window);
    }

    /// Reads what is parked of one aggregate. False when nothing is, or when the reader was full already.
    pub fn of_aggregate(
        &self,
        spi: &Spi,
        aggregate: AggregateKey,
        reader: &mut Reader,
        window: &mut Window<Body>,
    ) -> bool {
        let key = uuid_datum(&aggregate.0.to_be_bytes());
        self.read_parked(spi, &self.of_aggregate, &[Some(key)], reader, window) > 0
    }

    /// Takes the rows that may go; how many there were.
    fn read_parked(
        &self,
        spi: &Spi,
        plan: &Plan,
        values: &[Option<Datum>],
        reader: &mut Reader,
        window: &mut Window<Body>,
    ) -> usize {
        let mut seen = 0;
        if reader.is_full() {
            return seen;
        }
        spi.for_each(plan, values, |row| {
            seen += 1;
            let reason = reason_of(row, COLUMN_COUNT);
            let attempts = row.datum(COLUMN_COUNT + 1).map_or(0, |datum| datum.value() as i32);
            reader.push(row, Some((reason, attempts)), window);
            // The row stays as it is.
            if reader.last().is_some_and(|event| window.is_stalled(event)) {
                reader.drop_last();
            }
            !reader.is_full()
        });
        seen
    }
}
