//! librdkafka's log lines on their way to the server log.
//!
//! Owns the level of each line, the limits, and that no secret is in it. A broker that is down makes
//! librdkafka complain for as long as it lasts; the server log gets a few lines and then a summary a
//! minute. The caller writes the lines: this module never does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;

/// How grave a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
}

/// One line for the server log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    pub level: Level,
    pub text: String,
}

/// Lines kept until they are taken; what comes on top is counted only. `debug=all` fills it in
/// milliseconds, ordinary operation never.
const LINES_MAX: usize = 500;

/// Lines of one kind (librdkafka's "facility") let through in a window; enough for one line of each
/// broker of a small cluster.
const LINES_PER_WINDOW: u32 = 3;
const WINDOW: Duration = Duration::from_secs(60);

/// Kinds watched at once. librdkafka has some dozens in its source.
const KINDS_MAX: usize = 100;

/// Collects lines between two calls of `take`.
pub(crate) struct LogBook {
    lines: Vec<LogLine>,
    dropped: u64,
    kinds: HashMap<String, Kind>,
    secrets: Vec<String>,
}

struct Kind {
    window_start: Instant,
    passed: u32,
    held_back: u32,
    last: LogLine,
}

impl LogBook {
    /// `secrets` are replaced wherever they appear.
    pub(crate) fn new(secrets: Vec<String>) -> LogBook {
        LogBook {
            lines: Vec::new(),
            dropped: 0,
            kinds: HashMap::new(),
            secrets,
        }
    }

    /// A line as librdkafka gave it: syslog level, facility, text.
    pub(crate) fn add(&mut self, level: RDKafkaLogLevel, kind: &str, text: &str, now: Instant) {
        let level = level_of(level, kind, text);
        let line = LogLine {
            level,
            text: self.redact(&format!("librdkafka {kind}: {}", text.trim())),
        };
        // Debug lines come only when a user asked for them; they are what he wants to see.
        if level == Level::Debug || self.passes(kind, &line, now) {
            self.push(line);
        }
    }

    /// Takes what was collected, with the summaries that are due.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<LogLine> {
        let mut due = Vec::new();
        self.kinds.retain(|name, kind| {
            let open = now.duration_since(kind.window_start) < WINDOW;
            if !open && kind.held_back > 0 {
                due.push(kind.summary(name));
            }
            open
        });
        let mut lines = std::mem::take(&mut self.lines);
        lines.append(&mut due);
        if self.dropped > 0 {
            lines.push(LogLine {
                level: Level::Notice,
                text: format!("{} lines of librdkafka were not logged", self.dropped),
            });
            self.dropped = 0;
        }
        lines
    }

    /// Replaces each secret in the text.
    pub(crate) fn redact(&self, text: &str) -> String {
        redact(text, &self.secrets)
    }

    fn passes(&mut self, name: &str, line: &LogLine, now: Instant) -> bool {
        if let Some(kind) = self.kinds.get_mut(name) {
            if now.duration_since(kind.window_start) < WINDOW {
                kind.last = line.clone();
                if kind.passed >= LINES_PER_WINDOW {
                    kind.held_back += 1;
                    return false;
                }
                kind.passed += 1;
                return true;
            }
            if kind.held_back > 0 {
                let summary = kind.summary(name);
                self.push(summary);
            }
        } else if self.kinds.len() >= KINDS_MAX {
            self.dropped += 1;
            return false;
        }
        let kind = Kind {
            window_start: now,
            passed: 1,
            held_back: 0,
            last: line.clone(),
        };
        self.kinds.insert(name.to_owned(), kind);
        true
    }

    fn push(&mut self, line: LogLine) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line);
        } else {
            self.dropped += 1;
        }
    }
}

impl Kind {
    fn summary(&self, name: &str) -> LogLine {
        let last = &self.last.text;
        let text = last.split_once(": ").map_or(last.as_str(), |(_, text)| text);
        LogLine {
            level: self.last.level,
            text: format!(
                "librdkafka {name}: {} more lines within a minute, the last: {text}",
                self.held_back
            ),
        }
    }
}

/// What the relay reports itself is not news here: the state of the connections (it writes one line
/// per change), the fatal error (it rebuilds and says why), the warning that the gapless guarantee
/// is experimental (once for each producer).
fn level_of(level: RDKafkaLogLevel, kind: &str, text: &str) -> Level {
    match (kind, level) {
        ("FATAL", _) => Level::Debug,
        ("CONFWARN", _) if text.contains("enable.gapless.guarantee") => Level::Debug,
        ("FAIL", level) if !matches!(level, RDKafkaLogLevel::Debug) => Level::Notice,
        (_, RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical)
        | (_, RDKafkaLogLevel::Error) => Level::Error,
        (_, RDKafkaLogLevel::Warning) => Level::Warning,
        (_, RDKafkaLogLevel::Notice) => Level::Notice,
        (_, RDKafkaLogLevel::Info) => Level::Info,
        (_, RDKafkaLogLevel::Debug) => Level::Debug,
    }
}

/// Replaces each secret in the text.
pub(crate) fn redact(text: &str, secrets: &[String]) -> String {
    let mut text = text.to_owned();
    for secret in secrets {
        if text.contains(secret.as_str()) {
            text = text.replace(secret.as_str(), "(redacted)");
        }
    }
    text
}
