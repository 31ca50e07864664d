//! Pages of the manual in the language of `man`, a few of whose requests are all that they need.
//!
//! What is handed in is plain text, in which backticks mark what is typed as it stands. Nothing in it can become a
//! request: every character that `man` would read as one is spelled out, so a key may begin with a dot and a default
//! may have quotes. ARCHITECTURE.md says why clap_mangen does not write the pages.

use std::fmt::Write as _;

/// A page while it is written.
#[derive(Debug)]
pub struct ManPage(String);

impl ManPage {
    /// Begins the page called `name` in `section`, with one line that says what it is about.
    pub fn new(name: &str, section: u8, about: &str) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let mut page = Self(String::new());
        // No date: the same sources make the same page.
        let _ = writeln!(page.0, ".TH {} {section} \"\" \"udpd {version}\" \"udpd\"", plain(&name.to_uppercase()));
        page.heading("NAME");
        let _ = writeln!(page.0, "{} \\- {}", plain(name), plain(about));
        page
    }

    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.0, ".SH \"{}\"", plain(text).replace('"', "\\(dq"));
    }

    pub fn subheading(&mut self, text: &str) {
        let _ = writeln!(self.0, ".SS \"{}\"", plain(text).replace('"', "\\(dq"));
    }

    /// The first one behind a heading.
    pub fn text(&mut self, text: &str) {
        text.lines().for_each(|line| self.line(&marked(line)));
    }

    pub fn paragraph(&mut self, text: &str) {
        self.0.push_str(".PP\n");
        self.text(text);
    }

    /// A term and what it means.
    pub fn item(&mut self, term: &str, meaning: &str) {
        self.0.push_str(".TP\n");
        self.line(&format!("\\fB{}\\fR", plain(term)));
        self.text(meaning);
    }

    /// Another paragraph of the item before.
    pub fn more_of_item(&mut self, text: &str) {
        self.0.push_str(".IP\n");
        self.text(text);
    }

    /// Lines as they stand.
    pub fn lines(&mut self, text: &str) {
        // Behind a heading there is a paragraph already.
        let last = self.0.trim_end().lines().next_back();
        if !last.is_some_and(|line| line.starts_with(".SH") || line.starts_with(".SS")) {
            self.0.push_str(".PP\n");
        }
        self.0.push_str(".nf\n");
        text.lines().for_each(|line| self.line(&plain(line)));
        self.0.push_str(".fi\n");
    }

    pub fn finish(self) -> String {
        self.0
    }

    /// A line that is empty or begins with a request would be more than text.
    fn line(&mut self, text: &str) {
        let guard = if text.is_empty() || text.starts_with(['.', '\'']) { "\\&" } else { "" };
        let _ = writeln!(self.0, "{guard}{text}");
    }
}

/// Text in which nothing means anything to `man`, and that can be copied from a terminal as it was written.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\(rs"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            '"' => out.push_str("\\(dq"),
            _ => out.push(character),
        }
    }
    out
}

/// The same with bold between backticks.
fn marked(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(number, part)| if number % 2 == 1 { format!("\\fB{}\\fR", plain(part)) } else { plain(part) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_a_request_and_what_is_typed_is_bold() {
        let mut page = ManPage::new("udpd.toml", 5, "keys");
        page.heading("A \"B\"");
        page.text(".so /etc/passwd\n'br\n\nwrite `-c FILE` or \\fI");
        let page = page.finish();
        let lines: Vec<_> = page.lines().skip(3).collect();
        let expected =
            [".SH \"A \\(dqB\\(dq\"", "\\&.so /etc/passwd", "\\(aqbr", "\\&", "write \\fB\\-c FILE\\fR or \\(rsfI"];
        assert_eq!(lines, expected);
    }
}
