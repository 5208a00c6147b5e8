//! What a consumer finds: topic, key, value, headers, timestamp, partition of a record.

use std::fs;

use outbox_e2e::scenario::topic_of;
use outbox_e2e::{Broker, Emit, Random, Scenario, json, seconds, shell};

trials![
    scenario record_holds_what_was_emitted,
    scenario record_lies_where_java_would_put_it,
    scenario json_values_arrive_byte_for_byte,
    scenario random_json_arrives_byte_for_byte,
    scenario odd_timestamps,
    scenario odd_keys_ids_and_payloads,
    scenario compacted_topic_takes_every_event,
];

/// Topic, key, value, headers and timestamp as the manual says.
fn record_holds_what_was_emitted(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("order");
    let own_topic = s.topic("own-topic");
    let plain = db.emit(&Emit {
        event_type: "OrderCreated",
        headers: Some(r#"{"trace": "t-1", "tenant": "bläu"}"#),
        ..Emit::new(&kind, "42", r#"{"total": 1.10, "a":"ü"}"#)
    });
    let elsewhere = db.emit(&Emit {
        topic: Some(&own_topic),
        ..Emit::new(&kind, "43", "{}")
    });

    let records = Broker::shared().wait_records(&topic_of(&kind), 1, seconds(20));
    let [record] = &records[..] else {
        panic!("one record, not {records:#?}")
    };
    let (value, created_ms): (String, i64) = {
        let rows = db.rows(&format!(
            "SELECT payload::text, floor(extract(epoch FROM created_at) * 1000)::bigint
               FROM outbox_event WHERE event_id = '{plain}'"
        ));
        (rows[0].get(0), rows[0].get(1))
    };
    assert_eq!(record.key_text(), "42");
    assert_eq!(record.value_text(), value);
    assert_eq!(record.timestamp_ms, Some(created_ms));
    let mut headers: Vec<(&str, &str)> = record
        .headers
        .iter()
        .map(|(name, _)| (&**name, record.header(name).unwrap()))
        .collect();
    let expected = [
        ("id", &*plain),
        ("eventType", "OrderCreated"),
        ("aggregateType", &*kind),
        ("tenant", "bläu"),
        ("trace", "t-1"),
    ];
    // Ours come first; among the caller's, which were an object, no order is promised.
    headers[3..].sort_unstable();
    assert_eq!(headers, expected);

    let records = Broker::shared().wait_records(&own_topic, 1, seconds(20));
    assert_eq!(
        records.iter().map(|record| record.id()).collect::<Vec<_>>(),
        [&elsewhere]
    );
    db.wait_drained(seconds(10));
    let published: bool = db.one("SELECT bool_and(state = 'published' AND published_at IS NOT NULL) FROM outbox_event");
    assert!(published, "both events are marked published");
}

/// A key goes to the partition that a Java producer would choose: the vectors were made by one.
fn record_lies_where_java_would_put_it(name: &str) {
    const PARTITIONS: i32 = 15;
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("spread");
    Broker::shared().create_topic(&topic_of(&kind), PARTITIONS);
    let vectors = java_vectors();
    assert!(vectors.len() >= 10, "the file of vectors was read");
    for (key, _) in &vectors {
        db.emit_one(&kind, key, "{}");
    }
    let records = Broker::shared().wait_records(&topic_of(&kind), vectors.len(), seconds(20));
    for (key, partition) in &vectors {
        let record = records
            .iter()
            .find(|record| record.key_text() == key)
            .expect("it arrived");
        assert_eq!(record.partition, *partition, "key {key:?}");
    }
}

/// Keys, and the partition out of 15 that Java's producer chooses. A line holds `x` and the key in hexadecimal, the
/// hash, and the partition out of 1, 3, 15 and 1000.
fn java_vectors() -> Vec<(String, i32)> {
    let file = shell::repository().join("crates/outbox-core/tests/murmur2_vectors.txt");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let hex = fields[0].strip_prefix('x').expect("the key is marked by an x");
            let bytes = (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16));
            let key = bytes.collect::<Result<Vec<u8>, _>>().expect("hexadecimal");
            let partition = fields[4].parse().expect("a number");
            // Keys are text here: what is none, or holds the byte 0, cannot be an aggregate_id.
            String::from_utf8(key)
                .ok()
                .filter(|key| !key.contains('\0'))
                .map(|key| (key, partition))
        })
        .collect()
}

/// What PostgreSQL stores is what arrives.
fn json_values_arrive_byte_for_byte(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("json");
    let mut payloads: Vec<String> = [
        r#"{"n":123456789012345678901234567890.123456789,"z":1.10,"i":9007199254740993}"#,
        r#"{"tiny":1e-16383}"#,
        r#"{"a":[1,{"b":"x\"y"}]}"#,
        r#"{"t":[]}"#,
        r#"{"a":null}"#,
        r#"[1,2.5,"x"]"#,
        r#"[[],[{}]]"#,
        r#"{"":1}"#,
        "null",
        "{}",
        r#""""#,
        "0",
        r#""\u00e9 \ud83d\ude00 \n\t\\ /""#,
    ]
    .map(str::to_owned)
    .into();
    payloads.push(format!(r#"{{"f":{}}}"#, "9".repeat(309)));
    payloads.push(format!(r#"{{"h":{}}}"#, "9".repeat(131_072)));
    payloads.extend([127, 128, 1_000, 6_000].map(|deep| "[".repeat(deep) + &"]".repeat(deep)));
    for payload in &payloads {
        db.emit_one(&kind, "1", payload);
    }
    let (_, records) = s.judge_all(&mut db, seconds(30));
    assert_eq!(records.len(), payloads.len());
    let null: String = db.one("SELECT event_id::text FROM outbox_log WHERE payload = 'null'::jsonb");
    let null = records.iter().find(|record| record.id() == null).expect("it arrived");
    assert_eq!(null.value.as_deref(), Some(&b"null"[..]), "JSON null is no tombstone");
}

/// The relay makes the text of a payload itself, from the form in which jsonb is stored. The judge compares with PostgreSQL's own.
fn random_json_arrives_byte_for_byte(name: &str) {
    const DOCUMENTS: usize = 3_000;
    let s = Scenario::begin(name);
    let mut db = s.db();
    let kind = s.aggregate_type("json");
    let seed = Random::from_clock().draw();
    eprintln!("  {name}: seed {seed}");
    let mut random = Random::new(seed);
    db.run("BEGIN");
    for n in 0..DOCUMENTS {
        let payload = json::document(&mut random, n as u64 % 4);
        db.emit_one(&kind, "1", &payload);
    }
    db.run("COMMIT");
    let (_, records) = s.judge_all(&mut db, seconds(30));
    assert_eq!(records.len(), DOCUMENTS);
}

/// Times that PostgreSQL takes and Kafka does not: nothing stops, the manual's rules hold.
fn odd_timestamps(name: &str) {
    let s = Scenario::begin(name);
    s.allow("created_at must be finite", "asked for");
    let mut db = s.db();
    let kind = s.aggregate_type("time");
    for created_at in ["-infinity", "infinity"] {
        let (code, message) = db.refused(&insert(&kind, "refused", "created_at", created_at));
        assert_eq!(code, "22008", "{message}");
    }
    let created = [
        "4713-01-01 BC",
        "1969-07-20 20:17Z",
        "2038-02-01 00:00:00.123456Z",
        "294276-12-31",
    ];
    for (number, created_at) in created.iter().enumerate() {
        db.run(&insert(&kind, &format!("created-{number}"), "created_at", created_at));
    }
    for available_at in ["-infinity", "infinity", "10001-01-01"] {
        db.run(&insert(&kind, available_at, "available_at", available_at));
    }
    db.emit_one(&kind, "usual", "{}");

    let records = Broker::shared().wait_records(&topic_of(&kind), 6, seconds(20));
    let mut keys: Vec<&str> = records.iter().map(|record| record.key_text()).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        ["-infinity", "created-0", "created-1", "created-2", "created-3", "usual"]
    );
    let now_ms: i64 = db.one("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint");
    for record in &records {
        let stamp = record.timestamp_ms.expect("a timestamp");
        assert!(stamp <= now_ms, "{} is clamped to now: {stamp}", record.key_text());
    }
    let far = records
        .iter()
        .find(|record| record.key_text() == "created-3")
        .expect("it arrived");
    assert!(
        now_ms - far.timestamp_ms.unwrap_or(0) < 60_000,
        "the time of sending stands for a future one"
    );
    db.wait_true(
        "SELECT array_agg(aggregate_id ORDER BY aggregate_id) = '{10001-01-01,infinity}'
            AND bool_and(state = 'scheduled') FROM outbox_pending",
        seconds(10),
    );
}

fn insert(kind: &str, id: &str, column: &str, time: &str) -> String {
    format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, {column})
         VALUES ('{kind}', '{id}', 'Happened', '{{}}', '{time}')"
    )
}

/// Empty keys are keys, an id is spelt in one way however it was given.
fn odd_keys_ids_and_payloads(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let empty = s.aggregate_type("empty-key");
    for n in 0..100 {
        db.emit_one(&empty, "", &n.to_string());
    }
    let spelt = s.aggregate_type("spelling");
    let spellings = [
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
        "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12}",
        "a0eebc999c0b4ef8bb6d6bb9bd380a13",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ];
    for id in spellings {
        db.emit(&Emit {
            event_id: Some(id),
            ..Emit::new(&spelt, "1", "{}")
        });
    }
    let (_, records) = s.judge_all(&mut db, seconds(20));
    let of_empty: Vec<_> = records
        .iter()
        .filter(|record| record.topic == topic_of(&empty))
        .collect();
    assert_eq!(of_empty.len(), 100);
    assert!(
        of_empty.iter().all(|record| record.key.as_deref() == Some(b"")),
        "never a null key"
    );
    assert!(of_empty.iter().all(|record| record.partition == of_empty[0].partition));
    let values: Vec<String> = of_empty.iter().map(|record| record.value_text().to_owned()).collect();
    assert_eq!(values, (0..100).map(|n| n.to_string()).collect::<Vec<_>>(), "in order");
    let ids: Vec<&str> = records
        .iter()
        .filter(|record| record.topic == topic_of(&spelt))
        .map(|record| record.id())
        .collect();
    let canonical = [
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a13",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ];
    assert_eq!(ids, canonical);
}

/// A compacted topic wants a key in every record, also when it becomes one with events on their way.
fn compacted_topic_takes_every_event(name: &str) {
    let s = Scenario::begin(name);
    let mut db = s.db();
    let [compacted, becoming] = ["compacted", "becoming"].map(|word| s.aggregate_type(word));
    let broker = Broker::shared();
    let policy = ("cleanup.policy", "compact");
    broker.create_topic_with(&topic_of(&compacted), 2, policy.0, policy.1);
    broker.create_topic(&topic_of(&becoming), 2);
    for n in 0..50 {
        for kind in [&compacted, &becoming] {
            db.emit_one(kind, "", &n.to_string());
            db.emit_one(kind, &(n % 5).to_string(), &n.to_string());
        }
        if n == 25 {
            broker.set_topic(&topic_of(&becoming), policy.0, policy.1);
        }
    }
    let (verdict, _) = s.judge_all(&mut db, seconds(20));
    verdict.assert_no_duplicates();
    assert_eq!(verdict.committed, 200);
}
