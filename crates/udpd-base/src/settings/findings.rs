//! What reading a text has found: its problems, each at a place, and the warnings.
//!
//! Reading goes on after a problem, so that the operator hears of all of them at once.

use std::ops::Range;

use super::keys::{Keys, join};
use super::problem::{Problem, Problems};
use crate::text::advice::ValueAdvice;

/// Where a value stands: its byte in the text, and its key as shown to the operator.
#[derive(Debug, Clone)]
pub struct ValuePlace {
    pub offset: usize,
    pub key: String,
}

impl ValuePlace {
    /// The place of a key that should be inside the table at this place, and is not.
    pub fn inner(&self, key: &str) -> ValuePlace {
        ValuePlace { offset: self.offset, key: join(&self.key, key) }
    }
}

/// A value and its place.
#[derive(Debug, Clone)]
pub struct Located<T> {
    pub value: T,
    pub place: ValuePlace,
}

/// The text being read, the keys that it may hold, and what is wrong with it so far.
#[derive(Debug)]
pub struct Findings<'t> {
    file: &'t str,
    text: &'t str,
    line_starts: Vec<usize>,
    pub keys: Keys,
    problems: Vec<Problem>,
    omitted: usize,
    warnings: Vec<Problem>,
}

impl<'t> Findings<'t> {
    pub fn new(file: &'t str, text: &'t str, keys: Keys) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { file, text, line_starts, keys, problems: Vec::new(), omitted: 0, warnings: Vec::new() }
    }

    /// What the text is called: the path of the configuration, where it is a file.
    pub fn file(&self) -> &'t str {
        self.file
    }

    pub fn count(&self) -> usize {
        self.problems.len() + self.omitted
    }

    pub fn refuse(&mut self, place: &ValuePlace, advice: ValueAdvice) {
        self.add(|findings| findings.problem(place, advice));
    }

    /// Adds a problem of a line of another file, which the value of `key` names.
    pub fn refuse_line(&mut self, file: &str, line: usize, key: &str, ValueAdvice { what, cure }: ValueAdvice) {
        self.add(|_| Problem { file: file.to_owned(), line, column: 1, key: key.to_owned(), what, cure });
    }

    fn add(&mut self, problem: impl FnOnce(&Self) -> Problem) {
        match self.problems.len() == Problems::SHOWN_MAX {
            true => self.omitted += 1,
            false => self.problems.push(problem(self)),
        }
    }

    /// Adds a problem, from its two halves.
    pub fn say(&mut self, place: &ValuePlace, what: impl Into<String>, cure: impl Into<String>) {
        self.refuse(place, ValueAdvice::new(what, cure));
    }

    /// The value, or `None` with the advice added to the problems.
    pub fn accept<T>(&mut self, outcome: Result<T, ValueAdvice>, place: &ValuePlace) -> Option<T> {
        outcome.map_err(|advice| self.refuse(place, advice)).ok()
    }

    /// Adds something that is right for now.
    pub fn warn(&mut self, place: &ValuePlace, advice: ValueAdvice) {
        self.warnings.push(self.problem(place, advice));
    }

    fn problem(&self, place: &ValuePlace, ValueAdvice { what, cure }: ValueAdvice) -> Problem {
        let (line, column) = self.position(place.offset);
        Problem { file: self.file.to_owned(), line, column, key: place.key.clone(), what, cure }
    }

    /// Line and column, both from 1, columns in characters.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        let start = self.line_starts[line - 1];
        let column = self.text.get(start..offset).map_or(offset - start, |before| before.chars().count());
        (line, column + 1)
    }

    /// The text as written, cut to what fits a message.
    pub fn written(&self, span: Range<usize>) -> String {
        const SHOWN_MAX: usize = 60;
        let text = self.text.get(span).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        match line.chars().count() > SHOWN_MAX || line.len() < text.trim_end().len() {
            true => line.chars().take(SHOWN_MAX).chain("...".chars()).collect(),
            false => line.to_owned(),
        }
    }

    /// `value` and the warnings, unless there are problems.
    pub fn finish<T>(self, value: T) -> Result<(T, Vec<Problem>), Problems> {
        match self.problems.is_empty() {
            true => Ok((value, self.warnings)),
            false => Err(self.into_problems()),
        }
    }

    /// The problems, when it is known that there are some.
    pub fn into_problems(self) -> Problems {
        Problems::new(self.problems, self.omitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Findings<'_> {
        Findings::new("file", text, Keys::default())
    }

    #[test]
    fn a_position_counts_lines_and_characters_from_one() {
        let findings = findings("ä = 1\r\nbc\n");
        assert_eq!(findings.position(0), (1, 1));
        assert_eq!(findings.position(3), (1, 3), "the two bytes of an umlaut are one column");
        assert_eq!(findings.position(8), (2, 1));
        assert_eq!(findings.position(9), (2, 2));
        assert_eq!(findings.position(11), (3, 1), "the end of the text is a place, too");
    }

    #[test]
    fn what_is_written_is_cut_to_one_short_line() {
        let text = format!("[\n1]{}", "x".repeat(100));
        let findings = findings(&text);
        assert_eq!(findings.written(0..4), "[...");
        assert_eq!(findings.written(4..104).len(), 63);
        assert_eq!(findings.written(2..3), "1");
    }

    #[test]
    fn more_problems_than_anyone_reads_are_counted() {
        let mut findings = findings("");
        for _ in 0..Problems::SHOWN_MAX + 5 {
            findings.say(&ValuePlace { offset: 0, key: "key".into() }, "what", "cure");
        }
        assert_eq!(findings.count(), Problems::SHOWN_MAX + 5);
        let problems = findings.into_problems();
        assert_eq!(problems.list().len(), Problems::SHOWN_MAX);
        assert!(problems.to_string().ends_with("5 more problems are not shown; correct these first"));
    }
}
