//! One value at a time, for the sinks: what stands at a key, with its place.

use std::time::Duration;

use crate::settings::kinds::{Count, Flag, List, Or, Size, Span, Text, Words};
use crate::settings::{Findings, Kind, Located, Table};
use crate::text::units::print_duration;

/// A value that is either one of a few words or an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordOr<T> {
    Word(&'static str),
    Amount(T),
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

const ANY: std::ops::RangeInclusive<u64> = 0..=u64::MAX;

impl<'a> Table<'a> {
    fn setting<T>(&mut self, findings: &mut Findings<'_>, key: &'static str, kind: &impl Kind<T>) -> Setting<T> {
        let Some(field) = self.take(key) else { return Setting::Absent };
        let before = findings.count();
        match kind.read(&field, findings) {
            Some(value) if findings.count() == before => Setting::Is(Located { value, place: field.place() }),
            _ => Setting::Wrong,
        }
    }

    pub(crate) fn string(&mut self, findings: &mut Findings<'_>, key: &'static str) -> Setting<String> {
        self.setting(findings, key, &Text(|text| Ok(text.to_owned())))
    }

    pub(crate) fn integer(&mut self, findings: &mut Findings<'_>, key: &'static str) -> Setting<u64> {
        self.setting(findings, key, &Count(ANY))
    }

    pub(crate) fn boolean(&mut self, findings: &mut Findings<'_>, key: &'static str) -> Setting<bool> {
        self.setting(findings, key, &Flag)
    }

    pub(crate) fn choice<T: Copy>(
        &mut self,
        findings: &mut Findings<'_>,
        key: &'static str,
        words: &'static [(&'static str, T)],
    ) -> Setting<T> {
        self.setting(findings, key, &Words(words))
    }

    pub(crate) fn duration(&mut self, findings: &mut Findings<'_>, key: &'static str) -> Setting<Duration> {
        self.setting(findings, key, &Span(Duration::ZERO..=Duration::MAX))
    }

    pub(crate) fn size(&mut self, findings: &mut Findings<'_>, key: &'static str) -> Setting<u64> {
        self.setting(findings, key, &Size(ANY))
    }

    pub(crate) fn duration_or(
        &mut self,
        findings: &mut Findings<'_>,
        key: &'static str,
        words: &'static [(&'static str, WordOr<Duration>)],
    ) -> Setting<WordOr<Duration>> {
        self.setting(findings, key, &Or(words, Span(Duration::ZERO..=Duration::MAX), WordOr::Amount))
    }

    pub(crate) fn integer_or(
        &mut self,
        findings: &mut Findings<'_>,
        key: &'static str,
        words: &'static [(&'static str, WordOr<u64>)],
    ) -> Setting<WordOr<u64>> {
        self.setting(findings, key, &Or(words, Count(ANY), WordOr::Amount))
    }

    pub(crate) fn strings(&mut self, findings: &mut Findings<'_>, key: &'static str) -> Setting<Vec<Located<String>>> {
        let Some(field) = self.take(key) else { return Setting::Absent };
        let before = findings.count();
        let kind = List(|text| Ok(text.to_owned()));
        match Kind::<Vec<String>>::read(&kind, &field, findings) {
            Some(values) if findings.count() == before => {
                let items = field.value.as_array().into_iter().flat_map(|items| items.iter());
                let places = items.map(|item| field.element(item).place());
                let value = values.into_iter().zip(places).map(|(value, place)| Located { value, place }).collect();
                Setting::Is(Located { value, place: field.place() })
            }
            _ => Setting::Wrong,
        }
    }

    /// A table inside this one, read by `read`, which must take all its keys.
    pub(crate) fn inner<T>(
        &mut self,
        findings: &mut Findings<'_>,
        key: &'static str,
        read: impl FnOnce(&mut Table<'a>, &mut Findings<'_>) -> T,
    ) -> Option<T> {
        let field = self.take(key)?;
        let mut table = Table::open(&field, findings, "a table")?;
        let value = read(&mut table, findings);
        table.finish(findings);
        Some(value)
    }
}

/// Reports a number outside its range.
pub(crate) fn within(
    located: &Located<u64>,
    least: u64,
    most: u64,
    default: u64,
    findings: &mut Findings<'_>,
) -> usize {
    if (least..=most).contains(&located.value) {
        // Every range ends far below what an address can count.
        return usize::try_from(located.value).unwrap_or(usize::MAX);
    }
    let what = format!("{} is outside {least} to {most}", located.value);
    findings.say(&located.place, what, format!("write a number from {least} to {most}; {default} is the default"));
    usize::try_from(default).unwrap_or(usize::MAX)
}

/// Reports a duration outside its range.
pub(crate) fn duration_within(
    located: &Located<Duration>,
    least: Duration,
    most: Duration,
    hint: &str,
    findings: &mut Findings<'_>,
) -> Duration {
    if !(least..=most).contains(&located.value) {
        let range = format!("{:?} to {:?}", print_duration(least), print_duration(most));
        let what = format!("{} is outside {range}", print_duration(located.value));
        findings.say(&located.place, what, format!("write {range}; {hint}"));
    }
    located.value
}
