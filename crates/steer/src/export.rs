//! A plan as a file, for an administrator who does not want a daemon to set it: a `.link` file for systemd, a rule for
//! udev, or a shell script.
//!
//! None of them holds the whole plan at every moment, and each says in its comments what it leaves out: systemd knows
//! queues and rings, udev runs before most drivers have asked for their interrupts, and nothing but
//! [`Steering::apply`] keeps what was before. Numbers of interrupts change with every boot, so they are found by their
//! names. A name that a shell or udev would interpret is refused rather than quoted.

use std::fmt;
use std::fs;

use crate::apply::{Steering, setting_of};
use crate::host::Reader;
use crate::model::{Host, Interface};
use crate::plan::{InterfacePlan, Plan, Target};
use crate::setting::Setting;
use crate::topology::read_if_any;

/// What kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Export {
    /// A `.link` file of systemd for each interface.
    Link,
    /// A file of rules for udev.
    Udev,
    /// A shell script.
    Shell,
}

/// Why a plan cannot be exported: a name that a shell or udev would not take as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportError {
    /// The name of the interface.
    pub interface: String,
}

impl fmt::Display for ExportError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "cannot export the plan of {:?}: a shell or udev would misread a character in that name; rename the \
             interface, or apply the plan directly",
            self.interface
        )
    }
}

impl std::error::Error for ExportError {}

/// One setting of the plan, as the exports see it.
struct Item<'a> {
    target: &'a Target,
    why: &'a str,
    /// The command that sets it; `None` when there is nothing to set yet, or nothing that could be named.
    command: Option<Command>,
}

enum Command {
    /// As an administrator would type it.
    Typed(String),
    /// The interrupt with this name gets these cores.
    Interrupt { name: String, cores: String },
}

/// What stays the same of an interface when the host boots again.
enum MatchKey {
    /// The hardware address that it was made with.
    Address(String),
    /// Where its device is on the PCI bus.
    Bus(String),
    /// Nothing but its name.
    Name,
}

/// A text that a shell and udev do not interpret.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@:,".contains(&byte))
}

impl Steering<'_> {
    /// The plan as a file. The host is the one that it was made for.
    pub fn export(&self, host: &Host, plan: &Plan, form: Export) -> Result<String, ExportError> {
        let mut text = String::new();
        if form == Export::Shell {
            text.push_str(SHELL_BEGIN);
        }
        for (interface, part) in host.interfaces.iter().zip(&plan.interfaces) {
            if !is_plain(&part.name) || part.name.starts_with('-') {
                return Err(ExportError { interface: part.name.clone() });
            }
            let (items, key) = (self.items(interface, part), match_key(&self.reader, &part.name));
            text.push_str(&match form {
                Export::Link => link(part, &items, &key),
                Export::Udev => udev(&self.reader, part, &items, &key),
                Export::Shell => shell(&self.reader, part, &items),
            });
        }
        if form == Export::Shell {
            text.push_str("exit \"$failed\"\n");
        }
        Ok(text)
    }

    fn items<'a>(&self, interface: &Interface, part: &'a InterfacePlan) -> Vec<Item<'a>> {
        let command = |target: &Target| match setting_of(interface, target)? {
            (Setting::Interrupt { name, .. }, cores) => is_plain(&name).then_some(Command::Interrupt { name, cores }),
            (setting, value) => {
                // Anything else is a sentence for a person.
                let is_command = |text: &String| text.starts_with("ethtool ") || text.starts_with("echo ");
                Some(self.reader.command(&part.name, &setting, &value)).filter(is_command).map(Command::Typed)
            }
        };
        let item = |wanted: &'a crate::plan::Wanted| Item {
            target: &wanted.target,
            why: &wanted.why,
            command: command(&wanted.target),
        };
        // RPS is off after a boot, and nothing here comes later than that.
        part.wanted.iter().filter(|wanted| !wanted.target.is_rps_off()).map(item).collect()
    }
}

fn match_key(reader: &Reader<'_>, interface: &str) -> MatchKey {
    let folder = reader.sys_root.join("class/net").join(interface);
    let line = |file: &str| read_if_any(&folder.join(file)).ok().flatten().map(|text| text.trim().to_owned());
    // 0 is NET_ADDR_PERM: neither made up at this boot, nor taken from another interface, nor set by hand.
    let is_own = line("addr_assign_type").as_deref() == Some("0");
    if let Some(address) = line("address").filter(|address| is_own && is_plain(address)) {
        return MatchKey::Address(address);
    }
    let device = fs::canonicalize(folder.join("device")).ok();
    // Only a PCI function has a configuration space.
    let function =
        device.and_then(|device| Some(device.ancestors().find(|step| step.join("config").exists())?.to_owned()));
    let name = function.as_ref().and_then(|function| function.file_name()?.to_str());
    name.filter(|name| is_plain(name)).map_or(MatchKey::Name, |name| MatchKey::Bus(name.to_owned()))
}

/// The folder whose entries are the numbers of the device's interrupts: its own, or where it has none all there are.
fn interrupts_folder(reader: &Reader<'_>, interface: &str) -> String {
    let own = ["device/msi_irqs", "device/../msi_irqs"].map(|folder| format!("class/net/{interface}/{folder}"));
    let found = own.iter().find(|folder| reader.sys_root.join(folder).is_dir());
    format!("/sys/{}", found.map_or("kernel/irq", |folder| folder))
}

/// The items that have no command, as comments.
fn left_out(items: &[Item<'_>]) -> String {
    let lines = items.iter().filter(|item| item.command.is_none()).map(|item| {
        format!("# Left out: {}. There is no command for it yet; export again once the rest is set.\n", item.target)
    });
    lines.collect()
}

fn link(part: &InterfacePlan, items: &[Item<'_>], key: &MatchKey) -> String {
    let (mut lines, mut cores, mut left) = (String::new(), Vec::new(), String::new());
    for item in items {
        match item.target {
            Target::Channels(channels) if channels.combined_max > 0 => {
                lines.push_str(&format!("CombinedChannels={}\n", channels.combined));
            }
            Target::Channels(channels) => lines.push_str(&format!("RxChannels={}\n", channels.rx)),
            Target::Ring(rings) => lines.push_str(&format!("RxBufferSize={}\n", rings.rx)),
            target => {
                if let Target::Interrupt { cores: own, .. } = target {
                    cores.extend(own.iter().copied());
                }
                left.push_str(&format!("#   {target}\n"));
            }
        }
    }
    cores.sort_unstable();
    cores.dedup();
    if !cores.is_empty() {
        lines.push_str(&format!("{LINK_INTERRUPTS}IRQAffinity={}\n", crate::corelist::format_core_list(&cores)));
    }
    let name = &part.name;
    let mut text = format!("# /etc/systemd/network/10-steer-{name}.link\n{LINK_BEGIN}");
    if !left.is_empty() {
        text.push_str(&format!("# This file leaves to another file of this plan (for udev, for the shell):\n{left}"));
    }
    if lines.is_empty() {
        return text + &format!("# For {name} the plan wants nothing that a .link file can set.\n");
    }
    let matched = match key {
        MatchKey::Address(address) => format!("PermanentMACAddress={address}"),
        MatchKey::Bus(bus) => format!("Path=pci-{bus}"),
        MatchKey::Name => format!("OriginalName={name}"),
    };
    text + &format!("[Match]\n{matched}\n\n[Link]\n{LINK_NAMES}{lines}")
}

fn udev(reader: &Reader<'_>, part: &InterfacePlan, items: &[Item<'_>], key: &MatchKey) -> String {
    let name = &part.name;
    let matched = match key {
        MatchKey::Address(address) => format!("ATTR{{address}}==\"{address}\", ATTR{{addr_assign_type}}==\"0\""),
        MatchKey::Bus(bus) => format!("KERNELS==\"{bus}\""),
        MatchKey::Name => format!("NAME==\"{name}\""),
    };
    let folder = interrupts_folder(reader, name);
    let mut text = format!("# /etc/udev/rules.d/90-steer-{name}.rules\n{UDEV_BEGIN}{}", left_out(items));
    for item in items {
        let command = match &item.command {
            // systemd's .link file has these.
            _ if matches!(item.target, Target::Channels(_) | Target::Ring(_)) => continue,
            None => continue,
            Some(Command::Typed(command)) => command.clone(),
            Some(Command::Interrupt { name, cores }) => format!(
                "for n in $(ls {folder}); do case ,$(cat /sys/kernel/irq/$n/actions), in *,{name},*) \
                 echo {cores} > /proc/irq/$n/smp_affinity_list;; esac; done"
            ),
        };
        let command = command.replace('%', "%%").replace('$', "$$");
        text.push_str(&format!("# {}, because {}\n", item.target, item.why));
        text.push_str(&format!("ACTION==\"add\", SUBSYSTEM==\"net\", {matched}, RUN+=\"/bin/sh -c '{command}'\"\n"));
    }
    text
}

fn shell(reader: &Reader<'_>, part: &InterfacePlan, items: &[Item<'_>]) -> String {
    let name = &part.name;
    let folder = interrupts_folder(reader, name);
    let mut text = format!("# {name}\n{}", left_out(items));
    for item in items {
        let command = match &item.command {
            None => continue,
            Some(Command::Interrupt { name, cores }) => format!("interrupt {folder} {name} {cores}"),
            Some(Command::Typed(command)) => {
                match command.strip_prefix("echo ").and_then(|rest| rest.split_once(" > ")) {
                    Some((value, path)) => format!("put {value} {path}"),
                    None => format!("try {command}"),
                }
            }
        };
        text.push_str(&format!("# {}, because {}\n{command}\n", item.target, item.why));
    }
    text + "\n"
}

const LINK_BEGIN: &str = "\
# What systemd sets of this interface when it appears, written from a plan. It takes effect at the next boot, or
# with: udevadm control --reload; udevadm trigger --action=add /sys/class/net/IFACE
# Nothing sets it again when a driver resets the card, and nothing is kept of what was before.
";

const LINK_NAMES: &str = "\
# systemd takes the first file that matches and no other. So these three lines, which are those of its own
# 99-default.link, are repeated here. Put yours here if you have another file for this interface.
NamePolicy=keep kernel database onboard slot path
AlternativeNamesPolicy=database onboard slot path
MACAddressPolicy=persistent
";

const LINK_INTERRUPTS: &str = "\
# From systemd 260 on; an older one warns of these two lines and ignores them. The cores are those of the plan, but
# systemd alone chooses which interrupt gets which, and counts those of sending among them.
IRQAffinityPolicy=spread
";

const UDEV_BEGIN: &str = "\
# What a .link file leaves out, written from a plan. It takes effect at the next boot, or with:
# udevadm control --reload; udevadm trigger --action=add /sys/class/net/IFACE
# Interrupts are found by their names when the interface appears. A driver that asks for them only when the interface
# goes up has none at that time, and one that is reset asks for new ones: neither is seen to here.
# Queues and rings are in another file of this plan (the .link file). Nothing is kept of what was before.
";

const SHELL_BEGIN: &str = "\
#!/bin/sh
# Commands, written from a plan. To be run as root while the interfaces are up.
# It keeps nothing of what was before, so nothing can put that back.
# Nothing sets it again when a driver resets the card.
failed=0

# Some versions of ethtool fail when a setting is so already.
try() {
    \"$@\" || { echo \"failed, or set already: $*\" >&2; failed=1; }
}
put() {
    echo \"$1\" >\"$2\" || { echo \"cannot write $1 to $2\" >&2; failed=1; }
}
# The interrupt of this name, among those in a folder, gets these cores.
interrupt() {
    for path in \"$1\"/*; do
        number=${path##*/}
        case ,$(cat \"/sys/kernel/irq/$number/actions\" 2>/dev/null), in
        *,\"$2\",*)
            put \"$3\" \"/proc/irq/$number/smp_affinity_list\"
            return
            ;;
        esac
    done
    echo \"no interrupt is called $2\" >&2
    failed=1
}

";

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
