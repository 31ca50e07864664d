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
    /// An advice from its two halves. Both show parts of values, which may come from elsewhere, as in a list of
    /// networks: what would command a terminal or begin another line is escaped.
    pub fn new(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { what: harmless(what.into()), cure: harmless(cure.into()) }
    }
}

impl fmt::Display for ValueAdvice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.what, self.cure)
    }
}

fn harmless(text: String) -> String {
    let is_quote = |letter: char| "\"'\\".contains(letter);
    let is_shown = |letter: char| letter.is_ascii_graphic() || letter == ' ';
    if text.chars().all(is_shown) {
        return text;
    }
    text.chars()
        .map(|letter| if is_quote(letter) { letter.to_string() } else { letter.escape_debug().to_string() })
        .collect()
}

/// The candidate that differs from `written` by so few letters that it was probably meant.
pub fn nearest<'c>(written: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    // Nothing that is far longer than any word here can be a slip for one, and comparing it would take long.
    if written.len() > 64 {
        return None;
    }
    let lower = written.to_lowercase().replace('-', "_");
    let allowed = |candidate: &str| (candidate.len().max(lower.len()) / 3).clamp(1, 3);
    candidates
        .map(|candidate| (strsim::osa_distance(&lower, candidate), candidate))
        .filter(|(steps, candidate)| *steps <= allowed(candidate))
        .min_by_key(|(steps, _)| *steps)
        .map(|(_, candidate)| candidate)
}
