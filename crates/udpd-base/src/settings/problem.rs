//! What is wrong with a configuration, in the form an operator can act on.
//!
//! Every problem names its place (`FILE:LINE:COLUMN`, which editors and CI systems can jump to), the key, what is wrong
//! and what would be right. All problems of a file are reported together, because an operator who has to start the
//! program once per mistake stops reading the messages.

use std::fmt;

use crate::exit::{ExitCode, Failure};
use crate::text::advice::ValueAdvice;

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
