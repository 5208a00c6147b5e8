//! The command line: which rows, how many rounds.

use crate::flatness_lines;

/// What can be measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    Latency,
    Rates,
    Drain,
    Sustained,
    Emit,
    Instructions,
    Idle,
    /// Part two: takes as long as all the others and is measured only when it is named.
    Flatness,
}

/// In the order of the report. Idle stands last: by then the broker has nothing left to tidy up.
const ROWS: [(&str, Row); 7] = [
    ("latency", Row::Latency),
    ("rates", Row::Rates),
    ("drain", Row::Drain),
    ("sustained", Row::Sustained),
    ("emit", Row::Emit),
    ("instructions", Row::Instructions),
    ("idle", Row::Idle),
];

const FLATNESS: &str = "flatness";

/// Enough for a median that one disturbed round does not move; the whole run then takes about 40 minutes.
const ROUNDS: usize = 3;

const USAGE: &str =
    "usage: scripts/bench.sh [latency] [rates] [drain] [sustained] [emit] [instructions] [idle] [flatness] [--rounds N] [--scale F] [--only CONDITION]
Without names: every row but flatness, and the report goes to bench/report/, where that of flatness alone goes too; else to target/bench/.";

/// How much of everything, as a share of what the report is made with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scale(f64);

impl Scale {
    /// So many events, in full thousands.
    pub fn events(self, full: usize) -> usize {
        ((full as f64 * self.0 / 1_000.0).ceil() as usize).max(1) * 1_000
    }

    /// So many, but at least one.
    pub fn share(self, full: usize) -> usize {
        ((full as f64 * self.0) as usize).max(1)
    }

    /// So many seconds, but no fewer than show anything.
    pub fn seconds(self, full: u64) -> u64 {
        ((full as f64 * self.0) as u64).max(2)
    }

    pub fn is_full(self) -> bool {
        self.0 == 1.0
    }
}

pub struct Options {
    pub rows: Vec<Row>,
    pub rounds: usize,
    pub scale: Scale,
    /// The one condition of flatness that is wanted.
    pub only: Option<String>,
}

impl Options {
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut rows = Vec::new();
        let mut rounds = ROUNDS;
        let mut scale = 1.0;
        let mut only = None;
        let mut words = words;
        while let Some(word) = words.next() {
            if word == "--rounds" {
                let number = words.next().and_then(|number| number.parse().ok());
                rounds = number.filter(|rounds| *rounds > 0).ok_or(USAGE)?;
            } else if word == "--only" {
                let name = words.next().ok_or(USAGE)?;
                if !flatness_lines::ALL.iter().any(|(known, _)| *known == name) {
                    return Err(format!("unknown condition: {name}\n{USAGE}"));
                }
                only = Some(name);
            } else if word == "--scale" {
                let number = words.next().and_then(|number| number.parse().ok());
                scale = number.filter(|scale| *scale > 0.0 && *scale <= 1.0).ok_or(USAGE)?;
            } else {
                let known = ROWS.iter().find(|(name, _)| *name == word).map(|(_, row)| *row);
                let known = known.or_else(|| (word == FLATNESS).then_some(Row::Flatness));
                rows.push(known.ok_or_else(|| format!("unknown row: {word}\n{USAGE}"))?);
            }
        }
        if rows.is_empty() {
            rows = ROWS.iter().map(|(_, row)| *row).collect();
        }
        Ok(Options {
            rows,
            rounds,
            scale: Scale(scale),
            only,
        })
    }

    /// The name of the report in bench/report/; nothing when not all of it was measured, in full.
    pub fn keeps_as(&self) -> Option<&'static str> {
        let is_flatness = self.rows == [Row::Flatness] && self.only.is_none();
        match (self.scale.is_full(), self.has_every_row()) {
            (true, true) => Some("report"),
            (true, false) if is_flatness => Some(FLATNESS),
            _ => None,
        }
    }

    fn has_every_row(&self) -> bool {
        ROWS.iter().all(|(_, row)| self.rows.contains(row))
    }

    /// What to type for the same again.
    pub fn command(&self) -> String {
        let names: String = ROWS
            .iter()
            .chain(&[(FLATNESS, Row::Flatness)])
            .filter(|(name, row)| self.rows.contains(row) && !(self.has_every_row() && *name != FLATNESS))
            .map(|(name, _)| format!(" {name}"))
            .collect();
        let scale = if self.scale.is_full() {
            String::new()
        } else {
            format!(" --scale {}", self.scale.0)
        };
        let only = self
            .only
            .as_ref()
            .map_or(String::new(), |name| format!(" --only {name}"));
        format!("scripts/bench.sh{names} --rounds {}{scale}{only}", self.rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn names_choose_rows_and_none_means_all() {
        let options = parse("emit --rounds 2").unwrap();
        assert_eq!((options.rows.as_slice(), options.rounds), (&[Row::Emit][..], 2));
        assert_eq!(options.keeps_as(), None);
        assert_eq!(options.command(), "scripts/bench.sh emit --rounds 2");
        let small = parse("--scale 0.1 drain").unwrap();
        assert_eq!((small.scale.events(1_000_000), small.scale.seconds(15)), (100_000, 2));
        assert_eq!(
            small.command(),
            format!("scripts/bench.sh drain --rounds {ROUNDS} --scale 0.1")
        );
        assert_eq!(parse("--scale 0.1").unwrap().keeps_as(), None);
        let all = parse("").unwrap();
        assert_eq!(all.keeps_as(), Some("report"));
        let flatness = parse("flatness").unwrap();
        assert_eq!(flatness.keeps_as(), Some("flatness"));
        assert_eq!(
            flatness.command(),
            format!("scripts/bench.sh flatness --rounds {ROUNDS}")
        );
        assert_eq!(all.command(), format!("scripts/bench.sh --rounds {ROUNDS}"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "fast",
            "--rounds",
            "--rounds 0",
            "--rounds many",
            "--scale 2",
            "--only what",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
