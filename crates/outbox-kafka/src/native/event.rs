#![allow(unsafe_code)] // It reads librdkafka's events.
//! What comes out of a client's main queue: delivery reports, errors, log lines.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;

use rdkafka::bindings as rd;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::RDKafkaErrorCode;

use super::{Client, code_from_raw, read_code, text};

/// What the main queue gave out.
pub(crate) struct Event<'a> {
    event: *mut rd::rd_kafka_event_t,
    client: PhantomData<&'a Client>,
}

impl Client {
    /// The next event, without waiting.
    pub(crate) fn poll(&self) -> Option<Event<'_>> {
        // SAFETY: the queue is valid; a non-null event is ours to destroy.
        let event = unsafe { rd::rd_kafka_queue_poll(self.main_queue, 0) };
        (!event.is_null()).then_some(Event {
            event,
            client: PhantomData,
        })
    }
}

/// One delivery report, while its event is there.
pub(crate) struct Delivery<'e> {
    pub(crate) ticket: u64,
    pub(crate) result: Result<(), RDKafkaErrorCode>,
    /// A broker may have stored it, whatever the result.
    pub(crate) may_be_stored: bool,
    pub(crate) offset: i64,
    pub(crate) partition: i32,
    topic: *mut rd::rd_kafka_topic_t,
    event: PhantomData<&'e rd::rd_kafka_event_t>,
}

impl Delivery<'_> {
    /// The address of the topic's handle: the same topic while the handle is there, which a new one may be at later.
    pub(crate) fn topic_handle(&self) -> usize {
        self.topic as usize
    }

    pub(crate) fn topic_name(&self) -> String {
        // SAFETY: the event keeps the message, and that its topic.
        unsafe { text(rd::rd_kafka_topic_name(self.topic)) }
    }
}

pub(crate) enum EventKind {
    Deliveries,
    Error(RDKafkaErrorCode, String),
    Log(RDKafkaLogLevel, String, String),
    Other,
}

impl Event<'_> {
    pub(crate) fn kind(&self) -> EventKind {
        // SAFETY: the event is valid; texts are copied before it is destroyed.
        unsafe {
            match rd::rd_kafka_event_type(self.event) {
                rd::RD_KAFKA_EVENT_DR => EventKind::Deliveries,
                rd::RD_KAFKA_EVENT_ERROR => EventKind::Error(
                    rd::rd_kafka_event_error(self.event).into(),
                    text(rd::rd_kafka_event_error_string(self.event)),
                ),
                rd::RD_KAFKA_EVENT_LOG => {
                    let (mut kind, mut line, mut level) = (ptr::null(), ptr::null(), 0);
                    rd::rd_kafka_event_log(self.event, &mut kind, &mut line, &mut level);
                    EventKind::Log(log_level(level), text(kind), text(line))
                }
                _ => EventKind::Other,
            }
        }
    }

    /// The reports of a `Deliveries` event: all of one batch.
    pub(crate) fn next_delivery(&self) -> Option<Delivery<'_>> {
        // SAFETY: the event is valid, and so is each message until the event is destroyed.
        unsafe {
            let message = rd::rd_kafka_event_message_next(self.event);
            if message.is_null() {
                return None;
            }
            let code = read_code(&raw const (*message).err);
            Some(Delivery {
                ticket: (*message)._private as usize as u64,
                result: if code == 0 { Ok(()) } else { Err(code_from_raw(code)) },
                may_be_stored: code == 0
                    || rd::rd_kafka_message_status(message)
                        != rd::rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED,
                offset: (*message).offset,
                partition: (*message).partition,
                topic: (*message).rkt,
                event: PhantomData,
            })
        }
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: the event is ours, and the client that it belongs to is borrowed.
        unsafe { rd::rd_kafka_event_destroy(self.event) };
    }
}

fn log_level(level: c_int) -> RDKafkaLogLevel {
    match level {
        ..=0 => RDKafkaLogLevel::Emerg,
        1 => RDKafkaLogLevel::Alert,
        2 => RDKafkaLogLevel::Critical,
        3 => RDKafkaLogLevel::Error,
        4 => RDKafkaLogLevel::Warning,
        5 => RDKafkaLogLevel::Notice,
        6 => RDKafkaLogLevel::Info,
        _ => RDKafkaLogLevel::Debug,
    }
}
