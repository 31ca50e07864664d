//! Standard output of the commands that print something and end.

use std::io::{ErrorKind, Write};

use crate::exit::{ExitCode, Failure};

/// Writes a whole text. A reader that closes the pipe early, as `head` does, has what it wanted and is not an error.
pub fn print(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let message = format!("cannot write to standard output: {error}; check where it is redirected to");
            Err(Failure::new(ExitCode::Disk, message))
        }
        _ => Ok(()),
    }
}
