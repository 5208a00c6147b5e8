//! Bars as SVG: enough for a report, and readable by whoever opens the file.

use std::fmt::Write as _;

/// A picture of the report.
pub struct Plot {
    /// Its file's name without the extension.
    pub name: &'static str,
    pub title: String,
    /// What stands behind each value.
    pub unit: &'static str,
    /// Label, value and whether it is ours.
    pub bars: Vec<Bar>,
}

pub struct Bar {
    pub label: String,
    pub value: f64,
    pub is_ours: bool,
}

const WIDTH: usize = 860;
const LABELS: usize = 300;
const VALUES: usize = 140;
const ROW: usize = 26;
const TOP: usize = 44;
const OURS: &str = "#2f6f4f";
const OTHERS: &str = "#9aa5b1";

impl Plot {
    /// Lengths are logarithms when the values lie far apart; the title then says so.
    pub fn svg(&self) -> String {
        let values = || self.bars.iter().map(|bar| bar.value).filter(|value| *value > 0.0);
        let most = values().fold(f64::MIN_POSITIVE, f64::max);
        let least = values().fold(most, f64::min);
        let is_log = most / least > 30.0;
        let from = least / 2.0;
        let share = |value: f64| match is_log {
            _ if value <= 0.0 => 0.0,
            true => (value / from).ln() / (most / from).ln(),
            false => value / most,
        };
        let height = TOP + ROW * self.bars.len() + 10;
        let scale = if is_log { " (logarithmic scale)" } else { "" };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"12\" y=\"26\" font-size=\"16\">{}{scale}</text>\n",
            escaped(&self.title)
        );
        for (row, bar) in self.bars.iter().enumerate() {
            let top = TOP + ROW * row;
            let middle = top + ROW / 2 + 4;
            let length = share(bar.value) * (WIDTH - LABELS - VALUES) as f64;
            let colour = if bar.is_ours { OURS } else { OTHERS };
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>\n\
                 <rect x=\"{LABELS}\" y=\"{}\" width=\"{length:.1}\" height=\"{}\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.1}\" y=\"{middle}\">{} {}</text>",
                LABELS - 8,
                escaped(&bar.label),
                top + 3,
                ROW - 6,
                LABELS as f64 + length + 6.0,
                crate::report::readable(bar.value),
                self.unit
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_the_largest_value() {
        let bar = |label: &str, value| Bar {
            label: label.to_owned(),
            value,
            is_ours: label == "a",
        };
        let plot = Plot {
            name: "p",
            title: "a < b".to_owned(),
            unit: "/s",
            bars: vec![bar("a", 200.0), bar("b", 100.0)],
        };
        let svg = plot.svg();
        assert!(
            svg.contains("width=\"420.0\"") && svg.contains("width=\"210.0\""),
            "{svg}"
        );
        assert!(svg.contains("a &lt; b") && svg.contains("200 /s"), "{svg}");
    }
}
