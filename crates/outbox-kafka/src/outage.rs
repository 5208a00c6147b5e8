//! Whether the brokers can be reached, as far as librdkafka's error events tell.
//!
//! librdkafka says when the last connection went down, and nothing when one comes up again: the end
//! of an outage is the first delivery, or the first answer to a question (`metadata`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode as Code;

use crate::connection::{self, Trouble};

#[derive(Default)]
pub(crate) struct Outage {
    /// Spares the lock for each turn while all is well.
    any_trouble: AtomicBool,
    /// When a broker last answered.
    contact: Mutex<Option<Instant>>,
    state: Mutex<State>,
    /// The user's ssl.ca.location, which an error about a certificate names.
    ca_file: Option<String>,
}

/// For so long after one broker has answered, another that rejects the credentials is alone in that.
const CREDENTIALS_GOOD: Duration = Duration::from_secs(15);

#[derive(Default)]
struct State {
    /// The last error of one connection: the cause, should it be the last connection.
    cause: Option<(Trouble, String)>,
    is_down: bool,
}

impl Outage {
    pub(crate) fn new(ca_file: Option<String>) -> Outage {
        Outage {
            ca_file,
            ..Outage::default()
        }
    }

    /// An error event. `text` must be free of secrets.
    pub(crate) fn trouble(&self, code: Code, text: &str) {
        let mut state = self.lock();
        match connection::kind(code, text) {
            // Its text only counts brokers, and not always rightly.
            None if code == Code::AllBrokersDown => state.is_down = true,
            None => return,
            Some(kind) => {
                // Wrong credentials are wrong everywhere, unless another broker took them just now: then it is that one broker's trouble.
                state.is_down |= kind == Trouble::Credentials && !self.answered_lately();
                // The same in other words is no news.
                if state.cause.as_ref().is_none_or(|(known, _)| *known != kind) {
                    state.cause = Some((kind, without_circumstances(text).to_owned()));
                }
            }
        }
        self.any_trouble.store(true, Ordering::Release);
    }

    /// A broker answered.
    pub(crate) fn contact(&self) {
        *lock(&self.contact) = Some(Instant::now());
        if self.any_trouble.load(Ordering::Acquire) {
            let mut state = self.lock();
            *state = State::default();
            self.any_trouble.store(false, Ordering::Release);
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        self.any_trouble.load(Ordering::Acquire) && self.lock().is_down
    }

    /// The cause, while no broker can be reached.
    pub(crate) fn text(&self) -> Option<String> {
        if !self.any_trouble.load(Ordering::Acquire) {
            return None;
        }
        let state = self.lock();
        let explanation = |kind| connection::explanation(kind, self.ca_file.as_deref());
        state.is_down.then(|| match &state.cause {
            Some((kind, text)) => format!("{} ({text})", explanation(*kind)),
            // librdkafka says nothing of a connection that the broker closed.
            None => explanation(Trouble::Closed),
        })
    }

    fn answered_lately(&self) -> bool {
        lock(&self.contact).is_some_and(|at| at.elapsed() < CREDENTIALS_GOOD)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// librdkafka ends a connection's error with the time and the number of its repetitions. Without them
/// the same trouble is the same text.
pub(crate) fn without_circumstances(text: &str) -> &str {
    text.split_once(" (after ").map_or(text, |(text, _)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(outage: &Outage) -> Option<String> {
        let text = outage.text()?;
        Some(text[text.find(" (")? + 2..text.len() - 1].to_owned())
    }

    #[test]
    fn one_lost_connection_of_several_is_no_outage() {
        let outage = Outage::default();
        outage.trouble(Code::BrokerTransportFailure, "b1: Connection refused");
        assert_eq!(outage.text(), None);
        outage.trouble(Code::AllBrokersDown, "3/3 brokers are down");
        assert_eq!(cause(&outage).as_deref(), Some("b1: Connection refused"));
        outage.contact();
        assert_eq!(outage.text(), None);
        assert!(!outage.is_down());
    }

    #[test]
    fn rejected_credentials_are_an_outage_at_once() {
        let outage = Outage::default();
        outage.trouble(Code::Authentication, "SASL authentication failed");
        assert_eq!(cause(&outage).as_deref(), Some("SASL authentication failed"));
    }

    #[test]
    fn credentials_that_one_broker_took_are_no_outage_when_another_rejects_them() {
        let outage = Outage::default();
        outage.contact();
        outage.trouble(Code::Authentication, "SASL authentication failed");
        assert_eq!(outage.text(), None);
        // Changed on all of them, while the client was connected.
        outage.trouble(Code::AllBrokersDown, "3/3 brokers are down");
        assert_eq!(cause(&outage).as_deref(), Some("SASL authentication failed"));
    }

    #[test]
    fn a_cause_that_repeats_keeps_its_text() {
        let outage = Outage::default();
        outage.trouble(Code::AllBrokersDown, "1/1 brokers are down");
        for circumstances in ["", ", 4 identical error(s) suppressed"] {
            let text = format!("b1: Connection refused (after 0ms in state CONNECT{circumstances})");
            outage.trouble(Code::BrokerTransportFailure, &text);
            outage.trouble(Code::BrokerTransportFailure, "b1: failed: Connection refused");
            assert_eq!(cause(&outage).as_deref(), Some("b1: Connection refused"));
        }
        outage.trouble(Code::Resolve, "b1: no such name");
        assert_eq!(cause(&outage).as_deref(), Some("b1: no such name"));
    }

    #[test]
    fn an_outage_without_a_cause_is_one_of_closed_connections() {
        let outage = Outage::default();
        outage.trouble(Code::AllBrokersDown, "1/1 brokers are down");
        assert_eq!(outage.text(), Some(connection::explanation(Trouble::Closed, None)));
    }

    #[test]
    fn a_certificate_that_is_not_trusted_names_the_file() {
        let outage = Outage::new(Some("/ca.pem".to_owned()));
        outage.trouble(Code::SSL, "certificate verify failed");
        outage.trouble(Code::AllBrokersDown, "1/1 brokers are down");
        assert!(outage.text().is_some_and(|text| text.contains("\"/ca.pem\"")));
    }

    #[test]
    fn other_errors_say_nothing_about_connections() {
        let outage = Outage::default();
        outage.trouble(Code::Fatal, "fatal");
        assert_eq!(outage.text(), None);
    }
}
