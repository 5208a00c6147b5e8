use super::*;

fn parsed(text: &str) -> Vec<(String, String)> {
    parse_options(text).unwrap()
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

fn refused(key: &str, value: &str) -> OptionError {
    check_options(&[pair(key, value)]).expect_err(&format!("{key} was accepted"))
}

#[test]
fn pairs_are_separated_by_commas_white_space_or_new_lines() {
    let expected = vec![pair("a", "1"), pair("b", "2"), pair("c", "x=y")];
    assert_eq!(parsed("a=1,b=2 c=x=y"), expected);
    assert_eq!(parsed("\n a=1 ,\n\tb=2,,\n c=x=y,\n"), expected);
    assert_eq!(parsed(""), vec![]);
    assert_eq!(parsed(" ,\n"), vec![]);
    assert_eq!(parsed("a="), vec![pair("a", "")]);
}

#[test]
fn a_quoted_value_keeps_separators_and_doubled_quotes() {
    assert_eq!(
        parsed("sasl.password='it''s, a = \n secret',linger.ms=1"),
        vec![pair("sasl.password", "it's, a = \n secret"), pair("linger.ms", "1")]
    );
    assert_eq!(parsed("a=''"), vec![pair("a", "")]);
    assert_eq!(parsed("a=''''"), vec![pair("a", "'")]);
    assert_eq!(parsed("a='ü, ß'"), vec![pair("a", "ü, ß")]);
}

#[test]
fn what_cannot_be_read_is_named_by_key_and_never_by_value() {
    for (text, key) in [
        ("linger.ms=1,sasl.password=hunter2 hunter3", Some("sasl.password")),
        ("sasl.password='hunter2", Some("sasl.password")),
        ("sasl.password='hunter2'hunter3", Some("sasl.password")),
        ("sasl.password=hun'ter2", Some("sasl.password")),
        ("sasl.password=hunter2,sasl.password=hunter3", Some("sasl.password")),
        ("hunter2", None),
        ("=hunter2", None),
        ("hünter2=1", None),
    ] {
        let error = parse_options(text).expect_err(text);
        assert_eq!(error.key(), key, "{text}");
        let everything = format!("{error} {error:?}");
        assert!(
            !everything.contains("hunter") && !everything.contains("hünter"),
            "{everything}"
        );
    }
}

#[test]
fn ordinary_options_pass() {
    let text = "compression.codec=lz4 linger.ms=5 client.id=me debug=broker,\
                security.protocol=sasl_ssl sasl.mechanism=SCRAM-SHA-512 sasl.username=u sasl.password=p \
                ssl.ca.location=/etc/ssl/ca.pem socket.timeout.ms=10000 batch.size=1000 \
                allow.auto.create.topics=false";
    check_options(&parsed(text)).unwrap();
}

#[test]
fn options_that_say_what_is_set_anyway_pass() {
    let text = "acks=-1 enable.idempotence=True max.in.flight=1 message.timeout.ms=0 enable.gapless.guarantee=true";
    check_options(&parsed(text)).unwrap();
}

#[test]
fn options_that_break_a_promise_are_refused_with_the_reason() {
    for (key, value) in [
        ("acks", "1"),
        ("request.required.acks", "0"),
        ("enable.idempotence", "false"),
        ("max.in.flight", "5"),
        ("max.in.flight.requests.per.connection", "2"),
        ("message.timeout.ms", "300000"),
        ("delivery.timeout.ms", "300000"),
        ("retries", "3"),
        ("message.send.max.retries", "3"),
        ("enable.gapless.guarantee", "false"),
        ("transactional.id", "x"),
        ("internal.termination.signal", "29"),
        ("partitioner", "random"),
        ("message.max.bytes", "5000"),
        ("log.queue", "false"),
        ("enable.metrics.push", "true"),
        ("test.mock.num.brokers", "3"),
        ("delivery.report.only.error", "true"),
        ("queuing.strategy", "lifo"),
        ("bootstrap.servers", "hunter2:9092"),
        ("metadata.broker.list", "hunter2:9092"),
    ] {
        let error = refused(key, value);
        assert_eq!(error.key(), Some(key));
        assert!(error.to_string().contains(&format!("\"{key}\"")), "{error}");
        assert!(error.to_string().contains(": "), "no reason: {error}");
        assert!(!error.to_string().ends_with('.'), "{error}");
        assert!(error.hint().is_some(), "{error}");
    }
    assert!(
        refused("bootstrap.servers", "x")
            .to_string()
            .contains("outbox_ext.brokers")
    );
    for key in ["dr_msg_cb", "error_cb", "socket_cb", "opaque"] {
        refused(key, "1");
    }
}

#[test]
fn librdkafka_itself_is_asked_about_names_and_values() {
    let error = refused("linger.msec", "5");
    assert_eq!(error.to_string(), "unrecognized librdkafka property \"linger.msec\"");
    let error = refused("linger.ms", "99999999");
    assert_eq!(error.to_string(), "invalid value for librdkafka property \"linger.ms\"");
    assert!(error.hint().unwrap().contains("900000"), "{:?}", error.hint());
    let error = refused("security.protocol", "hunter2");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    refused("compression.codec", "rar");
}

#[test]
fn every_reserved_name_is_one_that_librdkafka_knows() {
    for (key, ..) in RESERVED {
        let known = !matches!(Conf::new().set(key, "1"), Err(ConfError::Unknown));
        assert!(known, "{key}");
    }
}
