//! librdkafka's log lines on their way to the server log.
//!
//! Owns the level of each line, the limits, and that no secret is in it. A broker that is down makes
//! librdkafka complain for as long as it lasts; the server log gets a few lines and then a summary a
//! minute. The caller writes the lines: this module never does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;

use crate::outage::without_circumstances;

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

/// Different lines of one kind (librdkafka's "facility") let through in a window; enough for one line of each
/// broker of a small cluster.
const LINES_PER_WINDOW: usize = 3;
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
    passed: Vec<String>,
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
        // A debug line is wanted whole.
        let text = match level {
            Level::Debug => text,
            _ => without_circumstances(text),
        };
        let line = LogLine {
            level,
            text: redact(&format!("librdkafka {kind}: {}", text.trim()), &self.secrets),
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

    fn passes(&mut self, name: &str, line: &LogLine, now: Instant) -> bool {
        if let Some(kind) = self.kinds.get_mut(name) {
            if now.duration_since(kind.window_start) < WINDOW {
                kind.last = line.clone();
                let is_new = !kind.passed.contains(&line.text);
                if is_new && kind.passed.len() < LINES_PER_WINDOW {
                    kind.passed.push(line.text.clone());
                    return true;
                }
                kind.held_back += 1;
                return false;
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
            passed: vec![line.text.clone()],
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
        // A cluster that has just started; tried again within a second.
        ("GETPID", _) if text.contains("Coordinator load in progress") => Level::Debug,
        ("FAIL", level) if !matches!(level, RDKafkaLogLevel::Debug) => Level::Notice,
        (_, RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical)
        | (_, RDKafkaLogLevel::Error) => Level::Error,
        (_, RDKafkaLogLevel::Warning) => Level::Warning,
        (_, RDKafkaLogLevel::Notice) => Level::Notice,
        (_, RDKafkaLogLevel::Info) => Level::Info,
        (_, RDKafkaLogLevel::Debug) => Level::Debug,
    }
}

/// A property of which librdkafka quotes the piece that it could not read.
const QUOTED: &str = "sasl.oauthbearer.config";

/// Replaces each secret in the text, and what may be a piece of one.
pub(crate) fn redact(text: &str, secrets: &[String]) -> String {
    let mut text = match text.split_once(QUOTED) {
        Some((before, _)) => format!("{before}{QUOTED} (redacted)"),
        None => text.to_owned(),
    };
    for secret in secrets {
        if text.contains(secret.as_str()) {
            text = text.replace(secret.as_str(), "(redacted)");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(book: &mut LogBook, broker: &str, now: Instant) {
        let text = format!(
            "{broker}: refused (after {}ms in state CONNECT)",
            now.elapsed().as_nanos()
        );
        book.add(RDKafkaLogLevel::Error, "FAIL", &text, now);
    }

    #[test]
    fn an_endless_complaint_is_a_line_and_then_a_summary_a_minute() {
        let mut book = LogBook::new(Vec::new());
        let start = Instant::now();
        let mut lines = Vec::new();
        for second in 0..600 {
            let now = start + Duration::from_secs(second);
            fail(&mut book, "b1", now);
            lines.append(&mut book.take(now));
        }
        assert!((10..=20).contains(&lines.len()), "{lines:#?}");
        assert_eq!(lines[0].text, "librdkafka FAIL: b1: refused");
        assert_eq!(
            lines[1].text,
            "librdkafka FAIL: 59 more lines within a minute, the last: b1: refused"
        );
        assert!(lines.iter().all(|line| line.level == Level::Notice));
    }

    #[test]
    fn a_summary_is_due_though_nothing_more_happens() {
        let mut book = LogBook::new(Vec::new());
        let start = Instant::now();
        for broker in ["b1", "b2", "b3", "b4", "b5"] {
            fail(&mut book, broker, start);
        }
        assert_eq!(book.take(start).len(), LINES_PER_WINDOW);
        assert_eq!(book.take(start + WINDOW / 2), vec![]);
        let summary = book.take(start + WINDOW);
        assert_eq!(summary.len(), 1, "{summary:?}");
        assert!(summary[0].text.contains("2 more lines"), "{summary:?}");
        assert_eq!(book.take(start + 2 * WINDOW), vec![]);
    }

    #[test]
    fn nobody_taking_lines_costs_no_memory() {
        let mut book = LogBook::new(Vec::new());
        let now = Instant::now();
        for n in 0..10_000 {
            book.add(RDKafkaLogLevel::Debug, "SEND", &n.to_string(), now);
            book.add(RDKafkaLogLevel::Warning, &format!("KIND{n}"), "x", now);
        }
        let lines = book.take(now);
        assert_eq!(lines.len(), LINES_MAX + 1);
        assert!(
            lines[LINES_MAX].text.contains("were not logged"),
            "{:?}",
            lines[LINES_MAX]
        );
        assert!(book.kinds.len() <= KINDS_MAX);
    }

    #[test]
    fn secrets_are_blacked_out() {
        let mut book = LogBook::new(vec!["hunter2".to_owned()]);
        let now = Instant::now();
        book.add(RDKafkaLogLevel::Warning, "SASL", "user u password hunter2!", now);
        assert_eq!(book.take(now)[0].text, "librdkafka SASL: user u password (redacted)!");
    }

    #[test]
    fn a_piece_of_a_secret_is_none_less() {
        let secret = "principal=me scoop=hunter2".to_owned();
        let text = "token: Unrecognized sasl.oauthbearer.config beginning at: scoop=hunter2";
        assert_eq!(
            redact(text, &[secret]),
            "token: Unrecognized sasl.oauthbearer.config (redacted)"
        );
    }
}
