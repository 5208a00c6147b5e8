//! Every setting: name, meaning, unit, range, default and why. Workers take a [`Settings`] snapshot at one safe point of their loop and never look
//! at a setting in between.
//!
//! What may differ per database is SUSET (ALTER DATABASE ... SET works); the rest belongs to the server and is SIGHUP. PostgreSQL does not tell a
//! running session of ALTER DATABASE: the relay compares pg_db_role_setting on each reload and every few seconds, and leaves for a new process when it changed.

mod checks;

use checks::CheckHook;
use outbox_core::topic::TopicTemplate;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use pgrx::{PostgresGucEnum, pg_sys};
use std::cell::RefCell;
use std::ffi::{CStr, CString};

/// On by default: a database with the extension and brokers publishes.
static ENABLED: GucSetting<bool> = GucSetting::<bool>::new(true);
static BROKERS: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
/// Debezium's outbox router's name, so that consumers need not move.
static TOPIC: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"outbox.event.{aggregate_type}"));
static KAFKA_OPTIONS_FILE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static KAFKA_OPTIONS: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
/// Rows of one step: large enough that a transaction's cost vanishes, small enough that a step takes some 10 ms.
static BATCH_SIZE: GucSetting<i32> = GucSetting::<i32>::new(5_000);
static BATCH_BYTES: GucSetting<i32> = GucSetting::<i32>::new(4 * 1024);
static MAX_IN_FLIGHT_BYTES: GucSetting<i32> = GucSetting::<i32>::new(16 * 1024);
static LEASE_DURATION: GucSetting<i32> = GucSetting::<i32>::new(30_000);
/// Only a fallback (COMMIT PREPARED): one look costs a few hundred microseconds.
static POLL_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(1_000);
/// The least time between two settles.
static SETTLE_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(100);
/// Below the broker's default message.max.bytes (1,048,588) with room for the record's framing.
static MAX_MESSAGE_BYTES: GucSetting<i32> = GucSetting::<i32>::new(1_000_000);
static RETRY_BACKOFF: GucSetting<i32> = GucSetting::<i32>::new(500);
static RETRY_BACKOFF_MAX: GucSetting<i32> = GucSetting::<i32>::new(30_000);
static MAX_ATTEMPTS: GucSetting<i32> = GucSetting::<i32>::new(5);
/// Off: as any reader of the primary, the relay sees a commit before the standbys have it.
static WAIT_FOR_STANDBYS: GucSetting<bool> = GucSetting::<bool>::new(false);
static AFTER_GIVE_UP: GucSetting<AfterGiveUp> = GucSetting::<AfterGiveUp>::new(AfterGiveUp::Hold);
/// Above a leader election, which takes some 10 s with default settings.
static PARTITION_STALL: GucSetting<i32> = GucSetting::<i32>::new(15_000);
static MAX_PARKED: GucSetting<i32> = GucSetting::<i32>::new(100_000);
static RETENTION: GucSetting<i32> = GucSetting::<i32>::new(-1);

/// What becomes of the later events of an aggregate whose event was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PostgresGucEnum)]
pub enum AfterGiveUp {
    /// They wait until an operator has retried or discarded it: order is kept.
    #[name = c"hold"]
    Hold,
    /// They go on: the aggregate's order is given up.
    #[name = c"pass"]
    Pass,
}

/// Smallest limit worth having: below it the headers alone fill an event.
const MESSAGE_BYTES_MIN: i32 = 1_024;
/// librdkafka's own upper limit for message.max.bytes is 1,000,000,000; an event is copied a few times on its way.
pub const MESSAGE_BYTES_MAX: i32 = 100_000_000;
const DAY_MS: i32 = 86_400_000;

/// Defines the settings and reserves their prefix. Called by _PG_init.
pub fn define() {
    // What may differ per database.
    let database = || GucContext::Suset;
    let server = || GucContext::Sighup;
    let plain = GucFlags::empty();

    GucRegistry::define_bool_guc(
        c"outbox_ext.enabled",
        c"Publishes this database's events.",
        c"When off, events are emitted and wait.",
        &ENABLED,
        database(),
        plain,
    );
    string_with_check(
        c"outbox_ext.brokers",
        c"Kafka brokers to start from, as host:port, separated by commas.",
        c"Empty: events wait.",
        &BROKERS,
        plain,
        checks::brokers,
    );
    string_with_check(
        c"outbox_ext.topic",
        c"Topic of an event that names none.",
        c"{aggregate_type} and {event_type} are replaced by the event's.",
        &TOPIC,
        plain,
        checks::topic_template,
    );
    string_with_check(
        c"outbox_ext.kafka_options",
        c"Further librdkafka properties, as key=value separated by commas or white space.",
        c"A value with commas or white space stands in single quotes. Properties that would break a promise are refused.",
        &KAFKA_OPTIONS,
        GucFlags::SUPERUSER_ONLY,
        checks::kafka_options,
    );
    GucRegistry::define_string_guc(
        c"outbox_ext.kafka_options_file",
        c"File with further librdkafka properties, one key=value a line; a line that begins with # is a comment.",
        c"For secrets, which then stand neither in a setting nor in the data directory. Read by the relay when it starts a session.",
        &KAFKA_OPTIONS_FILE,
        database(),
        GucFlags::SUPERUSER_ONLY,
    );
    GucRegistry::define_bool_guc(
        c"outbox_ext.wait_for_standbys",
        c"Publishes an event only when the synchronous standbys have flushed its commit.",
        c"Without synchronous_standby_names it has no effect.",
        &WAIT_FOR_STANDBYS,
        server(),
        plain,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.batch_size",
        c"Most events that one step reads.",
        c"",
        &BATCH_SIZE,
        1,
        100_000,
        server(),
        plain,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.batch_bytes",
        c"A step ends once it has read this much.",
        c"Keys, headers and payloads are counted.",
        &BATCH_BYTES,
        64,
        1024 * 1024,
        server(),
        GucFlags::UNIT_KB,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.max_in_flight_bytes",
        c"The relay reads no further while this much is read and not settled.",
        c"Bounds the relay's memory, to about twice this much and half of it again while partitions do not answer. Each event counts with its bytes and 512 more.",
        &MAX_IN_FLIGHT_BYTES,
        64,
        4 * 1024 * 1024,
        server(),
        GucFlags::UNIT_KB,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.lease_duration",
        c"A relay that has work and does not move for this long is replaced by a new process.",
        c"",
        &LEASE_DURATION,
        1_000,
        DAY_MS,
        server(),
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.poll_interval",
        c"The relay looks for events this often even when no commit woke it.",
        c"Bounds the delay of prepared transactions, which wake nobody.",
        &POLL_INTERVAL,
        10,
        DAY_MS,
        server(),
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.settle_interval",
        c"What Kafka acknowledged is settled at most this often.",
        c"At once when the last settle is longer ago. Longer: fewer transactions, more duplicates after a crash.",
        &SETTLE_INTERVAL,
        0,
        60_000,
        server(),
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.max_message_bytes",
        c"Largest event: UTF-8 bytes of key, headers and payload together.",
        c"Must fit the topics' max.message.bytes.",
        &MAX_MESSAGE_BYTES,
        MESSAGE_BYTES_MIN,
        MESSAGE_BYTES_MAX,
        server(),
        GucFlags::UNIT_BYTE,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.retry_backoff",
        c"First pause before something that failed is tried again.",
        c"Doubles with each failure, with jitter.",
        &RETRY_BACKOFF,
        10,
        DAY_MS,
        server(),
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.retry_backoff_max",
        c"Longest pause before something that failed is tried again.",
        c"",
        &RETRY_BACKOFF_MAX,
        10,
        DAY_MS,
        server(),
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.max_attempts",
        c"An event that Kafka refuses for a fault of the event itself is given up after this many attempts.",
        c"Outages and topics that cannot be written do not count.",
        &MAX_ATTEMPTS,
        1,
        1_000_000,
        server(),
        plain,
    );
    GucRegistry::define_enum_guc(
        c"outbox_ext.after_give_up",
        c"What becomes of later events of an aggregate whose event was given up: hold or pass.",
        c"hold: they wait until it was retried or discarded. pass: they go on, and the aggregate's order is given up.",
        &AFTER_GIVE_UP,
        server(),
        plain,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.partition_stall",
        c"Events of a partition that has not answered for this long, while others did, are set aside.",
        c"",
        &PARTITION_STALL,
        1_000,
        DAY_MS,
        server(),
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.max_parked",
        c"Reading stops while this many events are set aside for partitions that do not answer.",
        c"Of an aggregate the first one counts; later ones wait behind it.",
        &MAX_PARKED,
        1,
        i32::MAX,
        server(),
        plain,
    );
    GucRegistry::define_int_guc(
        c"outbox_ext.retention",
        c"Published events are deleted this long after they were published.",
        c"-1 keeps them for ever.",
        &RETENTION,
        -1,
        i32::MAX,
        database(),
        GucFlags::UNIT_S,
    );
    #[allow(unsafe_code, reason = "pgrx has no wrapper")]
    // SAFETY: copies the prefix; settings with it that nobody defined are errors from here on.
    unsafe {
        pg_sys::MarkGUCPrefixReserved(c"outbox_ext".as_ptr());
    }
}

/// The server's and this database's settings at one moment.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    pub enabled: bool,
    pub brokers: String,
    pub topic: String,
    pub kafka_options: String,
    pub kafka_options_file: String,
    pub wait_for_standbys: bool,
    pub batch_size: usize,
    pub batch_bytes: usize,
    pub max_in_flight_bytes: usize,
    pub lease_duration_ms: u64,
    pub poll_interval_ms: u64,
    pub settle_interval_ms: u64,
    pub max_message_bytes: usize,
    pub retry_backoff_ms: u64,
    pub retry_backoff_max_ms: u64,
    pub max_attempts: i32,
    pub after_give_up: AfterGiveUp,
    pub partition_stall_ms: u64,
    pub max_parked: usize,
    /// Seconds, None for ever.
    pub retention_s: Option<u64>,
}

impl Settings {
    pub fn current() -> Settings {
        Settings {
            enabled: ENABLED.get(),
            brokers: string(&BROKERS),
            topic: string(&TOPIC),
            kafka_options: string(&KAFKA_OPTIONS),
            kafka_options_file: string(&KAFKA_OPTIONS_FILE),
            wait_for_standbys: WAIT_FOR_STANDBYS.get(),
            batch_size: BATCH_SIZE.get() as usize,
            batch_bytes: BATCH_BYTES.get() as usize * 1024,
            max_in_flight_bytes: MAX_IN_FLIGHT_BYTES.get() as usize * 1024,
            lease_duration_ms: LEASE_DURATION.get() as u64,
            poll_interval_ms: POLL_INTERVAL.get() as u64,
            settle_interval_ms: SETTLE_INTERVAL.get() as u64,
            max_message_bytes: max_message_bytes(),
            retry_backoff_ms: RETRY_BACKOFF.get() as u64,
            retry_backoff_max_ms: (RETRY_BACKOFF_MAX.get() as u64).max(RETRY_BACKOFF.get() as u64),
            max_attempts: MAX_ATTEMPTS.get(),
            after_give_up: AFTER_GIVE_UP.get(),
            partition_stall_ms: PARTITION_STALL.get() as u64,
            max_parked: MAX_PARKED.get() as usize,
            retention_s: u64::try_from(RETENTION.get()).ok(),
        }
    }
}

/// Bytes that key, headers and payload of an event may have together.
pub fn max_message_bytes() -> usize {
    MAX_MESSAGE_BYTES.get() as usize
}

fn string(setting: &GucSetting<Option<CString>>) -> String {
    setting
        .get()
        .map(|value| value.to_string_lossy().trim().to_owned())
        .unwrap_or_default()
}

/// Calls `body` with the parsed outbox_ext.topic, parsed again only when it changed.
pub fn with_topic_template<R>(body: impl FnOnce(&TopicTemplate) -> R) -> R {
    thread_local! {
        static PARSED: RefCell<Option<(CString, TopicTemplate)>> = const { RefCell::new(None) };
    }
    let text = TOPIC.get().unwrap_or_default();
    PARSED.with_borrow_mut(|parsed| {
        if parsed.as_ref().is_none_or(|(known, _)| *known != text) {
            match TopicTemplate::parse(&text.to_string_lossy()) {
                Ok(template) => *parsed = Some((text, template)),
                // The check hook lets nothing through that does not parse.
                Err(error) => pgrx::error!("outbox_ext.topic: {error}"),
            }
        }
        match parsed {
            Some((_, template)) => body(template),
            None => unreachable!("set above"),
        }
    })
}

#[allow(unsafe_code, reason = "pgrx marks check hooks as unsafe")]
fn string_with_check(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<Option<CString>>,
    flags: GucFlags,
    hook: CheckHook,
) {
    // SAFETY: the hooks, in checks.rs, are guarded.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            name,
            short,
            long,
            setting,
            GucContext::Suset,
            flags,
            Some(hook),
            None,
            None,
        )
    }
}
