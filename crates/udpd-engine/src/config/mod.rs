//! The validated configuration: what the rest of the program may rely on without checking again.
//!
//! The keys are declared beside the types that they fill (see `settings`), here or in the room that uses them. `file`
//! puts the declarations together and reads a file, every value with its place in the text; `check` holds one value
//! against another and against the host, and ends with a configuration or with errors that name file, line, column, key
//! and cure. Nothing here binds or creates anything, or opens more than this file and the lists of networks it names.

mod arguments;
mod check;
mod daemon;
pub mod feeders;
mod file;
mod host;
mod listener;
mod load;
pub mod manual;
mod multicast;
mod names;
mod sinks;
mod steer;
mod whole;

#[cfg(test)]
mod tests;

use std::path::Path;

pub use arguments::{RunArguments, forms as to_forms};
pub use check::SLOT_BYTES_MIN;
pub use daemon::DaemonConfig;
pub use host::{HostView, Lists, MayCome};
pub use listener::{
    Absorb, ENGINES, EngineKind, Gro, Lanes, ListenerConfig, OnTruncate, ReceiveBuffer, Spread, Timestamps,
};
pub use multicast::Multicast;
pub use sinks::{ConsumerCount, SinkConfig};
pub use steer::SteerConfig;
pub use whole::Config;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::settings;
use udpd_base::settings::{Findings, Problems};
pub use udpd_base::text::address::overlap;

impl Config {
    /// Reads and checks the file at `path` against `host`, with the lists of networks that it names. Opens nothing
    /// else, creates and binds nothing.
    ///
    /// Every failure, also that of a file that cannot be read, ends with [`ExitCode::Configuration`]: starting again
    /// without an edit would not help.
    pub fn load(path: &Path, host: &HostView) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let text = load::read_text(path, &name)?;
        Ok(Self::parse(&text, &name, host)?)
    }

    /// Checks the text of a file called `name` against `host`, and returns the configuration or all its problems.
    pub fn parse(text: &str, name: &str, host: &HostView) -> Result<Self, Problems> {
        let mut findings = Findings::new(name, text, file::parts::keys());
        let Some(table) = settings::syntax::parse(text, &mut findings) else {
            return Err(findings.into_problems());
        };
        let parts = file::parts::read(&table, &mut findings);
        let config = check::validate(parts, host, &mut findings);
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
