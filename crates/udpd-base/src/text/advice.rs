//! What is wrong with a value and what would be right: the two halves of every refusal.

use std::fmt;

/// What is wrong with one value and what would be right, before it is known where the value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueAdvice {
    /// What is wrong, with the value.
    pub what: String,
    pub cure: String,
}

impl ValueAdvice {
    /// An advice from its two halves.
    pub fn new(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { what: what.into(), cure: cure.into() }
    }
}

impl fmt::Display for ValueAdvice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.what, self.cure)
    }
}
