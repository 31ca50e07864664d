//! What reading a text has found: its problems, each at a place, and the warnings.
//!
//! Reading goes on after a problem, so that the operator is told all of them at once.

use std::fmt;
use std::ops::Range;

use super::keys::{Keys, join};
use crate::exit::{ExitCode, Failure};
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

// What is wrong with a configuration, in the form an operator can act on.
//
// Every problem names its place (`FILE:LINE:COLUMN`, which editors and CI systems can jump to), the key, what is wrong
// and what would be right. All problems of a file are reported together, because an operator who has to start the
// program once per mistake stops reading the messages.

/// One problem of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file as the operator named it.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The whole key, such as `listener.batch_size` or `sink.archive.path`.
    pub key: String,
    pub what: String,
    pub cure: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}:{}: {}: {}; {}", self.file, self.line, self.column, self.key, self.what, self.cure)
    }
}

/// All problems of a file and of those that it names, in the order of the text. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Problem>,
    omitted: usize,
}

impl Problems {
    /// More than this many do not help; the rest is only counted.
    pub const SHOWN_MAX: usize = 100;

    /// Sorts `list` by place, file by file as they come. `omitted` is how many more there were.
    pub fn new(mut list: Vec<Problem>, omitted: usize) -> Self {
        let mut files: Vec<String> = Vec::new();
        for problem in &list {
            if !files.contains(&problem.file) {
                files.push(problem.file.clone());
            }
        }
        let file = |problem: &Problem| files.iter().position(|file| *file == problem.file);
        list.sort_by(|a, b| (file(a), a.line, a.column, &a.key).cmp(&(file(b), b.line, b.column, &b.key)));
        Self { list, omitted }
    }

    /// The single problem of a file that could not even be read as text.
    pub fn single(file: &str, line: usize, column: usize, key: &str, advice: ValueAdvice) -> Self {
        let ValueAdvice { what, cure } = advice;
        Self::new(vec![Problem { file: file.to_owned(), line, column, key: key.to_owned(), what, cure }], 0)
    }

    /// The problems, in the order of the text.
    pub fn list(&self) -> &[Problem] {
        &self.list
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            if index > 0 {
                formatter.write_str("\n")?;
            }
            write!(formatter, "{problem}")?;
        }
        match self.omitted {
            0 => Ok(()),
            count => write!(formatter, "\n{count} more problems are not shown; correct these first"),
        }
    }
}

impl std::error::Error for Problems {}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Failure::new(ExitCode::Configuration, problems.to_string())
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

    fn problem(line: usize, column: usize) -> Problem {
        Problem {
            file: "udpd.toml".into(),
            line,
            column,
            key: "listener.batch_size".into(),
            what: "0 is out of range".into(),
            cure: "write 1 to 1024".into(),
        }
    }

    #[test]
    fn a_problem_prints_as_file_line_column_key_what_and_cure() {
        assert_eq!(
            problem(3, 14).to_string(),
            "udpd.toml:3:14: listener.batch_size: 0 is out of range; write 1 to 1024"
        );
    }

    #[test]
    fn problems_stand_in_the_order_of_the_text_and_end_with_exit_78() {
        let problems = Problems::new(vec![problem(9, 1), problem(3, 14), problem(3, 2)], 2);
        let places: Vec<_> = problems.list().iter().map(|one| (one.line, one.column)).collect();
        assert_eq!(places, [(3, 2), (3, 14), (9, 1)]);
        let failure = Failure::from(problems);
        assert_eq!(failure.code, ExitCode::Configuration);
        assert_eq!(failure.message.lines().count(), 4);
        assert!(failure.message.ends_with("2 more problems are not shown; correct these first"));
    }
}
