//! One line for each key: its field, its type, its default as an operator would write it, how it is written, what it
//! means. From these lines come the struct, its defaults, the reader, the suggestions and the documentation.
//!
//! ```text
//! settings! {
//!     /// `[[listener]]`
//!     pub struct Listener {
//!         /// Required. Its name in metrics and in the ledger.
//!         name: String = required like "syslog", Text(check_name);
//!         /// The longest payload that is kept whole.
//!         max_length_bytes as max_length: usize = "2KiB", Size(1..=65_535), elsewhere "mtu max_size";
//!     }
//! }
//! ```
//!
//! The default is TOML and is read like what an operator writes, so that a key that is absent and a key that shows its
//! default cannot differ. `like` is an example, where the default is none; `elsewhere` what other programs call the
//! key; `formerly` an older spelling, which is accepted with a warning; a kind whose older
//! spelling counted something else has a `read_older` of its own.

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
