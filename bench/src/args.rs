//! The command line: which rows, how many rounds.

/// What can be measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    Latency,
    Drain,
    Emit,
    Idle,
}

/// In the order of the report. Idle stands last: by then the broker has nothing left to tidy up.
const ROWS: [(&str, Row); 4] = [
    ("latency", Row::Latency),
    ("drain", Row::Drain),
    ("emit", Row::Emit),
    ("idle", Row::Idle),
];

/// Enough for a median that one disturbed round does not move; the whole run then takes about ten minutes.
const ROUNDS: usize = 5;

const USAGE: &str = "usage: scripts/bench.sh [latency] [drain] [emit] [idle] [--rounds N]
Without names: every row, and the report goes to bench/report/; else to target/bench/.";

pub struct Options {
    pub rows: Vec<Row>,
    pub rounds: usize,
}

impl Options {
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut rows = Vec::new();
        let mut rounds = ROUNDS;
        let mut words = words;
        while let Some(word) = words.next() {
            if word == "--rounds" {
                let number = words.next().and_then(|number| number.parse().ok());
                rounds = number.filter(|rounds| *rounds > 0).ok_or(USAGE)?;
            } else {
                let known = ROWS.iter().find(|(name, _)| *name == word);
                let (_, row) = known.ok_or_else(|| format!("unknown row: {word}\n{USAGE}"))?;
                rows.push(*row);
            }
        }
        if rows.is_empty() {
            rows = ROWS.iter().map(|(_, row)| *row).collect();
        }
        Ok(Options { rows, rounds })
    }

    /// Whether every row is asked for.
    pub fn is_complete(&self) -> bool {
        ROWS.iter().all(|(_, row)| self.rows.contains(row))
    }

    /// What to type for the same again.
    pub fn command(&self) -> String {
        let names: String = ROWS
            .iter()
            .filter(|(_, row)| !self.is_complete() && self.rows.contains(row))
            .map(|(name, _)| format!(" {name}"))
            .collect();
        format!("scripts/bench.sh{names} --rounds {}", self.rounds)
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
        let options = parse("emit --rounds 3").unwrap();
        assert_eq!((options.rows.as_slice(), options.rounds), (&[Row::Emit][..], 3));
        assert!(!options.is_complete());
        assert_eq!(options.command(), "scripts/bench.sh emit --rounds 3");
        let all = parse("").unwrap();
        assert!(all.is_complete());
        assert_eq!(all.command(), format!("scripts/bench.sh --rounds {ROUNDS}"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in ["fast", "--rounds", "--rounds 0", "--rounds many"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
