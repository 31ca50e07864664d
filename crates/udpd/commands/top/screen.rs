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
