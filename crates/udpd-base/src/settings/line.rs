//! What a declaration says of a key, and what comes from all of them: a value that is read from the keys of a table.

use toml::de::DeTable;

use super::findings::Findings;
use super::keys::{KeyDeclaration, Keys, join};
use super::table::{TomlTable, WrittenKeys};

/// What a declaration says of a key beside its type.
#[derive(Debug)]
pub struct KeyFacts {
    pub key: &'static str,
    pub default: &'static str,
    pub example: &'static str,
    pub help: &'static str,
    pub elsewhere: &'static str,
    pub formerly: &'static str,
}

impl KeyFacts {
    pub fn is_required(&self) -> bool {
        self.default == "required"
    }

    /// The key under `table`.
    pub fn key(&self, table: &str, bounds: String) -> KeyDeclaration {
        let default = (!self.is_required()).then(|| self.default.to_owned());
        let example = if self.example.is_empty() { self.default } else { self.example };
        let (path, example) = (join(table, self.key), example.to_owned());
        KeyDeclaration { path, default, example, bounds, help: self.help.trim().to_owned(), elsewhere: self.elsewhere }
    }
}

/// What `settings!` implements: a value that is read from the keys of a table.
pub trait TableSettings: Sized {
    /// The keys, under the path of the table.
    fn keys(table: &str) -> Vec<KeyDeclaration>;

    /// Reads every key; what is absent or wrong gets its default.
    fn read(table: &mut TomlTable<'_>, findings: &mut Findings<'_>) -> Self;

    /// What an empty table means.
    fn defaults() -> Self {
        let empty = DeTable::default();
        Self::read(&mut TomlTable::root(&empty), &mut Findings::new("default", "", Keys::default()))
    }
}

/// A table as it was read, and which of its keys were written where.
#[derive(Debug)]
pub struct Section<'a, S> {
    pub settings: S,
    pub written: WrittenKeys<'a>,
}

impl<'a, S: TableSettings> Section<'a, S> {
    /// Reads all of `table`.
    pub fn read(mut table: TomlTable<'a>, findings: &mut Findings<'_>) -> Self {
        let settings = S::read(&mut table, findings);
        Self { settings, written: table.finish(findings) }
    }
}
