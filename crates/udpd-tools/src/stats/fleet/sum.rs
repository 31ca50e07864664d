//! The sum of ledgers, key by key, so that it has every counter that any member has. What one member does not say,
//! being older or not knowing it, is unknown in the sum, and so is everything where a member has no ledger: a sum is
//! never smaller than the truth.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::member::Member;
use super::streams::{self, StreamSums};

/// A number, or a table of them. `None` is unknown.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Sum {
    Number(Option<i64>),
    Table(BTreeMap<String, Sum>),
}

/// What is no count.
const NO_COUNTS: [&str; 3] = ["residence", "state", "residual"];

impl Sum {
    /// The counts of a part of a ledger: whole numbers, what is not known, and tables of these.
    fn of(part: &Value) -> Option<Self> {
        match part {
            Value::Null => Some(Self::Number(None)),
            Value::Number(number) => number.as_i64().map(|number| Self::Number(Some(number))),
            Value::Object(table) => {
                let counts = table.iter().filter(|(key, _)| !NO_COUNTS.contains(&key.as_str()));
                Some(Self::Table(counts.filter_map(|(key, part)| Some((key.clone(), Self::of(part)?))).collect()))
            }
            Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
        }
    }

    fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => {
                Self::Number(one.zip(other).and_then(|(one, other)| one.checked_add(other)))
            }
            (Self::Table(mut one), Self::Table(other)) => {
                one.iter_mut().filter(|(key, _)| !other.contains_key(*key)).for_each(|(_, sum)| sum.forget());
                for (key, sum) in other {
                    let known = one.remove(&key);
                    let sum = known.map_or_else(|| sum.clone().forgotten(), |known| known.with(sum.clone()));
                    one.insert(key, sum);
                }
                Self::Table(one)
            }
            _ => Self::Number(None),
        }
    }

    fn forget(&mut self) {
        match self {
            Self::Number(number) => *number = None,
            Self::Table(table) => table.values_mut().for_each(Self::forget),
        }
    }

    fn forgotten(mut self) -> Self {
        self.forget();
        self
    }

    /// One of its numbers.
    pub(super) fn number(&self, key: &str) -> Option<i64> {
        match self {
            Self::Table(table) => table.get(key).and_then(Self::total),
            Self::Number(_) => None,
        }
    }

    /// All of its numbers together.
    fn total(&self) -> Option<i64> {
        match self {
            Self::Number(number) => *number,
            Self::Table(table) => table.values().map(Self::total).sum(),
        }
    }
}

/// What one listener has counted, at one member or at all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ListenerSum {
    pub(super) name: String,
    /// How many members have it.
    pub(super) members: usize,
    #[serde(flatten)]
    pub(super) counts: Sum,
    pub(super) sinks: BTreeMap<String, Sum>,
    /// What the sums leave over. `None` where a term is unknown.
    pub(super) residual: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) streams: Vec<StreamSums>,
}

impl ListenerSum {
    fn of(listener: &Value) -> Option<Self> {
        let name = |part: &Value| part["name"].as_str().map(str::to_owned);
        let sinks = listener["sinks"].as_array().into_iter().flatten();
        let sinks = sinks.filter_map(|sink| Some((name(sink)?, Sum::of(sink)?))).collect();
        let counts = Sum::of(listener)?;
        let own = Self { name: name(listener)?, members: 1, counts, sinks, residual: None, streams: Vec::new() };
        Some(Self { residual: own.left_over(), ..own })
    }

    fn add(&mut self, other: Self) {
        self.members += other.members;
        self.counts = std::mem::replace(&mut self.counts, Sum::Number(None)).with(other.counts);
        for (name, sink) in other.sinks {
            let sum = self.sinks.remove(&name).map_or_else(|| sink.clone(), |known| known.with(sink.clone()));
            self.sinks.insert(name, sum);
        }
        self.residual = self.left_over();
    }

    fn forget(&mut self) {
        self.counts.forget();
        self.sinks.values_mut().for_each(Sum::forget);
        self.streams.iter_mut().for_each(StreamSums::forget);
        self.residual = None;
    }

    /// arrived = received + kernel_dropped; received = offered + dropped; offered = delivered + dropped + in_flight,
    /// with what waits on a disk.
    fn left_over(&self) -> Option<i64> {
        let own = |key: &str| self.counts.number(key);
        let received = own("received")?;
        let mut left = own("arrived")? - own("kernel_dropped")? - received;
        for sink in self.sinks.values() {
            let of = |key: &str| sink.number(key);
            let offered = of("offered")?;
            left += received - own("dropped")? - offered;
            left += offered + of("spilled_before")?;
            left -= of("delivered")? + of("dropped")? + of("in_flight")? + of("spilled")?;
        }
        Some(left)
    }
}

/// Each listener by its name, with each member that has it.
pub(super) fn listeners(members: &[Member]) -> Vec<(ListenerSum, Vec<(&str, ListenerSum)>)> {
    let mut all: Vec<(ListenerSum, Vec<(&str, ListenerSum)>)> = Vec::new();
    let known = members.iter().filter_map(|member| Some((member.name.as_str(), member.ledger.as_ref().ok()?)));
    for (member, ledger) in known.clone() {
        for own in ledger["listeners"].as_array().into_iter().flatten().filter_map(ListenerSum::of) {
            match all.iter_mut().find(|(sum, _)| sum.name == own.name) {
                Some((sum, of_members)) => {
                    sum.add(own.clone());
                    of_members.push((member, own));
                }
                None => all.push((own.clone(), vec![(member, own)])),
            }
        }
    }
    let ledgers: Vec<&Value> = known.map(|(_, ledger)| ledger).collect();
    let is_complete = members.iter().all(|member| member.ledger.is_ok());
    for (sum, _) in &mut all {
        sum.streams = streams::sums(&ledgers, &sum.name);
        if !is_complete {
            sum.forget();
        }
    }
    all
}
