//! A picture as lines of text with a few styles, and the terminal that shows it: taken at the start, given back as it
//! was however the command ends.
//!
//! A whole picture is some kilobytes once a second, so it is written whole, in one call, from the upper left corner and
//! without clearing first: nothing flickers, and nothing has to be compared with what was there. That is all that a
//! library for terminal interfaces would do for this screen; with its layouts, widgets and a second event loop ratatui
//! and crossterm bring 49 crates more, one of which is banned here.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic;
use std::sync::{Arc, Mutex};

use nix::sys::termios::{self, LocalFlags, SetArg, SpecialCharacterIndices, Termios};
use udpd_base::os::threads::lock;

/// How a piece of text stands out. Each is seen without colour as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum TextStyle {
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

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ScreenLine(Vec<(TextStyle, String)>);

impl ScreenLine {
    pub(super) fn of(mark: TextStyle, text: impl Into<String>) -> Self {
        Self(vec![(mark, text.into())])
    }

    pub(super) fn push(&mut self, mark: TextStyle, text: impl Into<String>) {
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
                TextStyle::Plain => "",
                TextStyle::Strong => "1",
                TextStyle::Faint if has_colour => "2",
                TextStyle::Faint => "",
                TextStyle::Bad if has_colour => "1;31",
                TextStyle::Bad => "1",
                TextStyle::Reverse => "7",
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
pub(super) fn paint(lines: &[ScreenLine], width: usize, height: usize, has_colour: bool) -> String {
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

/// The other screen, and no cursor.
const TAKE: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";

/// The screen that was there, with its cursor, and no mark left on.
const GIVE_BACK: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// A size to work with where the terminal does not tell.
const USUAL: (usize, usize) = (80, 24);

/// A terminal in our hands.
pub(super) struct Screen {
    /// How its keys were read before; `None` when keys do not come from a terminal.
    before: Arc<Mutex<Option<Termios>>>,
}

impl Screen {
    /// Takes the terminal. A panic gives it back before it is told, so that it can be read.
    pub(super) fn take() -> Self {
        let before = Arc::new(Mutex::new(termios::tcgetattr(io::stdin()).ok()));
        let screen = Self { before: Arc::clone(&before) };
        screen.enter();
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |about| {
            leave(&before);
            usual(about);
        }));
        screen
    }

    /// Takes it again, after another program had it.
    pub(super) fn enter(&self) {
        let before = lock(&self.before);
        if let Some(mut own) = before.clone() {
            // Each key at once and unseen. Ctrl-C stays a signal; Ctrl-Z comes as a key, because the terminal is to be
            // given back before the process stops.
            own.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
            own.control_chars[SpecialCharacterIndices::VSUSP as usize] = 0;
            own.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
            own.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
            // Without it keys come by the line, which is better than no picture.
            let _ = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, &own);
        }
        drop(before);
        // Where this fails the next picture does, and that ends the command.
        let _ = show(TAKE);
    }

    pub(super) fn leave(&self) {
        leave(&self.before);
    }

    pub(super) fn size() -> (usize, usize) {
        let size = terminal_size::terminal_size_of(io::stdout().as_fd());
        size.map_or(USUAL, |(width, height)| (usize::from(width.0), usize::from(height.0)))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

fn leave(before: &Mutex<Option<Termios>>) {
    // A terminal that is gone needs nothing.
    let _ = show(GIVE_BACK);
    if let Some(before) = &*lock(before) {
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, before);
    }
}

pub(super) fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use nix::pty::openpty;

    use super::*;

    #[test]
    fn a_name_cannot_command_the_terminal() {
        assert_eq!(printable("in\x1b]0;x\x07\u{9b}2J\u{202e}é\n"), "in?]0;x??2J???");
        assert!(printable("\u{9b}\u{0}\u{7f}").chars().all(|character| character == '?'));
    }

    #[test]
    fn a_picture_is_cut_to_the_terminal_and_clears_the_rest() {
        let mut line = ScreenLine::of(TextStyle::Plain, "abc");
        line.push(TextStyle::Bad, "defg");
        let lines = [line, ScreenLine::of(TextStyle::Reverse, "second"), ScreenLine::default()];
        assert_eq!(paint(&lines, 5, 2, true), "\x1b[H\x1b[Kabc\x1b[1;31mde\x1b[0m\r\n\x1b[K\x1b[7msecon\x1b[0m");
        assert_eq!(paint(&lines[..1], 80, 2, false), "\x1b[H\x1b[Kabc\x1b[1mdefg\x1b[0m\r\n\x1b[J");
        assert_eq!(paint(&lines, 0, 0, true), "\x1b[H");
    }

    /// What tells a second process of this test that it is the one that panics.
    const CHILD: &str = "UDPD_TEST_TERMINAL";
    const PANIC: &str = "a panic on order";

    #[test]
    fn a_panic_gives_the_terminal_back_as_it_was_before_it_is_told() {
        if std::env::var_os(CHILD).is_some() {
            // Never dropped, so that only the hook gives it back.
            std::mem::forget(Screen::take());
            panic!("{PANIC}");
        }
        let pair = openpty(None, None).expect("a terminal");
        let before = termios::tcgetattr(&pair.slave).expect("its state");
        assert!(before.local_flags.contains(LocalFlags::ICANON | LocalFlags::ECHO));
        let name = concat!(module_path!(), "::a_panic_gives_the_terminal_back_as_it_was_before_it_is_told");
        let name = name.split_once("::").expect("a crate").1;
        let end = || Stdio::from(pair.slave.try_clone().expect("a descriptor"));
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, "1")
            .env("RUST_BACKTRACE", "0")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("a second process");
        let status = child.wait().expect("it ends");
        assert_eq!(termios::tcgetattr(&pair.slave).expect("its state"), before);
        drop(pair.slave);
        let mut shown = Vec::new();
        // A terminal whose other end is closed is an error and no end.
        let _ = File::from(pair.master).read_to_end(&mut shown);
        let shown = String::from_utf8_lossy(&shown);
        assert!(!status.success(), "{shown}");
        let place = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text:?} is not in {shown:?}"));
        assert!(place(TAKE) < place(GIVE_BACK) && place(GIVE_BACK) < place(PANIC), "{shown:?}");
        assert_eq!(shown.matches(GIVE_BACK).count(), 1, "{shown:?}");
    }
}
