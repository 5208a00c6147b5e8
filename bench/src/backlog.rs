//! The events that rows are measured with: what they look like, a backlog of them in the log, and the same in memory.

use outbox_core::partition::partition_for;
use outbox_e2e::Db;

use crate::table::Table;

pub const EVENT_TYPE: &str = "OrderPlaced";
pub const AGGREGATES: usize = 1_000;

/// How large an event is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// An order of about 300 bytes as `payload::text`; with it a row of the log has about 490 bytes.
    Usual,
    /// An order with a long list of lines, about 4 kB.
    Large,
}

/// Lines of a large order. Each has a number that no other has: compressed it is still more than the 2 kB up to which a row stays in one piece.
const LARGE_LINES: usize = 46;

/// The payload of event `number`.
pub fn payload(number: usize) -> String {
    order(&number.to_string(), &(number % AGGREGATES).to_string(), "")
}

fn order(number: &str, customer: &str, more: &str) -> String {
    format!(
        r#"{{"order": {number}, "total": "129.90", "status": "placed", "currency": "EUR", "customer": {{"id": {customer}, "name": "Ada Lovelace", "email": "ada.lovelace@example.org"}}, "lines": [{{"sku": "KB-4711", "title": "Keyboard, mechanical", "quantity": 1}}, {{"sku": "MS-0815", "title": "Mouse, wireless", "quantity": 2}}{more}]}}"#
    )
}

/// The same as an SQL expression of the integer column `n`.
pub fn payload_sql(size: Size) -> String {
    match size {
        Size::Usual => format!("format('{}', n, n % {AGGREGATES})::jsonb", order("%s", "%s", "")),
        Size::Large => format!(
            "format('{}', n, n % {AGGREGATES},
                (SELECT string_agg(format(', {{\"serial\": \"%s\", \"sku\": \"KB-4711\", \"quantity\": 1}}', md5(n::text || '-' || l)), '')
                   FROM generate_series(1, {LARGE_LINES}) l))::jsonb",
            order("%s", "%s", "%s")
        ),
    }
}

/// Appends so many events in transactions of 1,000, as a busy service or an import would.
pub fn insert(db: &mut Db, table: Table, aggregate_type: &str, size: Size, events: usize) {
    const ROWS: usize = 1_000;
    let set = format!("generate_series(step * {ROWS}, step * {ROWS} + {ROWS} - 1) n");
    db.run(&format!(
        "DO $$ BEGIN
            FOR step IN 0 .. {events} / {ROWS} - 1 LOOP
                {};
                COMMIT;
            END LOOP;
         END $$",
        table.insert_select(aggregate_type, size, &set)
    ));
}

/// The records of a backlog, one after the other in one block of memory.
pub struct Records {
    pub aggregate_type: String,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    /// Where its bytes begin: the event's id as text, then the key, then the value, which the next one's start ends.
    start: usize,
    key: usize,
    value: usize,
    end: usize,
    timestamp_ms: i64,
    partition: i32,
}

pub struct Record<'a> {
    pub id: &'a [u8],
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub timestamp_ms: i64,
    pub partition: i32,
}

impl Records {
    /// All events of the log in order, as the relay would make them.
    pub fn read(db: &mut Db, aggregate_type: &str, partitions: u32) -> Records {
        const ROWS: usize = 50_000;
        let mut records = Records {
            aggregate_type: aggregate_type.to_owned(),
            bytes: Vec::new(),
            entries: Vec::new(),
        };
        let mut after = 0i64;
        loop {
            let rows = db.rows(&format!(
                "SELECT seq, event_id::text, aggregate_id, payload::text, (extract(epoch FROM created_at) * 1000)::bigint
                   FROM outbox_log WHERE seq > {after} ORDER BY seq LIMIT {ROWS}"
            ));
            let Some(last) = rows.last() else {
                return records;
            };
            after = last.get(0);
            for row in &rows {
                records.push([row.get(1), row.get(2), row.get(3)], row.get(4), partitions);
            }
        }
    }

    fn push(&mut self, [id, key, value]: [&str; 3], timestamp_ms: i64, partitions: u32) {
        let start = self.bytes.len();
        [id, key, value]
            .iter()
            .for_each(|part| self.bytes.extend_from_slice(part.as_bytes()));
        self.entries.push(Entry {
            start,
            key: start + id.len(),
            value: start + id.len() + key.len(),
            end: self.bytes.len(),
            timestamp_ms,
            partition: partition_for(key.as_bytes(), partitions) as i32,
        });
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn get(&self, index: usize) -> Record<'_> {
        let entry = &self.entries[index];
        Record {
            id: &self.bytes[entry.start..entry.key],
            key: &self.bytes[entry.key..entry.value],
            value: &self.bytes[entry.value..entry.end],
            timestamp_ms: entry.timestamp_ms,
            partition: entry.partition,
        }
    }

    pub fn value_bytes_mean(&self) -> f64 {
        let bytes: usize = self.entries.iter().map(|entry| entry.end - entry.value).sum();
        bytes as f64 / self.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_json_of_about_300_bytes() {
        let text = payload(123_456);
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
        assert!((280..=320).contains(&text.len()), "{}", text.len());
        assert_eq!(payload_sql(Size::Usual).matches("%s").count(), 2);
    }
}
