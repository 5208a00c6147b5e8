//! `outbox_emit`, and what the columns of `outbox_log` take by default.
//!
//! Invariants: everything happens in the caller's transaction; nothing is resolved through the caller's search_path (the schema
//! comes from the function's own OID); an event that could never be published is refused here, where its sender sees it.

mod insert;

use crate::pg::call::{Args, uuid_bytes};
use crate::pg::error::{raise, raise_null};
use crate::pg::spi::{text_datum, uuid_datum};
use crate::pg::{catalog, jsonb};
use crate::{guc, rules, wakeup};
use outbox_core::record;
use pgrx::PgSqlErrorCode;
use pgrx::prelude::*;

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
    let aggregate_type = args.text(0).unwrap_or_else(|| null("aggregate_type"));
    rules::check_type("aggregate_type", aggregate_type.len());
    let aggregate_id = args.text(1).unwrap_or_else(|| null("aggregate_id"));
    rules::check_aggregate_id(aggregate_id.len());
    let event_type = args.text(2).unwrap_or_else(|| null("event_type"));
    rules::check_type("event_type", event_type.len());
    let payload = args.datum(3).unwrap_or_else(|| {
        raise_null(
            "payload",
            "JSON null is written 'null'::jsonb; it is published as the four bytes null.",
        )
    });
    let headers = args.datum(4);
    let header_bytes = headers.map_or(0, |headers| rules::check_headers(headers, guc::max_message_bytes()));
    let topic = args.text(5);
    check_topic(topic, aggregate_type, event_type);
    let own = record::own_headers_bytes(event_type, aggregate_type);
    check_size(aggregate_id.len(), header_bytes + own, payload);
    let event_id = args
        .datum(6)
        .map(uuid_bytes)
        .unwrap_or_else(|| *uuid::Uuid::now_v7().as_bytes());

    insert::insert(
        &args,
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

fn null(argument: &str) -> ! {
    raise_null(argument, "Only headers, topic, event_id and available_at may be NULL.")
}

/// Checks the topic the event would be published on: the given one, or what the template makes of the types.
fn check_topic(given: Option<&str>, aggregate_type: &str, event_type: &str) {
    match given {
        Some(topic) => rules::check_topic(topic, ""),
        None => rules::check_topic(
            &guc::with_topic_template(|template| template.resolve(aggregate_type, event_type)),
            " The name comes from outbox_ext.topic; choose another aggregate_type or give a topic.",
        ),
    }
}

fn check_size(key: usize, headers: usize, payload: pg_sys::Datum) {
    let limit = guc::max_message_bytes();
    let refuse = |at_least: &str, payload: usize| -> ! {
        let size = key + headers + payload;
        raise(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            "event is too large".to_owned(),
            Some(format!(
                "It has {at_least}{size} bytes (key {key}, headers {headers}, payload {at_least}{payload}); outbox_ext.max_message_bytes is {limit}."
            )),
            "Put the data elsewhere and emit a reference to it, or raise outbox_ext.max_message_bytes together with the topic's max.message.bytes.",
        )
    };
    // The text of what is larger by far may not even fit into memory.
    let at_least = jsonb::text_len_at_least(payload);
    if at_least > limit {
        refuse("at least ", at_least);
    }
    // Most events are far from the limit: then nobody need know how far.
    if key + headers + jsonb::text_len_at_most(payload) <= limit {
        return;
    }
    let payload = jsonb::text_len(payload);
    if key + headers + payload > limit {
        refuse("", payload);
    }
}
