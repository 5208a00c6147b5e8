//! The user's librdkafka properties: how they are written, and which are refused and why.
//!
//! Owns the text form of `outbox_ext.kafka_options` and the list of what would break a promise.
//! Values may be secrets: nothing here puts a value into an error, a hint or a `Debug` text.

use std::collections::HashSet;
use std::fmt;

use crate::native::{Conf, ConfError};

/// Why an option list is not accepted. `Display` is the primary message, without any value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionError {
    key: Option<String>,
    message: String,
    hint: Option<String>,
}

impl OptionError {
    fn new(key: &str, message: String, hint: impl Into<Option<String>>) -> OptionError {
        OptionError {
            key: Some(key.to_owned()),
            message,
            hint: hint.into(),
        }
    }

    /// The property concerned, when the list could be read that far.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// A sentence on what to do instead.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for OptionError {}

const FORM: &str = "Write key=value pairs separated by commas, white space or new lines; a value with such characters goes in single quotes.";

/// Reads `key=value` pairs separated by commas, white space or new lines.
///
/// A value that contains such characters is put in single quotes; within them, `''` is one quote.
pub fn parse_options(text: &str) -> Result<Vec<(String, String)>, OptionError> {
    let is_separator = |c: char| c == ',' || c.is_whitespace();
    let mut options: Vec<(String, String)> = Vec::new();
    let mut seen = HashSet::new();
    let mut rest = text.trim_start_matches(is_separator);
    while !rest.is_empty() {
        let end = rest.find(|c| c == '=' || is_separator(c)).unwrap_or(rest.len());
        let (key, after_key) = rest.split_at(end);
        // Without "=" the word may be a piece of a value, perhaps of a secret: do not repeat it.
        let Some(after_equals) = after_key.strip_prefix('=') else {
            let message = match options.last() {
                Some((previous, _)) => {
                    format!("word without \"=\" after librdkafka property \"{previous}\"")
                }
                None => "word without \"=\" at the start of the librdkafka properties".to_owned(),
            };
            return Err(OptionError {
                key: options.last().map(|(previous, _)| previous.clone()),
                message,
                hint: Some(FORM.to_owned()),
            });
        };
        if !is_property_name(key) {
            return Err(OptionError {
                key: None,
                message: "malformed name of a librdkafka property".to_owned(),
                hint: Some(FORM.to_owned()),
            });
        }
        let (value, after_value) = parse_value(key, after_equals, is_separator)?;
        if !seen.insert(key) {
            let message = format!("librdkafka property \"{key}\" is given twice");
            return Err(OptionError::new(key, message, None));
        }
        options.push((key.to_owned(), value));
        rest = after_value.trim_start_matches(is_separator);
    }
    Ok(options)
}

fn is_property_name(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn parse_value<'a>(
    key: &str,
    text: &'a str,
    is_separator: impl Fn(char) -> bool,
) -> Result<(String, &'a str), OptionError> {
    let malformed = |what: &str| {
        let message = format!("{what} in librdkafka property \"{key}\"");
        OptionError::new(key, message, FORM.to_owned())
    };
    let Some(mut rest) = text.strip_prefix('\'') else {
        let end = text.find(&is_separator).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return if value.contains('\'') {
            Err(malformed("stray quote"))
        } else if value.contains('\0') {
            Err(malformed("zero byte"))
        } else {
            Ok((value.to_owned(), rest))
        };
    };
    let mut value = String::new();
    loop {
        let Some(quote) = rest.find('\'') else {
            return Err(malformed("unterminated quoted value"));
        };
        value.push_str(&rest[..quote]);
        rest = &rest[quote + 1..];
        match rest.strip_prefix('\'') {
            Some(more) => {
                value.push('\'');
                rest = more;
            }
            None => break,
        }
    }
    if !rest.is_empty() && !rest.starts_with(&is_separator) {
        return Err(malformed("text after the closing quote"));
    }
    if value.contains('\0') {
        return Err(malformed("zero byte"));
    }
    Ok((value, rest))
}

/// What a property of ours may be set to by the user.
enum Allowed {
    Never,
    /// Only the values that say what is set anyway.
    Only(&'static [&'static str]),
}

const TRUE: Allowed = Allowed::Only(&["true", "t", "1"]);
const FALSE: Allowed = Allowed::Only(&["false", "f", "0"]);

/// Properties that a promise leans on, and why. The reason completes "cannot be set: ...".
#[rustfmt::skip]
const RESERVED: &[(&str, Allowed, &str)] = &[
    ("bootstrap.servers",                   Allowed::Never, "the brokers are set by outbox_ext.brokers"),
    ("metadata.broker.list",                Allowed::Never, "the brokers are set by outbox_ext.brokers"),
    ("acks",                                Allowed::Only(&["all", "-1"]), "an event counts as published only when all in-sync replicas have it"),
    ("request.required.acks",               Allowed::Only(&["all", "-1"]), "an event counts as published only when all in-sync replicas have it"),
    ("enable.idempotence",                  TRUE, "without it retries reorder and duplicate events"),
    ("max.in.flight",                       Allowed::Only(&["1"]), "with more requests in flight brokers can acknowledge events that they never stored"),
    ("max.in.flight.requests.per.connection", Allowed::Only(&["1"]), "with more requests in flight brokers can acknowledge events that they never stored"),
    ("message.timeout.ms",                  Allowed::Only(&["0"]), "an event that times out leaves a gap, and a broker outage must cost nothing"),
    ("delivery.timeout.ms",                 Allowed::Only(&["0"]), "an event that times out leaves a gap, and a broker outage must cost nothing"),
    ("retries",                             Allowed::Never, "an event that runs out of retries leaves a gap"),
    ("message.send.max.retries",            Allowed::Never, "an event that runs out of retries leaves a gap"),
    ("enable.gapless.guarantee",            TRUE, "the order of events leans on it"),
    ("queuing.strategy",                    Allowed::Only(&["fifo"]), "events are published in order"),
    ("partitioner",                         Allowed::Never, "the partition is computed from the key as Java clients do"),
    ("transactional.id",                    Allowed::Never, "the relay does not use Kafka transactions"),
    ("transaction.timeout.ms",              Allowed::Never, "the relay does not use Kafka transactions"),
    ("delivery.report.only.error",          FALSE, "an event counts as published only by its positive report"),
    ("message.max.bytes",                   Allowed::Never, "the limit is set by outbox_ext.max_message_bytes"),
    ("queue.buffering.max.messages",        Allowed::Never, "the limit is set by outbox_ext.max_in_flight_bytes"),
    ("queue.buffering.max.kbytes",          Allowed::Never, "the limit is set by outbox_ext.max_in_flight_bytes"),
    ("topic.metadata.propagation.max.ms",   Allowed::Never, "the relay itself decides how long a missing topic is waited for"),
    ("internal.termination.signal",         Allowed::Never, "a signal handler of a library would take one away from the server"),
    ("log.queue",                           Allowed::Never, "the relay writes librdkafka's messages to the server log"),
    ("log.thread.name",                     Allowed::Never, "the relay writes librdkafka's messages to the server log"),
    ("statistics.interval.ms",              Allowed::Only(&["0"]), "nobody would read the statistics; see the view outbox_status"),
    ("enable.metrics.push",                 FALSE, "it delays the end of the relay and with it the server's stop"),
    ("plugin.library.paths",                Allowed::Never, "it loads foreign code into the server"),
    ("ssl.engine.location",                 Allowed::Never, "it loads foreign code into the server"),
    ("ssl.engine.id",                       Allowed::Never, "it loads foreign code into the server"),
    ("ssl.providers",                       Allowed::Never, "it loads foreign code into the server"),
    ("test.mock.num.brokers",               Allowed::Never, "events would be published to brokers that do not exist"),
    ("test.mock.broker.rtt",                Allowed::Never, "events would be published to brokers that do not exist"),
    ("enabled_events",                      Allowed::Never, "it belongs to the program that uses librdkafka"),
    ("opaque",                              Allowed::Never, "it belongs to the program that uses librdkafka"),
    ("default_topic_conf",                  Allowed::Never, "it belongs to the program that uses librdkafka"),
    ("interceptors",                        Allowed::Never, "it belongs to the program that uses librdkafka"),
    ("msg_order_cmp",                       Allowed::Never, "it belongs to the program that uses librdkafka"),
    ("enable_sasl_queue",                   Allowed::Never, "it belongs to the program that uses librdkafka"),
    ("ssl_engine_callback_data",            Allowed::Never, "it belongs to the program that uses librdkafka"),
];

/// Refuses properties that break a promise, and what librdkafka itself does not know or accept.
pub fn check_options(options: &[(String, String)]) -> Result<(), OptionError> {
    let conf = Conf::new();
    for (key, value) in options {
        refuse_reserved(key, value)?;
        match conf.set(key, value) {
            Ok(()) => {}
            Err(ConfError::Unknown) => {
                let message = format!("unrecognized librdkafka property \"{key}\"");
                let hint = "See librdkafka's CONFIGURATION.md for the names.".to_owned();
                return Err(OptionError::new(key, message, hint));
            }
            Err(ConfError::Invalid(reason)) => {
                let message = format!("invalid value for librdkafka property \"{key}\"");
                return Err(OptionError::new(key, message, value_hint(&reason)));
            }
        }
    }
    Ok(())
}

fn refuse_reserved(key: &str, value: &str) -> Result<(), OptionError> {
    if key.ends_with("_cb") {
        let message = format!("librdkafka property \"{key}\" cannot be set");
        let hint = "It belongs to the program that uses librdkafka.".to_owned();
        return Err(OptionError::new(key, message, hint));
    }
    let Some((_, allowed, reason)) = RESERVED.iter().find(|(name, ..)| *name == key) else {
        return Ok(());
    };
    let message = match allowed {
        Allowed::Only(values) if values.iter().any(|v| v.eq_ignore_ascii_case(value)) => {
            return Ok(());
        }
        Allowed::Only(values) => format!("librdkafka property \"{key}\" can only be \"{}\": {reason}", values[0]),
        Allowed::Never => format!("librdkafka property \"{key}\" cannot be set: {reason}"),
    };
    let hint = format!("Remove \"{key}\" from outbox_ext.kafka_options.");
    Err(OptionError::new(key, message, hint))
}

/// librdkafka's text repeats the value; only the range, which it gives for numbers, is taken from it.
fn value_hint(reason: &str) -> String {
    match reason.split_once("outside allowed range ") {
        Some((_, range)) => format!("The allowed range is {}.", range.trim_end_matches('\n')),
        None => "See librdkafka's CONFIGURATION.md for the values of this property.".to_owned(),
    }
}

/// Whether the value of a property must never be seen in a text.
pub(crate) fn is_secret(key: &str) -> bool {
    [
        "password",
        "passphrase",
        "secret",
        "pem",
        "jaas",
        "oauthbearer.config",
        "extensions",
        "ssl_key",
    ]
    .iter()
    .any(|word| key.contains(word))
}

#[cfg(test)]
mod tests;
