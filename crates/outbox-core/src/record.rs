//! Names of the headers we add, and the size of a message as `outbox_ext.max_message_bytes` counts it.

/// The event id, as text: lower case, 36 characters. Debezium's outbox router uses the same name.
pub const HEADER_ID: &str = "id";
pub const HEADER_EVENT_TYPE: &str = "eventType";
pub const HEADER_AGGREGATE_TYPE: &str = "aggregateType";

/// A UUID's text form.
const EVENT_ID_BYTES: usize = 36;

/// The size of a message: the bytes of key and payload and of all header names and values, ours
/// (see [`own_headers_bytes`]) included by the caller. Kafka's own framing is not counted.
pub fn message_bytes(key: usize, payload: usize, headers: impl Iterator<Item = (usize, usize)>) -> usize {
    let headers: usize = headers.map(|(name, value)| name.saturating_add(value)).sum();
    key.saturating_add(payload).saturating_add(headers)
}

/// The bytes of our three headers.
pub fn own_headers_bytes(event_type: &str, aggregate_type: &str) -> usize {
    HEADER_ID.len()
        + EVENT_ID_BYTES
        + HEADER_EVENT_TYPE.len()
        + event_type.len()
        + HEADER_AGGREGATE_TYPE.len()
        + aggregate_type.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_of_utf8() {
        assert_eq!(own_headers_bytes("é", "Order"), 2 + 36 + 9 + 2 + 13 + 5);
        let headers = [("trace", "é"), ("x", "")].map(|(name, value)| (name.len(), value.len()));
        assert_eq!(message_bytes(3, 10, headers.into_iter()), 3 + 10 + 7 + 1);
        assert_eq!(message_bytes(usize::MAX, 1, std::iter::empty()), usize::MAX);
    }
}
