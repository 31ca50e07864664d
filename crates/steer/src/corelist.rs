//! Core lists as the kernel writes them: "0-3,8". Parsing is strict because a list that is misread puts a thread, or an
//! interrupt, on the wrong core without any sign of it.

use std::fmt;

/// The highest core number that is accepted: the largest `CONFIG_NR_CPUS` of a kernel, and a bound on what a range may
/// expand to.
const CORE_MAX: usize = 8191;

/// Why a text is not a core list, and what would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreListError {
    /// What is wrong, with the part of the text that is.
    pub what: String,
    /// What would be right.
    pub cure: String,
}

impl fmt::Display for CoreListError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.what, self.cure)
    }
}

impl std::error::Error for CoreListError {}

/// Reads a core list; the result is sorted and without doubles. An empty text is an empty list.
pub fn parse_core_list(text: &str) -> Result<Vec<usize>, CoreListError> {
    let text = text.trim();
    let mut cores = Vec::new();
    if text.is_empty() {
        return Ok(cores);
    }
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (parse_core(first, part)?, parse_core(last, part)?),
            None => (parse_core(part, part)?, parse_core(part, part)?),
        };
        if first > last {
            let what = format!("the range {part:?} runs backwards");
            return Err(CoreListError { what, cure: format!("write \"{last}-{first}\"") });
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

fn parse_core(digits: &str, part: &str) -> Result<usize, CoreListError> {
    let fail = |what| CoreListError {
        what,
        cure: "write numbers and ranges separated by commas, such as \"0-3,8\"".to_owned(),
    };
    match digits.parse::<usize>() {
        Ok(core) if core > CORE_MAX => Err(fail(format!("{core} is not a core number: the highest is {CORE_MAX}"))),
        // A sign parses as well, and is no part of a core number.
        Ok(core) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Ok(core),
        _ => Err(fail(format!("{part:?} is not a core number or a range"))),
    }
}

/// Writes a sorted list of cores the way [`parse_core_list`] reads it.
pub fn format_core_list(cores: &[usize]) -> String {
    let mut text = String::new();
    let mut rest = cores;
    while let Some(&first) = rest.first() {
        let run = rest.iter().zip(first..).take_while(|(core, expected)| **core == *expected).count();
        let last = first + run - 1;
        if !text.is_empty() {
            text.push(',');
        }
        match run {
            1 => text.push_str(&first.to_string()),
            _ => text.push_str(&format!("{first}-{last}")),
        }
        rest = &rest[run..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_cores_are_read_sorted_and_without_doubles() {
        assert_eq!(parse_core_list("8,0-3,2\n"), Ok(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_core_list(""), Ok(vec![]));
        assert_eq!(parse_core_list(" 5 "), Ok(vec![5]));
    }

    #[test]
    fn what_is_not_a_core_list_is_refused_with_the_part_that_is_wrong() {
        for (text, part) in [
            ("0-", "\"0-\""),
            ("a", "\"a\""),
            ("3-1", "\"3-1\""),
            ("0,,2", "\"\""),
            ("-1", "\"-1\""),
            ("0-99999", "99999"),
        ] {
            let error = parse_core_list(text).expect_err(text);
            assert!(error.what.contains(part), "{text}: {error}");
        }
        assert!(parse_core_list("+1").is_err(), "a sign is not part of a core number");
    }

    #[test]
    fn every_list_that_is_written_is_read_back_equal() {
        for pattern in 0_u32..4096 {
            let cores: Vec<usize> = (0..12).filter(|core| pattern & (1 << core) != 0).collect();
            assert_eq!(parse_core_list(&format_core_list(&cores)), Ok(cores));
        }
    }
}
