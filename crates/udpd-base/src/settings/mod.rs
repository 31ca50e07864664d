//! How a setting is declared and read: one line for each key, and a reader of TOML that knows where every value stands.
//!
//! This module knows no key of the daemon. Code that has settings declares them beside it; the
//! configuration puts them together, and checks one against another.

use toml::de::DeTable;

use self::keys::join;

pub mod findings;
pub mod keys;
pub mod kinds;
pub mod table;
pub mod toml_errors;

#[cfg(test)]
mod tests;

pub use findings::{Findings, Located, Problem, Problems, ValuePlace};
pub use keys::{KeyDeclaration, Keys};
pub use kinds::{Chosen, ValueKind};
pub use table::{Field, TomlTable, WrittenKeys};

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

// One line for each key: its field, its type, its default as an operator would write it, how it is written, what it
// means. From these lines come the struct, its defaults, the reader, the suggestions and the documentation.
//
// ```text
// settings! {
//     /// `[[listener]]`
//     pub struct Listener {
//         /// Required. Its name in metrics and in the ledger.
//         name: String = required like "syslog", QuotedText(check_name);
//         /// The longest payload that is kept whole.
//         max_length_bytes as max_length: usize = "2KiB", ByteSize(1..=65_535), elsewhere "mtu max_size";
//     }
// }
// ```
//
// The default is TOML and is read like what an operator writes, so that a key that is absent and a key that shows its
// default cannot differ. `like` is an example, where the default is none; `elsewhere` what other programs call the
// key; `formerly` an older spelling, which is accepted with a warning; a kind whose older
// spelling counted something else has a `read_older` of its own.

/// Declares a struct of settings, or with `for TYPE` the keys of one that is declared elsewhere; `..` gives the fields
/// of that which no key fills.
#[macro_export]
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $(
                $(#[doc = $help:literal])*
                $field:ident $(as $key:ident)? : $type:ty = $default:tt $(like $example:tt)?, $kind:expr
                $(, elsewhere $elsewhere:literal)? $(, formerly $formerly:literal)? ;
            )*
        }
    ) => {
        $(#[$meta])*
        $visibility struct $name {
            $( $(#[doc = $help])* $visibility $field: $type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                $crate::settings::TableSettings::defaults()
            }
        }

        $crate::settings::settings! {
            for $name {
                $(
                    $(#[doc = $help])*
                    $field $(as $key)? : $type = $default $(like $example)?, $kind
                    $(, elsewhere $elsewhere)? $(, formerly $formerly)? ;
                )*
            }
        }
    };
    (
        for $name:ident {
            $(
                $(#[doc = $help:literal])*
                $field:ident $(as $key:ident)? : $type:ty = $default:tt $(like $example:tt)?, $kind:expr
                $(, elsewhere $elsewhere:literal)? $(, formerly $formerly:literal)? ;
            )*
            $(.. $rest:ident = $value:expr ;)*
        }
    ) => {
        impl $crate::settings::TableSettings for $name {
            fn keys(table: &str) -> Vec<$crate::settings::KeyDeclaration> {
                use $crate::settings::ValueKind;
                let mut keys = Vec::new();
                $({
                    let line = $crate::settings::settings!(@line $field [$($key)?] $default [$($example)?]
                        [$($help)*] [$($elsewhere)?] [$($formerly)?]);
                    let kind = $kind;
                    keys.extend(ValueKind::<$type>::keys(&kind, line.key(table, ValueKind::<$type>::bounds(&kind))));
                })*
                keys
            }

            fn read(
                table: &mut $crate::settings::TomlTable<'_>,
                findings: &mut $crate::settings::Findings<'_>,
            ) -> Self {
                use $crate::settings::ValueKind;
                Self {
                    $($field: ValueKind::<$type>::take(
                        &$kind,
                        &$crate::settings::settings!(@line $field [$($key)?] $default [$($example)?]
                            [$($help)*] [$($elsewhere)?] [$($formerly)?]),
                        table,
                        findings,
                    ),)*
                    $($rest: $value,)*
                }
            }
        }
    };
    (@line $field:ident [] $($rest:tt)*) => { $crate::settings::settings!(@line $field [$field] $($rest)*) };
    (
        @line $field:ident [$key:ident] $default:tt
        [$($example:tt)?] [$($help:tt)*] [$($elsewhere:tt)?] [$($formerly:tt)?]
    ) => {
        $crate::settings::KeyFacts {
            key: stringify!($key),
            default: stringify!($default),
            example: concat!($(stringify!($example))?),
            help: concat!($($help),*),
            elsewhere: concat!($($elsewhere)?),
            formerly: concat!($($formerly)?),
        }
    };
}
pub use settings;
