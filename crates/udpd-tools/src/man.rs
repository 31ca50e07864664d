//! `udpd man`: udpd(8), udpd-bench(8), udpd-steer(8) and udpd.toml(5), made from what the program itself knows: the
//! help of every command on one page each, with what `--help` has no room for.
//!
//! Commands and options come from the command line that is parsed, keys from the declarations that are read, exit codes
//! from the list that is used. So a page cannot describe another version than the one that prints it, and a package has
//! nothing to keep equal. The packages write the pages at build time (`--to`).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;
use udpd_base::text::roff::ManPage;
use udpd_engine::config::manual;

#[derive(Debug, clap::Args)]
pub struct ManArguments {
    /// The page
    #[arg(value_name = "PAGE", default_value = "udpd", conflicts_with = "to",
          value_parser = ["udpd", "udpd-bench", "udpd-steer", "udpd.toml"])]
    page: String,
    /// Write all pages below this directory instead, where man looks for them: man8/udpd.8 and so on
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// `program` is the command line of udpd.
pub fn execute(arguments: &ManArguments, program: Command, out: &mut dyn Write) -> Result<(), Failure> {
    let program = built(program);
    let Some(directory) = &arguments.to else {
        return console::print(out, &page(&arguments.page, &program));
    };
    PAGES.iter().try_for_each(|(name, section)| {
        write(&directory.join(format!("man{section}")), &format!("{name}.{section}"), &page(name, &program))
    })
}

/// Builds every usage line.
fn built(mut program: Command) -> Command {
    program.build();
    program
}

fn page(name: &str, program: &Command) -> String {
    match name.strip_prefix("udpd-") {
        Some(command) => of_command(name, program.find_subcommand(command).expect("a page of a command")),
        None if name == "udpd.toml" => manual::man_page(),
        None => whole(program),
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

/// Where each page is in the manual: its name and section, as in `udpd.toml(5)`.
const PAGES: [(&str, u8); 4] = [("udpd", 8), ("udpd-bench", 8), ("udpd-steer", 8), ("udpd.toml", 5)];

/// Commands with a page of their own.
const OWN_PAGES: [&str; 2] = ["bench", "steer"];

fn whole(program: &Command) -> String {
    let mut page = ManPage::new("udpd", 8, &about(program));
    page.heading("SYNOPSIS");
    page.text("`udpd` COMMAND [OPTIONS]");
    page.heading("DESCRIPTION");
    page.text(
        "udpd receives UDP and hands every datagram to files, other hosts, Unix sockets, Kafka or a pipe. It counts \
         every datagram that is lost on the way, says in which layer and why, and names the setting to change. \
         `udpd.toml`(5) has every key of its configuration.",
    );
    page.heading("COMMANDS");
    for command in visible(program) {
        if OWN_PAGES.contains(&command.get_name()) {
            page.subheading(&format!("udpd {}", command.get_name()));
            page.text(&format!("{}: see `udpd-{}`(8).", about(command), command.get_name()));
        } else {
            describe(&mut page, command);
        }
    }
    page.heading("SIGNALS");
    page.item("TERM, INT", "Deliver what has arrived, write the last ledger, and end. A second one waits for no sink.");
    page.item(
        "HUP",
        "Read the configuration again, as `udpd reload` does, and switch to new files, as `udpd reopen` does.",
    );
    page.item("USR1", "Write the ledger to the log.");
    page.heading("FILES");
    page.item("/etc/udpd/udpd.toml", "The configuration, where no command says otherwise.");
    page.item(
        "/run/udpd/control.sock",
        "Where the daemon answers `udpd stats`, `top`, `explain`, `reload` and `reopen`.",
    );
    page.item("/run/udpd-steer", "What an interface was like before `udpd steer apply`.");
    page.item("/usr/share/doc/udpd", "The documentation, and examples of configurations, alerts and dashboards.");
    page.heading("ENVIRONMENT");
    page.item("UDPD_CONFIG", "The configuration file, as with `--config`.");
    page.item("NO_COLOR", "No colours in `udpd top`.");
    page.item("NOTIFY_SOCKET, WATCHDOG_USEC", "The service manager that hears when udpd is ready, and that it lives.");
    exit_status(&mut page);
    see_also(&mut page, "udpd");
    page.finish()
}

/// The page of a command that has commands of its own.
fn of_command(name: &str, command: &Command) -> String {
    let mut page = ManPage::new(name, 8, &about(command));
    page.heading("SYNOPSIS");
    page.text(&format!("`{}` COMMAND [OPTIONS]", command.get_bin_name().unwrap_or(name)));
    page.heading("DESCRIPTION");
    page.text(&format!("{}.", about(command)));
    examples(&mut page, command);
    page.heading("COMMANDS");
    visible(command).for_each(|command| describe(&mut page, command));
    exit_status(&mut page);
    see_also(&mut page, name);
    page.finish()
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// A command: its usage, what it is for, its options and examples.
fn describe(page: &mut ManPage, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    page.subheading(usage.trim_start_matches("Usage: "));
    page.text(&format!("{}.", about(command)));
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        if !["help", "version"].contains(&argument.get_id().as_str()) {
            option(page, argument);
        }
    }
    examples(page, command);
}

fn option(page: &mut ManPage, argument: &Arg) {
    let takes_value = argument.get_num_args().is_some_and(|count| count.takes_values());
    let mut term: Vec<String> = Vec::new();
    term.extend(argument.get_short().map(|short| format!("-{short}")));
    term.extend(argument.get_long().map(|long| format!("--{long}")));
    let names = argument.get_value_names().unwrap_or_default();
    let values = names.iter().map(|name| format!(" {name}")).collect::<String>();
    let term = format!("{}{}", term.join(", "), if takes_value { values.as_str() } else { "" });
    let help = argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string);
    page.item(term.trim_start(), &help.unwrap_or_default());
    if !takes_value {
        return;
    }
    let possible = argument.get_possible_values();
    let possible: Vec<_> = possible.iter().map(|value| format!("`{}`", value.get_name())).collect();
    if !possible.is_empty() {
        page.more_of_item(&format!("One of {}.", possible.join(", ")));
    }
    let defaults = argument.get_default_values().iter().map(|value| format!("`{}`", value.display()));
    let defaults: Vec<_> = defaults.collect();
    if !defaults.is_empty() {
        page.more_of_item(&format!("Default: {}.", defaults.join(", ")));
    }
    if let Some(variable) = argument.get_env() {
        page.more_of_item(&format!("Also from the environment: `{}`.", variable.display()));
    }
}

fn examples(page: &mut ManPage, command: &Command) {
    if let Some(text) = command.get_after_help() {
        page.lines(&text.to_string());
    }
}

fn exit_status(page: &mut ManPage) {
    page.heading("EXIT STATUS");
    page.item("0", "ended as asked");
    for code in ExitCode::ALL {
        page.item(&(code as u8).to_string(), code.meaning());
    }
}

fn see_also(page: &mut ManPage, name: &str) {
    page.heading("SEE ALSO");
    let others = PAGES.iter().filter(|(other, _)| *other != name);
    let others: Vec<_> = others.map(|(other, section)| format!("`{other}`({section})")).collect();
    page.text(&others.join(", "));
}
