//! What the TOML parser says, in words that help a reader who has never seen the TOML specification.
//!
//! The parser recovers and goes on, and its later findings are often echoes of the first; one finding a line is kept.
//! The key is not known when the text cannot be read, so it is guessed from the line and the last header above it.

use toml::de::{DeTable, Error};

use super::findings::{Findings, ValuePlace};
use crate::text::advice::ValueAdvice;

/// The tables of the file, or `None` with every finding reported.
pub fn parse<'t>(text: &'t str, findings: &mut Findings<'_>) -> Option<DeTable<'t>> {
    if let Some(offset) = text.find('\0') {
        let place = place_of(text, offset);
        findings.say(
            &place,
            "there is a NUL byte here",
            "the file is damaged or binary: restore it or remove the byte",
        );
        return None;
    }
    let (table, mut errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Some(table.into_inner());
    }
    errors.sort_by_key(offset_of);
    let mut last_line = 0;
    let mut duplicate_table = None;
    for error in &errors {
        let in_list = is_list_error(error);
        let offset = offset_of(error);
        // Under a table that stands twice, every key does, and one of the two findings is enough.
        let duplicate = error.message().starts_with("duplicate key");
        if duplicate && header_at(text, offset) {
            duplicate_table = last_header(text, offset);
        } else if duplicate && duplicate_table.is_some() && last_header(text, offset) == duplicate_table {
            continue;
        }
        let place = place_of(text, if in_list { list_start(text, offset) } else { offset });
        let (line, _) = findings.position(place.offset);
        if line != last_line {
            findings.refuse(&place, explain(error, text));
            last_line = line;
        }
        if in_list {
            // The parser takes the rest of the file for elements of the list.
            break;
        }
    }
    None
}

fn offset_of(error: &Error) -> usize {
    error.span().map_or(0, |span| span.start)
}

fn is_list_error(error: &Error) -> bool {
    ["unclosed array,", "missing comma between array", "unexpected `=` in array"]
        .iter()
        .any(|words| error.message().starts_with(words))
}

/// Where the list around `offset` probably begins.
fn list_start(text: &str, offset: usize) -> usize {
    let above = text.get(..offset).unwrap_or_default();
    above.rfind("= [").or_else(|| above.rfind("=[")).and_then(|at| Some(at + above[at..].find('[')?)).unwrap_or(offset)
}

fn explain(error: &Error, text: &str) -> ValueAdvice {
    let span = error.span().unwrap_or(0..0);
    let token = text.get(span.clone()).unwrap_or_default().trim();
    let message = error.message();
    let has = |words: &str| message.starts_with(words);
    let (what, cure) = match () {
        () if has("string values must be quoted")
            || has("invalid float")
            || has("invalid boolean")
            || has("invalid number") =>
        {
            return explain_value(&value_at(text, span.start));
        }
        () if has("duplicate key") && header_at(text, span.start) => (
            format!("{token:?} has been defined above"),
            "merge the two: every table stands once, but [[listener]] may repeat",
        ),
        () if has("duplicate key") => (format!("{token:?} is given twice in the same table"), "keep one of the two"),
        () if has("key with no value") => {
            ("a key without = and a value".to_owned(), "write KEY = VALUE, with # before a comment")
        }
        () if has("unclosed table") => ("the [ of this header is not closed".to_owned(), "write it as in [daemon]"),
        () if has("unclosed array table") => {
            ("the [[ of this header is not closed".to_owned(), "write it as in [[listener]]")
        }
        () if has("invalid basic string") || has("invalid literal string") || has("invalid multi") => {
            ("the string is not closed on its line".to_owned(), "end it with the quote that it begins with")
        }
        () if is_list_error(error) => {
            ("this list is not closed, or a comma is missing in it".to_owned(), "write it as in [\"a\", \"b\"]")
        }
        () if has("unclosed inline table") => {
            ("the { is not closed".to_owned(), "write it as in { rate = 200000, stall = \"250ms\" }")
        }
        () if has("unexpected key or value") => (
            "something follows that does not belong to the value".to_owned(),
            "write one KEY = VALUE on each line, with # before a comment",
        ),
        () if has("missing escaped value") || has("too few unicode") => (
            "a backslash escapes an unknown character".to_owned(),
            "double the backslash, or use 'single quotes', where it means itself",
        ),
        () if has("invalid unquoted key") => {
            (format!("{token:?} cannot stand in a key"), "keys are letters, digits, - and _; comments begin with #")
        }
        () if has("cannot recurse") || has("recursion limit") => {
            ("the nesting is too deep".to_owned(), "no value of udpd is nested more than twice; remove the brackets")
        }
        () if has("unexpected leading zero") => {
            ("the number begins with a zero".to_owned(), "remove the leading zeros")
        }
        () if has("carriage return") => (
            "a carriage return stands alone".to_owned(),
            "end lines with a line feed, or with both: dos2unix repairs the file",
        ),
        () => (format!("this is not TOML: {message}"), "write KEY = VALUE on each line, under a [table] header"),
    };
    ValueAdvice::new(what, cure)
}

/// A value that is no TOML, usually because its quotes are missing.
fn explain_value(value: &str) -> ValueAdvice {
    match value {
        "" => {
            ValueAdvice::new("there is no value behind the =", "write one, or remove the key, which means the default")
        }
        "True" | "TRUE" | "yes" | "on" => {
            ValueAdvice::new(format!("{value} is not quoted and not a boolean"), format!("write \"{value}\", or true"))
        }
        "False" | "FALSE" | "no" | "off" => {
            ValueAdvice::new(format!("{value} is not quoted and not a boolean"), format!("write \"{value}\", or false"))
        }
        _ if value.contains('=') => {
            ValueAdvice::new(format!("{value} is more than one value"), "write one KEY = VALUE on each line")
        }
        _ => {
            let inner = value.trim_matches(|c: char| "\"'“”‘’;".contains(c));
            ValueAdvice::new(format!("{value} is not a value: text needs quotes"), format!("write \"{inner}\""))
        }
    }
}

/// The value around `offset`: from behind the `=` to a comment or the end of the line.
fn value_at(text: &str, offset: usize) -> String {
    let (line, column) = line_at(text, offset);
    let start = line.get(..column).and_then(|before| before.rfind(['=', '[', ','])).map_or(column, |at| at + 1);
    let value = line.get(start..).unwrap_or_default();
    let value = value.split(['#', ',', ']']).next().unwrap_or_default().trim();
    value.chars().filter(|c| !c.is_control()).take(60).collect()
}

/// The line that holds `offset`, and the offset within it.
fn line_at(text: &str, offset: usize) -> (&str, usize) {
    let start = text.get(..offset).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
    let rest = text.get(start..).unwrap_or_default();
    (rest.split('\n').next().unwrap_or_default(), offset - start)
}

/// Where the last header before `offset` stands.
fn last_header(text: &str, offset: usize) -> Option<usize> {
    let above = text.get(..offset)?;
    above.rfind("\n[").map(|at| at + 1).or_else(|| above.starts_with('[').then_some(0))
}

fn header_at(text: &str, offset: usize) -> bool {
    line_at(text, offset).0.trim_start().starts_with('[')
}

/// The place, with the key that probably stands there.
fn place_of(text: &str, offset: usize) -> ValuePlace {
    let name = |part: &str| -> String {
        let plain = |c: &char| c.is_ascii_alphanumeric() || "_-.".contains(*c);
        let key: String = part.trim().trim_matches(['[', ']', ' ']).chars().take_while(plain).collect();
        if key.len() > 64 { String::new() } else { key }
    };
    let (line, _) = line_at(text, offset);
    let above = text.get(..offset).unwrap_or_default();
    // The last part is the line of the problem itself.
    let header = above.lines().rev().skip(1).map(str::trim_start).find(|line| line.starts_with('['));
    let table = header.map(name).unwrap_or_default();
    let own = line.split_once('=').map_or_else(String::new, |(key, _)| name(key));
    let key = match (line.trim_start().starts_with('['), table.is_empty(), own.is_empty()) {
        (true, _, _) => name(line),
        (false, true, _) => own,
        (false, false, true) => table,
        (false, false, false) => format!("{table}.{own}"),
    };
    ValuePlace { offset, key: if key.is_empty() { "syntax".to_owned() } else { key } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::keys::Keys;

    fn first(text: &str) -> String {
        let mut findings = Findings::new("f", text, Keys::default());
        assert!(parse(text, &mut findings).is_none(), "{text:?} was accepted");
        findings.into_problems().list()[0].to_string()
    }

    #[test]
    fn the_key_is_guessed_from_the_line_and_the_header_above() {
        assert!(first("[[listener]]\nname = keep\n").starts_with("f:2:8: listener.name: "));
        assert!(first("a = \n").starts_with("f:1:5: a: "));
        assert!(first("[sink.x\n").starts_with("f:1:8: sink.x: "));
        assert!(first("= 1\n").starts_with("f:1:1: syntax: "));
    }

    #[test]
    fn a_value_without_quotes_is_shown_with_them() {
        assert!(first("stall = 250ms # short\n").contains("250ms is not a value: text needs quotes; write \"250ms\""));
        assert!(first("address = 0.0.0.0:514\n").contains("write \"0.0.0.0:514\""));
        assert!(first("x = “a”\n").contains("write \"a\""));
        assert!(first("x = yes\n").contains("write \"yes\", or true"));
    }

    #[test]
    fn each_line_is_reported_once() {
        let text = "a = x y\nb = 2\nc = z\n";
        let mut findings = Findings::new("f", text, Keys::default());
        assert!(parse(text, &mut findings).is_none());
        let lines: Vec<_> = findings.into_problems().list().iter().map(|one| one.line).collect();
        assert_eq!(lines, [1, 3]);
    }
}
