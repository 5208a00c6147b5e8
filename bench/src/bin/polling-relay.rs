//! The polling relays that people write instead of an extension, for the benchmark to measure beside it.
//!
//!     polling-relay one-by-one|batch SOCKET_FOLDER DATABASE BROKERS
//!
//! Both read the textbook's table (`bench/src/peers/polling.rs` creates it) and send to `outbox.event.<aggregate_type>`.
//! `one-by-one` sends a row, waits for its acknowledgement and updates that row. `batch` is what it becomes once it is too slow:
//! 1,000 rows with FOR UPDATE SKIP LOCKED, all sent before the first answer is awaited, one UPDATE for all of them. Its row
//! locks are its leases, so that a row is written once and not twice: the cheaper of the two ways to write it.
//!
//! Ends when its standard input does, so that it never outlives the benchmark.

use std::io::Read as _;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};
use tokio_postgres::{Client, NoTls, Row, Statement};

const BATCH: i64 = 1_000;
/// Between two looks at a table that had nothing. Far shorter than most people dare, for the sake of its latency.
const POLL: Duration = Duration::from_millis(10);

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, socket, database, brokers] = arguments.as_slice() else {
        panic!("usage: polling-relay one-by-one|batch SOCKET_FOLDER DATABASE BROKERS");
    };
    std::thread::spawn(|| {
        // Whatever the read says: nobody is there any more.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let mut client = connect(socket, database).await;
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "0")
        .set("partitioner", "murmur2_random")
        .create()
        .expect("the producer's settings are right");
    let relayed = match kind.as_str() {
        "one-by-one" => one_by_one(&client, &producer).await,
        "batch" => batch(&mut client, &producer).await,
        other => panic!("unknown kind of relay: {other}"),
    };
    relayed.expect("the database answers");
}

async fn connect(socket: &str, database: &str) -> Client {
    let mut config = tokio_postgres::Config::new();
    config
        .host_path(socket)
        .user("postgres")
        .dbname(database)
        .application_name("polling-relay");
    let (client, connection) = config.connect(NoTls).await.expect("connect to the database");
    tokio::spawn(connection);
    client
}

async fn one_by_one(client: &Client, producer: &FutureProducer) -> Result<(), tokio_postgres::Error> {
    let select = client.prepare(&select("")).await?;
    let update = client
        .prepare("UPDATE outbox SET published_at = now() WHERE id = $1")
        .await?;
    loop {
        let rows = client.query(&select, &[&BATCH]).await?;
        for row in &rows {
            acknowledged(send(producer, row)).await;
            client.execute(&update, &[&row.get::<_, uuid::Uuid>(0)]).await?;
        }
        if rows.is_empty() {
            tokio::time::sleep(POLL).await;
        }
    }
}

async fn batch(client: &mut Client, producer: &FutureProducer) -> Result<(), tokio_postgres::Error> {
    let select = client.prepare(&select("FOR UPDATE SKIP LOCKED")).await?;
    let update = client
        .prepare("UPDATE outbox SET published_at = now() WHERE id = ANY($1)")
        .await?;
    loop {
        if !one_batch(client, producer, &select, &update).await? {
            tokio::time::sleep(POLL).await;
        }
    }
}

/// False: there was nothing to send.
async fn one_batch(
    client: &mut Client,
    producer: &FutureProducer,
    select: &Statement,
    update: &Statement,
) -> Result<bool, tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    let rows = transaction.query(select, &[&BATCH]).await?;
    if rows.is_empty() {
        transaction.rollback().await?;
        return Ok(false);
    }
    let sent: Vec<DeliveryFuture> = rows.iter().map(|row| send(producer, row)).collect();
    for delivery in sent {
        acknowledged(delivery).await;
    }
    let ids: Vec<uuid::Uuid> = rows.iter().map(|row| row.get(0)).collect();
    transaction.execute(update, &[&ids]).await?;
    transaction.commit().await?;
    Ok(true)
}

fn select(lock: &str) -> String {
    format!(
        "SELECT id, aggregate_type, aggregate_id, event_type, payload::text FROM outbox
          WHERE published_at IS NULL ORDER BY created_at LIMIT $1 {lock}"
    )
}

fn send(producer: &FutureProducer, row: &Row) -> DeliveryFuture {
    let id = row.get::<_, uuid::Uuid>(0).to_string();
    let aggregate_type: &str = row.get(1);
    let topic = format!("outbox.event.{aggregate_type}");
    let header = |key, value| Header {
        key,
        value: Some(value),
    };
    let headers = OwnedHeaders::new()
        .insert(header("id", id.as_str()))
        .insert(header("eventType", row.get(3)))
        .insert(header("aggregateType", aggregate_type));
    let key: &str = row.get(2);
    let value: &str = row.get(4);
    let record = FutureRecord::to(&topic).key(key).payload(value).headers(headers);
    // A batch is smaller than the producer's queue, which is empty before it.
    producer
        .send_result(record)
        .unwrap_or_else(|(error, _)| panic!("the producer refused a record: {error}"))
}

async fn acknowledged(delivery: DeliveryFuture) {
    let report = delivery.await.expect("the producer lives");
    report.unwrap_or_else(|(error, _)| panic!("a record was not acknowledged: {error}"));
}
