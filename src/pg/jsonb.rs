//! The text of a jsonb value: byte for byte what the cast to text gives, written straight to where it is kept.
//!
//! PostgreSQL's own JsonbToCString copies each string, and appends it to its buffer character by character: it was a quarter of what the relay does for
//! an event. The stored form read here (utils/jsonb.h) has not changed since jsonb came with PostgreSQL 9.4, since pg_upgrade leaves it in place:
//!
//! - a container: a word with the number of children and the kind, a word (JEntry) for each child, then the children's bytes. An object's children are its
//!   keys and behind them its values, in the same order; a scalar at the top is an array of one that says so.
//! - a JEntry: a type and either the child's length or, in every 32nd, the offset of its end from the first child's bytes.
//! - numbers and containers begin at multiples of four; the padding before them counts to their length.
//!
//! Everything is read through slices: a damaged value is an error, never a read beyond it.

use pgrx::pg_sys::{self, Datum};
use pgrx::varlena::{varatt_is_1b, varatt_is_1b_e, varatt_is_4b_u, varlena_to_byte_slice, varsize_any};
use std::cell::Cell;
use std::ffi::CStr;

const COUNT_MASK: u32 = 0x0FFF_FFFF;
const IS_SCALAR: u32 = 0x1000_0000;
const IS_OBJECT: u32 = 0x2000_0000;

const LENGTH_MASK: u32 = 0x0FFF_FFFF;
const HAS_END: u32 = 0x8000_0000;
const TYPE_MASK: u32 = 0x7000_0000;
const STRING: u32 = 0x0000_0000;
const NUMERIC: u32 = 0x1000_0000;
const FALSE: u32 = 0x2000_0000;
const TRUE: u32 = 0x3000_0000;
const NULL: u32 = 0x4000_0000;
const CONTAINER: u32 = 0x5000_0000;

const WORD: usize = 4;

thread_local! {
    /// Open containers, outermost first; empty between calls, kept for its memory.
    static LEVELS: Cell<Vec<Level>> = const { Cell::new(Vec::new()) };
    /// For those who want to know the length only.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Scratch memory above this is given back.
const SCRATCH_KEPT: usize = 64 * 1024;

/// A container that is being written. Places are offsets into the whole value, so that its memory can be kept from one value to the next.
struct Level {
    is_object: bool,
    is_scalar: bool,
    /// Elements, or pairs.
    count: usize,
    /// The next one.
    index: usize,
    /// The first JEntry.
    entries: usize,
    /// The first child's bytes.
    data: usize,
    /// Ends, from `data`, of the key and of the value before the next one.
    key_end: usize,
    value_end: usize,
}

/// Appends the text of a jsonb datum to `out`; returns how many bytes.
pub fn append_text(jsonb: Datum, out: &mut Vec<u8>) -> usize {
    let before = out.len();
    with_stored(jsonb, |value| write(value, out));
    out.len() - before
}

/// Bytes that the text of a jsonb datum has at most: a few times what it has, for a fraction of the cost.
pub fn text_len_at_most(jsonb: Datum) -> usize {
    let mut bound = AtMost(0);
    with_stored(jsonb, |value| write(value, &mut bound));
    bound.0
}

/// Bytes that the text of a jsonb datum has at least, without looking into it: no part of it is stored in more than four times what it is written in,
/// but for a few words of the whole.
pub fn text_len_at_least(jsonb: Datum) -> usize {
    const STORED_BYTES_MAX: usize = 8;
    // SAFETY: a varlena; reads its head, or that of its toast pointer. The server's function costs more than all else an event needs of this.
    let stored = unsafe {
        let value: *const pg_sys::varlena = jsonb.cast_mut_ptr();
        if varatt_is_4b_u(value) || varatt_is_1b(value) && !varatt_is_1b_e(value) {
            varsize_any(value)
        } else {
            pg_sys::toast_raw_datum_size(jsonb)
        }
    };
    stored / STORED_BYTES_MAX
}

/// Bytes of the text of a jsonb datum.
pub fn text_len(jsonb: Datum) -> usize {
    with_scratch(|scratch| append_text(jsonb, scratch))
}

/// The text of a jsonb datum.
pub fn text(jsonb: Datum) -> String {
    with_scratch(|scratch| {
        append_text(jsonb, scratch);
        String::from_utf8_lossy(scratch).into_owned()
    })
}

fn with_stored(jsonb: Datum, work: impl FnOnce(&[u8])) {
    // SAFETY: the caller's SQL says jsonb: a varlena, detoasted here, whose content begins behind its header of four bytes. It is not changed meanwhile.
    unsafe {
        let stored: *mut pg_sys::varlena = jsonb.cast_mut_ptr();
        // As nearly all are: neither compressed nor elsewhere, and with a long header, so that what is in it is aligned.
        let varlena = if varatt_is_4b_u(stored) {
            stored
        } else {
            pg_sys::pg_detoast_datum(stored)
        };
        work(varlena_to_byte_slice(varlena));
        if varlena != stored {
            pg_sys::pfree(varlena.cast());
        }
    }
}

fn with_scratch<R>(work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let mut scratch = SCRATCH.take();
    scratch.clear();
    let result = work(&mut scratch);
    if scratch.capacity() <= SCRATCH_KEPT {
        SCRATCH.set(scratch);
    }
    result
}

/// Where the parts of a text go.
trait Out {
    /// What needs no escaping.
    fn put(&mut self, text: &[u8]);
    /// A string, without its quotes.
    fn string(&mut self, text: &[u8]);
    /// A numeric as it is stored.
    fn numeric(&mut self, numeric: &[u8]);
}

impl Out for Vec<u8> {
    fn put(&mut self, text: &[u8]) {
        self.extend_from_slice(text);
    }

    fn string(&mut self, text: &[u8]) {
        write_string(text, self);
    }

    fn numeric(&mut self, numeric: &[u8]) {
        match short_integer(numeric) {
            Some((is_negative, value)) => write_integer(is_negative, value, self),
            None => with_numeric_text(numeric, |text| self.extend_from_slice(text)),
        }
    }
}

/// Counts what the text has at most.
struct AtMost(usize);

/// A byte becomes six at most: `\u0001`.
const ESCAPED_BYTES_MAX: usize = 6;

/// The short form of numeric (numeric.c), for what is neither long nor large: a word that says so, with sign, scale (below 64) and weight (of the first
/// digit, -64 to 63); then digits to the base 10,000, without zeros at the end.
const NUMERIC_FORM: u16 = 0xC000;
const NUMERIC_SHORT: u16 = 0x8000;
const SHORT_NEGATIVE: u16 = 0x2000;
const SHORT_SCALE: u16 = 0x1F80;
const SHORT_WEIGHT_NEGATIVE: u16 = 0x0040;
const SHORT_WEIGHT: u16 = 0x003F;
const SHORT_NUMERIC_BYTES_MAX: usize = "-".len() + 64 * 4 + ".".len() + 63;
/// Of an integer that fits into a u64.
const INTEGER_WEIGHT_MAX: usize = 3;

impl Out for AtMost {
    fn put(&mut self, text: &[u8]) {
        self.0 += text.len();
    }

    fn string(&mut self, text: &[u8]) {
        self.0 += text.len() * ESCAPED_BYTES_MAX + 2;
    }

    fn numeric(&mut self, numeric: &[u8]) {
        if half_word(numeric, WORD) & NUMERIC_FORM == NUMERIC_SHORT {
            self.0 += SHORT_NUMERIC_BYTES_MAX;
        } else {
            with_numeric_text(numeric, |text| self.0 += text.len());
        }
    }
}

fn write(value: &[u8], out: &mut impl Out) {
    let mut levels = LEVELS.take();
    levels.clear();
    levels.push(open(value, 0, out));
    while let Some(level) = levels.last_mut() {
        if level.index == level.count {
            match level {
                Level { is_scalar: true, .. } => {}
                Level { is_object: true, .. } => out.put(b"}"),
                Level { .. } => out.put(b"]"),
            }
            levels.pop();
            continue;
        }
        if level.index > 0 {
            out.put(b", ");
        }
        let data = level.data;
        let entry_at = |index: usize| word(value, level.entries + index * WORD);
        let value_index = if level.is_object {
            let start = level.key_end;
            level.key_end = end(entry_at(level.index), start);
            out.string(&value[data + start..data + level.key_end]);
            out.put(b": ");
            level.count + level.index
        } else {
            level.index
        };
        let entry = entry_at(value_index);
        let start = level.value_end;
        level.value_end = end(entry, start);
        level.index += 1;
        let end = data + level.value_end;
        match entry & TYPE_MASK {
            STRING => out.string(&value[data + start..end]),
            NUMERIC => out.numeric(&value[data + aligned(start)..end]),
            FALSE => out.put(b"false"),
            TRUE => out.put(b"true"),
            NULL => out.put(b"null"),
            CONTAINER => {
                let inner = open(value, data + aligned(start), out);
                levels.push(inner);
            }
            other => pgrx::error!("unknown kind {other:#x} in a jsonb value"),
        }
    }
    LEVELS.set(levels);
}

/// Begins the container at this offset.
fn open(value: &[u8], at: usize, out: &mut impl Out) -> Level {
    let header = word(value, at);
    let (is_object, is_scalar) = (header & IS_OBJECT != 0, header & IS_SCALAR != 0);
    let count = (header & COUNT_MASK) as usize;
    let entries = at + WORD;
    let children = if is_object { 2 * count } else { count };
    if !is_scalar {
        out.put(if is_object { b"{" } else { b"[" });
    }
    Level {
        is_object,
        is_scalar,
        count,
        index: 0,
        entries,
        data: entries + children * WORD,
        key_end: 0,
        value_end: if is_object {
            end_of_keys(value, entries, count)
        } else {
            0
        },
    }
}

/// Where an object's keys end and its values begin: back to the last key that has its end, and the lengths from there.
fn end_of_keys(value: &[u8], entries: usize, count: usize) -> usize {
    let mut offset = 0;
    for index in (0..count).rev() {
        let entry = word(value, entries + index * WORD);
        offset += (entry & LENGTH_MASK) as usize;
        if entry & HAS_END != 0 {
            break;
        }
    }
    offset
}

/// The end of a child that begins at `start`.
fn end(entry: u32, start: usize) -> usize {
    let number = (entry & LENGTH_MASK) as usize;
    if entry & HAS_END != 0 { number } else { start + number }
}

fn aligned(offset: usize) -> usize {
    offset.next_multiple_of(WORD)
}

fn word(value: &[u8], at: usize) -> u32 {
    let bytes = value[at..at + WORD].try_into().unwrap_or_default();
    u32::from_ne_bytes(bytes)
}

fn half_word(value: &[u8], at: usize) -> u16 {
    let bytes = value[at..at + 2].try_into().unwrap_or_default();
    u16::from_ne_bytes(bytes)
}

/// Whether nothing of it is to be escaped: looks at eight bytes at a time.
fn is_plain(text: &[u8]) -> bool {
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    let is_plain = |word: [u8; 8]| {
        let word = u64::from_ne_bytes(word);
        // Each has a high bit set where there is a byte that is below 32, or zero; others may have one above such a byte only.
        let control = word.wrapping_sub(LOW * 0x20) & !word;
        let zero = |word: u64| word.wrapping_sub(LOW) & !word;
        (control | zero(word ^ (LOW * u64::from(b'"'))) | zero(word ^ (LOW * u64::from(b'\\')))) & HIGH == 0
    };
    let (words, rest) = text.as_chunks::<8>();
    let mut last = [b' '; 8];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().all(|word| is_plain(*word)) && is_plain(last)
}

/// As escape_json (utils/adt/json.c): what JSON asks to be escaped, and nothing else.
fn write_string(text: &[u8], out: &mut Vec<u8>) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    if is_plain(text) {
        out.extend_from_slice(text);
        out.push(b'"');
        return;
    }
    let mut rest = text;
    while let Some(at) = rest
        .iter()
        .position(|&byte| byte < b' ' || byte == b'"' || byte == b'\\')
    {
        out.extend_from_slice(&rest[..at]);
        let short = match rest[at] {
            b'\x08' => b'b',
            b'\x0c' => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            quote @ (b'"' | b'\\') => quote,
            other => {
                out.extend_from_slice(format!("\\u{other:04x}").as_bytes());
                rest = &rest[at + 1..];
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', short]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Sign and amount of a numeric that is an integer of at most 16 digits, without a decimal point in its text; nothing for any other.
fn short_integer(numeric: &[u8]) -> Option<(bool, u64)> {
    let head = half_word(numeric, WORD);
    let weight = usize::from(head & SHORT_WEIGHT);
    let (digits, _) = numeric[WORD + 2..].as_chunks::<2>();
    if head & (NUMERIC_FORM | SHORT_SCALE | SHORT_WEIGHT_NEGATIVE) != NUMERIC_SHORT
        || weight > INTEGER_WEIGHT_MAX
        || digits.len() > weight + 1
    {
        return None;
    }
    let digit = |place: usize| {
        digits
            .get(place)
            .map_or(0, |digit| u64::from(u16::from_ne_bytes(*digit)))
    };
    let value = (0..=weight).fold(0, |value, place| value * 10_000 + digit(place));
    Some((head & SHORT_NEGATIVE != 0, value))
}

fn write_integer(is_negative: bool, value: u64, out: &mut Vec<u8>) {
    const DIGITS_MAX: usize = 20;
    let mut text = [0; DIGITS_MAX];
    let (mut start, mut rest) = (DIGITS_MAX, value);
    loop {
        start -= 1;
        text[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if is_negative {
        out.push(b'-');
    }
    out.extend_from_slice(&text[start..]);
}

fn with_numeric_text(numeric: &[u8], work: impl FnOnce(&[u8])) {
    // SAFETY: a numeric as it is stored, at a multiple of four as it asks; its varlena header says its length. The text is palloc'd.
    unsafe {
        let datum = Datum::from(numeric.as_ptr());
        let Some(text) = pgrx::direct_function_call::<&CStr>(pg_sys::numeric_out, &[Some(datum)]) else {
            pgrx::error!("a number without a text in a jsonb value");
        };
        work(text.to_bytes());
        pg_sys::pfree(text.as_ptr().cast_mut().cast());
    }
}
