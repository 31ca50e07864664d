//! `udpd man`: the pages of the manual, made from what the program itself knows.
//!
//! Commands and options come from the command line that is parsed, keys from the declarations that are read, exit codes
//! from the list that is used. So a page cannot describe another version than the one that prints it, and a package has
//! nothing to keep equal. The packages write the pages at build time (`--to`).

mod program;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Command;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;
use udpd_engine::config::manual;

/// Which pages, and where to.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The page
    #[arg(value_name = "PAGE", default_value = "udpd", conflicts_with = "to",
          value_parser = ["udpd", "udpd-bench", "udpd-steer", "udpd.toml"])]
    page: String,
    /// Write all pages below this directory instead, where man looks for them: man8/udpd.8 and so on
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// `program` is the command line of udpd.
pub fn execute(arguments: &Arguments, program: Command, out: &mut dyn Write) -> Result<(), Failure> {
    let program = built(program);
    let Some(directory) = &arguments.to else {
        return console::print(out, &page(&arguments.page, &program));
    };
    program::PAGES.iter().try_for_each(|(name, section)| {
        write(&directory.join(format!("man{section}")), &format!("{name}.{section}"), &page(name, &program))
    })
}

/// With every usage line worked out.
fn built(mut program: Command) -> Command {
    program.build();
    program
}

fn page(name: &str, program: &Command) -> String {
    match name.strip_prefix("udpd-") {
        Some(command) => program::of_command(name, program.find_subcommand(command).expect("a page of a command")),
        None if name == "udpd.toml" => manual::man_page(),
        None => program::whole(program),
    }
}

fn write(directory: &Path, name: &str, page: &str) -> Result<(), Failure> {
    let path = directory.join(name);
    fs::create_dir_all(directory).and_then(|()| fs::write(&path, page)).map_err(|error| {
        let message =
            format!("cannot write the page {}: {error}; name a directory that you may write to", path.display());
        Failure::new(ExitCode::Disk, message)
    })
}
