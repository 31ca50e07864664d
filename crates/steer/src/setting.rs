//! One setting of a host: its name, how it is read and how it is written.
//!
//! Values are texts, exactly as the kernel shows them where it shows texts, so that "as it was before" can mean byte
//! for byte.

use std::net::IpAddr;
use std::path::PathBuf;
use std::{fmt, fs, io};

use crate::corelist::parse_core_list;
use crate::device::{Device, has_no_mask, parse_mask};
use crate::ethtool::{Channels, Coalescing, EthtoolError, Family, FlowHash, NTUPLE, Rings, command};
use crate::host::{READS, Reader, pause};
use crate::topology::read_if_any;

/// What can be set. The order is the order of application: most drivers forget the later ones when an earlier one
/// changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Setting {
    /// The counts of queues: "rx tx other combined".
    Channels,
    /// The lengths of the rings: "rx tx".
    Rings,
    /// When the device announces what it received: "adaptive-rx off rx-usecs 50 rx-frames 0".
    Coalescing,
    /// Whether the device sorts datagrams by rules: "on" or "off".
    Ntuple,
    /// The rule that sends UDP datagrams to a queue: "queue 7 at 1021", the place behind it, or "none".
    Rule {
        /// The family of the datagrams.
        family: Family,
        /// The address that they are sent to; `None` is any.
        destination: Option<IpAddr>,
        /// The port that they are sent to.
        port: u16,
    },
    /// The indirection table: numbers with commas.
    Indirection,
    /// The key of the hash, in hexadecimal.
    HashKey,
    /// What is hashed of UDP over a family, as letters.
    FlowHash(Family),
    /// The cores of an interrupt.
    Interrupt {
        /// Its number, as in `/proc/irq`.
        number: u32,
        /// Its name, by which it is found again when the driver has asked for new ones.
        name: String,
    },
    /// The mask of RPS of a receive queue.
    Rps(usize),
    /// The mask of XPS of a send queue.
    Xps(usize),
    /// Whether kernel threads poll the queues (threaded NAPI): 0 or 1.
    Threaded,
}

/// The names of settings that have nothing but a name.
const NAMES: [(Setting, &str); 9] = [
    (Setting::Channels, "channels"),
    (Setting::Rings, "rings"),
    (Setting::Coalescing, "coalescing"),
    (Setting::Ntuple, "ntuple"),
    (Setting::Indirection, "indirection"),
    (Setting::HashKey, "hash-key"),
    (Setting::FlowHash(Family::V4), "flow-hash-udp4"),
    (Setting::FlowHash(Family::V6), "flow-hash-udp6"),
    (Setting::Threaded, "threaded-napi"),
];

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule { family, destination, port } => {
                let destination = destination.map_or("any".to_owned(), |address| address.to_string());
                write!(formatter, "rule {} {destination} {port}", family.flow())
            }
            Self::Interrupt { number, name } => write!(formatter, "interrupt {number} {name}"),
            Self::Rps(queue) => write!(formatter, "rps {queue}"),
            Self::Xps(queue) => write!(formatter, "xps {queue}"),
            named => {
                let name = NAMES.iter().find(|(setting, _)| setting == named).map(|(_, name)| *name);
                formatter.write_str(name.expect("every setting has a name"))
            }
        }
    }
}

impl Setting {
    /// True for what is a file of sysfs or procfs; the driver is asked for the others.
    fn is_file(&self) -> bool {
        matches!(self, Self::Interrupt { .. } | Self::Rps(_) | Self::Xps(_) | Self::Threaded)
    }

    /// Reads the name that [`fmt::Display`] writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some((named, _)) = NAMES.iter().find(|(_, name)| *name == text) {
            return Some(named.clone());
        }
        Some(match text.split_once(' ')? {
            ("rule", rest) => parse_rule(rest)?,
            ("rps", queue) => Self::Rps(queue.parse().ok()?),
            ("xps", queue) => Self::Xps(queue.parse().ok()?),
            ("interrupt", rest) => {
                let (number, name) = rest.split_once(' ')?;
                Self::Interrupt { number: number.parse().ok()?, name: name.to_owned() }
            }
            _ => return None,
        })
    }
}

fn parse_rule(text: &str) -> Option<Setting> {
    let [family, destination, port] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let family = [Family::V4, Family::V6].into_iter().find(|known| known.flow() == family)?;
    let destination = if destination == "any" { None } else { Some(destination.parse::<IpAddr>().ok()?) };
    let fits = destination.is_none_or(|address| address.is_ipv4() == (family == Family::V4));
    Some(Setting::Rule { family, destination, port: port.parse().ok()? }).filter(|_| fits)
}

/// Why a setting could not be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum SettingError {
    /// Neither the host nor its driver has it.
    NotSupported,
    /// The queue or the interrupt that it belongs to is not there.
    Gone(String),
    /// A right is missing: what cannot be done, and which right it takes.
    Permission(String),
    /// Any other failure: what was attempted, and the cause.
    Failed(String),
}

impl fmt::Display for SettingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSupported => formatter.write_str("neither the host nor the driver supports it"),
            Self::Gone(what) | Self::Permission(what) | Self::Failed(what) => formatter.write_str(what),
        }
    }
}

impl std::error::Error for SettingError {}

impl From<EthtoolError> for SettingError {
    fn from(error: EthtoolError) -> Self {
        match error {
            EthtoolError::NotSupported => Self::NotSupported,
            EthtoolError::Permission => Self::Permission(error.to_string()),
            EthtoolError::NoInterface | EthtoolError::Failed { .. } => Self::Failed(error.to_string()),
        }
    }
}

// Writing returns what the setting is afterwards, because drivers round, clamp and sometimes ignore.

impl Reader<'_> {
    /// What a setting of an interface is now.
    pub fn get(&self, interface: &str, setting: &Setting) -> Result<String, SettingError> {
        Ok(match setting {
            Setting::Channels => show_channels(&self.ethtool.channels(interface)?),
            Setting::Rings => self.ethtool.rings(interface).map(|rings| format!("{} {}", rings.rx, rings.tx))?,
            Setting::Coalescing => show_coalescing(&self.ethtool.coalescing(interface)?),
            Setting::Ntuple => on_off(self.ethtool.feature(interface, NTUPLE)?.is_on).to_owned(),
            Setting::Rule { .. } => self.rule(interface, setting)?,
            Setting::Indirection => match self.ethtool.rss(interface)?.indirection {
                table if table.is_empty() => return Err(SettingError::NotSupported),
                table => show_table(&table),
            },
            Setting::HashKey => match self.ethtool.rss(interface)?.key {
                key if key.is_empty() => return Err(SettingError::NotSupported),
                key => key.iter().map(|byte| format!("{byte:02x}")).collect(),
            },
            Setting::FlowHash(family) => self.ethtool.flow_hash(interface, *family)?.expressible()?.letters(),
            Setting::Interrupt { .. } | Setting::Rps(_) | Setting::Xps(_) | Setting::Threaded => {
                let path = self.path(interface, setting)?;
                match fs::read_to_string(&path) {
                    Ok(text) => text.trim().to_owned(),
                    Err(error) if has_no_mask(&error) && !matches!(setting, Setting::Interrupt { .. }) => {
                        return Err(SettingError::NotSupported);
                    }
                    Err(error) => return Err(SettingError::Failed(format!("cannot read {}: {error}", path.display()))),
                }
            }
        })
    }

    /// Sets it, and returns the value read back.
    pub fn set(&self, interface: &str, setting: &Setting, value: &str) -> Result<String, SettingError> {
        let damaged = || SettingError::Failed(format!("{value:?} is not a value of {setting}"));
        match setting {
            Setting::Channels => {
                let [rx, tx, other, combined] = numbers(value).ok_or_else(damaged)?;
                let channels = Channels { rx, tx, other, combined, ..self.ethtool.channels(interface)? };
                self.make_room_in_table(interface, &channels)?;
                self.ethtool.set_channels(interface, &channels)?;
            }
            Setting::Rings => {
                let [rx, tx] = numbers(value).ok_or_else(damaged)?;
                self.ethtool.set_rings(interface, &Rings { rx, tx, ..self.ethtool.rings(interface)? })?;
            }
            Setting::Coalescing => {
                self.ethtool.set_coalescing(interface, &parse_coalescing(value).ok_or_else(damaged)?)?;
            }
            Setting::Ntuple => {
                self.ethtool.set_feature(interface, NTUPLE, parse_on_off(value).ok_or_else(damaged)?)?;
            }
            Setting::Rule { .. } => {
                return Err(SettingError::Failed(format!("{setting} is added to the rules of a device, not set")));
            }
            Setting::Indirection => {
                self.ethtool.set_indirection(interface, Some(&parse_table(value).ok_or_else(damaged)?))?;
            }
            Setting::HashKey => self.ethtool.set_rss_key(interface, &parse_key(value).ok_or_else(damaged)?)?,
            Setting::FlowHash(family) => {
                let hash = FlowHash::from_letters(value).ok_or_else(damaged)?;
                self.ethtool.set_flow_hash(interface, *family, hash)?;
            }
            Setting::Interrupt { .. } | Setting::Rps(_) | Setting::Xps(_) | Setting::Threaded => {
                let path = self.path(interface, setting)?;
                write_file(&path, &format!("{value}\n")).map_err(|error| write_error(setting, &path, value, &error))?;
            }
        }
        self.settled(interface, setting, value)
    }

    /// What it is after it was set. An interrupt that moves shows for a moment where it was.
    fn settled(&self, interface: &str, setting: &Setting, value: &str) -> Result<String, SettingError> {
        let mut now = self.get(interface, setting)?;
        for _ in 1..READS {
            if !matches!(setting, Setting::Interrupt { .. }) || is_same(setting, &now, value) {
                break;
            }
            pause();
            now = self.get(interface, setting)?;
        }
        Ok(now)
    }

    /// The kernel refuses to take away a queue that a table still names: the driver's own table is put there first.
    fn make_room_in_table(&self, interface: &str, channels: &Channels) -> Result<(), SettingError> {
        let highest = self.ethtool.rss(interface).ok().and_then(|rss| rss.indirection.into_iter().max());
        if highest.is_some_and(|highest| highest >= channels.receiving()) {
            self.ethtool.set_indirection(interface, None)?;
        }
        Ok(())
    }

    /// The command that sets it by hand.
    pub(crate) fn command(&self, interface: &str, setting: &Setting, value: &str) -> String {
        let by_hand = || -> Option<String> {
            Some(match setting {
                Setting::Channels => {
                    let [rx, tx, other, combined] = numbers(value)?;
                    let channels = self.ethtool.channels(interface).ok()?;
                    command::set_channels(interface, &Channels { rx, tx, other, combined, ..channels })
                }
                Setting::Rings => {
                    let [rx, tx] = numbers(value)?;
                    command::set_rings(interface, &Rings { rx, tx, ..Rings::default() })
                }
                Setting::Coalescing => command::set_coalescing(interface, &parse_coalescing(value)?),
                Setting::Ntuple => format!("ethtool -K {interface} ntuple {value}"),
                Setting::Rule { .. } => self.rule_command(interface, setting, value)?,
                Setting::Indirection => command::set_indirection(interface, &parse_table(value)?),
                Setting::HashKey => {
                    let bytes: Vec<String> = parse_key(value)?.iter().map(|byte| format!("{byte:02x}")).collect();
                    format!("ethtool -X {interface} hkey {}", bytes.join(":"))
                }
                Setting::FlowHash(family) => command::set_flow_hash(interface, *family, FlowHash::from_letters(value)?),
                Setting::Interrupt { .. } | Setting::Rps(_) | Setting::Xps(_) | Setting::Threaded => {
                    command::write_file(&self.path(interface, setting).ok()?.display().to_string(), value)
                }
            })
        };
        by_hand().unwrap_or_else(|| format!("set {setting} of {interface} to {value}"))
    }

    /// Whether a setting that is a file may be written, without writing.
    pub(crate) fn check_writable(&self, interface: &str, setting: &Setting) -> Result<(), SettingError> {
        if !setting.is_file() {
            return Ok(());
        }
        let path = self.path(interface, setting)?;
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .map(drop)
            .map_err(|error| write_error(setting, &path, "a core list", &error))
    }

    /// The file of a setting that is one. An interrupt is found by its name: drivers that reset ask for new numbers.
    fn path(&self, interface: &str, setting: &Setting) -> Result<PathBuf, SettingError> {
        let folder = self.sys_root.join("class/net").join(interface);
        let queues = folder.join("queues");
        let of_queue = |queue: String, file: &str| match queues.join(&queue).try_exists() {
            Ok(false) if queues.exists() => Err(SettingError::Gone(format!("the queue {queue} is gone"))),
            _ => Ok(queues.join(queue).join(file)),
        };
        Ok(match setting {
            Setting::Threaded => folder.join("threaded"),
            Setting::Rps(queue) => of_queue(format!("rx-{queue}"), "rps_cpus")?,
            Setting::Xps(queue) => of_queue(format!("tx-{queue}"), "xps_cpus")?,
            Setting::Interrupt { number, name } => {
                let found = self.find_interrupt(interface, *number, name);
                let found = found.map_err(|error| SettingError::Failed(error.to_string()))?;
                let gone = || SettingError::Gone(format!("the interrupt {name} is gone; its number was {number}"));
                let number = found.ok_or_else(gone)?;
                self.proc_root.join(format!("irq/{number}/smp_affinity_list"))
            }
            _ => return Err(SettingError::Failed(format!("{setting} is not a file"))),
        })
    }

    /// Finds the interrupt of a setting by its name, among those of the device: an old name can belong to another
    /// device by now. A line that several devices share has several names, and a setting has one of them or all. An
    /// interrupt that the driver has released has no name, and still belongs to the device.
    fn find_interrupt(&self, interface: &str, number: u32, name: &str) -> io::Result<Option<u32>> {
        let is_named = |actions: &str| actions.split(',').any(|action| name.split(',').any(|name| name == action));
        let named: Vec<(u32, String)> = self.all_interrupts(interface)?;
        let with_name = || named.iter().filter(|(_, action)| is_named(action)).map(|(number, _)| *number);
        let own = Device::find(self.sys_root, interface)?.map_or(Ok(Vec::new()), |device| device.vectors())?;
        let is_let_go = name.is_empty() || !named.iter().any(|(other, _)| *other == number);
        let folder = self.sys_root.join("kernel/irq").join(number.to_string());
        if with_name().any(|found| found == number) || (is_let_go && own.contains(&number) && folder.exists()) {
            return Ok(Some(number));
        }
        if let Some(found) = with_name().next() {
            return Ok(Some(found));
        }
        let actions = read_if_any(&folder.join("actions"))?.unwrap_or_default();
        Ok(Some(number).filter(|_| !name.is_empty() && is_named(actions.trim())))
    }
}

fn write_file(path: &std::path::Path, text: &str) -> io::Result<()> {
    #[cfg(test)]
    crate::testing::faults::before()?;
    fs::write(path, text)
}

fn write_error(setting: &Setting, path: &std::path::Path, value: &str, error: &io::Error) -> SettingError {
    let text = format!("cannot write {value} to {}: {error}", path.display());
    let is_interrupt = matches!(setting, Setting::Interrupt { .. });
    match error.raw_os_error() {
        Some(libc::EACCES) => SettingError::Permission(format!("{text}; root is needed")),
        Some(libc::EROFS) => SettingError::Permission(format!("{text}; in a container, apply on the host instead")),
        // What kernels answer about an interrupt that they manage themselves; older ones answer EIO.
        Some(libc::EPERM | libc::EIO) if is_interrupt => {
            SettingError::Failed(format!("{text}; the kernel manages this interrupt itself"))
        }
        Some(libc::EPERM) => SettingError::Permission(format!("{text}; it needs CAP_NET_ADMIN")),
        Some(libc::ENOSPC) if is_interrupt => {
            SettingError::Failed(format!("{text}; that core has no interrupt vector left"))
        }
        _ => SettingError::Failed(text),
    }
}

/// Whether two texts mean the same value. Masks differ in how many words of zeroes stand in front, lists of cores in
/// how they write a range, rules in their place. While a driver adapts the coalescing, some show what it is at the
/// moment.
pub(crate) fn is_same(setting: &Setting, one: &str, other: &str) -> bool {
    let mean_the_same = match setting {
        Setting::Rps(_) | Setting::Xps(_) => parse_mask(one).is_some_and(|one| Some(one) == parse_mask(other)),
        Setting::Interrupt { .. } => parse_core_list(one).is_ok_and(|one| parse_core_list(other) == Ok(one)),
        Setting::Rule { .. } => without_place(one) == without_place(other),
        Setting::Coalescing => {
            let adapts = |text: &str| parse_coalescing(text).is_some_and(|coalescing| coalescing.adaptive_rx);
            adapts(one) && adapts(other)
        }
        _ => false,
    };
    one == other || mean_the_same
}

/// What a rule does, without its place.
fn without_place(value: &str) -> &str {
    value.split([';']).next().unwrap_or_default().split(" at ").next().unwrap_or_default()
}

/// The counts in use.
pub(crate) fn show_channels(channels: &Channels) -> String {
    format!("{} {} {} {}", channels.rx, channels.tx, channels.other, channels.combined)
}

pub(crate) fn show_coalescing(coalescing: &Coalescing) -> String {
    let Coalescing { rx_usecs, rx_frames, adaptive_rx } = coalescing;
    format!("adaptive-rx {} rx-usecs {rx_usecs} rx-frames {rx_frames}", on_off(*adaptive_rx))
}

pub(crate) fn parse_coalescing(text: &str) -> Option<Coalescing> {
    let ["adaptive-rx", adaptive, "rx-usecs", usecs, "rx-frames", frames] = text.split(' ').collect::<Vec<_>>()[..]
    else {
        return None;
    };
    let (rx_usecs, rx_frames) = (usecs.parse().ok()?, frames.parse().ok()?);
    Some(Coalescing { rx_usecs, rx_frames, adaptive_rx: parse_on_off(adaptive)? })
}

pub(crate) fn on_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn parse_on_off(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

pub(crate) fn show_table(table: &[u32]) -> String {
    table.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

pub(crate) fn parse_table(text: &str) -> Option<Vec<u32>> {
    text.split(',').map(|entry| entry.parse().ok()).collect()
}

fn parse_key(text: &str) -> Option<Vec<u8>> {
    let is_hexadecimal = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hexadecimal
        .then(|| (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect())?
}

fn numbers<const COUNT: usize>(text: &str) -> Option<[u32; COUNT]> {
    let numbers: Vec<u32> = text.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

#[cfg(test)]
#[path = "setting_tests.rs"]
mod tests;
