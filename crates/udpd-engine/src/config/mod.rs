//! The validated configuration: what the rest of the program may rely on without checking it again.
//!
//! Each key is declared beside the type that it fills (see `udpd_base::settings`). `file` reads a file by these
//! declarations and keeps the place of every value in the text. `check` holds the values against each other and against
//! the host, and ends with a [`Config`] or with errors that name file, line, column, key and cure. Nothing here binds
//! or creates anything, or opens more than the file itself and the lists of networks that it names.

mod arguments;
mod check;
mod daemon;
pub mod feeders;
pub mod feeds;
mod file;
mod host_view;
mod listener;
pub mod manual;
mod sinks;
mod steer;

#[cfg(test)]
mod tests;

use std::path::Path;

pub use arguments::{RunArguments, forms as to_forms};
pub use check::SLOT_BYTES_MIN;
pub use daemon::DaemonConfig;
pub use host_view::{HostView, Lists, MayCome};
pub use listener::{
    Absorb, ENGINES, EngineKind, Gro, Lanes, ListenerConfig, Multicast, OnTruncate, ReceiveBuffer, Spread, Timestamps,
};
pub use sinks::{ConsumerCount, SinkConfig};
pub use steer::SteerConfig;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::settings;
use udpd_base::settings::{Findings, Problem, Problems};
pub use udpd_base::text::address::overlap;
use udpd_base::text::advice::ValueAdvice;

/// A whole configuration that has passed every check.
#[derive(Debug, Clone)]
pub struct Config {
    pub daemon: DaemonConfig,
    /// At least one; names and addresses are unique.
    pub listeners: Vec<ListenerConfig>,
    /// Every sink that is defined, in the order of the file.
    pub sinks: Vec<SinkConfig>,
    /// Which cores udpd may use, and how interfaces are to be set up.
    pub steer: SteerConfig,
    /// What is accepted today and should be written differently.
    pub warnings: Vec<Problem>,
}

impl Config {
    /// Reads and checks the file at `path` against `host`, with the lists of networks that it names. Opens nothing
    /// else, creates and binds nothing.
    ///
    /// Every failure, also that of a file that cannot be read, ends with [`ExitCode::Configuration`]: starting again
    /// without an edit would not help.
    pub fn load(path: &Path, host: &HostView) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let text = file::read_text(path, &name)?;
        Ok(Self::parse(&text, &name, host)?)
    }

    /// Checks the text of a file called `name` against `host`, and returns the configuration or all its problems.
    pub fn parse(text: &str, name: &str, host: &HostView) -> Result<Self, Problems> {
        let mut findings = Findings::new(name, text, file::keys());
        let Some(table) = settings::toml_errors::parse(text, &mut findings) else {
            return Err(findings.into_problems());
        };
        let sections = file::read_sections(&table, &mut findings);
        let config = check::validate(sections, host, &mut findings);
        let (config, warnings) = findings.finish(config)?;
        Ok(Self { warnings, ..config })
    }

    /// The configuration of `udpd run --listen ADDR --to URI`, where a wrong value ends with [`ExitCode::Usage`].
    ///
    /// Relative paths are taken from the current directory.
    pub fn from_arguments(arguments: &RunArguments) -> Result<Self, Failure> {
        let directory = std::env::current_dir().map_err(|error| {
            let cure = "change to a directory that exists, or give absolute paths with -c FILE";
            Failure::new(ExitCode::Usage, format!("the current directory cannot be read: {error}; {cure}"))
        })?;
        arguments::configure(arguments, &directory)
    }
}

/// Refuses a name of a listener or a sink that could not stand in a metric, a path or a thread name.
fn check_name(name: &str) -> Result<String, ValueAdvice> {
    const LENGTH_MAX: usize = 64;
    let what = if name.is_empty() {
        "the name is empty".to_owned()
    } else if name.len() > LENGTH_MAX {
        format!("the name is {} bytes long", name.len())
    } else if let Some(odd) = name.chars().find(|c| !c.is_ascii_alphanumeric() && !"_.-".contains(*c)) {
        format!("{odd:?} cannot stand in a name")
    } else if name.bytes().all(|byte| byte == b'.') {
        format!("{name:?} would be a directory when filled into a path")
    } else {
        return Ok(name.to_owned());
    };
    Err(ValueAdvice::new(what, "write 1 to 64 letters, digits, dots, dashes or underscores"))
}
