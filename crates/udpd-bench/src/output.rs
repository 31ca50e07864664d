//! What all commands of the bench share on the command line: how a value is read, how a report is printed, and the
//! files that `--csv` and `--svg` name.
//!
//! The bench overwrites nothing that it has not made, unless `--force` says so, and then only a regular file under its
//! own name: never what a symbolic link leads to, and no pipe, device or socket.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use serde::Serialize;
use serde_json::{Value, json};

use crate::machine::MachineFacts;
use crate::pacer;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::units;

/// Longer than any measurement, and short enough that sums of nanoseconds stay far from their limit.
const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

pub(crate) fn usage(option: &str, advice: &ValueAdvice) -> Failure {
    Failure::new(ExitCode::Usage, format!("{option}: {advice}"))
}

/// A duration from `"10"`, `"0.5"` or with a unit, as `"500ms"`.
pub(crate) fn seconds(option: &str, text: &str) -> Result<Duration, Failure> {
    let plain = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let read = plain.map_or_else(|| units::parse_duration(text), Ok);
    read.and_then(|duration| match duration.is_zero() || duration > DURATION_MAX {
        true => Err(ValueAdvice::new(format!("{text:?} is not a time to run"), "write seconds, such as 10 or 0.5")),
        false => Ok(duration),
    })
    .map_err(|advice| usage(option, &advice))
}

/// A share from `"0.5%"` or `"0.5"`, in percent.
pub(crate) fn percent(option: &str, text: &str) -> Result<f64, Failure> {
    let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
    number.filter(|percent| (0.0..=100.0).contains(percent)).ok_or_else(|| {
        usage(
            option,
            &ValueAdvice::new(format!("{text:?} is not a share from 0% to 100%"), "write percent, such as 0.5%"),
        )
    })
}

/// A number of flows from `"16"` or `"1M"`.
pub(crate) fn flows(text: &str) -> Result<usize, Failure> {
    let flows = pacer::parse_count(text).ok().and_then(|flows| usize::try_from(flows).ok());
    flows.ok_or_else(|| {
        let what = format!("{text:?} is not a number of flows");
        usage("--flows", &ValueAdvice::new(what, "write one such as 16 or 1M"))
    })
}

/// Writes to stderr while the bench measures, where that is a terminal. A closed stderr is no reason to stop.
pub(crate) fn progress(text: impl FnOnce() -> String) {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "{}", text());
    }
}

/// The options for what becomes of a report.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct OutputOptions {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the table to this file as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Overwrite files that exist
    #[arg(long)]
    force: bool,
}

/// A report on its way to standard output and to the files of the options, with the machine that its figures are of.
pub(crate) struct Output<'a> {
    json: bool,
    pub(crate) machine: MachineFacts,
    warnings: Vec<String>,
    csv: Option<OutputFile<'a>>,
    svg: Option<OutputFile<'a>>,
}

impl<'a> Output<'a> {
    /// Without files. Watches how busy the machine is for as long as `look`.
    pub(crate) fn new(json: bool, look: Duration) -> Self {
        let machine = MachineFacts::read();
        Self { json, warnings: machine.warnings(look), machine, csv: None, svg: None }
    }

    /// Refuses files that may not be written before anything is measured.
    pub(crate) fn of(options: &'a OutputOptions, svg: Option<&'a PathBuf>, look: Duration) -> Result<Self, Failure> {
        let csv = OutputFile::of("--csv", options.csv.as_ref(), options.force)?;
        let svg = OutputFile::of("--svg", svg, options.force)?;
        Ok(Self { csv, svg, ..Self::new(options.json, look) })
    }

    /// Prints the report: as `text`, or as JSON beside `whole`, which has what was asked for.
    pub(crate) fn print(
        &self,
        out: &mut dyn Write,
        mut whole: Value,
        report: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if !self.json {
            let warnings: String = self.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
            return console::print(out, &(warnings + &text()));
        }
        whole["version"] = json!(env!("CARGO_PKG_VERSION"));
        whole["machine"] = json!(self.machine);
        whole["warnings"] = json!(self.warnings);
        whole["report"] = json!(report);
        let text = serde_json::to_string_pretty(&whole)
            .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot write the report as JSON: {error}")))?;
        console::print(out, &(text + "\n"))
    }

    /// Writes the files of `--csv` and `--svg`.
    pub(crate) fn write(&self, csv: impl FnOnce() -> String, svg: impl FnOnce() -> String) -> Result<(), Failure> {
        if let Some(file) = &self.csv {
            file.write(&csv())?;
        }
        self.svg.as_ref().map_or(Ok(()), |file| file.write(&svg()))
    }
}

/// A file that is to be written when everything has been measured.
#[derive(Debug)]
struct OutputFile<'a> {
    option: &'static str,
    path: &'a Path,
    force: bool,
}

impl<'a> OutputFile<'a> {
    /// The file of an option, if it is given. Refused now, and not after everything has been measured.
    fn of(option: &'static str, path: Option<&'a PathBuf>, force: bool) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let output = Self { option, path, force };
        match path.symlink_metadata() {
            Ok(found) if !found.is_file() => Err(output.refuse("is not a regular file; choose another path")),
            Ok(_) if !force => Err(output.exists()),
            _ => Ok(Some(output)),
        }
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        self.open()?.write_all(text.as_bytes()).map_err(|error| self.cannot(&error))
    }

    fn open(&self) -> Result<File, Failure> {
        match OpenOptions::new().write(true).create_new(true).open(self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.force => self.open_existing(),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(self.exists()),
            other => other.map_err(|error| self.cannot(&error)),
        }
    }

    fn open_existing(&self) -> Result<File, Failure> {
        // A pipe without a reader would be waited for; and nothing is cut off before it is known what it is.
        let flags = O_NOFOLLOW | O_NONBLOCK;
        let file =
            OpenOptions::new().write(true).custom_flags(flags).open(self.path).map_err(|error| self.cannot(&error))?;
        match file.metadata() {
            Ok(found) if !found.is_file() => Err(self.refuse("is not a regular file; choose another path")),
            Ok(_) => file.set_len(0).map(|()| file).map_err(|error| self.cannot(&error)),
            Err(error) => Err(self.cannot(&error)),
        }
    }

    fn exists(&self) -> Failure {
        self.refuse("exists already; choose another path, or add --force to overwrite it")
    }

    fn refuse(&self, why: &str) -> Failure {
        Failure::new(ExitCode::Usage, format!("{}: {} {why}", self.option, self.path.display()))
    }

    fn cannot(&self, error: &io::Error) -> Failure {
        let code = match error.kind() {
            io::ErrorKind::PermissionDenied => ExitCode::Permission,
            _ => ExitCode::Disk,
        };
        let text = format!("{}: cannot write {}: {error}; choose another path", self.option, self.path.display());
        Failure::new(code, text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(path: &PathBuf, force: bool, text: &str) -> Result<(), Failure> {
        OutputFile::of("--csv", Some(path), force)?.expect("a path was given").write(text)
    }

    #[test]
    fn what_is_there_is_overwritten_only_by_force() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.csv");
        write(&path, false, "a long first one").expect("a new file");
        let failure = write(&path, false, "second").expect_err("it is there");
        assert!(failure.code == ExitCode::Usage && failure.message.contains("--force"), "{failure}");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "a long first one");
        write(&path, true, "second").expect("forced");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "second");
    }

    #[test]
    fn a_file_that_comes_while_the_bench_measures_is_kept_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.csv");
        let output = OutputFile::of("--csv", Some(&path), false).expect("nothing is there").expect("a path was given");
        fs::write(&path, "another's").expect("written");
        assert_eq!(output.write("the bench's").expect_err("it is there").code, ExitCode::Usage);
        assert_eq!(fs::read_to_string(&path).expect("the file"), "another's");
    }

    #[test]
    fn no_force_goes_through_a_link_or_into_a_pipe() {
        let directory = tempfile::tempdir().expect("a directory");
        let [target, link, pipe] = ["target", "link", "pipe"].map(|name| directory.path().join(name));
        fs::write(&target, "another's").expect("written");
        symlink(&target, &link).expect("a link");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        for path in [link, pipe] {
            let output = OutputFile { option: "--csv", path: &path, force: true };
            assert!(output.write("the bench's").is_err(), "{}: also when it came after the first look", path.display());
            assert_eq!(write(&path, true, "the bench's").expect_err("refused").code, ExitCode::Usage);
        }
        assert_eq!(fs::read_to_string(&target).expect("the file"), "another's");
    }

    #[test]
    fn a_directory_that_is_not_there_is_a_matter_of_the_disk() {
        let failure = write(&"/nonexistent/a.csv".into(), false, "").expect_err("no directory");
        assert_eq!(failure.code, ExitCode::Disk);
    }
}
