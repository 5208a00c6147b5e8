//! The report: a table on the terminal, the same as Markdown, and everything measured as JSON.

use std::fmt::Write as _;
use std::fs;

use outbox_e2e::shell::{repository, target};
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::plot::Plot;

/// One line of the table.
pub struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    bar: Option<(Bar, f64)>,
}

#[derive(Clone, Copy)]
enum Bar {
    Below,
    AtMost,
    AtLeast,
}

impl Figure {
    /// Worth knowing; no bar was set.
    pub fn plain(what: impl Into<String>, value: f64, unit: &'static str) -> Figure {
        Figure {
            what: what.into(),
            value,
            unit,
            bar: None,
        }
    }

    pub fn below(what: impl Into<String>, value: f64, unit: &'static str, bar: f64) -> Figure {
        Figure::plain(what, value, unit).with(Bar::Below, bar)
    }

    pub fn at_most(what: impl Into<String>, value: f64, unit: &'static str, bar: f64) -> Figure {
        Figure::plain(what, value, unit).with(Bar::AtMost, bar)
    }

    pub fn at_least(what: impl Into<String>, value: f64, unit: &'static str, bar: f64) -> Figure {
        Figure::plain(what, value, unit).with(Bar::AtLeast, bar)
    }

    /// Forgets the bar where it was not set for this.
    pub fn only(mut self, holds: bool) -> Figure {
        self.bar = self.bar.filter(|_| holds);
        self
    }

    fn with(mut self, bar: Bar, limit: f64) -> Figure {
        self.bar = Some((bar, limit));
        self
    }

    fn is_met(&self) -> Option<bool> {
        self.bar.map(|(bar, limit)| match bar {
            Bar::Below => self.value < limit,
            Bar::AtMost => self.value <= limit,
            Bar::AtLeast => self.value >= limit,
        })
    }

    /// Figure, value, bar, met or not.
    fn cells(&self) -> [String; 4] {
        let bar = self.bar.map_or(String::new(), |(bar, limit)| {
            let sign = match bar {
                Bar::Below => "<",
                Bar::AtMost => "<=",
                Bar::AtLeast => ">=",
            };
            format!("{sign} {}", self.with_unit(limit))
        });
        let met = match self.is_met() {
            None => "",
            Some(true) => "met",
            Some(false) => "NOT MET",
        };
        [self.what.clone(), self.with_unit(self.value), bar, met.to_owned()]
    }

    fn with_unit(&self, value: f64) -> String {
        format!("{} {}", readable(value), self.unit).trim_end().to_owned()
    }

    fn json(&self) -> Value {
        let bar = self.bar.map(|(_, limit)| limit);
        json!({ "figure": self.what, "value": self.value, "unit": self.unit, "bar": bar, "met": self.is_met() })
    }
}

/// Three digits that count; whole numbers with a comma at each thousand.
pub fn readable(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        small if small < 0.2 => format!("{value:.3}"),
        small if small < 100.0 => format!("{value:.2}"),
        _ => {
            let digits = format!("{value:.0}");
            let mut text = String::new();
            for (place, digit) in digits.chars().enumerate() {
                if place > 0 && (digits.len() - place).is_multiple_of(3) && !text.ends_with('-') {
                    text.push(',');
                }
                text.push(digit);
            }
            text
        }
    }
}

/// What each round gave.
pub struct Grid {
    pub head: Vec<&'static str>,
    pub lines: Vec<Vec<String>>,
}

/// One row of the benchmark.
pub struct Section {
    pub name: &'static str,
    pub title: &'static str,
    pub method: String,
    pub figures: Vec<Figure>,
    pub grid: Grid,
    pub notes: Vec<String>,
    pub plots: Vec<Plot>,
    /// Everything that was measured.
    pub raw: Value,
}

pub struct Report {
    pub command: String,
    pub machine: Machine,
    pub sections: Vec<Section>,
}

const HEAD: [&str; 4] = ["figure", "value", "bar", ""];

impl Report {
    /// For the terminal.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for section in &self.sections {
            let mut lines = vec![[section.title, "", "", ""].map(str::to_owned)];
            lines.extend(section.figures.iter().map(Figure::cells).map(|mut cells| {
                cells[0].insert_str(0, "  ");
                cells
            }));
            lines.iter().for_each(|cells| {
                let line = format!("{:<62} {:>16} {:>18}  {}", cells[0], cells[1], cells[2], cells[3]);
                text.push_str(line.trim_end());
                text.push('\n');
            });
            section.notes.iter().for_each(|note| {
                let _ = writeln!(text, "  {note}");
            });
            text.push('\n');
        }
        if let Some(warning) = self.machine.warning() {
            text.push_str(&warning);
            text.push('\n');
        }
        text
    }

    fn markdown(&self) -> String {
        let mut text = format!("# Benchmark report\n\nMade by `{}`.\n\n", self.command);
        if let Some(warning) = self.machine.warning() {
            let _ = writeln!(text, "**{warning}**\n");
        }
        text.push_str(&table(
            &["", ""],
            self.machine
                .facts()
                .iter()
                .map(|(name, value)| vec![(*name).to_owned(), value.clone()]),
        ));
        for section in &self.sections {
            let _ = writeln!(text, "\n## {}\n\n{}\n", section.title, section.method);
            text.push_str(&table(
                &HEAD,
                section.figures.iter().map(|figure| figure.cells().to_vec()),
            ));
            for plot in &section.plots {
                let _ = writeln!(text, "\n![{}]({}.svg)", plot.title, plot.name);
            }
            for note in &section.notes {
                let _ = writeln!(text, "\n{note}");
            }
            if !section.grid.lines.is_empty() {
                text.push_str("\nEach round:\n\n");
                text.push_str(&table(&section.grid.head, section.grid.lines.iter().cloned()));
            }
        }
        text
    }

    fn json(&self) -> Value {
        let sections: serde_json::Map<String, Value> = self
            .sections
            .iter()
            .map(|section| {
                let figures: Vec<Value> = section.figures.iter().map(Figure::json).collect();
                let value = json!({
                    "title": section.title, "method": section.method, "figures": figures, "notes": section.notes,
                    "raw": section.raw,
                });
                (section.name.to_owned(), value)
            })
            .collect();
        json!({ "command": self.command, "machine": self.machine.json(), "rows": sections })
    }

    /// Writes Markdown and JSON: of a whole report under its name to bench/report, else to target/bench, so that figures of
    /// different runs never stand side by side.
    pub fn keep(&self, whole: Option<&str>) {
        let folder = if whole.is_some() {
            repository().join("bench/report")
        } else {
            target().join("bench")
        };
        let file = |extension: &str| folder.join(format!("{}.{extension}", whole.unwrap_or("report")));
        let raw = serde_json::to_string(&self.json()).expect("a value is always written") + "\n";
        let written = fs::create_dir_all(&folder)
            .and_then(|()| fs::write(file("md"), self.markdown()))
            .and_then(|()| fs::write(file("json"), raw))
            .and_then(|()| {
                let mut plots = self.sections.iter().flat_map(|section| &section.plots);
                plots.try_for_each(|plot| fs::write(folder.join(format!("{}.svg", plot.name)), plot.svg()))
            });
        written.unwrap_or_else(|error| panic!("cannot write to {}: {error}", folder.display()));
        println!("kept in {}", file("md").display());
    }
}

fn table(head: &[&str], lines: impl Iterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), " --- |".repeat(head.len()));
    for line in lines {
        let _ = writeln!(text, "| {} |", line.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_or_not() {
        assert_eq!(Figure::below("", 5.0, "ms", 5.0).is_met(), Some(false));
        assert_eq!(Figure::at_most("", 1.2, "", 1.2).is_met(), Some(true));
        assert_eq!(Figure::at_least("", 149_999.0, "/s", 150_000.0).is_met(), Some(false));
        assert_eq!(Figure::plain("", 1.0, "").is_met(), None);
    }

    #[test]
    fn values_are_readable() {
        let cases = [
            (0.0, "0"),
            (0.0312, "0.031"),
            (1.234, "1.23"),
            (999.6, "1,000"),
            (1_234_567.0, "1,234,567"),
            (-150.0, "-150"),
        ];
        for (value, text) in cases {
            assert_eq!(readable(value), text);
        }
    }

    #[test]
    fn a_line_says_figure_value_bar_and_verdict() {
        let cells = Figure::at_least("drained", 200_123.4, "events/s", 150_000.0).cells();
        assert_eq!(cells.join("|"), "drained|200,123 events/s|>= 150,000 events/s|met");
    }
}
