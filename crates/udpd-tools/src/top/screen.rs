//! The terminal: taken at the start, given back as it was however the command ends.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::termios::{self, LocalFlags, SetArg, SpecialCharacterIndices, Termios};

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

    /// Takes it again, after somebody else had it.
    pub(super) fn enter(&self) {
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Columns and rows.
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
    if let Some(before) = &*before.lock().unwrap_or_else(PoisonError::into_inner) {
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, before);
    }
}

/// Writes a text to the terminal at once.
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

    /// What tells a second process of this test that it is the one that panics.
    const CHILD: &str = "UDPD_TEST_TERMINAL";
    const PANIC: &str = "a panic on order";

    #[test]
    fn a_panic_gives_the_terminal_back_as_it_was_before_it_is_told() {
        if std::env::var_os(CHILD).is_some() {
            // Never dropped, so that nobody but the hook gives it back.
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
