//! What a type of sink says of itself so that it can be written: its name, its keys, and its schemes for the command
//! line.

use std::path::Path;

use super::settings::{AnySettings, SinkSettings};
use crate::exit::{ExitCode, Failure};
use crate::os::paths;
use crate::settings::{Findings, TableSettings, WrittenKeys};
use crate::text::advice::ValueAdvice;

/// The settings of a sink that a file can hold. Its keys are those of [`TableSettings`].
pub trait WrittenSink: TableSettings + SinkSettings {
    /// As `type` names it.
    const NAME: &'static str;

    /// How the command line names it.
    const SCHEMES: &'static [Scheme];

    /// Whether this build has such sinks.
    fn available() -> Result<(), ValueAdvice> {
        Ok(())
    }

    /// Holds one value against another.
    fn check(&self, _written: &WrittenKeys<'_>, _findings: &mut Findings<'_>) {}

    /// For the rest of the program.
    fn finished(self) -> AnySettings {
        std::sync::Arc::new(self)
    }
}

/// A way to name a sink on the command line: `--to SCHEME:REST`.
#[derive(Debug)]
pub struct Scheme {
    pub name: &'static str,
    /// As messages show it.
    pub form: &'static str,
    pub read: fn(&Uri<'_>) -> Result<AnySettings, Failure>,
}

/// What stands behind `--to`.
#[derive(Debug, Clone, Copy)]
pub struct Uri<'a> {
    pub whole: &'a str,
    pub scheme: &'a str,
    pub rest: &'a str,
    /// Where relative paths begin.
    pub directory: &'a Path,
}

impl Uri<'_> {
    /// Nothing may stand behind the colon.
    pub fn alone(&self) -> Result<(), Failure> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let what = format!("{:?} has something behind the colon", self.whole);
        Err(wrong(ValueAdvice::new(what, format!("write {}:", self.scheme))))
    }

    /// The path behind the scheme, made absolute.
    pub fn path(&self) -> Result<String, Failure> {
        let scheme = self.scheme;
        // file:///path is how browsers write what is file:/path here; file://host/path is not a path at all.
        let written = self.rest.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(self.rest);
        if written.is_empty() {
            let cure = format!("write {scheme}:PATH, such as {scheme}:/tmp/udpd.log");
            return Err(wrong(ValueAdvice::new(format!("{scheme}: names no file"), cure)));
        }
        if written == "-" {
            let what = format!("{scheme}:- would be a file called -");
            let other = if scheme == "file" { "stdout: for standard output, or " } else { "" };
            return Err(wrong(ValueAdvice::new(what, format!("write {other}{scheme}:./- for such a file"))));
        }
        if let Some(rest) = written.strip_prefix("//") {
            let what = format!("\"{scheme}://{rest}\" names a host");
            return Err(wrong(ValueAdvice::new(what, format!("write {scheme}:/{rest}"))));
        }
        paths::absolute(Path::new(written), self.directory).map_err(wrong)
    }
}

/// What is wrong with the value of `--to`.
pub fn wrong(advice: ValueAdvice) -> Failure {
    Failure::new(ExitCode::Usage, format!("--to: {advice}"))
}
