#![allow(unsafe_code)] // This file and native/event.rs call librdkafka, nothing else does.
//! librdkafka behind safe types.
//!
//! Why not rust-rdkafka's producer: it takes one event a poll, clones a reference count for each
//! report, builds a topic's handle again for each record, runs callbacks out of its destructor and
//! reports each error twice. Here the caller polls events itself, so nothing of ours ever runs on a
//! thread of librdkafka, and a topic's handle is kept.
//!
//! Invariants: a `Client` owns its handle and its main queue; a `Topic` keeps its client alive; an
//! `Event` borrows the client that it came from. Error codes are read as integers: a broker may send
//! one that the bindings' enum does not know.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

use rdkafka::bindings as rd;
use rdkafka::bindings::rd_kafka_vtype_t as VType;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::types::{RDKafkaConfRes, RDKafkaRespErr, RDKafkaType};

use crate::producer::Record;

mod event;

pub(crate) use event::{Delivery, Event, EventKind};

/// The size librdkafka's documentation recommends for its error texts.
const ERROR_TEXT_BYTES: usize = 512;

// A ticket travels through librdkafka as a pointer.
const _: () = assert!(size_of::<u64>() == size_of::<*mut c_void>());

fn code_from_raw(raw: i32) -> RDKafkaErrorCode {
    RDKafkaRespErr::try_from(raw).map_or(RDKafkaErrorCode::Unknown, RDKafkaErrorCode::from)
}

/// Reads an error code that may lie outside the bindings' enum.
///
/// # Safety
/// `code` must be valid for reading four bytes.
unsafe fn read_code(code: *const RDKafkaRespErr) -> i32 {
    // SAFETY: the enum is repr(i32); the caller vouches for the pointer.
    unsafe { code.cast::<i32>().read() }
}

/// librdkafka's description of a code.
pub(crate) fn description(code: RDKafkaErrorCode) -> String {
    let Ok(code) = RDKafkaRespErr::try_from(code as i32) else {
        return "unknown error".to_owned();
    };
    // SAFETY: returns a static text for every code of the enum.
    unsafe { text(rd::rd_kafka_err2str(code)) }
}

/// A copy of a C text; empty for null.
///
/// # Safety
/// `text` must be null or a C string that lives through this call.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Why a property was not accepted. `Invalid` carries librdkafka's text, which repeats the value.
pub(crate) enum ConfError {
    Unknown,
    Invalid(String),
}

/// A set of properties.
pub(crate) struct Conf(*mut rd::rd_kafka_conf_t);

impl Conf {
    pub(crate) fn new() -> Conf {
        // SAFETY: no arguments; never null.
        let conf = unsafe { rd::rd_kafka_conf_new() };
        // Before the log queue exists librdkafka would print to standard error.
        // SAFETY: `conf` is valid; a null callback is the documented way to drop such lines.
        unsafe { rd::rd_kafka_conf_set_log_cb(conf, None) };
        Conf(conf)
    }

    pub(crate) fn set(&self, key: &str, value: &str) -> Result<(), ConfError> {
        let (Ok(key), Ok(value)) = (CString::new(key), CString::new(value)) else {
            return Err(ConfError::Invalid("zero byte".to_owned()));
        };
        let mut reason = [0 as c_char; ERROR_TEXT_BYTES];
        // SAFETY: all pointers are valid and the length is the buffer's.
        let result =
            unsafe { rd::rd_kafka_conf_set(self.0, key.as_ptr(), value.as_ptr(), reason.as_mut_ptr(), reason.len()) };
        match result {
            RDKafkaConfRes::RD_KAFKA_CONF_OK => Ok(()),
            RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN => Err(ConfError::Unknown),
            // SAFETY: librdkafka wrote a terminated text.
            RDKafkaConfRes::RD_KAFKA_CONF_INVALID => Err(ConfError::Invalid(unsafe { text(reason.as_ptr()) })),
        }
    }
}

impl Drop for Conf {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: we own it: it was not given to a client.
            unsafe { rd::rd_kafka_conf_destroy(self.0) };
        }
    }
}

/// What a metadata answer says.
pub(crate) enum TopicState {
    Exists { partitions: u32 },
    Fails(RDKafkaErrorCode),
}

/// A producer handle and its main queue.
pub(crate) struct Client {
    rk: *mut rd::rd_kafka_t,
    main_queue: *mut rd::rd_kafka_queue_t,
}

// SAFETY: librdkafka's handle and queues may be used from any thread at the same time.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    /// Starts librdkafka's threads (it blocks all signals in them). Delivery reports, errors and log
    /// lines become events of the main queue. The error is librdkafka's text: redact it.
    pub(crate) fn new(mut conf: Conf) -> Result<Client, String> {
        // SAFETY: `conf.0` is valid.
        unsafe {
            rd::rd_kafka_conf_set_events(
                conf.0,
                rd::RD_KAFKA_EVENT_DR | rd::RD_KAFKA_EVENT_ERROR | rd::RD_KAFKA_EVENT_LOG,
            );
        }
        let mut reason = [0 as c_char; ERROR_TEXT_BYTES];
        // SAFETY: all pointers are valid and the length is the buffer's.
        let rk = unsafe {
            rd::rd_kafka_new(
                RDKafkaType::RD_KAFKA_PRODUCER,
                conf.0,
                reason.as_mut_ptr(),
                reason.len(),
            )
        };
        if rk.is_null() {
            // SAFETY: librdkafka wrote a terminated text; on failure `conf` stays ours.
            return Err(unsafe { text(reason.as_ptr()) });
        }
        conf.0 = ptr::null_mut(); // librdkafka owns it now.
        // SAFETY: `rk` is valid; the queue reference is given back in Drop.
        let main_queue = unsafe { rd::rd_kafka_queue_get_main(rk) };
        // SAFETY: both are valid. Fails only without log.queue, which `Settings` always sets.
        unsafe { rd::rd_kafka_set_log_queue(rk, main_queue) };
        Ok(Client { rk, main_queue })
    }

    /// Writes eight bytes to `fd` whenever the main queue stops being empty.
    pub(crate) fn enable_io_event(&self, fd: RawFd) {
        let one = 1_u64;
        // SAFETY: the payload is copied; a closed fd makes the write fail, which is ignored.
        unsafe {
            rd::rd_kafka_queue_io_event_enable(self.main_queue, fd, (&raw const one).cast(), size_of::<u64>());
        }
    }

    /// After this call `fd` is not written to any more.
    pub(crate) fn disable_io_event(&self) {
        // SAFETY: -1 is the documented way to disable it.
        unsafe { rd::rd_kafka_queue_io_event_enable(self.main_queue, -1, ptr::null(), 0) };
    }

    /// Events that wait to be polled.
    pub(crate) fn events_waiting(&self) -> usize {
        // SAFETY: the queue is valid.
        unsafe { rd::rd_kafka_queue_length(self.main_queue) }
    }

    /// Messages, requests and events that librdkafka still holds.
    pub(crate) fn outstanding(&self) -> usize {
        // SAFETY: the handle is valid.
        usize::try_from(unsafe { rd::rd_kafka_outq_len(self.rk) }).unwrap_or(0)
    }

    /// The fatal error, once there is one.
    pub(crate) fn fatal_error(&self) -> Option<(RDKafkaErrorCode, String)> {
        let mut reason = [0 as c_char; ERROR_TEXT_BYTES];
        // SAFETY: the buffer is valid. Fatal codes are librdkafka's own, all in the enum.
        let code = unsafe { rd::rd_kafka_fatal_error(self.rk, reason.as_mut_ptr(), reason.len()) };
        if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return None;
        }
        // SAFETY: librdkafka wrote a terminated text.
        Some((code.into(), unsafe { text(reason.as_ptr()) }))
    }

    /// Fails everything that is queued or in flight, without waiting for the broker threads.
    pub(crate) fn purge(&self) {
        let flags = rd::RD_KAFKA_PURGE_F_QUEUE | rd::RD_KAFKA_PURGE_F_INFLIGHT | rd::RD_KAFKA_PURGE_F_NON_BLOCKING;
        // SAFETY: the handle is valid; with valid flags on a producer it cannot fail.
        unsafe { rd::rd_kafka_purge(self.rk, flags) };
    }

    /// Hands a record over; librdkafka copies all of it.
    pub(crate) fn produce(
        &self,
        topic: &Topic,
        partition: i32,
        record: &Record<'_>,
        ticket: u64,
    ) -> Result<(), RDKafkaErrorCode> {
        let headers = Headers::new(record.headers);
        let arguments = [
            vu(VType::RD_KAFKA_VTYPE_RKT, Arg { rkt: topic.rkt }),
            vu(VType::RD_KAFKA_VTYPE_PARTITION, Arg { i32_: partition }),
            vu(
                VType::RD_KAFKA_VTYPE_MSGFLAGS,
                Arg {
                    i: rd::RD_KAFKA_MSG_F_COPY,
                },
            ),
            // A slice's pointer is never null, so an empty key stays an empty key.
            vu(VType::RD_KAFKA_VTYPE_KEY, memory(record.key)),
            vu(VType::RD_KAFKA_VTYPE_VALUE, memory(record.payload)),
            vu(
                VType::RD_KAFKA_VTYPE_TIMESTAMP,
                Arg {
                    i64_: record.timestamp_ms,
                },
            ),
            vu(
                VType::RD_KAFKA_VTYPE_OPAQUE,
                Arg {
                    ptr: ticket as usize as *mut c_void,
                },
            ),
            vu(VType::RD_KAFKA_VTYPE_HEADERS, Arg { headers: headers.0 }),
        ];
        // SAFETY: each argument is of its type's kind and lives through the call, which copies key and
        // value and takes the headers only when it succeeds.
        let error = unsafe { rd::rd_kafka_produceva(self.rk, arguments.as_ptr(), arguments.len()) };
        if error.is_null() {
            std::mem::forget(headers);
            return Ok(());
        }
        // SAFETY: the error is ours; its code is read as the integer that the function returns.
        let raw = unsafe {
            let raw = error_code(error);
            rd::rd_kafka_error_destroy(error);
            raw
        };
        Err(code_from_raw(raw))
    }

    /// Asks the brokers for a topic, or only for an answer when there is none. Blocks.
    pub(crate) fn metadata(&self, topic: Option<&Topic>, timeout_ms: c_int) -> Result<TopicState, RDKafkaErrorCode> {
        let mut answer: *const rd::rd_kafka_metadata = ptr::null();
        let rkt = topic.map_or(ptr::null_mut(), |topic| topic.rkt);
        // SAFETY: the handles are valid; on success `answer` is ours to destroy.
        let result = unsafe { rd::rd_kafka_metadata(self.rk, 0, rkt, &mut answer, timeout_ms) };
        if result != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(result.into());
        }
        // SAFETY: on success the answer and its `topic_cnt` topics are valid until destroyed.
        let (code, partitions) = unsafe {
            let topics = (*answer).topics;
            let first = if topic.is_some() && (*answer).topic_cnt > 0 {
                let code = read_code(&raw const (*topics).err);
                (code, (*topics).partition_cnt)
            } else {
                (0, 0)
            };
            rd::rd_kafka_metadata_destroy(answer);
            first
        };
        if code != 0 {
            return Ok(TopicState::Fails(code_from_raw(code)));
        }
        Ok(TopicState::Exists {
            partitions: u32::try_from(partitions).unwrap_or(0),
        })
    }
}

impl Drop for Client {
    /// Joins librdkafka's threads: seconds when name resolution hangs.
    fn drop(&mut self) {
        // SAFETY: nobody else uses them any more: topics and events hold or borrow the client.
        unsafe {
            rd::rd_kafka_queue_destroy(self.main_queue);
            rd::rd_kafka_destroy(self.rk);
        }
    }
}

/// A topic's handle.
pub(crate) struct Topic {
    rkt: *mut rd::rd_kafka_topic_t,
    _client: Arc<Client>,
}

// SAFETY: librdkafka's topic handles may be used from any thread.
unsafe impl Send for Topic {}

impl Topic {
    pub(crate) fn new(client: &Arc<Client>, name: &str) -> Result<Topic, RDKafkaErrorCode> {
        let name = CString::new(name).map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
        // SAFETY: the arguments are valid; a null configuration means the client's defaults.
        let rkt = unsafe { rd::rd_kafka_topic_new(client.rk, name.as_ptr(), ptr::null_mut()) };
        if rkt.is_null() {
            // The only causes with a null configuration are an empty and a too long name.
            return Err(RDKafkaErrorCode::InvalidTopic);
        }
        Ok(Topic {
            rkt,
            _client: Arc::clone(client),
        })
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: we own this reference, and the client is still alive.
        unsafe { rd::rd_kafka_topic_destroy(self.rkt) };
    }
}

/// A record's headers while they are ours.
struct Headers(*mut rd::rd_kafka_headers_t);

impl Headers {
    fn new(headers: &[(&str, &[u8])]) -> Headers {
        // SAFETY: no pointers go in; never null.
        let list = unsafe { rd::rd_kafka_headers_new(headers.len()) };
        for (name, value) in headers {
            // SAFETY: names and values are copied with the lengths given. Sizes of slices fit isize.
            // Fails only for a read-only list, which this one is not.
            unsafe {
                rd::rd_kafka_header_add(
                    list,
                    name.as_ptr().cast(),
                    name.len() as isize,
                    value.as_ptr().cast(),
                    value.len() as isize,
                );
            }
        }
        Headers(list)
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        // SAFETY: librdkafka did not take them, else they would have been forgotten.
        unsafe { rd::rd_kafka_headers_destroy(self.0) };
    }
}

type Arg = rd::rd_kafka_vu_s__bindgen_ty_1;

fn vu(vtype: VType, u: Arg) -> rd::rd_kafka_vu_t {
    rd::rd_kafka_vu_t { vtype, u }
}

fn memory(bytes: &[u8]) -> Arg {
    Arg {
        mem: rd::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1 {
            ptr: bytes.as_ptr().cast_mut().cast(),
            size: bytes.len(),
        },
    }
}

/// `rd_kafka_error_code` as the integer that it returns.
///
/// # Safety
/// `error` must be valid.
unsafe fn error_code(error: *const rd::rd_kafka_error_t) -> i32 {
    type Typed = unsafe extern "C" fn(*const rd::rd_kafka_error_t) -> RDKafkaRespErr;
    type Plain = unsafe extern "C" fn(*const rd::rd_kafka_error_t) -> i32;
    // SAFETY: the enum is repr(i32), so both types have the same calling convention. The code may be
    // a broker's, kept by a topic that metadata reported as failed, and unknown to the enum.
    let plain = unsafe { std::mem::transmute::<Typed, Plain>(rd::rd_kafka_error_code) };
    // SAFETY: the caller vouches for the pointer.
    unsafe { plain(error) }
}
