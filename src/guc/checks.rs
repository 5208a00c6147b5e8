//! Check hooks of the string settings: a value that cannot be right is refused where it is set. They run in every process that loads the library, the postmaster included, and
//! start nothing.
#![allow(unsafe_code, reason = "check hooks are handed C pointers")]

use crate::pg::catalog::c_string;
use outbox_core::topic::TopicTemplate;
use pgrx::pg_sys;
use std::ffi::{CStr, c_char, c_void};

pub type CheckHook = unsafe extern "C-unwind" fn(*mut *mut c_char, *mut *mut c_void, pg_sys::GucSource::Type) -> bool;

/// Why a value is refused: detail and hint.
type Refusal = (String, String);

macro_rules! check_hook {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[pgrx::pg_guard]
        pub unsafe extern "C-unwind" fn $name(
            value: *mut *mut c_char,
            _extra: *mut *mut c_void,
            _source: pg_sys::GucSource::Type,
        ) -> bool {
            // SAFETY: PostgreSQL passes the new value.
            unsafe { accept(value, $check) }
        }
    };
}

check_hook!(
    /// outbox_ext.brokers
    brokers,
    |text| {
        let hint = "Write host:port, several separated by commas; the port may be left out and is 9092 then.";
        outbox_kafka::check_brokers(text).map_err(|error| (error, hint.to_owned()))
    }
);

check_hook!(
    /// outbox_ext.topic
    topic_template,
    |text| match TopicTemplate::parse(text) {
        Ok(_) => Ok(()),
        Err(error) => Err((error.to_string(), error.hint().to_owned())),
    }
);

check_hook!(
    /// outbox_ext.kafka_options
    kafka_options,
    |text| {
        outbox_kafka::parse_options(text)
            .and_then(|options| outbox_kafka::check_options(&options))
            .map_err(|error| (error.to_string(), error.hint().unwrap_or_default().to_owned()))
    }
);

/// Runs a check over a string setting's new value; on refusal leaves detail and hint where guc.c looks for them.
///
/// # Safety
/// `value` is a check hook's first argument.
unsafe fn accept(value: *mut *mut c_char, check: impl FnOnce(&str) -> Result<(), Refusal>) -> bool {
    // SAFETY: the value is NULL or a C string; the texts are copied into the context that guc.c clears.
    unsafe {
        if (*value).is_null() {
            return true;
        }
        let text = CStr::from_ptr(*value).to_string_lossy();
        let Err((detail, hint)) = check(&text) else { return true };
        let keep = |text: String| {
            pg_sys::MemoryContextStrdup(pg_sys::ErrorContext, c_string(&text.replace('\0', " ")).as_ptr())
        };
        pg_sys::GUC_check_errdetail_string = keep(sentence(detail));
        if !hint.is_empty() {
            pg_sys::GUC_check_errhint_string = keep(hint);
        }
        false
    }
}

/// Details are sentences; librdkafka's name begins small.
fn sentence(text: String) -> String {
    if text.starts_with("librdkafka") {
        return text + ".";
    }
    let mut chars = text.chars();
    let first = chars
        .next()
        .map(|first| first.to_uppercase().to_string())
        .unwrap_or_default();
    let rest: String = chars.collect();
    if rest.ends_with('.') {
        first + &rest
    } else {
        first + &rest + "."
    }
}
