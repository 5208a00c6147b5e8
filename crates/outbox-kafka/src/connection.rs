//! What an error of a connection means to somebody who has to mend it: one table.
//!
//! librdkafka repeats a trouble in several wordings, and names no setting of ours. Here each gets a kind, so that the
//! same trouble stays the same text, and an explanation that says where to look. Texts hold host names, ports and the
//! path of the file with the CA's certificate, and no value of any other property.

use rdkafka::error::RDKafkaErrorCode as Code;

/// What is wrong with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Name,
    Refused,
    Unreachable,
    NoAnswer,
    Certificate,
    NotTls,
    Tls,
    Credentials,
    Protocol,
    /// Nothing but that it is gone.
    Closed,
    Other,
}

/// The kind of an error event of librdkafka, or `None` when it says nothing about connections.
pub(crate) fn kind(code: Code, text: &str) -> Option<Trouble> {
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    #[rustfmt::skip]
    let kind = match code {
        Code::Resolve => Trouble::Name,
        // "Authentication failed", "mechanism handshake failed": the client's name, password or mechanism.
        Code::Authentication
        | Code::SaslAuthenticationFailed => Trouble::Credentials,
        Code::SSL
        | Code::BrokerTransportFailure
        | Code::OperationTimedOut
        | Code::CriticalSystemResource => match () {
            () if says(&["certificate verify failed"])                      => Trouble::Certificate,
            () if says(&["SSL connection closed by peer", "PLAINTEXT broker listener"]) => Trouble::NotTls,
            () if says(&["incorrect security.protocol"])                    => Trouble::Protocol,
            () if code == Code::SSL                                         => Trouble::Tls,
            () if says(&["Connection refused"])                             => Trouble::Refused,
            () if says(&["unreachable", "No route to host"])                => Trouble::Unreachable,
            () if says(&["timed out", "Timed out"])                         => Trouble::NoAnswer,
            () => Trouble::Other,
        },
        _ => return None,
    };
    Some(kind)
}

/// What to do about it. `ca_file` is the user's ssl.ca.location.
#[rustfmt::skip]
pub(crate) fn explanation(kind: Trouble, ca_file: Option<&str>) -> String {
    let text = match (kind, ca_file) {
        (Trouble::Certificate, Some(file)) => return format!(
            "the broker's certificate is not signed by a CA in \"{file}\", or is for another host; \
             ssl.ca.location in outbox_ext.kafka_options names the file"
        ),
        (Trouble::Certificate, None) => "the broker's certificate is not signed by a CA that this machine trusts, or is for another host; ssl.ca.location in outbox_ext.kafka_options can name the CA's file",
        (Trouble::Name, _)        => "the broker's name cannot be resolved; check outbox_ext.brokers and this machine's name resolution",
        (Trouble::Refused, _)     => "nothing listens there; check host and port in outbox_ext.brokers, and that the broker runs",
        (Trouble::Unreachable, _) => "there is no way to the broker's machine; check outbox_ext.brokers, routes and firewalls",
        (Trouble::NoAnswer, _)    => "the broker does not answer; check host and port in outbox_ext.brokers, firewalls, and the broker itself",
        (Trouble::NotTls, _)      => "the listener does not speak TLS; check the port in outbox_ext.brokers, and security.protocol in outbox_ext.kafka_options",
        (Trouble::Tls, _)         => "TLS could not be agreed on; check security.protocol and the ssl properties in outbox_ext.kafka_options",
        (Trouble::Credentials, _) => "authentication failed: the brokers rejected the client's credentials; check the sasl properties in outbox_ext.kafka_options or its file",
        (Trouble::Protocol | Trouble::Closed, _) => "the brokers close the connections; if they run, their listener may want TLS or SASL: check security.protocol in outbox_ext.kafka_options",
        (Trouble::Other, _)       => "no broker can be reached",
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts as librdkafka 2.12 wrote them.
    const SEEN: [(Code, &str, Trouble); 10] = [
        (
            Code::Resolve,
            "b:9092/bootstrap: Failed to resolve 'b:9092': Name or service not known",
            Trouble::Name,
        ),
        (
            Code::BrokerTransportFailure,
            "b:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused",
            Trouble::Refused,
        ),
        (
            Code::BrokerTransportFailure,
            "b:9092/bootstrap: Failed to connect to broker at b:9092: Network is unreachable",
            Trouble::Unreachable,
        ),
        (
            Code::BrokerTransportFailure,
            "b:9092/1: Connection setup timed out in state CONNECT",
            Trouble::NoAnswer,
        ),
        (
            Code::SSL,
            "ssl://b:9093/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: \
             broker certificate could not be verified, verify that ssl.ca.location is correctly configured",
            Trouble::Certificate,
        ),
        (
            Code::SSL,
            "ssl://b:9093/bootstrap: error:0A000086:SSL routines::certificate verify failed",
            Trouble::Certificate,
        ),
        (
            Code::SSL,
            "ssl://b:9092/bootstrap: SSL handshake failed: Disconnected: SSL connection closed by peer: connecting to \
             a PLAINTEXT broker listener?",
            Trouble::NotTls,
        ),
        (
            Code::BrokerTransportFailure,
            "ssl://b:9092/bootstrap: Disconnected: SSL connection closed by peer",
            Trouble::NotTls,
        ),
        (
            Code::Authentication,
            "sasl_plaintext://b:9094/bootstrap: SASL authentication error: Authentication failed: Invalid username or \
             password",
            Trouble::Credentials,
        ),
        (
            Code::SSL,
            "ssl://b:9093/bootstrap: SSL handshake failed: x",
            Trouble::Tls,
        ),
    ];

    #[test]
    fn each_wording_has_its_kind() {
        for (code, text, expected) in SEEN {
            assert_eq!(kind(code, text), Some(expected), "{text}");
        }
        assert_eq!(kind(Code::Fatal, "fatal"), None);
        assert_eq!(kind(Code::AllBrokersDown, "1/1 brokers are down"), None);
    }

    #[test]
    fn each_kind_says_where_to_look() {
        let mut texts: Vec<String> = SEEN.iter().map(|(.., kind)| explanation(*kind, None)).collect();
        assert!(
            texts
                .iter()
                .all(|text| text.contains("check ") || text.contains("can name"))
        );
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), 8, "{texts:#?}");
        let named = explanation(Trouble::Certificate, Some("/etc/kafka/ca.pem"));
        assert!(
            named.contains("\"/etc/kafka/ca.pem\"") && named.contains("ssl.ca.location"),
            "{named}"
        );
    }
}
