//! The rows of one step, copied out of the server's memory so that they outlive the transaction that read them.
//!
//! One buffer holds the bytes of all rows; a row is offsets into it. The window keeps the buffer while an event of the step is unsent; librdkafka copies
//! what it is given, so that is the only copy in between.

use crate::pg::call::{append_varlena, text_of, uuid_bytes};
use crate::pg::jsonb;
use crate::pg::spi;
use outbox_core::partition::murmur2;
use outbox_core::record::{HEADER_AGGREGATE_TYPE, HEADER_EVENT_TYPE, HEADER_ID, message_bytes, own_headers_bytes};
use outbox_core::topic::{TopicTemplate, check_topic};
use outbox_core::window::{AggregateKey, Fate, Meta, ParkReason, Source, TopicId, Window};
use pgrx::pg_sys::Datum;
use std::rc::Rc;
use std::sync::Arc;

/// Columns that every read of events selects, in the order that [`Reader::push`] takes them.
pub const COLUMNS: &str = "l.event_id, l.seq, l.xid, l.created_at, l.available_at, l.aggregate_type, l.aggregate_id, l.event_type, l.topic, \
                           l.headers, l.payload";
/// Columns in [`COLUMNS`].
pub const COLUMN_COUNT: usize = 11;

/// Milliseconds from 1970-01-01 to 2000-01-01, PostgreSQL's epoch.
const POSTGRES_EPOCH_MS: i64 = 946_684_800_000;

/// Bytes of a step's rows.
#[derive(Default)]
pub struct Body {
    bytes: Vec<u8>,
    rows: Vec<Row>,
}

struct Row {
    event_id: [u8; 16],
    timestamp_ms: i64,
    start: usize,
    aggregate_type: usize,
    key: usize,
    event_type: usize,
    headers: usize,
    payload: usize,
}

/// An event as it becomes a record.
pub struct Event<'a> {
    pub event_id: [u8; 16],
    pub timestamp_ms: i64,
    pub aggregate_type: &'a str,
    pub key: &'a [u8],
    pub event_type: &'a str,
    /// The caller's headers as JSON text; empty where there are none.
    pub headers: &'a str,
    pub payload: &'a [u8],
}

impl Body {
    pub fn event(&self, index: u32) -> Event<'_> {
        let row = &self.rows[index as usize];
        let mut rest = &self.bytes[row.start..];
        let mut take = |len: usize| {
            let (field, after) = rest.split_at(len);
            rest = after;
            field
        };
        // The database's encoding is UTF8 (checked by CREATE EXTENSION).
        let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default();
        Event {
            event_id: row.event_id,
            timestamp_ms: row.timestamp_ms,
            aggregate_type: text(take(row.aggregate_type)),
            key: take(row.key),
            event_type: text(take(row.event_type)),
            headers: text(take(row.headers)),
            payload: take(row.payload),
        }
    }
}

/// What a read needs to know beside the rows.
pub struct Rules {
    pub template: Rc<TopicTemplate>,
    pub max_message_bytes: usize,
    /// The server's time, microseconds since 2000.
    pub now: i64,
}

/// Gathers rows into a step up to its limits.
pub struct Reader {
    rules: Rules,
    rows_max: usize,
    bytes_max: usize,
    body: Body,
    metas: Vec<Meta>,
    xids: Vec<u64>,
    topics: Topics,
}

/// Finds the topics of rows. Remembers the last one: most rows of a step have the same.
#[derive(Default)]
struct Topics {
    last: Option<LastTopic>,
    name: String,
}

struct LastTopic {
    aggregate_type: String,
    event_type: String,
    given: Option<String>,
    resolved: Result<TopicId, Arc<str>>,
}

impl Reader {
    pub fn new(rules: Rules, rows_max: usize, bytes_max: usize) -> Reader {
        Reader {
            rules,
            rows_max,
            bytes_max,
            body: Body::default(),
            metas: Vec::new(),
            xids: Vec::new(),
            topics: Topics::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.metas.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() >= self.rows_max || self.body.bytes.len() >= self.bytes_max
    }

    /// (xid, seq) of a row.
    pub fn position(row: &spi::Row<'_>) -> (u64, i64) {
        (row.i64(2).unwrap_or(0) as u64, row.i64(1).unwrap_or(0))
    }

    /// Takes a row that has [`COLUMNS`]; of a parked one its reason and attempts.
    pub fn push(&mut self, row: &spi::Row<'_>, parked: Option<(ParkReason, i32)>, window: &mut Window<Body>) {
        let start = self.body.bytes.len();
        let out = &mut self.body.bytes;
        let text = |value: Option<Datum>, out: &mut Vec<u8>| value.map_or(0, |datum| append_varlena(datum, out));
        let json = |value: Option<Datum>, out: &mut Vec<u8>| value.map_or(0, |datum| jsonb::append_text(datum, out));
        let aggregate_type = text(row.datum(5), out);
        let key = text(row.datum(6), out);
        let event_type = text(row.datum(7), out);
        // The text of what is larger by far may not even fit into memory: it is not made, for it is not sent.
        let at_least = [row.datum(9), row.datum(10)]
            .into_iter()
            .flatten()
            .map(jsonb::text_len_at_least)
            .sum::<usize>();
        let is_huge = at_least > self.rules.max_message_bytes;
        let (headers, payload) = if is_huge {
            (0, 0)
        } else {
            (json(row.datum(9), out), json(row.datum(10), out))
        };
        let event_id = row.datum(0).map(uuid_bytes).unwrap_or_default();
        let (xid, seq) = Reader::position(row);
        self.xids.push(xid);
        self.body.rows.push(Row {
            event_id,
            timestamp_ms: record_timestamp(row.i64(3).unwrap_or(self.rules.now), self.rules.now),
            start,
            aggregate_type,
            key,
            event_type,
            headers,
            payload,
        });
        let event = self.body.event(self.body.rows.len() as u32 - 1);
        let given = row.datum(8).map(text_of);
        let resolved = self.topics.resolve(given, &event, &self.rules.template, window);
        let caller_headers = caller_headers(event.headers);
        let bytes = message_bytes(
            key,
            payload,
            caller_headers.iter().map(|(name, value)| (name.len(), value.len())),
        ) + own_headers_bytes(event.event_type, event.aggregate_type)
            + if is_huge { at_least } else { 0 };
        // What is parked for another reason was due once, whatever became of the clock since.
        let may_wait = parked.is_none_or(|(reason, _)| reason == ParkReason::Scheduled);
        let later = may_wait && row.i64(4).is_some_and(|available_at| available_at > self.rules.now);
        let fate = match (&resolved, later) {
            (_, true) => Fate::Scheduled,
            (Err(error), _) => Fate::Defect(error.clone()),
            _ if bytes > self.rules.max_message_bytes => Fate::Defect(
                format!(
                    "event is too large: {}{bytes} bytes; outbox_ext.max_message_bytes is {}",
                    if is_huge { "at least " } else { "" },
                    self.rules.max_message_bytes
                )
                .into(),
            ),
            _ => Fate::Send,
        };
        let key_text = std::str::from_utf8(event.key).unwrap_or_default();
        self.metas.push(Meta {
            seq,
            event_id,
            aggregate: AggregateKey::of(event.aggregate_type, key_text),
            topic: resolved.unwrap_or_else(|_| window.topic("")),
            key_hash: murmur2(event.key),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            source: parked.map_or(Source::Log, |(reason, attempts)| Source::Parked { reason, attempts }),
            fate,
        });
    }

    /// The last row taken.
    pub fn last(&self) -> Option<&Meta> {
        self.metas.last()
    }

    /// Leaves the last row out again.
    pub fn drop_last(&mut self) {
        self.metas.pop();
        self.xids.pop();
        if let Some(row) = self.body.rows.pop() {
            self.body.bytes.truncate(row.start);
        }
    }

    /// Late events that were read to their end go by seq, as if they had been new.
    pub fn sort_by_seq(&mut self) {
        if self.metas.is_sorted_by_key(|meta| meta.seq) {
            return;
        }
        let mut order: Vec<usize> = (0..self.metas.len()).collect();
        order.sort_by_key(|&index| self.metas[index].seq);
        let mut rows: Vec<Option<Row>> = std::mem::take(&mut self.body.rows).into_iter().map(Some).collect();
        let mut metas: Vec<Option<Meta>> = std::mem::take(&mut self.metas).into_iter().map(Some).collect();
        self.body.rows = order.iter().filter_map(|&index| rows[index].take()).collect();
        self.metas = order.iter().filter_map(|&index| metas[index].take()).collect();
    }

    /// The transactions of the rows.
    pub fn xids(&self) -> impl Iterator<Item = u64> {
        self.xids.iter().copied()
    }

    /// (xid, seq) of the last row taken.
    pub fn last_position(&self) -> Option<(u64, i64)> {
        self.xids.last().copied().zip(self.metas.last().map(|meta| meta.seq))
    }

    pub fn highest_seq(&self) -> Option<i64> {
        self.metas.iter().map(|meta| meta.seq).max()
    }

    pub fn finish(self) -> (Vec<Meta>, Body) {
        (self.metas, self.body)
    }
}

impl Topics {
    /// The given topic or the template's; or why there is none.
    fn resolve(
        &mut self,
        given: Option<String>,
        event: &Event<'_>,
        template: &TopicTemplate,
        window: &mut Window<Body>,
    ) -> Result<TopicId, Arc<str>> {
        if let Some(last) = &self.last
            && last.given == given
            && last.aggregate_type == event.aggregate_type
            && last.event_type == event.event_type
        {
            return last.resolved.clone();
        }
        self.name.clear();
        match &given {
            Some(topic) => self.name.push_str(topic),
            None => template.resolve_into(&mut self.name, event.aggregate_type, event.event_type),
        }
        let resolved = match check_topic(&self.name) {
            Ok(()) => Ok(window.topic(&self.name)),
            Err(error) => Err(error.to_string().into()),
        };
        self.last = Some(LastTopic {
            aggregate_type: event.aggregate_type.to_owned(),
            event_type: event.event_type.to_owned(),
            given,
            resolved: resolved.clone(),
        });
        resolved
    }
}

/// The record's timestamp: created_at in ms, not after `now` (brokers refuse what is an hour ahead) and not before 1 (Kafka knows no time before 1970,
/// and librdkafka takes 0 for "now").
fn record_timestamp(created_at: i64, now: i64) -> i64 {
    (created_at.min(now).div_euclid(1000) + POSTGRES_EPOCH_MS).max(1)
}

/// The caller's headers out of their JSON text. The table lets only objects of strings in.
pub fn caller_headers(json: &str) -> Vec<(String, String)> {
    if json.is_empty() {
        return Vec::new();
    }
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(json) {
        Ok(object) => object
            .into_iter()
            .filter_map(|(name, value)| value.as_str().map(|text| (name, text.to_owned())))
            .collect(),
        Err(_) => Vec::new(),
    }
}

/// Calls `send` with the event's record headers: ours first, then the caller's.
pub fn with_headers<R>(event: &Event<'_>, send: impl FnOnce(&[(&str, &[u8])]) -> R) -> R {
    let mut id = uuid::Uuid::encode_buffer();
    let id = uuid::Uuid::from_bytes(event.event_id)
        .hyphenated()
        .encode_lower(&mut id);
    let own: [(&str, &[u8]); 3] = [
        (HEADER_ID, id.as_bytes()),
        (HEADER_EVENT_TYPE, event.event_type.as_bytes()),
        (HEADER_AGGREGATE_TYPE, event.aggregate_type.as_bytes()),
    ];
    if event.headers.is_empty() {
        return send(&own);
    }
    let callers = caller_headers(event.headers);
    let all: Vec<(&str, &[u8])> = own
        .into_iter()
        .chain(callers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())))
        .collect();
    send(&all)
}
