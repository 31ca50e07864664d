//! The binary: arguments in, exit code out.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;

mod cli;

fn main() -> ExitCode {
    match cli::execute(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A closed stderr must not hide the exit code.
            let _ = writeln!(std::io::stderr(), "udpd: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}
