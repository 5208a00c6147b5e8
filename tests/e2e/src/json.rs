//! Random JSON documents of every shape that jsonb stores in a way of its own.

use std::fmt::Write as _;

use crate::random::Random;

/// A document nested at most so deep; it has no key twice, so jsonb keeps all of it.
pub fn document(random: &mut Random, depth: u64) -> String {
    let mut text = String::new();
    value(random, depth, &mut text);
    text
}

fn value(random: &mut Random, depth: u64, out: &mut String) {
    match random.below(if depth == 0 { 6 } else { 9 }) {
        0 => out.push_str("null"),
        1 => out.push_str("true"),
        2 => out.push_str("false"),
        3 => number(random, out),
        4 | 5 => string(random, out),
        6 | 7 => {
            out.push('{');
            for n in 0..children(random) {
                separate(n, out);
                // Keys are stored by length first: numbers in front and behind mix that.
                let mut key = format!("{n}-");
                string(random, &mut key);
                let _ = write!(out, "\"{n}-{}:", &key[key.find('"').expect("a quote") + 1..]);
                value(random, depth - 1, out);
            }
            out.push('}');
        }
        _ => {
            out.push('[');
            for n in 0..children(random) {
                separate(n, out);
                value(random, depth - 1, out);
            }
            out.push(']');
        }
    }
}

/// Mostly few; now and then more than the 32 after which jsonb stores an offset in place of a length.
fn children(random: &mut Random) -> u64 {
    match random.below(10) {
        0 => 0,
        9 => 25 + random.below(80),
        _ => 1 + random.below(5),
    }
}

fn separate(n: u64, out: &mut String) {
    if n > 0 {
        out.push(',');
    }
}

fn number(random: &mut Random, out: &mut String) {
    let digits = random.draw();
    let sign = if random.percent(30) { "-" } else { "" };
    let _ = match random.below(8) {
        0 => write!(out, "{}", random.below(10)),
        1 => write!(out, "-{digits}"),
        2 => write!(out, "{}.{:04}", digits % 100_000, digits % 10_000),
        3 => write!(out, "0.000{digits}"),
        4 => write!(out, "{digits}{digits}{digits}"),
        // Integers of every magnitude, and such that end in zeros: jsonb stores no zeros at the end.
        5 => write!(out, "{sign}{}", digits >> random.below(64)),
        6 => write!(
            out,
            "{sign}{}{}",
            1 + digits % 100,
            "0".repeat(random.below(20) as usize)
        ),
        _ => write!(out, "{}e{}", digits % 1_000, random.below(60) as i64 - 30),
    };
}

fn string(random: &mut Random, out: &mut String) {
    const PIECES: [&str; 16] = [
        "a",
        "seven 7",
        "plain words",
        "Zoë",
        "\\\"",
        "\\\\",
        "/",
        "\\n",
        "\\r",
        "\\t",
        "\\b",
        "\\f",
        "\\u001f",
        "\\u007f",
        "😀",
        "key: {[,]}",
    ];
    out.push('"');
    for _ in 0..random.below(6) {
        out.push_str(PIECES[random.below(PIECES.len() as u64) as usize]);
    }
    if random.percent(5) {
        out.push_str(&"long ".repeat(random.below(600) as usize));
    }
    out.push('"');
}
