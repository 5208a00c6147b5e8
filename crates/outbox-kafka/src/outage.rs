//! Whether the brokers can be reached, as far as librdkafka's error events tell.
//!
//! librdkafka says when the last connection went down, and nothing when one comes up again: the end
//! of an outage is the first delivery, or the first answer to a question (`metadata`).

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rdkafka::error::RDKafkaErrorCode as Code;

#[derive(Default)]
pub(crate) struct Outage {
    /// Spares the lock for each turn while all is well.
    any_trouble: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last error of one connection: the cause, should it be the last connection.
    cause: Option<String>,
    is_down: bool,
}

impl Outage {
    /// An error event. `text` must be free of secrets.
    pub(crate) fn trouble(&self, code: Code, text: &str) {
        let text = without_circumstances(text).to_owned();
        let mut state = self.lock();
        match code {
            Code::AllBrokersDown => {
                // Its text only counts brokers, and not always rightly.
                state.is_down = true;
            }
            // Wrong credentials are wrong everywhere.
            Code::Authentication | Code::SaslAuthenticationFailed => {
                state.is_down = true;
                state.cause = Some(text);
            }
            Code::BrokerTransportFailure
            | Code::Resolve
            | Code::SSL
            | Code::OperationTimedOut
            | Code::CriticalSystemResource => state.cause = Some(text),
            _ => return,
        }
        self.any_trouble.store(true, Ordering::Release);
    }

    /// A broker answered.
    pub(crate) fn contact(&self) {
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
        let unknown = || "no broker can be reached".to_owned();
        state.is_down.then(|| state.cause.clone().unwrap_or_else(unknown))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// librdkafka ends a connection's error with the time and the number of its repetitions. Without them
/// the same trouble is the same text.
pub(crate) fn without_circumstances(text: &str) -> &str {
    text.split_once(" (after ").map_or(text, |(text, _)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lost_connection_of_several_is_no_outage() {
        let outage = Outage::default();
        outage.trouble(Code::BrokerTransportFailure, "b1: connection refused");
        assert_eq!(outage.text(), None);
        outage.trouble(Code::AllBrokersDown, "3/3 brokers are down");
        assert_eq!(outage.text().as_deref(), Some("b1: connection refused"));
        outage.contact();
        assert_eq!(outage.text(), None);
        assert!(!outage.is_down());
    }

    #[test]
    fn rejected_credentials_are_an_outage_at_once() {
        let outage = Outage::default();
        outage.trouble(Code::Authentication, "SASL authentication failed");
        assert_eq!(outage.text().as_deref(), Some("SASL authentication failed"));
    }

    #[test]
    fn a_cause_that_repeats_keeps_its_text() {
        let outage = Outage::default();
        outage.trouble(Code::AllBrokersDown, "1/1 brokers are down");
        for circumstances in ["", ", 4 identical error(s) suppressed"] {
            let text = format!("b1: refused (after 0ms in state CONNECT{circumstances})");
            outage.trouble(Code::BrokerTransportFailure, &text);
            assert_eq!(outage.text().as_deref(), Some("b1: refused"));
        }
    }

    #[test]
    fn other_errors_say_nothing_about_connections() {
        let outage = Outage::default();
        outage.trouble(Code::Fatal, "fatal");
        assert_eq!(outage.text(), None);
    }
}
