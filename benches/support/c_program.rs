//! The programs in C that ours are compared with, built beside the other products of cargo when they are needed. A
//! build of the project itself needs no C compiler.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What became of building one.
#[derive(Debug)]
pub(crate) enum Compiled {
    /// Where it is.
    Program(PathBuf),
    /// There is no `cc`.
    NoCompiler,
}

/// Builds `benches/baseline/NAME.c`.
pub(crate) fn compile(name: &str) -> io::Result<Compiled> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/baseline").join(format!("{name}.c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    match Command::new("cc").args(["-O2", "-Wall", "-Wextra", "-o"]).arg(&program).arg(&source).status() {
        Ok(status) if status.success() => Ok(Compiled::Program(program)),
        Ok(status) => Err(io::Error::other(format!("cc {}: {status}", source.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Compiled::NoCompiler),
        Err(error) => Err(error),
    }
}
