//! How a setting is declared and read: one line for each key, and a reader of TOML that knows where every value stands.
//!
//! This room knows no key of the daemon. A room that has settings declares them beside the code that uses them; the
//! configuration puts them together, and checks one against another.

mod declare;
pub(crate) mod findings;
pub(crate) mod keys;
mod kind;
pub(crate) mod kinds;
mod line;
mod problem;
pub(crate) mod syntax;
pub(crate) mod table;

#[cfg(test)]
mod tests;

pub(crate) use declare::settings;
pub(crate) use findings::{Findings, Located, Place};
pub(crate) use keys::{Key, Keys};
pub use kinds::Chosen;
pub(crate) use kinds::Kind;
pub(crate) use line::{Line, Section, Settings};
pub use problem::{Problem, Problems};
pub(crate) use table::{Field, Table, Written};
