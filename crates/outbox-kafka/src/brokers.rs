//! The list of brokers to start from, as librdkafka reads it: `[protocol://]host[:port]`, separated by commas.

/// Refuses what can only be a slip: an empty entry in the list, white space in a name, a port that is none. An empty list is allowed.
pub fn check_brokers(list: &str) -> Result<(), String> {
    if list.trim().is_empty() {
        return Ok(());
    }
    list.split(',').map(str::trim).try_for_each(check_broker)
}

fn check_broker(broker: &str) -> Result<(), String> {
    if broker.is_empty() {
        return Err("the list of brokers has an empty entry".to_owned());
    }
    let address = broker.split_once("://").map_or(broker, |(_, address)| address);
    // An IPv6 address stands in brackets.
    let after_host = address.rfind(']').map_or(address, |end| &address[end + 1..]);
    let (host, port) = match after_host.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (after_host, None),
    };
    if address.contains(char::is_whitespace) || address.starts_with(':') || host.contains(':') {
        return Err(format!("broker \"{broker}\" is not host:port"));
    }
    match port {
        Some(port) if !port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Err(format!("broker \"{broker}\" has no port from 1 to 65535"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check_brokers;

    #[test]
    fn what_librdkafka_reads_is_accepted() {
        for list in [
            "",
            " ",
            "kafka",
            "kafka:9092",
            "a:1, b:65535",
            "SASL_SSL://a.example:9093,b",
            "[::1]:9092",
            "[::1]",
        ] {
            assert_eq!(check_brokers(list), Ok(()), "{list}");
        }
    }

    #[test]
    fn slips_are_refused_with_the_entry() {
        for list in [
            "a:9092,",
            "no port",
            "garbage:port:xx",
            "a:xx",
            "a:0",
            "a:70000",
            ":9092",
            "a:",
        ] {
            assert!(check_brokers(list).is_err(), "{list}");
        }
        assert_eq!(
            check_brokers("a:9092,b:xx").unwrap_err(),
            "broker \"b:xx\" has no port from 1 to 65535"
        );
    }
}
