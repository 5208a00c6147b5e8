//! `outbox_emit`, and what the columns of `outbox_log` take by default.
//!
//! Invariants: everything happens in the caller's transaction; nothing is resolved through the caller's search_path (statements name the schema,
//! which comes from the function's own OID); an event that could never be published is refused here, where its sender sees it.

use crate::pg::call::{Args, jsonb_text, jsonb_text_len, uuid_bytes};
use crate::pg::catalog::{self, Schema};
use crate::pg::error::raise;
use crate::pg::spi::{self, Access, Plan, text_datum, types, uuid_datum};
use crate::{guc, wakeup};
use outbox_core::{record, topic};
use pgrx::PgSqlErrorCode;
use pgrx::prelude::*;
use std::cell::RefCell;

/// Longest aggregate_type and event_type, in bytes. The table has the same limits as checks.
const TYPE_BYTES_MAX: usize = 255;
/// Longest aggregate_id, in bytes: well below what a btree entry may have (2,704), so that compressible and random ids meet the same limit.
const AGGREGATE_ID_BYTES_MAX: usize = 1024;

thread_local! {
    static INSERT: RefCell<Option<(Schema, Plan)>> = const { RefCell::new(None) };
}

/// SQL `outbox_new_event_id()`.
#[pg_extern(sql = false)]
fn outbox_new_event_id() -> pgrx::Uuid {
    pgrx::Uuid::from_bytes(*uuid::Uuid::now_v7().as_bytes())
}

/// SQL `outbox_next_seq()`: draws the event's place in the order and marks the transaction for the wake-up.
#[pg_extern(sql = false)]
fn outbox_next_seq(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    let schema = Args::new(fcinfo).schema();
    let Some(sequence) = schema.relation(c"outbox_log_seq") else {
        raise(
            PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
            format!("sequence {}.outbox_log_seq does not exist", schema.quoted),
            None,
            "Re-create the extension outbox_ext.",
        );
    };
    wakeup::relay_at_commit();
    catalog::next_value(sequence)
}

/// SQL `outbox_emit(aggregate_type, aggregate_id, event_type, payload, headers, topic, event_id, available_at)`.
#[pg_extern(sql = false)]
fn outbox_emit(fcinfo: pg_sys::FunctionCallInfo) -> pgrx::Uuid {
    let args = Args::new(fcinfo);
    let aggregate_type = type_name("aggregate_type", args.text(0));
    let aggregate_id = args.text(1).unwrap_or_else(|| null("aggregate_id"));
    if aggregate_id.len() > AGGREGATE_ID_BYTES_MAX {
        too_long("aggregate_id", aggregate_id.len(), AGGREGATE_ID_BYTES_MAX);
    }
    let event_type = type_name("event_type", args.text(2));
    let payload = args.datum(3).unwrap_or_else(|| {
        raise(
            PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
            "payload must not be NULL".to_owned(),
            None,
            "JSON null is written 'null'::jsonb; it is published as the four bytes null.",
        )
    });
    let headers = args.datum(4);
    let header_bytes = headers.map_or(0, check_headers);
    let topic = args.text(5);
    check_topic(topic, aggregate_type, event_type);
    let own = record::own_headers_bytes(event_type, aggregate_type);
    check_size(aggregate_id.len(), header_bytes + own, jsonb_text_len(payload));
    let event_id = args
        .datum(6)
        .map(uuid_bytes)
        .unwrap_or_else(|| *uuid::Uuid::now_v7().as_bytes());

    insert(
        &args.schema(),
        &[
            Some(uuid_datum(&event_id)),
            args.datum(0),
            args.datum(1),
            args.datum(2),
            Some(payload),
            headers,
            topic.map(text_datum),
            args.datum(7),
        ],
    );
    pgrx::Uuid::from_bytes(event_id)
}

fn insert(schema: &Schema, values: &[Option<pg_sys::Datum>]) {
    spi::connected(|spi| {
        INSERT.with_borrow_mut(|cached| {
            // Prepared once a session, and again when the extension was re-created or its schema renamed.
            if cached.as_ref().is_none_or(|(known, _)| known != schema) {
                let sql = format!(
                    "INSERT INTO {}.outbox_log (event_id, aggregate_type, aggregate_id, event_type, payload, headers, topic, available_at) \
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                    schema.quoted
                );
                let arguments =
                    [types::UUID, types::TEXT, types::TEXT, types::TEXT, types::JSONB, types::JSONB, types::TEXT, types::TIMESTAMPTZ];
                *cached = Some((schema.clone(), spi.prepare(&sql, &arguments)));
            }
            if let Some((_, plan)) = cached.as_ref() {
                spi.execute(plan, values, Access::Write);
            }
        })
    });
}

fn null(argument: &str) -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
        format!("{argument} must not be NULL"),
        None,
        "Only headers, topic, event_id and available_at may be NULL.",
    )
}

fn too_long(argument: &str, bytes: usize, limit: usize) -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
        format!("{argument} is too long"),
        Some(format!("It has {bytes} bytes; the limit is {limit} bytes.")),
        "Shorten it, or put what it carries into the payload.",
    )
}

fn type_name<'a>(argument: &str, value: Option<&'a str>) -> &'a str {
    let value = value.unwrap_or_else(|| null(argument));
    if value.is_empty() {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("{argument} must not be empty"),
            None,
            "Name the kind of thing, such as order or order-created.",
        );
    }
    if value.len() > TYPE_BYTES_MAX {
        too_long(argument, value.len(), TYPE_BYTES_MAX);
    }
    value
}

/// Refuses headers that could not become record headers; returns their bytes, names and values.
fn check_headers(headers: pg_sys::Datum) -> usize {
    let refuse = |detail: String, hint: &str| -> ! {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "headers must be an object of strings".to_owned(),
            Some(detail),
            hint,
        )
    };
    let text = jsonb_text(headers);
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

/// Checks the topic the event would be published on: the given one, or what the template makes of the types.
fn check_topic(given: Option<&str>, aggregate_type: &str, event_type: &str) {
    let resolved;
    let (name, hint) = match given {
        Some(topic) => (topic, String::new()),
        None => {
            resolved = guc::with_topic_template(|template| template.resolve(aggregate_type, event_type));
            (
                resolved.as_str(),
                " The name comes from outbox_ext.topic; choose another aggregate_type or give a topic.".to_owned(),
            )
        }
    };
    if let Err(error) = topic::check_topic(name) {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            error.to_string(),
            None,
            &format!("{}{hint}", error.hint()),
        );
    }
}

fn check_size(key: usize, headers: usize, payload: usize) {
    let limit = guc::max_message_bytes();
    let size = key + headers + payload;
    if size > limit {
        raise(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            "event is too large".to_owned(),
            Some(format!(
                "It has {size} bytes (key {key}, headers {headers}, payload {payload}); outbox_ext.max_message_bytes is {limit}."
            )),
            "Put the data elsewhere and emit a reference to it, or raise outbox_ext.max_message_bytes together with the topic's max.message.bytes.",
        );
    }
}
