//! What a way of writing a value has to do: read it, say which values are right, and stand in where there is none.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::findings::{Findings, ValuePlace};
use super::keys::{KeyDeclaration, Keys, join};
use super::table::{Field, TomlTable, either};
use super::{KeyFacts, TableSettings};
use crate::text::advice::ValueAdvice;
use crate::text::advice::nearest;
use crate::text::units::{parse_duration, parse_size, print_duration, print_size};

/// A way of writing a `T`.
pub trait ValueKind<T> {
    /// The value of `field`, as far as it is right. What is wrong goes to `findings`.
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<T>;

    /// As [`read`](Self::read), of a key that `older` is an older spelling of, with the one warning that it gets. What
    /// meant something else then says in the warning what it is read as.
    fn read_older(&self, field: &Field<'_>, older: &ValuePlace, findings: &mut Findings<'_>) -> Option<T> {
        let key = field.name();
        findings
            .warn(older, ValueAdvice::new(format!("is the older spelling of {key}"), format!("write {key} instead")));
        self.read(field, findings)
    }

    /// Which values are right, in words; "" says that the help does.
    fn bounds(&self) -> String {
        String::new()
    }

    /// What stands in for a value that is required and missing, which has been reported.
    fn nothing(&self) -> Option<T> {
        None
    }

    /// The keys that one declaration makes.
    fn keys(&self, own: KeyDeclaration) -> Vec<KeyDeclaration> {
        vec![own]
    }

    /// The value of the key that `line` declares, or its default.
    fn take(&self, line: &KeyFacts, table: &mut TomlTable<'_>, findings: &mut Findings<'_>) -> T {
        let before = findings.count();
        let field = table.take_either(line.key, line.formerly, findings);
        if field.is_none() && line.is_required() {
            let path = join(&table.schema, line.key);
            let cure = format!("write {} = {}, for example", line.key, findings.keys.example(&path));
            findings.say(&table.place.inner(line.key), "is missing", cure);
        }
        let value = field.and_then(|field| match field.older.clone() {
            Some(older) => self.read_older(&field, &older, findings),
            None => self.read(&field, findings),
        });
        if findings.count() > before {
            table.note_wrong(line.key);
        }
        let value = value.or_else(|| if line.is_required() { self.nothing() } else { self.default(line) });
        value.unwrap_or_else(|| panic!("the default of {} is wrong: {}", line.key, line.default))
    }

    /// The default, read as if it were written.
    fn default(&self, line: &KeyFacts) -> Option<T> {
        let text = format!("{} = {}", line.key, line.default);
        let table = DeTable::parse(&text).ok()?.into_inner();
        let mut field = TomlTable::root(&table).take(line.key)?;
        field.written = false;
        let mut findings = Findings::new("default", &text, Keys::default());
        self.read(&field, &mut findings).filter(|_| findings.count() == 0)
    }
}

// How a value is written in a file: numbers within bounds, words, sizes, durations, lists, tables.
//
// A declaration (see `settings!`) names one of these for each key. A kind is apart from the type of the value, so that
// a type of another crate, or one that two keys write differently, needs nothing of its own.

/// `true` or `false`.
#[derive(Debug)]
pub struct Flag;

impl ValueKind<bool> for Flag {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<bool> {
        field.value.as_bool().or_else(|| field.wrong(findings, "true or false"))
    }

    fn bounds(&self) -> String {
        "true or false".to_owned()
    }
}

/// A whole number within bounds.
#[derive(Debug)]
pub struct WholeNumber(pub RangeInclusive<u64>);

impl<T: TryFrom<u64>> ValueKind<T> for WholeNumber {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<T> {
        let is_no_number = |text: &str| text.trim().parse::<u64>().is_err();
        let number = match field.value {
            DeValue::String(text) if !field.words.is_empty() && is_no_number(text) => {
                return no_such_word(field, findings, text, &field.words, "a whole number");
            }
            _ => integer(field, findings, "a whole number")?,
        };
        let range = format!("{} to {}", self.0.start(), self.0.end());
        let within = self.0.contains(&number);
        if !within {
            let (least, most) = (self.0.start(), self.0.end());
            refuse_range(field, findings, &number.to_string(), &range, &format!("a number from {least} to {most}"));
        }
        T::try_from(number).ok().filter(|_| within)
    }

    fn bounds(&self) -> String {
        format!("{} to {}", self.0.start(), self.0.end())
    }
}

/// A size in quotes, or a number of bytes.
#[derive(Debug)]
pub struct ByteSize(pub RangeInclusive<u64>);

impl<T: TryFrom<u64>> ValueKind<T> for ByteSize {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<T> {
        let bytes = match field.value {
            DeValue::String(text) => parsed(field, findings, parse_size(text))?,
            _ if field.words.is_empty() => integer(field, findings, "a size in quotes or a number of bytes")?,
            _ => integer(field, findings, "a size")?,
        };
        let within = self.0.contains(&bytes);
        if !within {
            let range = ValueKind::<u64>::bounds(self);
            refuse_range(field, findings, &print_size(bytes), &range, &range);
        }
        T::try_from(bytes).ok().filter(|_| within)
    }

    fn bounds(&self) -> String {
        match (print_size(*self.0.start()), *self.0.end()) {
            (_, u64::MAX) if *self.0.start() == 0 => "a size".to_owned(),
            (least, u64::MAX) => format!("{least} or more"),
            (least, most) if most % 1024 == 0 => format!("{least} to {}", print_size(most)),
            (least, most) => format!("{least} to {most} bytes"),
        }
    }
}

/// A duration in quotes, within bounds.
#[derive(Debug)]
pub struct TimeSpan(pub RangeInclusive<Duration>);

impl ValueKind<Duration> for TimeSpan {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Duration> {
        let DeValue::String(text) = field.value else {
            let noun = if field.words.is_empty() { "a duration in quotes" } else { "a duration" };
            return field.wrong(findings, noun);
        };
        let duration = parsed(field, findings, parse_duration(text))?;
        if !self.0.contains(&duration) {
            refuse_range(field, findings, &print_duration(duration), &self.bounds(), &self.bounds());
            return None;
        }
        Some(duration)
    }

    fn bounds(&self) -> String {
        format!("{:?} to {:?}", print_duration(*self.0.start()), print_duration(*self.0.end()))
    }
}

/// One of a few words, each standing for a value.
#[derive(Debug)]
pub struct OneOf<T: 'static>(pub &'static [(&'static str, T)]);

impl<T> OneOf<T> {
    fn words(&self) -> Vec<&'static str> {
        self.0.iter().map(|(word, _)| *word).collect()
    }
}

impl<T: Clone> ValueKind<T> for OneOf<T> {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<T> {
        let DeValue::String(text) = field.value else {
            return field.wrong(findings, &either(&self.words()));
        };
        match self.0.iter().find(|(word, _)| *word == text.as_ref()) {
            Some((_, value)) => Some(value.clone()),
            None => no_such_word(field, findings, text, &self.words(), ""),
        }
    }

    fn bounds(&self) -> String {
        either(&self.words())
    }

    fn nothing(&self) -> Option<T> {
        self.0.first().map(|(_, value)| value.clone())
    }
}

/// One of a few words, or what another kind reads.
#[derive(Debug)]
pub struct Or<V, T: 'static, K: ValueKind<V>>(pub &'static [(&'static str, T)], pub K, pub fn(V) -> T);

impl<V, T: Clone, K: ValueKind<V>> ValueKind<T> for Or<V, T, K> {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<T> {
        let word = self.0.iter().find(|(word, _)| field.value.as_str() == Some(word));
        if let Some((_, value)) = word {
            return Some(value.clone());
        }
        let field = Field { words: OneOf(self.0).words(), ..field.clone() };
        self.1.read(&field, findings).map(self.2)
    }

    fn bounds(&self) -> String {
        format!("{}, or {}", OneOf(self.0).bounds(), self.1.bounds())
    }
}

/// A text in quotes that `0` understands.
#[derive(Debug)]
pub struct QuotedText<T>(pub fn(&str) -> Result<T, ValueAdvice>);

impl<T: Default> ValueKind<T> for QuotedText<T> {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<T> {
        let text = string(field, findings)?;
        parsed(field, findings, self.0(text))
    }

    fn nothing(&self) -> Option<T> {
        Some(T::default())
    }
}

/// A text in quotes that `0` understands; `""` is none.
#[derive(Debug)]
pub struct Optional<T>(pub fn(&str) -> Result<T, ValueAdvice>);

impl<T> ValueKind<Option<T>> for Optional<T> {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Option<T>> {
        match string(field, findings)? {
            "" => Some(None),
            text => parsed(field, findings, self.0(text)).map(Some),
        }
    }
}

/// A list of texts that `0` understands, each value once.
#[derive(Debug)]
pub struct List<T>(pub fn(&str) -> Result<T, ValueAdvice>);

impl<T: Ord + Clone + fmt::Display> ValueKind<Vec<T>> for List<T> {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Vec<T>> {
        let DeValue::Array(items) = field.value else {
            return field.wrong(findings, "a list of strings");
        };
        let (mut list, mut seen) = (Vec::with_capacity(items.len()), BTreeSet::new());
        for item in items {
            let element = field.element(item);
            let Some(text) = string(&element, findings) else { continue };
            let Some(value) = parsed(&element, findings, self.0(text)) else { continue };
            match seen.insert(value.clone()) {
                true => list.push(value),
                false => findings.say(&element.place(), format!("{value} is named twice"), "name it once"),
            }
        }
        Some(list)
    }

    fn nothing(&self) -> Option<Vec<T>> {
        Some(Vec::new())
    }
}

/// A text that `0` understands, or a list of them.
#[derive(Debug)]
pub struct OneOrMore<T>(pub fn(&str) -> Result<T, ValueAdvice>);

impl<T> ValueKind<Vec<T>> for OneOrMore<T> {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Vec<T>> {
        let mut read = |field: &Field<'_>| {
            let text = string(field, findings)?;
            parsed(field, findings, self.0(text))
        };
        match field.value {
            DeValue::String(_) => Some(read(field).into_iter().collect()),
            DeValue::Array(items) => Some(items.iter().filter_map(|item| read(&field.element(item))).collect()),
            _ => field.wrong(findings, "a string in quotes, or a list of them"),
        }
    }

    fn nothing(&self) -> Option<Vec<T>> {
        Some(Vec::new())
    }
}

/// A list of names that only code with more knowledge can turn into values; until then there are none.
#[derive(Debug)]
pub struct NameList;

impl<T> ValueKind<Vec<T>> for NameList {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Vec<T>> {
        let DeValue::Array(items) = field.value else {
            return field.wrong(findings, "a list of strings");
        };
        for item in items {
            string(&field.element(item), findings);
        }
        Some(Vec::new())
    }

    fn nothing(&self) -> Option<Vec<T>> {
        Some(Vec::new())
    }
}

/// A table of settings in a key of its own. Its default is `{}`: the defaults of its keys.
#[derive(Debug)]
pub struct SubTable;

impl<S: TableSettings> ValueKind<S> for SubTable {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<S> {
        let mut table = TomlTable::open(field, findings, "a table")?;
        let settings = S::read(&mut table, findings);
        table.finish(findings);
        Some(settings)
    }

    fn keys(&self, mut own: KeyDeclaration) -> Vec<KeyDeclaration> {
        let inner = S::keys(&own.path);
        let table = |value: fn(&KeyDeclaration) -> &str| {
            let pairs: Vec<String> = inner.iter().map(|key| format!("{} = {}", key.name(), value(key))).collect();
            format!("{{ {} }}", pairs.join(", "))
        };
        own.example = table(|key| &key.example);
        own.default = Some(table(|key| key.default.as_deref().unwrap_or(&key.example)));
        std::iter::once(own).chain(inner).collect()
    }
}

/// Settings whose keys stand in the same table, without one of their own.
#[derive(Debug)]
pub struct Flat;

impl<S: TableSettings> ValueKind<S> for Flat {
    fn read(&self, _: &Field<'_>, _: &mut Findings<'_>) -> Option<S> {
        None
    }

    fn keys(&self, own: KeyDeclaration) -> Vec<KeyDeclaration> {
        S::keys(own.path.rsplit_once('.').map_or("", |(table, _)| table))
    }

    fn take(&self, _: &KeyFacts, table: &mut TomlTable<'_>, findings: &mut Findings<'_>) -> S {
        S::read(table, findings)
    }
}

/// A value with a default, and whether the operator wrote it: a default that cannot be had degrades with a warning,
/// a written value that cannot be had is an error.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen<T> {
    /// The value to use.
    pub value: T,
    /// True when it stands in the file (or on the command line).
    pub written: bool,
}

/// What another kind reads, and whether it was written.
#[derive(Debug)]
pub struct Choose<K>(pub K);

impl<T, K: ValueKind<T>> ValueKind<Chosen<T>> for Choose<K> {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Chosen<T>> {
        let value = self.0.read(field, findings)?;
        Some(Chosen { value, written: field.written })
    }

    fn bounds(&self) -> String {
        self.0.bounds()
    }
}

fn string<'a>(field: &Field<'a>, findings: &mut Findings<'_>) -> Option<&'a str> {
    let text = field.value.as_str().or_else(|| field.wrong(findings, "a string in quotes"))?;
    // A shell would have filled it in; here it becomes a part of a name.
    if let Some(name) = text.strip_prefix('/').and_then(variable) {
        let what = format!("{text:?} holds ${name}, which is no variable here but these very characters");
        findings.warn(&field.place(), ValueAdvice::new(what, "write the path that it stands for"));
    }
    Some(text)
}

/// The name of a shell's variable in the text: `$HOME`.
fn variable(text: &str) -> Option<&str> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.split('$').skip(1).find_map(|tail| {
        let end = tail.bytes().position(|byte| !is_name(byte)).unwrap_or(tail.len());
        (end > 0 && !tail.starts_with(|first: char| first.is_ascii_digit())).then_some(&tail[..end])
    })
}

fn integer(field: &Field<'_>, findings: &mut Findings<'_>, expected: &str) -> Option<u64> {
    let DeValue::Integer(integer) = field.value else {
        return field.wrong(findings, expected);
    };
    match i128::from_str_radix(integer.as_str(), integer.radix()).map(u64::try_from) {
        Ok(Ok(value)) => Some(value),
        outcome => {
            let negative = matches!(outcome, Ok(Err(_))) && integer.as_str().starts_with('-');
            let what = if negative { "is negative" } else { "is too large" };
            let cure = field.cure(&findings.keys);
            findings.say(&field.place(), format!("{} {what}", findings.written(field.span.clone())), cure);
            None
        }
    }
}

/// The value, or the advice with the words that would be right as well.
fn parsed<T>(field: &Field<'_>, findings: &mut Findings<'_>, outcome: Result<T, ValueAdvice>) -> Option<T> {
    let outcome = outcome.map_err(|ValueAdvice { what, cure }| match field.words.as_slice() {
        [] => ValueAdvice { what, cure },
        words => ValueAdvice::new(what, format!("{cure}, or {}", either(words))),
    });
    findings.accept(outcome, &field.place())
}

/// Reports a value outside its range.
fn refuse_range(field: &Field<'_>, findings: &mut Findings<'_>, value: &str, range: &str, right: &str) {
    let default = findings.keys.get(&field.schema).and_then(|key| key.default.as_deref());
    let hint = match (field.words.as_slice(), default) {
        ([], Some(default)) => format!("; {default} is the default"),
        ([], None) => String::new(),
        (words, _) => format!(", or {}", either(words)),
    };
    findings.say(&field.place(), format!("{value} is outside {range}"), format!("write {right}{hint}"));
}

/// Reports a text that is none of `words`, where `other` would be right as well.
fn no_such_word<T>(
    field: &Field<'_>,
    findings: &mut Findings<'_>,
    text: &str,
    words: &[&'static str],
    other: &str,
) -> Option<T> {
    let other = if other.is_empty() { String::new() } else { format!(", or {other}") };
    let near = nearest(text, words.iter().copied()).map(|near| format!("; did you mean {near:?}?"));
    let cure = format!("write {}{other}{}", either(words), near.unwrap_or_default());
    findings.say(&field.place(), format!("{} is unknown", findings.written(field.span.clone())), cure);
    None
}
