//! The types of value that a configuration holds, read from a table: text, numbers, choices, sizes, durations, lists.
//!
//! Each method reads one key of one type. What is absent is left to the caller, who knows the default; what is of the
//! wrong type is reported here, with the value that was found and one that would be right.

use std::time::Duration;

use toml::de::DeValue;

use super::reader::{Field, Located, Report, Setting, Table};
use crate::text::advice::Advice;
use crate::text::suggest::nearest;
use crate::text::units;

/// A value that is either one of a few words or an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordOr<T> {
    Word(&'static str),
    Amount(T),
}

impl<'a> Table<'a> {
    pub(crate) fn string(&mut self, report: &mut Report<'_>, key: &'static str) -> Setting<String> {
        self.with(key, |field| field.string(report, "a string in quotes"))
    }

    pub(crate) fn integer(&mut self, report: &mut Report<'_>, key: &'static str) -> Setting<u64> {
        self.with(key, |field| field.integer(report, "a whole number"))
    }

    pub(crate) fn boolean(&mut self, report: &mut Report<'_>, key: &'static str) -> Setting<bool> {
        self.with(key, |field| match field.value {
            DeValue::Boolean(truth) => field.at(*truth),
            _ => field.wrong(report, "true or false"),
        })
    }

    /// One of a few words, each standing for a value.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        words: &[(&'static str, T)],
    ) -> Setting<T> {
        self.with(key, |field| {
            let expected = either(words.iter().map(|(word, _)| *word));
            let DeValue::String(text) = field.value else {
                return field.wrong(report, &expected);
            };
            match words.iter().find(|(word, _)| *word == text.as_ref()) {
                Some((_, value)) => field.at(*value),
                None => field.no_such_word(report, text, words.iter().map(|(word, _)| *word), &expected),
            }
        })
    }

    pub(crate) fn duration(&mut self, report: &mut Report<'_>, key: &'static str) -> Setting<Duration> {
        self.with(key, |field| field.duration(report, "a duration in quotes"))
    }

    pub(crate) fn size(&mut self, report: &mut Report<'_>, key: &'static str) -> Setting<u64> {
        self.with(key, |field| field.size(report, "a size in quotes or a number of bytes"))
    }

    pub(crate) fn size_or(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        word: &'static str,
    ) -> Setting<WordOr<u64>> {
        let expected = format!("{word:?}, or a size");
        self.with(key, |field| {
            field.word_or(&[word], |field| match field.value {
                DeValue::String(text) => {
                    field.parsed(report, units::parse_size(text).map_err(|advice| or(advice, &[word])))
                }
                _ => field.size(report, &expected),
            })
        })
    }

    pub(crate) fn duration_or(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        words: &[&'static str],
    ) -> Setting<WordOr<Duration>> {
        let expected = format!("{}, or a duration", either(words.iter().copied()));
        self.with(key, |field| {
            field.word_or(words, |field| match field.value {
                DeValue::String(text) => {
                    field.parsed(report, units::parse_duration(text).map_err(|advice| or(advice, words)))
                }
                _ => field.duration(report, &expected),
            })
        })
    }

    /// One of a few words, or a whole number.
    pub(crate) fn integer_or(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        words: &[&'static str],
    ) -> Setting<WordOr<u64>> {
        let expected = format!("{}, or a whole number", either(words.iter().copied()));
        self.with(key, |field| {
            field.word_or(words, |field| match field.value {
                DeValue::String(text) if text.trim().parse::<u64>().is_err() => {
                    field.no_such_word(report, text, words.iter().copied(), &expected)
                }
                _ => field.integer(report, &expected),
            })
        })
    }

    pub(crate) fn strings(&mut self, report: &mut Report<'_>, key: &'static str) -> Setting<Vec<Located<String>>> {
        self.with(key, |field| match field.value {
            DeValue::Array(_) => field.strings(report),
            _ => field.wrong(report, "a list of strings"),
        })
    }

    /// A string, or a list of them.
    pub(crate) fn one_or_more(&mut self, report: &mut Report<'_>, key: &'static str) -> Setting<Vec<Located<String>>> {
        self.with(key, |field| match field.value {
            DeValue::String(text) => field.at(vec![Located { value: text.to_string(), place: field.place() }]),
            DeValue::Array(_) => field.strings(report),
            _ => field.wrong(report, "a string in quotes, or a list of them"),
        })
    }

    /// A table inside this one, read by `read`, which must take all its keys.
    pub(crate) fn inner<T>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        read: impl FnOnce(&mut Table<'a>, &mut Report<'_>) -> T,
    ) -> Option<T> {
        let field = self.take(key)?;
        let mut table = Table::open(&field, report, "a table")?;
        let value = read(&mut table, report);
        table.finish(report);
        Some(value)
    }

    fn with<T>(&mut self, key: &'static str, read: impl FnOnce(&Field<'a>) -> Setting<T>) -> Setting<T> {
        self.take(key).map_or(Setting::Absent, |field| read(&field))
    }
}

impl Field<'_> {
    fn string(&self, report: &mut Report<'_>, expected: &str) -> Setting<String> {
        match self.value {
            DeValue::String(text) => self.at(text.to_string()),
            _ => self.wrong(report, expected),
        }
    }

    fn integer(&self, report: &mut Report<'_>, expected: &str) -> Setting<u64> {
        let DeValue::Integer(integer) = self.value else {
            return self.wrong(report, expected);
        };
        match i128::from_str_radix(integer.as_str(), integer.radix()).map(u64::try_from) {
            Ok(Ok(value)) => self.at(value),
            outcome => {
                let negative = matches!(outcome, Ok(Err(_))) && integer.as_str().starts_with('-');
                let what = if negative { "is negative" } else { "is too large" };
                report.say(&self.place(), format!("{} {what}", report.written(self.span.clone())), self.cure());
                Setting::Wrong
            }
        }
    }

    fn size(&self, report: &mut Report<'_>, expected: &str) -> Setting<u64> {
        match self.value {
            DeValue::String(text) => self.parsed(report, units::parse_size(text)),
            _ => self.integer(report, expected),
        }
    }

    fn duration(&self, report: &mut Report<'_>, expected: &str) -> Setting<Duration> {
        match self.value {
            DeValue::String(text) => self.parsed(report, units::parse_duration(text)),
            _ => self.wrong(report, expected),
        }
    }

    fn parsed<T>(&self, report: &mut Report<'_>, outcome: Result<T, Advice>) -> Setting<T> {
        match outcome {
            Ok(value) => self.at(value),
            Err(advice) => {
                report.refuse(&self.place(), advice);
                Setting::Wrong
            }
        }
    }

    fn strings(&self, report: &mut Report<'_>) -> Setting<Vec<Located<String>>> {
        let DeValue::Array(items) = self.value else { return Setting::Wrong };
        let mut list = Vec::with_capacity(items.len());
        for item in items {
            let element = Field { value: item.get_ref(), span: item.span(), ..self.clone() };
            if let Setting::Is(text) = element.string(report, "a string in quotes") {
                list.push(text);
            }
        }
        if list.len() < items.len() { Setting::Wrong } else { self.at(list) }
    }

    fn word_or<T>(&self, words: &[&'static str], read: impl FnOnce(&Self) -> Setting<T>) -> Setting<WordOr<T>> {
        if let DeValue::String(text) = self.value
            && let Some(word) = words.iter().find(|word| **word == text.as_ref())
        {
            return self.at(WordOr::Word(word));
        }
        match read(self) {
            Setting::Is(located) => self.at(WordOr::Amount(located.value)),
            Setting::Wrong => Setting::Wrong,
            Setting::Absent => Setting::Absent,
        }
    }

    fn no_such_word<'w, T>(
        &self,
        report: &mut Report<'_>,
        text: &str,
        words: impl Iterator<Item = &'w str>,
        expected: &str,
    ) -> Setting<T> {
        let cure = match nearest(text, words) {
            Some(near) => format!("write {expected}; did you mean {near:?}?"),
            None => format!("write {expected}"),
        };
        report.say(&self.place(), format!("{} is unknown", report.written(self.span.clone())), cure);
        Setting::Wrong
    }
}

/// The advice about an amount, where a word would be right as well.
fn or(advice: Advice, words: &[&'static str]) -> Advice {
    Advice::new(advice.what, format!("{}, or {}", advice.cure, either(words.iter().copied())))
}

/// `"a", "b" or "c"`.
fn either<'w>(words: impl Iterator<Item = &'w str>) -> String {
    let quoted: Vec<String> = words.map(|word| format!("{word:?}")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}
