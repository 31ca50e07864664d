//! How a setting is declared and read: one line for each key, and a reader of TOML that knows where every value stands.
//!
//! This room knows no key of the daemon. A room that has settings declares them beside the code that uses them; the
//! configuration puts them together, and checks one against another.

mod declare;
pub mod findings;
pub mod keys;
mod kind;
pub mod kinds;
mod line;
mod problem;
pub mod syntax;
pub mod table;

#[cfg(test)]
mod tests;

pub use declare::settings;
pub use findings::{Findings, Located, ValuePlace};
pub use keys::{KeyDeclaration, Keys};
pub use kinds::Chosen;
pub use kinds::ValueKind;
pub use line::{KeyFacts, Section, TableSettings};
pub use problem::{Problem, Problems};
pub use table::{Field, TomlTable, WrittenKeys};
