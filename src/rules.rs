//! What an event must be, whichever way it comes in. `outbox_emit` checks before it inserts; a check constraint of outbox_log, `outbox_event_is_sound`, applies the
//! same rules to plain INSERT and COPY, with the same errors.
//!
//! One function in one constraint, and not a constraint for each rule: PostgreSQL reads each constraint's expression anew for each INSERT statement, which
//! cost more than the insert itself.
//!
//! Only rules that hold for ever stand here. What depends on settings (the topic that the template makes, the size of the whole) is `outbox_emit`'s, and the relay's.

use crate::guc;
use crate::pg::call::{Args, byte_len};
use crate::pg::error::raise;
use crate::pg::{jsonb, xact};
use outbox_core::{record, topic};
use pgrx::PgSqlErrorCode;
use pgrx::prelude::*;

/// Longest aggregate_type and event_type, in bytes.
const TYPE_BYTES_MAX: usize = 255;
/// Longest aggregate_id, in bytes: well below what a btree entry may have (2,704), so that compressible and random ids meet the same limit.
const AGGREGATE_ID_BYTES_MAX: usize = 1024;

/// SQL `outbox_event_is_sound(xid, created_at, aggregate_type, aggregate_id, event_type, topic, headers)`: true, or an error that says what is wrong.
///
/// The xid must be the inserting transaction's: the one fact that the relay's cursor leans on. The trigger outbox_log_restamp sees to it; this finds what was changed after it.
#[pg_extern(sql = false)]
fn outbox_event_is_sound(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    let args = Args::new(fcinfo);
    if args.datum(0).is_none_or(|xid| xid.value() as u64 != xact::top_xid()) {
        raise(
            PgSqlErrorCode::ERRCODE_CHECK_VIOLATION,
            "xid must be that of the inserting transaction".to_owned(),
            None,
            "Leave xid out. The trigger outbox_log_restamp corrects it, unless it is disabled or a later trigger changes xid again.",
        );
    }
    if let Some(created_at) = args.datum(1)
        && [i64::MIN, i64::MAX].contains(&(created_at.value() as i64))
    {
        raise(
            PgSqlErrorCode::ERRCODE_DATETIME_FIELD_OVERFLOW,
            "created_at must be finite".to_owned(),
            None,
            "It becomes the record's timestamp. Leave it out for the time of the transaction.",
        );
    }
    check_type("aggregate_type", args.datum(2).map_or(0, byte_len));
    check_aggregate_id(args.datum(3).map_or(0, byte_len));
    check_type("event_type", args.datum(4).map_or(0, byte_len));
    if let Some(topic) = args.text(5) {
        check_topic(topic, "");
    }
    if let Some(headers) = args.datum(6) {
        check_headers(headers, guc::MESSAGE_BYTES_MAX as usize);
    }
    true
}

/// Refuses an aggregate_type or event_type of this many bytes.
pub fn check_type(argument: &str, bytes: usize) {
    if bytes == 0 {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("{argument} must not be empty"),
            None,
            "Name the kind of thing, such as order or order-created.",
        );
    }
    if bytes > TYPE_BYTES_MAX {
        too_long(argument, bytes, TYPE_BYTES_MAX);
    }
}

/// Refuses an aggregate_id of this many bytes.
pub fn check_aggregate_id(bytes: usize) {
    if bytes > AGGREGATE_ID_BYTES_MAX {
        too_long("aggregate_id", bytes, AGGREGATE_ID_BYTES_MAX);
    }
}

/// Refuses a name that is no Kafka topic's. `hint` follows the general one.
pub fn check_topic(name: &str, hint: &str) {
    if let Err(error) = topic::check_topic(name) {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            error.to_string(),
            None,
            &format!("{}{hint}", error.hint()),
        );
    }
}

fn too_long(argument: &str, bytes: usize, limit: usize) -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
        format!("{argument} is too long"),
        Some(format!("It has {bytes} bytes; the limit is {limit} bytes.")),
        "Shorten it, or put what it carries into the payload.",
    )
}

/// Refuses headers that could not become record headers; returns their bytes, names and values. `limit`: bytes that no event can have.
pub fn check_headers(headers: pg_sys::Datum, limit: usize) -> usize {
    let refuse = |detail: String, hint: &str| -> ! {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "headers must be an object of strings".to_owned(),
            Some(detail),
            hint,
        )
    };
    // The text of what is larger by far may not even fit into memory.
    let at_least = jsonb::text_len_at_least(headers);
    if at_least > limit {
        raise(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            "headers are too large".to_owned(),
            Some(format!(
                "They have at least {at_least} bytes; no event may have more than {limit}."
            )),
            "Put what they carry into the payload, or elsewhere.",
        );
    }
    let text = jsonb::text(headers);
    let object = match serde_json::from_str::<serde_json::Value>(&text) {
        Ok(serde_json::Value::Object(object)) => object,
        Ok(other) => refuse(
            format!("They are {}.", kind(&other)),
            "Give an object such as {\"tenant\": \"a\"}, or NULL.",
        ),
        Err(error) => refuse(
            format!("They cannot be read: {error}."),
            "Give an object such as {\"tenant\": \"a\"}, or NULL.",
        ),
    };
    let mut bytes = 0;
    for (name, value) in &object {
        if [
            record::HEADER_ID,
            record::HEADER_EVENT_TYPE,
            record::HEADER_AGGREGATE_TYPE,
        ]
        .contains(&name.as_str())
        {
            raise(
                PgSqlErrorCode::ERRCODE_RESERVED_NAME,
                format!("header \"{name}\" is set by outbox_ext itself"),
                None,
                "The names id, eventType and aggregateType are taken. Choose another name.",
            );
        }
        match value {
            serde_json::Value::String(text) => bytes += name.len() + text.len(),
            other => refuse(
                format!("Header \"{name}\" is {}.", kind(other)),
                "Write numbers and booleans as strings; leave out what is null.",
            ),
        }
    }
    bytes
}

fn kind(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "a boolean",
        serde_json::Value::Number(_) => "a number",
        serde_json::Value::String(_) => "a string",
        serde_json::Value::Array(_) => "an array",
        serde_json::Value::Object(_) => "an object",
    }
}
