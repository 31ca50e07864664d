//! The width of what people read, and its words: prose, comments, texts and code fit a window of 120 columns, and what
//! operators read names who does what.
//!
//! rustfmt leaves comments and string literals as they are, and nothing formats documents and scripts, so without this
//! test the long lines come back. Tables are exempt because they cannot be folded, and addresses for the same reason.

use crate::util::source::texts;

const COLUMNS_MAX: usize = 120;

#[test]
fn no_line_is_wider_than_a_window() {
    let looked_at = texts().into_iter().filter(|(path, _)| kind_of(path).is_some());
    let places = |(path, text): (String, String)| {
        too_wide(&path, &text).into_iter().map(|line| format!("{path}:{line}")).collect::<Vec<_>>()
    };
    let wrong: Vec<String> = looked_at.flat_map(places).collect();
    assert!(wrong.is_empty(), "a line has {COLUMNS_MAX} columns at most\n  {}\n", wrong.join("\n  "));
}

/// The text of a line without what is quoted between backticks.
fn unquoted(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn pages_and_comments_for_operators_name_who_does_what() {
    let is_of_people = |path: &str| {
        let folder = path.split('/').next().unwrap_or_default();
        ["docs", "config", "packaging", "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].contains(&folder)
            // A licence, and two pages with tables from the sources, which have the words of their declarations.
            && path != "packaging/debian/copyright"
    };
    let vague = ["somebody", "nobody", "anybody", "whoever", "whom"];
    let mut wrong = Vec::new();
    for (path, text) in texts().iter().filter(|(path, _)| is_of_people(path)) {
        for (index, line) in text.lines().enumerate() {
            let line = unquoted(line).to_lowercase();
            let mut words = line.split(|letter: char| !letter.is_alphanumeric());
            if let Some(word) = words.find(|word| vague.contains(word)) {
                wrong.push(format!("{path}:{}: {word}", index + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "say which program, user or thread it is\n  {}\n", wrong.join("\n  "));
}

#[derive(PartialEq)]
enum Kind {
    Rust,
    Markdown,
    Shell,
    /// Only its comments are prose.
    Settings,
}

fn kind_of(path: &str) -> Option<Kind> {
    match path.rsplit(['.', '/']).next()? {
        "rs" => Some(Kind::Rust),
        "md" => Some(Kind::Markdown),
        "sh" | "run" => Some(Kind::Shell),
        "toml" | "conf" | "service" | "sysusers" | "logrotate" => Some(Kind::Settings),
        _ => None,
    }
}

/// The numbers of the lines of `text` that are too wide and could be folded.
fn too_wide(path: &str, text: &str) -> Vec<usize> {
    let kind = kind_of(path).expect("a kind of file that is looked at");
    let mut is_code_block = false;
    let mut wrong = Vec::new();
    for (number, line) in text.lines().enumerate() {
        is_code_block ^= kind == Kind::Markdown && line.trim_start().starts_with("```");
        let is_exempt = match kind {
            // A row of a table that a test expects has many gaps.
            Kind::Rust => line.contains("://") || line.trim_start().starts_with('"') && line.matches("   ").count() > 3,
            Kind::Markdown => is_code_block || line.starts_with('|') || line.contains("://"),
            Kind::Settings => !line.starts_with('#'),
            Kind::Shell => line.contains("://"),
        };
        if !is_exempt && line.chars().count() > COLUMNS_MAX {
            wrong.push(number + 1);
        }
    }
    wrong
}

#[test]
fn the_eye_of_this_test_lets_only_tables_addresses_and_code_blocks_pass() {
    let wide = "word ".repeat(30);
    assert_eq!(too_wide("a.rs", &format!("fn main() {{}}\n// {wide}\n    \"{wide}\"\n")), [2, 3]);
    assert_eq!(too_wide("a.rs", &format!("    \"{}\"\n", "1    ".repeat(30))), [0; 0]);
    assert_eq!(too_wide("a.md", &format!("{wide}\n| {wide} |\n```\n{wide}\n```\n{wide}\nhttps://{wide}\n")), [1, 6]);
    assert_eq!(too_wide("a.toml", &format!("key = \"{wide}\"\n# {wide}\n")), [2]);
    assert_eq!(too_wide("a.sh", &format!("echo {wide}\n")), [1]);
}
