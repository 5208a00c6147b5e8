//! The properties that a producer is made with: ours, then the user's, and whose word counts.

use std::fmt;

use crate::native::{Conf, ConfError};
use crate::options::{check_options, is_secret};
use crate::producer::ProducerError;

/// What the relay decides about a producer.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// `host:port`, separated by commas.
    pub brokers: String,
    /// librdkafka properties of the user. Checked again when a producer is made.
    pub options: Vec<(String, String)>,
    /// Limit of key, payload and headers of one record together, without Kafka's framing.
    pub max_message_bytes: usize,
    /// The relay's own window; librdkafka's queue is made somewhat larger, so that it is not what
    /// stops the relay.
    pub max_in_flight_bytes: usize,
    pub max_in_flight_events: usize,
    /// Largest batch of the fast lane, where a topic has refused larger ones. A smaller batch.size of the user stays.
    pub batch_bytes: Option<usize>,
}

/// Values may be secrets, and connection strings tell of the inside of a network.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.options.iter().map(|(key, _)| key.as_str()).collect();
        f.debug_struct("Settings")
            .field("brokers", &self.brokers)
            .field("options", &names)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("max_in_flight_bytes", &self.max_in_flight_bytes)
            .field("max_in_flight_events", &self.max_in_flight_events)
            .finish()
    }
}

/// The fast lane. What the user may set as well is overridden by the user.
#[rustfmt::skip]
const FAST_LANE: &[(&str, &str)] = &[
    ("enable.idempotence", "true"),
    ("acks", "all"),
    // A refused batch is fatal instead of a gap.
    ("enable.gapless.guarantee", "true"),
    // With several requests in flight a broker that lost its state acknowledges what it never stored.
    ("max.in.flight.requests.per.connection", "1"),
    // Never: a message that times out leaves a gap.
    ("message.timeout.ms", "0"),
    // Few events share a refused batch; larger batches are hardly faster.
    ("batch.size", "262144"),
    // With one request in flight a batch gathers while the one before is under way.
    ("linger.ms", "0"),
    // The time for which a silent broker holds up the rest when sequences are renumbered.
    ("socket.timeout.ms", "30000"),
    // librdkafka multiplies it by 1,000 in an int: the largest value that does not overflow.
    ("topic.metadata.propagation.max.ms", "2147000"),
    // Telemetry would hold up the end of a producer.
    ("enable.metrics.push", "false"),
    // Brokers close idle connections; that is no news.
    ("log.connection.close", "false"),
    // As every Kafka producer: the broker's own policy decides.
    ("allow.auto.create.topics", "true"),
    ("reconnect.backoff.max.ms", "10000"),
    ("client.id", "outbox_ext"),
    // Log lines come as events; without the name of librdkafka's thread in each.
    ("log.queue", "true"),
    ("log.thread.name", "false"),
];

const BATCH_SIZE: &str = "batch.size";
/// The fast lane's.
pub const BATCH_BYTES: usize = 262_144;

/// What is different in the careful lane: a refusal is the record's own and no reason to fail the producer. Not the user's to set.
const CAREFUL_LANE: &[(&str, &str)] = &[("enable.gapless.guarantee", "false"), ("batch.num.messages", "1")];

/// Which of the relay's two producers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Whatever is in order: batches; a refused record fails the producer, so that nothing overtakes it.
    Fast,
    /// Records that were in a refused batch, one at a time: finds out which of them it was.
    Careful,
}

/// Framing that librdkafka counts into `message.max.bytes` and the relay's limit does not: about 40
/// bytes a record and at most 10 for each header.
const FRAMING_BYTES: usize = 4096;

/// librdkafka's limit for `message.max.bytes`.
const MESSAGE_BYTES_MAX: usize = 1_000_000_000;

impl Settings {
    pub(crate) fn conf(&self, lane: Lane) -> Result<Conf, ProducerError> {
        if self.brokers.trim().is_empty() {
            return Err(ProducerError::new("no brokers are set".to_owned()));
        }
        check_options(&self.options).map_err(|error| ProducerError::new(error.to_string()))?;
        let conf = Conf::new();
        for (key, value) in FAST_LANE {
            set(&conf, key, value)?;
        }
        for (key, value) in &self.options {
            set(&conf, key, value)?;
        }
        if let Some(bytes) = self.shrunk_batch() {
            set(&conf, BATCH_SIZE, &bytes.to_string())?;
        }
        if lane == Lane::Careful {
            for (key, value) in CAREFUL_LANE {
                set(&conf, key, value)?;
            }
        }
        let message_bytes = (self.max_message_bytes + FRAMING_BYTES).min(MESSAGE_BYTES_MAX);
        // librdkafka counts payloads. A quarter on top of the window keeps its limit out of the way.
        let window_bytes = self.max_in_flight_bytes.max(self.max_message_bytes);
        let queue_kbytes = (window_bytes / 1024).saturating_mul(5) / 4 + 1024;
        let queue_messages = self.max_in_flight_events.saturating_mul(5) / 4 + 16;
        let limit = |n: usize| n.min(i32::MAX as usize).to_string();
        set(&conf, "message.max.bytes", &message_bytes.to_string())?;
        set(&conf, "queue.buffering.max.kbytes", &limit(queue_kbytes))?;
        set(&conf, "queue.buffering.max.messages", &limit(queue_messages))?;
        set(&conf, "bootstrap.servers", self.brokers.trim())?;
        Ok(conf)
    }

    fn shrunk_batch(&self) -> Option<usize> {
        let of_user = self.options.iter().rfind(|(key, _)| key == BATCH_SIZE);
        let most = of_user
            .and_then(|(_, value)| value.trim().parse().ok())
            .unwrap_or(BATCH_BYTES);
        Some(self.batch_bytes?.clamp(1, BATCH_BYTES).min(most))
    }

    /// Values that no text may contain. Very short ones would black out ordinary words.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let secret = |(key, value): &(String, String)| (is_secret(key) && value.len() >= 4).then(|| value.clone());
        self.options.iter().filter_map(secret).collect()
    }

    /// The file with the certificates of the CAs that the user trusts.
    pub(crate) fn ca_file(&self) -> Option<String> {
        let file = self.options.iter().find(|(key, _)| key == "ssl.ca.location");
        file.map(|(_, value)| value.clone())
    }

    /// librdkafka's text about a property that it cannot use, with the file where the property names one.
    pub(crate) fn unusable(&self, text: &str) -> String {
        let named = text.split_once(" failed: ").and_then(|(key, _)| {
            let is_file = key.ends_with(".location");
            self.options.iter().find(|(known, _)| is_file && known == key)
        });
        match named {
            Some((key, file)) => format!("{key} in outbox_ext.kafka_options: file \"{file}\" cannot be used ({text})"),
            None => text.to_owned(),
        }
    }

    pub(crate) fn uses_tls(&self) -> bool {
        let is_tls = |value: &str| value.to_ascii_lowercase().contains("ssl");
        let mut options = self.options.iter();
        options.any(|(key, value)| key == "security.protocol" && is_tls(value))
    }

    pub(crate) fn allows_topic_creation(&self) -> bool {
        let is_off = |value: &str| ["false", "f", "0"].iter().any(|f| f.eq_ignore_ascii_case(value));
        !self
            .options
            .iter()
            .any(|(key, value)| key == "allow.auto.create.topics" && is_off(value))
    }
}

fn set(conf: &Conf, key: &str, value: &str) -> Result<(), ProducerError> {
    conf.set(key, value).map_err(|error| {
        let what = match error {
            ConfError::Unknown => "unrecognized librdkafka property",
            ConfError::Invalid(_) => "invalid value for librdkafka property",
        };
        ProducerError::new(format!("{what} \"{key}\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: &[(&str, &str)]) -> Settings {
        Settings {
            brokers: "127.0.0.1:1".to_owned(),
            options: options
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            max_message_bytes: 1_000_000,
            max_in_flight_bytes: 64 << 20,
            max_in_flight_events: 50_000,
            batch_bytes: None,
        }
    }

    #[test]
    fn a_debug_text_names_options_and_shows_no_value() {
        let text = format!("{:?}", settings(&[("sasl.password", "hunter2"), ("client.id", "me")]));
        assert!(text.contains("sasl.password"), "{text}");
        assert!(!text.contains("hunter2") && !text.contains("\"me\""), "{text}");
    }

    #[test]
    fn our_own_table_is_accepted_by_librdkafka() {
        for lane in [Lane::Fast, Lane::Careful] {
            assert!(settings(&[("linger.ms", "5")]).conf(lane).is_ok());
        }
    }

    #[test]
    fn a_refusal_never_makes_the_users_batches_larger() {
        let shrunk = |options: &[(&str, &str)]| {
            let settings = Settings {
                batch_bytes: Some(65_536),
                ..settings(options)
            };
            settings.shrunk_batch()
        };
        assert_eq!(shrunk(&[]), Some(65_536));
        assert_eq!(shrunk(&[("batch.size", "16384")]), Some(16_384));
        assert_eq!(shrunk(&[("batch.size", "1000000")]), Some(65_536));
        assert_eq!(settings(&[]).shrunk_batch(), None);
    }

    #[test]
    fn unusable_settings_are_refused_without_a_value() {
        let error = settings(&[("acks", "1")]).conf(Lane::Fast).err().unwrap();
        assert!(error.to_string().contains("\"acks\""), "{error}");
        let error = Settings {
            brokers: " ".to_owned(),
            ..settings(&[])
        };
        assert_eq!(error.conf(Lane::Fast).err().unwrap().to_string(), "no brokers are set");
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let settings = settings(&[("ssl.ca.location", "/ca.pem"), ("ssl.key.password", "hunter2")]);
        let text = settings.unusable("ssl.ca.location failed: no such file");
        assert!(text.contains("\"/ca.pem\""), "{text}");
        let text = settings.unusable("ssl.key.password failed: wrong");
        assert_eq!(text, "ssl.key.password failed: wrong");
    }

    #[test]
    fn tls_is_known_by_the_protocol() {
        assert!(settings(&[("security.protocol", "SASL_SSL")]).uses_tls());
        assert!(!settings(&[("security.protocol", "sasl_plaintext")]).uses_tls());
        assert!(!settings(&[]).uses_tls());
    }

    #[test]
    fn topic_creation_is_on_unless_switched_off() {
        assert!(settings(&[]).allows_topic_creation());
        assert!(!settings(&[("allow.auto.create.topics", "False")]).allows_topic_creation());
    }
}
