//! A picture as lines of text with a few marks, and how it is written to a terminal.
//!
//! A whole picture is some kilobytes once a second, so it is written whole, in one call, from the upper left corner and
//! without clearing first: nothing flickers, and nothing has to be compared with what was there. That is all that a
//! library for terminal interfaces would do for this screen; with its layouts, widgets and a second event loop ratatui
//! and crossterm bring 49 crates more, one of which is banned here.

use std::fmt::Write as _;

/// How a piece of text stands out. Each is seen without colour as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mark {
    #[default]
    Plain,
    Strong,
    /// Less important.
    Faint,
    /// A loss.
    Bad,
    /// Headings, and the line that is chosen.
    Reverse,
}

/// One line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line(Vec<(Mark, String)>);

impl Line {
    pub(super) fn of(mark: Mark, text: impl Into<String>) -> Self {
        Self(vec![(mark, text.into())])
    }

    pub(super) fn push(&mut self, mark: Mark, text: impl Into<String>) {
        self.0.push((mark, text.into()));
    }

    pub(super) fn text(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// With the codes of a terminal, cut to its width.
    fn write(&self, to: &mut String, width: usize, has_colour: bool) {
        let mut left = width;
        for (mark, text) in &self.0 {
            let shown: String = text.chars().take(left).collect();
            left -= shown.chars().count();
            let code = match mark {
                Mark::Plain => "",
                Mark::Strong => "1",
                Mark::Faint if has_colour => "2",
                Mark::Faint => "",
                Mark::Bad if has_colour => "1;31",
                Mark::Bad => "1",
                Mark::Reverse => "7",
            };
            let _ = match code {
                "" => write!(to, "{shown}"),
                _ => write!(to, "\x1b[{code}m{shown}\x1b[0m"),
            };
        }
    }
}

/// Text of others with nothing in it that a terminal would obey, and every character one column wide.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|character| if matches!(character, ' '..='~') { character } else { '?' }).collect()
}

/// Everything a terminal of this size shows, as what is written to it.
pub(super) fn paint(lines: &[Line], width: usize, height: usize, has_colour: bool) -> String {
    let mut text = String::from("\x1b[H");
    for (row, line) in lines.iter().take(height).enumerate() {
        if row > 0 {
            text.push_str("\r\n");
        }
        // Before the text: behind one as wide as the terminal the cursor stands on the last character, and erases it.
        text.push_str("\x1b[K");
        line.write(&mut text, width, has_colour);
    }
    // What an earlier and longer picture left below.
    if lines.len() < height {
        text.push_str("\r\n\x1b[J");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_command_the_terminal() {
        assert_eq!(printable("in\x1b]0;x\x07\u{9b}2J\u{202e}é\n"), "in?]0;x??2J???");
        assert!(printable("\u{9b}\u{0}\u{7f}").chars().all(|character| character == '?'));
    }

    #[test]
    fn a_picture_is_cut_to_the_terminal_and_clears_the_rest() {
        let mut line = Line::of(Mark::Plain, "abc");
        line.push(Mark::Bad, "defg");
        let lines = [line, Line::of(Mark::Reverse, "second"), Line::default()];
        assert_eq!(paint(&lines, 5, 2, true), "\x1b[H\x1b[Kabc\x1b[1;31mde\x1b[0m\r\n\x1b[K\x1b[7msecon\x1b[0m");
        assert_eq!(paint(&lines[..1], 80, 2, false), "\x1b[H\x1b[Kabc\x1b[1mdefg\x1b[0m\r\n\x1b[J");
        assert_eq!(paint(&lines, 0, 0, true), "\x1b[H");
    }
}
