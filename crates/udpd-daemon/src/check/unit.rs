//! `--unit UNIT`: the check as the service manager would start the service: its user, capabilities, limits, file system
//! and command line, drop-ins included.
//!
//! The manager itself reads what it would read for the service: a unit beside that one has all that is written of
//! `[Service]`, in order, and runs `udpd check` where the service runs `udpd run`. What would touch the service that
//! runs is left out: its sockets, its watchdog, the removal of its runtime directory. The unit is gone again when the
//! check is over.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::unistd::geteuid;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;

/// Where units are that last until the next boot.
const UNITS: &str = "/run/systemd/system";

/// The commands of a service, and of its check.
const COMMANDS: [(&str, &str); 2] = [("udpd run", "udpd check --as"), ("udpd steer apply --watch", "udpd check")];

/// What of `[Service]` is left out, beside all that begins with `Exec`: it says how a service is watched, started again
/// and talked to.
const LEFT_OUT: [&str; 20] = [
    "Type",
    "Restart",
    "RestartSec",
    "RestartPreventExitStatus",
    "RestartForceExitStatus",
    "SuccessExitStatus",
    "RemainAfterExit",
    "GuessMainPID",
    "PIDFile",
    "BusName",
    "NotifyAccess",
    "WatchdogSec",
    "FileDescriptorStoreMax",
    "FileDescriptorStorePreserve",
    "Sockets",
    "RuntimeDirectoryPreserve",
    "RemoveIPC",
    "StandardInput",
    "StandardOutput",
    "StandardError",
];

/// Checks what a service would start with, and prints it.
pub fn execute(unit: &str, json: bool, out: &mut dyn io::Write) -> Result<(), Failure> {
    let unit = full_name(unit)?;
    if !geteuid().is_root() {
        let message = format!("cannot check as {unit} starts: only root may ask systemd for that; run this with sudo");
        return Err(Failure::new(ExitCode::Permission, message));
    }
    let known = show(&unit, "LoadState,NeedDaemonReload")?;
    if !known.contains("LoadState=loaded") {
        let cure = "`systemctl list-unit-files 'udpd*'` lists those that there are";
        return Err(Failure::new(ExitCode::Unavailable, format!("systemd knows no unit {unit}; {cure}")));
    }
    if known.contains("NeedDaemonReload=yes") {
        let message = format!(
            "the files of {unit} have changed since systemd read them, and it would start with what they said before; \
             run `systemctl daemon-reload` first"
        );
        return Err(Failure::new(ExitCode::Failure, message));
    }
    let read = systemctl(&["cat", "--", &unit])?;
    let own = UnitNames::new(&unit);
    let directory = PathBuf::from(format!("/run/{}", own.beside));
    let text = unit_text(&String::from_utf8_lossy(&read.stdout), &own, &directory, json);
    let text = text.map_err(|why| Failure::new(ExitCode::Failure, format!("cannot check as {unit} starts: {why}")))?;
    let check = CheckUnit::prepare(&own, directory, &text)?;
    let started = run(&["start", "--", &own.check])?;
    if started.status.success() {
        return console::print(out, &check.output("stdout"));
    }
    Err(check.failure(&unit, &String::from_utf8_lossy(&started.stderr))?)
}

#[derive(Debug)]
struct UnitNames {
    unit: String,
    /// The unit beside it.
    check: String,
    /// The name of its file: that of a template, for an instance.
    file: String,
    /// What both begin with.
    beside: String,
}

impl UnitNames {
    fn new(unit: &str) -> Self {
        let beside = format!("udpd-check-{}", std::process::id());
        let (check, file) = match unit.split_once('@') {
            Some((_, instance)) => (format!("{beside}@{instance}"), format!("{beside}@.service")),
            None => (format!("{beside}.service"), format!("{beside}.service")),
        };
        Self { unit: unit.to_owned(), check, file, beside }
    }

    /// Puts in what specifiers mean for the unit, where they would mean the unit of the check otherwise.
    fn resolve(&self, value: &str) -> String {
        let whole = self.unit.strip_suffix(".service").unwrap_or(&self.unit);
        let prefix = whole.split('@').next().unwrap_or(whole);
        let mut resolved = String::with_capacity(value.len());
        let mut characters = value.chars();
        while let Some(character) = characters.next() {
            match (character, if character == '%' { characters.next() } else { None }) {
                ('%', Some('n')) => resolved += &self.unit,
                ('%', Some('N')) => resolved += whole,
                ('%', Some('p')) => resolved += prefix,
                (character, next) => resolved.extend([Some(character), next].into_iter().flatten()),
            }
        }
        resolved
    }
}

fn full_name(unit: &str) -> Result<String, Failure> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    if unit.is_empty() || unit.starts_with('-') || !unit.bytes().all(is_of_name) {
        let message = format!("--unit {unit:?} is no name of a unit; one is udpd.service");
        return Err(Failure::new(ExitCode::Usage, message));
    }
    Ok(if unit.ends_with(".service") { unit.to_owned() } else { format!("{unit}.service") })
}

/// The unit that checks, made of what `systemctl cat` prints.
fn unit_text(cat: &str, own: &UnitNames, directory: &Path, json: bool) -> Result<String, String> {
    let (mut kept, mut command) = (String::new(), None);
    let (mut section, mut user, mut is_dynamic) = (String::new(), false, false);
    for line in logical_lines(cat) {
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| section == "[Service]") else { continue };
        let (key, value) = (key.trim(), value.trim());
        match key {
            // The last one counts, and an empty one takes back all before.
            "ExecStart" => command = Some(value.to_owned()).filter(|value| !value.is_empty()),
            _ if key.starts_with("Exec") && key != "ExecPaths" || LEFT_OUT.contains(&key) => continue,
            "User" => user = !value.is_empty(),
            "DynamicUser" => is_dynamic = matches!(value, "yes" | "true" | "on" | "1"),
            _ => {}
        }
        if key != "ExecStart" {
            kept += &format!("{key}={}\n", own.resolve(value));
        }
    }
    if is_dynamic && !user {
        // The same one as that of the service, which its name says.
        kept += &format!("User={}\n", own.resolve("%p"));
    }
    let command = own.resolve(&check_of(&command.ok_or("its unit file has no ExecStart")?, json)?);
    let streams = ["stdout", "stderr"].map(|stream| format!("file:{}", directory.join(stream).display()));
    let [out, errors] = streams;
    Ok(format!(
        "[Unit]\nDescription=udpd check as {} starts\n[Service]\n{kept}Type=oneshot\nTimeoutStartSec=60\n\
         RuntimeDirectoryPreserve=yes\nRemoveIPC=no\nStandardInput=null\nStandardOutput={out}\nStandardError={errors}\n\
         ExecStart={command}\n",
        own.unit
    ))
}

/// Lines without comments, those that are continued as one.
pub(crate) fn logical_lines(text: &str) -> Vec<String> {
    let (mut lines, mut open) = (Vec::new(), String::new());
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        match line.strip_suffix('\\') {
            Some(part) => open += &format!("{part} "),
            None => lines.push(std::mem::take(&mut open) + line),
        }
    }
    lines.push(open);
    lines
}

/// The command of the service, with a check in the place of the start.
pub(crate) fn check_of(command: &str, json: bool) -> Result<String, String> {
    let found = COMMANDS.iter().find(|(start, _)| command.contains(start));
    let Some((start, check)) = found else {
        return Err(format!(
            "its ExecStart has no `udpd run`: {command}; check it by hand: udpd check -c FILE --as USER"
        ));
    };
    if command.contains(" --listen") {
        return Err("its ExecStart says all on the command line, and there is no file to check".to_owned());
    }
    let check = if json { check.replace("check", "check --json") } else { (*check).to_owned() };
    // A leading dash would hide that it fails.
    let modifiers = command.len() - command.trim_start_matches(['@', '-', ':', '+', '!', '|']).len();
    let modifiers: String = command[..modifiers].chars().filter(|modifier| *modifier != '-').collect();
    let plain = command.trim_start_matches(['@', '-', ':', '+', '!', '|']);
    Ok(modifiers + &plain.replacen(start, &check, 1).replace(" --take-over", ""))
}

/// The unit of the check, and its files, as long as this lives.
#[derive(Debug)]
struct CheckUnit<'a> {
    names: &'a UnitNames,
    file: PathBuf,
    directory: PathBuf,
}

impl<'a> CheckUnit<'a> {
    fn prepare(names: &'a UnitNames, directory: PathBuf, text: &str) -> Result<Self, Failure> {
        let own = Self { names, file: Path::new(UNITS).join(&names.file), directory };
        let write = || {
            DirBuilder::new().mode(0o700).create(&own.directory)?;
            // What it is made of may have been for root alone.
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&own.file)?;
            file.write_all(text.as_bytes())
        };
        let written = write().map_err(|error| {
            let message = format!("cannot write {}: {error}; it takes a host that systemd runs", own.file.display());
            Failure::new(ExitCode::Failure, message)
        });
        written.map(|()| own)
    }

    fn output(&self, stream: &str) -> String {
        fs::read_to_string(self.directory.join(stream)).unwrap_or_default()
    }

    /// Why the check has failed, in its own words where it has said some.
    fn failure(&self, unit: &str, told: &str) -> Result<Failure, Failure> {
        let state = show(&self.names.check, "Result,ExecMainStatus")?;
        let code = state.lines().find_map(|line| line.strip_prefix("ExecMainStatus=")?.parse::<u8>().ok());
        let code = ExitCode::ALL.into_iter().find(|known| Some(*known as u8) == code);
        let said = self.output("stderr");
        let said = said.trim().strip_prefix("udpd: ").unwrap_or(said.trim());
        Ok(match code {
            Some(code) if !said.is_empty() => Failure::new(code, said),
            _ => {
                let message = format!(
                    "systemd cannot run a check as {unit} starts ({}): {}{said}; see journalctl -u {}",
                    state.trim().replace('\n', ", "),
                    told.trim(),
                    self.names.check
                );
                Failure::new(ExitCode::Failure, message)
            }
        })
    }
}

impl Drop for CheckUnit<'_> {
    fn drop(&mut self) {
        // What stays lasts until the next boot, and nothing starts it.
        let _ = fs::remove_file(&self.file);
        let _ = fs::remove_dir_all(&self.directory);
        let _ = run(&["reset-failed", "--", &self.names.check]);
    }
}

fn show(unit: &str, properties: &str) -> Result<String, Failure> {
    let shown = systemctl(&["show", &format!("--property={properties}"), "--", unit])?;
    Ok(String::from_utf8_lossy(&shown.stdout).into_owned())
}

/// The output of systemctl where it succeeds.
fn systemctl(arguments: &[&str]) -> Result<Output, Failure> {
    let output = run(arguments)?;
    match output.status.success() {
        true => Ok(output),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let message = format!("systemctl {} ended with {}: {said}", arguments.join(" "), output.status);
            Err(Failure::new(ExitCode::Failure, message))
        }
    }
}

fn run(arguments: &[&str]) -> Result<Output, Failure> {
    let output = Command::new("systemctl").arg("--no-pager").args(arguments).stdin(Stdio::null()).output();
    output.map_err(|error| {
        let message = format!("cannot run systemctl: {error}; without systemd: udpd check -c FILE --as USER");
        Failure::new(ExitCode::Failure, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAT: &str = "# /usr/lib/systemd/system/udpd@.service\n\
        [Unit]\nDescription=one\nOnFailure=alarm.service\n\n\
        [Service]\nType=notify\nExecStart=/usr/bin/udpd run -c /etc/udpd/%i.toml\nExecReload=/usr/bin/udpd reload\n\
        User=udpd\n; a comment\nRuntimeDirectory=%p@%i\nWatchdogSec=10s\nSystemCallFilter=@system-service \\\n\
        # in between\n  seccomp\nEnvironment=A=%N\nFileDescriptorStoreMax=9\n\
        [Install]\nWantedBy=multi-user.target\n\
        # /etc/systemd/system/udpd@.service.d/override.conf\n\
        [Service]\nExecStart=\nExecStart=-/usr/bin/udpd run --take-over -c /srv/%i.toml\nUser=other\n";

    fn made(cat: &str, unit: &str) -> Result<String, String> {
        let names = UnitNames::new(unit);
        unit_text(cat, &names, Path::new("/run/x"), false)
    }

    #[test]
    fn all_that_is_written_of_a_service_counts_in_order_and_a_check_takes_the_place_of_its_start() {
        let text = made(CAT, "udpd@flows.service").expect("it can be");
        let service = text.split_once("[Service]\n").expect("it has one").1;
        let expected = "User=udpd\nRuntimeDirectory=udpd@%i\nSystemCallFilter=@system-service  seccomp\n\
                        Environment=A=udpd@flows\nUser=other\nType=oneshot\nTimeoutStartSec=60\n\
                        RuntimeDirectoryPreserve=yes\nRemoveIPC=no\nStandardInput=null\n\
                        StandardOutput=file:/run/x/stdout\nStandardError=file:/run/x/stderr\n\
                        ExecStart=/usr/bin/udpd check --as -c /srv/%i.toml\n";
        assert_eq!(service, expected);
        assert!(!text.contains("OnFailure") && !text.contains("WantedBy"), "{text}");
    }

    #[test]
    fn a_command_that_is_wrapped_is_found_and_one_that_is_no_start_is_refused() {
        for (command, expected) in [
            ("/usr/bin/udpd run", "/usr/bin/udpd check --as"),
            ("/usr/bin/nice -n 5 /opt/udpd run -c /a b", "/usr/bin/nice -n 5 /opt/udpd check --as -c /a b"),
            ("+-/bin/sh -c 'exec udpd run -c /a'", "+/bin/sh -c 'exec udpd check --as -c /a'"),
            ("/usr/bin/udpd steer apply --watch -c /a", "/usr/bin/udpd check -c /a"),
        ] {
            assert_eq!(check_of(command, false).as_deref(), Ok(expected));
        }
        assert_eq!(check_of("/usr/bin/udpd run -c /a", true).as_deref(), Ok("/usr/bin/udpd check --json --as -c /a"));
        for command in ["/usr/bin/sleep 9", "/usr/bin/udpd run --listen 127.0.0.1:1 --to null:", ""] {
            assert!(check_of(command, false).is_err(), "{command}");
        }
        assert!(made("[Service]\nExecStart=/usr/bin/udpd run\nExecStart=\n", "udpd.service").is_err());
    }

    #[test]
    fn a_user_that_is_made_for_the_service_is_the_same_for_the_check() {
        let text =
            made("[Service]\nDynamicUser=yes\nExecStart=/usr/bin/udpd run\n", "udpd@a.service").expect("it can be");
        assert!(text.contains("\nDynamicUser=yes\nUser=udpd\n"), "{text}");
    }

    #[test]
    fn what_is_no_name_of_a_unit_is_a_mistake_on_the_command_line() {
        for wrong in ["", "-x", "a/b", "a b", "../a", "a;b"] {
            assert_eq!(full_name(wrong).expect_err(wrong).code, ExitCode::Usage, "{wrong}");
        }
        assert_eq!(full_name("udpd").expect("one"), "udpd.service");
        assert_eq!(full_name("udpd@a\\x2db.service").expect("one"), "udpd@a\\x2db.service");
    }
}
