//! The options that the comparisons share.

use std::path::PathBuf;

/// What is asked of a comparison.
#[derive(Debug)]
pub(crate) struct Options {
    /// How often everything is repeated.
    pub(crate) pairs: usize,
    /// How long each run lasts.
    pub(crate) seconds: f64,
    /// Only see that it works.
    pub(crate) quick: bool,
    /// Where to write the figures down.
    pub(crate) record: Option<PathBuf>,
    /// Of a bench that has several parts, the one to run.
    pub(crate) only: Option<String>,
    /// Another udpd than the one just built, where the bench can measure one.
    pub(crate) program: Option<String>,
}

impl Options {
    /// Reads them from the command line; `seconds` and, with `--quick`, `quick_seconds` are the defaults.
    pub(crate) fn read(seconds: f64, quick_seconds: f64) -> Result<Self, String> {
        let mut options = Self { pairs: 5, seconds, quick: false, record: None, only: None, program: None };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                // cargo adds this one.
                "--bench" => {}
                "--quick" => (options.pairs, options.seconds, options.quick) = (1, quick_seconds, true),
                "--pairs" => options.pairs = value()?.parse().map_err(|error| format!("--pairs: {error}"))?,
                "--seconds" => options.seconds = value()?.parse().map_err(|error| format!("--seconds: {error}"))?,
                "--record" => options.record = Some(value()?.into()),
                "--only" => options.only = Some(value()?),
                "--program" => options.program = Some(value()?),
                _ => {
                    let known = "--pairs N, --seconds S, --quick, --only PART, --program PATH, --record DIR";
                    return Err(format!("unknown argument {argument}: {known}"));
                }
            }
        }
        if options.pairs == 0 || options.seconds.is_nan() || options.seconds <= 0.0 {
            return Err("--pairs and --seconds must be above 0".to_owned());
        }
        Ok(options)
    }
}
