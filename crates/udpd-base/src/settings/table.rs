//! A reader of TOML tables that knows where it is.
//!
//! Deriving the structs would stop at the first mistake and forget where each value stood. This reader gives every
//! value its place, says what it found where something else was expected, reports the keys that no reader asked for,
//! and goes on.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::findings::{Findings, Located, ValuePlace};
use super::keys::{KeyDeclaration, Keys, join};

/// A value as it stands in the text, not yet known to be of the right type.
#[derive(Debug, Clone)]
pub struct Field<'a> {
    pub value: &'a DeValue<'a>,
    pub span: Range<usize>,
    /// As shown to the operator: `sink.archive.path`.
    pub key: String,
    /// As [`Keys`] lists it: `sink.*.path`.
    pub schema: String,
    /// False for a default.
    pub written: bool,
    /// Where its name stands, when that is an older spelling.
    pub older: Option<ValuePlace>,
    /// Words that are right as well, in quotes.
    pub words: Vec<&'static str>,
}

impl<'a> Field<'a> {
    pub fn place(&self) -> ValuePlace {
        ValuePlace { offset: self.span.start, key: self.key.clone() }
    }

    /// The key within its table, in the spelling of today.
    pub fn name(&self) -> &str {
        self.schema.rsplit('.').next().unwrap_or_default()
    }

    /// An element of the list at this place.
    pub fn element(&self, item: &'a toml::Spanned<DeValue<'a>>) -> Self {
        Self { value: item.get_ref(), span: item.span(), ..self.clone() }
    }

    /// Where the value of a key stands in the table at this place.
    pub fn inner(&self, key: &str) -> Option<ValuePlace> {
        let value = self.value.as_table()?.get(key)?;
        Some(ValuePlace { offset: value.span().start, key: join(&self.key, key) })
    }

    /// Reports that something else was expected here.
    pub fn wrong<T>(&self, findings: &mut Findings<'_>, expected: &str) -> Option<T> {
        let found = match self.value {
            DeValue::String(_) => "the string",
            DeValue::Integer(_) => "the number",
            DeValue::Float(_) => "the fraction",
            DeValue::Boolean(_) => "the boolean",
            DeValue::Datetime(_) => "the date",
            DeValue::Array(_) => "the list",
            DeValue::Table(_) => "the table",
        };
        let expected = self.or_words(expected);
        let what = format!("must be {expected}, not {found} {}", findings.written(self.span.clone()));
        findings.say(&self.place(), what, self.cure_as_meant(&findings.keys));
        None
    }

    /// `expected`, or one of the words.
    pub fn or_words(&self, expected: &str) -> String {
        match self.words.as_slice() {
            [] => expected.to_owned(),
            words => format!("{}, or {expected}", either(words)),
        }
    }

    /// The value that was probably meant, when another type of it would be right; otherwise an example.
    fn cure_as_meant(&self, keys: &Keys) -> String {
        let example = keys.example(&self.schema);
        let last = self.name();
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
            _ => self.cure(keys),
        }
    }

    /// "write KEY = EXAMPLE".
    pub fn cure(&self, keys: &Keys) -> String {
        let last = self.name();
        match keys.example(&self.schema) {
            header if header.starts_with('[') && !self.schema.contains('.') => format!("write {header}"),
            example => format!("write it as in {last} = {example}"),
        }
    }
}

/// `"a", "b" or "c"`.
pub fn either(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// A table, the keys of it that were taken, and those of them whose values are wrong.
#[derive(Debug)]
pub struct TomlTable<'a> {
    pub place: ValuePlace,
    pub schema: String,
    entries: &'a DeTable<'a>,
    taken: Vec<String>,
    /// Keys of the schema that belong to another type of this table.
    foreign: Vec<String>,
    written: WrittenKeys<'a>,
}

impl<'a> TomlTable<'a> {
    /// The file itself.
    pub fn root(entries: &'a DeTable<'a>) -> Self {
        Self::new(ValuePlace { offset: 0, key: String::new() }, String::new(), entries)
    }

    fn new(place: ValuePlace, schema: String, entries: &'a DeTable<'a>) -> Self {
        let written = WrittenKeys { place: place.clone(), entries, wrong: Vec::new(), older: Vec::new() };
        Self { place, schema, entries, taken: Vec::new(), foreign: Vec::new(), written }
    }

    /// The table at `field`; anything else is reported.
    pub fn open(field: &Field<'a>, findings: &mut Findings<'_>, expected: &str) -> Option<Self> {
        let DeValue::Table(entries) = field.value else {
            return field.wrong(findings, expected);
        };
        Some(Self::new(field.place(), field.schema.clone(), entries))
    }

    /// Notes that a key of the schema belongs to another type of this table.
    pub fn note_foreign(&mut self, key: &str) {
        self.foreign.push(key.to_owned());
    }

    /// The value of `key`, which counts as known from now on.
    pub fn take(&mut self, key: &str) -> Option<Field<'a>> {
        self.taken.push(key.to_owned());
        let value = self.entries.get(key)?;
        Some(self.field(key, value.span(), value.get_ref()))
    }

    /// As [`take`](Self::take), of a key that `older` is another spelling of; `""` is none.
    pub fn take_either(
        &mut self,
        key: &'static str,
        older: &'static str,
        findings: &mut Findings<'_>,
    ) -> Option<Field<'a>> {
        let value = self.take(key);
        let Some(place) = Some(older).filter(|older| !older.is_empty()).and_then(|older| self.key_place(older)) else {
            return value;
        };
        self.taken.push(older.to_owned());
        if value.is_some() {
            let what = format!("is the older spelling of {key}, which is written as well");
            findings.say(&place, what, format!("remove {older}"));
            return value;
        }
        self.written.older.push((key, older));
        let value = self.entries.get(older)?;
        let field = self.field(older, value.span(), value.get_ref());
        Some(Field { schema: join(&self.schema, key), older: Some(place), ..field })
    }

    /// Notes that the value of the key is wrong, which has been reported.
    pub fn note_wrong(&mut self, key: &'static str) {
        self.written.wrong.push(key);
    }

    /// Every entry with its name and where the name stands, for a table whose keys are names.
    pub fn fields(&self) -> Vec<(Located<String>, Field<'a>)> {
        let named = self.entries.iter().map(|(key, value)| {
            let mut field = self.field(key.get_ref(), value.span(), value.get_ref());
            field.schema = join(&self.schema, "*");
            let place = ValuePlace { offset: key.span().start, key: field.key.clone() };
            (Located { value: key.get_ref().to_string(), place }, field)
        });
        named.collect()
    }

    /// Where the key stands, as opposed to its value.
    pub fn key_place(&self, key: &str) -> Option<ValuePlace> {
        let (written, _) = self.entries.get_key_value(key)?;
        Some(ValuePlace { offset: written.span().start, key: join(&self.place.key, key) })
    }

    /// Reports every key that was not taken, and says what stands where.
    pub fn finish(self, findings: &mut Findings<'_>) -> WrittenKeys<'a> {
        debug_assert!(
            findings
                .keys
                .under(&self.schema)
                .map(KeyDeclaration::name)
                .all(|key| self.taken.iter().any(|taken| taken == key)),
            "a key of {:?} is listed and never read",
            self.schema
        );
        for (key, _) in self.entries.iter() {
            let written: &str = key.get_ref();
            if !self.taken.iter().any(|taken| taken == written) {
                let place = ValuePlace { offset: key.span().start, key: shown(&self.place.key, written) };
                findings.say(&place, "unknown key", findings.keys.cure_unknown(&self.schema, written, &self.foreign));
            }
        }
        self.written
    }

    fn field(&self, key: &str, span: Range<usize>, value: &'a DeValue<'a>) -> Field<'a> {
        let (shown, schema) = (shown(&self.place.key, key), join(&self.schema, key));
        Field { value, span, key: shown, schema, written: true, older: None, words: Vec::new() }
    }
}

/// Which keys of a table the operator has written, and where: for the checks of one value against another.
#[derive(Debug, Clone)]
pub struct WrittenKeys<'a> {
    /// Of the table itself.
    pub place: ValuePlace,
    entries: &'a DeTable<'a>,
    wrong: Vec<&'static str>,
    older: Vec<(&'static str, &'static str)>,
}

impl WrittenKeys<'_> {
    /// Whether the key is written with a wrong value, which has been reported already.
    pub fn is_wrong(&self, key: &str) -> bool {
        self.wrong.contains(&key)
    }

    /// Where the value of the key stands, if it is written and right.
    pub fn place(&self, key: &str) -> Option<ValuePlace> {
        let value = self.value(key).filter(|_| !self.is_wrong(key))?;
        Some(ValuePlace { offset: value.span().start, key: join(&self.place.key, key) })
    }

    /// Where the name of an inner key stands in the table that is written for the key.
    pub fn inner(&self, key: &str, inner: &str) -> Option<ValuePlace> {
        let (name, _) = self.value(key)?.get_ref().as_table()?.get_key_value(inner)?;
        Some(ValuePlace { offset: name.span().start, key: join(&join(&self.place.key, key), inner) })
    }

    /// The texts that are written for the key, if it is right: a list of them or one, each with its place.
    pub fn texts(&self, key: &str) -> Vec<Located<String>> {
        let located = |item: &toml::Spanned<DeValue<'_>>| {
            let place = ValuePlace { offset: item.span().start, key: join(&self.place.key, key) };
            Some(Located { value: item.get_ref().as_str()?.to_owned(), place })
        };
        let Some(value) = self.value(key).filter(|_| !self.is_wrong(key)) else { return Vec::new() };
        match value.get_ref() {
            DeValue::Array(items) => items.iter().filter_map(located).collect(),
            _ => located(value).into_iter().collect(),
        }
    }

    /// The text that is written for the key, if it is right.
    pub fn text(&self, key: &str) -> Option<Located<String>> {
        self.texts(key).pop()
    }

    fn value(&self, key: &str) -> Option<&toml::Spanned<DeValue<'_>>> {
        let older = self.older.iter().find(|(own, _)| *own == key);
        self.entries.get(older.map_or(key, |(_, older)| older))
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
