//! A reader of TOML tables that knows where it is.
//!
//! Deriving the structs would stop at the first mistake and forget where each value stood. This reader gives every
//! value its place, says what it found where something else was expected, reports the keys nobody asked for, and goes
//! on.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::keys;
use crate::config::error::{Problem, Problems};
use crate::text::advice::Advice;

/// Where a value stands: its byte in the text, and its key as shown to the operator.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) offset: usize,
    pub(crate) key: String,
}

impl Place {
    /// The place of a key that should be inside the table at this place, and is not.
    pub(crate) fn inner(&self, key: &str) -> Place {
        Place { offset: self.offset, key: format!("{}.{key}", self.key) }
    }
}

/// A value and its place.
#[derive(Debug, Clone)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
}

/// What stands at a key. `Wrong` has been reported already, so nobody needs to say that it is missing as well.
#[derive(Debug)]
pub(crate) enum Setting<T> {
    Absent,
    Wrong,
    Is(Located<T>),
}

impl<T> Setting<T> {
    /// The value, if there is a right one.
    pub(crate) fn get(&self) -> Option<&Located<T>> {
        match self {
            Setting::Is(located) => Some(located),
            Setting::Absent | Setting::Wrong => None,
        }
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Setting::Absent)
    }

    /// A copy of the value, or the default.
    pub(crate) fn or(&self, default: T) -> T
    where
        T: Clone,
    {
        self.get().map_or(default, |located| located.value.clone())
    }
}

/// The text being read, and the problems found so far.
#[derive(Debug)]
pub(crate) struct Report<'t> {
    file: &'t str,
    text: &'t str,
    line_starts: Vec<usize>,
    problems: Vec<Problem>,
    omitted: usize,
}

impl<'t> Report<'t> {
    pub(crate) fn new(file: &'t str, text: &'t str) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { file, text, line_starts, problems: Vec::new(), omitted: 0 }
    }

    /// What the text is called: the path of the configuration, where it is a file.
    pub(crate) fn file(&self) -> &'t str {
        self.file
    }

    /// Adds a problem.
    pub(crate) fn refuse(&mut self, place: &Place, advice: Advice) {
        if self.problems.len() == Problems::SHOWN_MAX {
            self.omitted += 1;
            return;
        }
        let (line, column) = self.position(place.offset);
        let Advice { what, cure } = advice;
        self.problems.push(Problem { file: self.file.to_owned(), line, column, key: place.key.clone(), what, cure });
    }

    /// Adds a problem, from its two halves.
    pub(crate) fn say(&mut self, place: &Place, what: impl Into<String>, cure: impl Into<String>) {
        self.refuse(place, Advice::new(what, cure));
    }

    /// Line and column, both from 1, columns in characters.
    pub(crate) fn position(&self, offset: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        let start = self.line_starts[line - 1];
        let column = self.text.get(start..offset).map_or(offset - start, |before| before.chars().count());
        (line, column + 1)
    }

    /// The text as written, cut to what fits a message.
    pub(crate) fn written(&self, span: Range<usize>) -> String {
        const SHOWN_MAX: usize = 60;
        let text = self.text.get(span).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        match line.chars().count() > SHOWN_MAX || line.len() < text.trim_end().len() {
            true => line.chars().take(SHOWN_MAX).chain("...".chars()).collect(),
            false => line.to_owned(),
        }
    }

    /// `value`, unless there are problems.
    pub(crate) fn finish<T>(self, value: T) -> Result<T, Problems> {
        match self.problems.is_empty() {
            true => Ok(value),
            false => Err(self.into_problems()),
        }
    }

    /// The problems, when it is known that there are some.
    pub(crate) fn into_problems(self) -> Problems {
        Problems::new(self.problems, self.omitted)
    }
}

/// A value as it stands in the text, not yet known to be of the right type.
#[derive(Debug, Clone)]
pub(crate) struct Field<'a> {
    pub(crate) value: &'a DeValue<'a>,
    pub(crate) span: Range<usize>,
    /// As shown to the operator: `sink.archive.path`.
    pub(crate) key: String,
    /// As [`keys`] lists it: `sink.*.path`.
    pub(crate) schema: String,
}

impl Field<'_> {
    pub(crate) fn place(&self) -> Place {
        Place { offset: self.span.start, key: self.key.clone() }
    }

    pub(crate) fn at<T>(&self, value: T) -> Setting<T> {
        Setting::Is(Located { value, place: self.place() })
    }

    /// Reports that something else was expected here.
    pub(crate) fn wrong<T>(&self, report: &mut Report<'_>, expected: &str) -> Setting<T> {
        let found = match self.value {
            DeValue::String(_) => "the string",
            DeValue::Integer(_) => "the number",
            DeValue::Float(_) => "the fraction",
            DeValue::Boolean(_) => "the boolean",
            DeValue::Datetime(_) => "the date",
            DeValue::Array(_) => "the list",
            DeValue::Table(_) => "the table",
        };
        let what = format!("must be {expected}, not {found} {}", report.written(self.span.clone()));
        report.say(&self.place(), what, self.cure_as_meant());
        Setting::Wrong
    }

    /// The value that was probably meant, when another type of it would be right; otherwise an example.
    fn cure_as_meant(&self) -> String {
        let example = keys::example(&self.schema);
        let last = self.schema.rsplit('.').next().unwrap_or_default();
        let words = ["auto", "on", "off"].contains(&example.trim_matches('"'));
        match self.value {
            DeValue::String(text) if text.parse::<u64>().is_ok() => format!("write it without quotes: {last} = {text}"),
            DeValue::String(text) if example.starts_with("[\"") => format!("write it as a list: {last} = [{text:?}]"),
            DeValue::Boolean(true) if words => format!("write {last} = \"on\""),
            DeValue::Boolean(false) if words => format!("write {last} = \"off\""),
            DeValue::Integer(number) if example.ends_with("ms\"") => {
                format!("write it with its unit: {last} = \"{number}ms\"")
            }
            DeValue::Integer(number) if example.ends_with("s\"") && example.len() < 6 => {
                format!("write it with its unit: {last} = \"{number}s\"")
            }
            DeValue::Integer(number) if ["name", "cpus"].contains(&last) => {
                format!("write it in quotes: {last} = \"{number}\"")
            }
            _ => self.cure(),
        }
    }

    /// "write KEY = EXAMPLE".
    pub(crate) fn cure(&self) -> String {
        let last = self.schema.rsplit('.').next().unwrap_or_default();
        match keys::example(&self.schema) {
            header if header.starts_with('[') && !self.schema.contains('.') => format!("write {header}"),
            example => format!("write it as in {last} = {example}"),
        }
    }
}

/// A table whose unknown keys have been reported.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    pub(crate) place: Place,
    schema: String,
    entries: &'a DeTable<'a>,
    taken: Vec<&'static str>,
}

impl<'a> Table<'a> {
    /// The file itself.
    pub(crate) fn root(entries: &'a DeTable<'a>) -> Self {
        Self { place: Place { offset: 0, key: String::new() }, schema: String::new(), entries, taken: Vec::new() }
    }

    /// The table at `field`; anything else is reported.
    pub(crate) fn open(field: &Field<'a>, report: &mut Report<'_>, expected: &str) -> Option<Self> {
        let DeValue::Table(entries) = field.value else {
            field.wrong::<()>(report, expected);
            return None;
        };
        Some(Self { place: field.place(), schema: field.schema.clone(), entries, taken: Vec::new() })
    }

    /// The value of `key`, which counts as known from now on.
    pub(crate) fn take(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.taken.push(key);
        let value = self.entries.get(key)?;
        Some(self.field(key, value.span(), value.get_ref()))
    }

    /// Every entry with its name and where the name stands, for a table whose keys are names.
    pub(crate) fn fields(&self) -> Vec<(Located<String>, Field<'a>)> {
        let named = self.entries.iter().map(|(key, value)| {
            let mut field = self.field(key.get_ref(), value.span(), value.get_ref());
            field.schema = join(&self.schema, "*");
            let place = Place { offset: key.span().start, key: field.key.clone() };
            (Located { value: key.get_ref().to_string(), place }, field)
        });
        named.collect()
    }

    /// Where the key stands, as opposed to its value.
    pub(crate) fn key_place(&self, key: &str) -> Option<Place> {
        let (written, _) = self.entries.get_key_value(key)?;
        Some(Place { offset: written.span().start, key: join(&self.place.key, key) })
    }

    /// Reports every key that nobody took.
    pub(crate) fn finish(self, report: &mut Report<'_>) {
        debug_assert!(
            keys::under(&self.schema).all(|key| self.taken.contains(&key)),
            "keys lists a key of {:?} that is never read",
            self.schema
        );
        for (key, _) in self.entries.iter() {
            let written: &str = key.get_ref();
            if !self.taken.contains(&written) {
                let place = Place { offset: key.span().start, key: shown(&self.place.key, written) };
                report.say(&place, "unknown key", keys::cure_unknown(&self.schema, written));
            }
        }
    }

    fn field(&self, key: &str, span: Range<usize>, value: &'a DeValue<'a>) -> Field<'a> {
        Field { value, span, key: shown(&self.place.key, key), schema: join(&self.schema, key) }
    }
}

fn join(table: &str, key: &str) -> String {
    match table {
        "" => key.to_owned(),
        _ => format!("{table}.{key}"),
    }
}

/// The key as it can be shown in one line, whatever the file holds.
fn shown(table: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.len() <= 64 && key.bytes().all(|byte| byte.is_ascii_graphic());
    match plain {
        true => join(table, key),
        false => join(table, &format!("{:?}", key.chars().take(64).collect::<String>())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_counts_lines_and_characters_from_one() {
        let report = Report::new("file", "ä = 1\r\nbc\n");
        assert_eq!(report.position(0), (1, 1));
        assert_eq!(report.position(3), (1, 3), "the two bytes of an umlaut are one column");
        assert_eq!(report.position(8), (2, 1));
        assert_eq!(report.position(9), (2, 2));
        assert_eq!(report.position(11), (3, 1), "the end of the text is a place, too");
    }

    #[test]
    fn what_is_written_is_cut_to_one_short_line() {
        let text = format!("[\n1]{}", "x".repeat(100));
        let report = Report::new("file", &text);
        assert_eq!(report.written(0..4), "[...");
        assert_eq!(report.written(4..104).len(), 63);
        assert_eq!(report.written(2..3), "1");
    }

    #[test]
    fn more_problems_than_anyone_reads_are_counted() {
        let mut report = Report::new("file", "");
        for _ in 0..Problems::SHOWN_MAX + 5 {
            report.say(&Place { offset: 0, key: "key".into() }, "what", "cure");
        }
        let problems = report.into_problems();
        assert_eq!(problems.list().len(), Problems::SHOWN_MAX);
        assert!(problems.to_string().ends_with("5 more problems are not shown; correct these first"));
    }
}
