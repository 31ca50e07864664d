//! Whether irqbalance runs, by its process and by its sockets: a /proc that hides the processes of others, or that of a
//! container, says nothing of them, and "it does not run" would then be a guess.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::irqbalance::Irqbalance;
use crate::topology::{read_if_any, try_numbered};

/// Whether irqbalance runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Presence {
    /// It does: this one.
    Runs(Irqbalance),
    /// It does not.
    #[default]
    Absent,
    /// Nobody can say: the reason.
    Unknown(String),
}

/// What `/proc/self/ns/pid` is for whoever sees all processes of the machine: the kernel gives its first namespace
/// this number (`PROC_PID_INIT_INO`).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

impl Irqbalance {
    /// Looks for it below `root`, which is `/` on a live machine. After a restart the answer is another one: what was
    /// asked of the earlier one is forgotten.
    pub fn find(root: &Path) -> Presence {
        let proc = root.join("proc");
        let processes = match fs::metadata(&proc).and_then(|folder| by_process(&proc, folder.uid())) {
            Ok(processes) => processes,
            Err(error) => return Presence::Unknown(error.to_string()),
        };
        let listeners = by_listener(&proc);
        // One that only has the name does not listen. An old irqbalance listens without a name, so it need not.
        let listens = processes.iter().find(|pid| listeners.contains(pid));
        if let Some(pid) = listens.or(processes.first()).or(listeners.first()) {
            return Presence::Runs(Self::new(*pid));
        }
        if sees_all_processes(&proc) {
            return Presence::Absent;
        }
        let sockets = root.join("run/irqbalance");
        let has_socket = fs::read_dir(&sockets)
            .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| pid_in(&entry.path()).is_some())));
        Presence::Unknown(if has_socket {
            let sockets = sockets.display();
            format!("{sockets} has a socket of it, and /proc does not show whether its process still runs")
        } else {
            "/proc does not show the processes of others here".to_owned()
        })
    }
}

/// Every process of this user, which is root on a live machine, that shows its name. Anybody may give it to his own.
fn by_process(proc: &Path, user: u32) -> io::Result<Vec<u32>> {
    let is_it = |pid: &usize| {
        let folder = proc.join(pid.to_string());
        fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim() == "irqbalance")
            && fs::metadata(&folder).is_ok_and(|folder| folder.uid() == user)
    };
    Ok(try_numbered(proc, "")?.into_iter().filter(is_it).filter_map(|pid| u32::try_from(pid).ok()).collect())
}

/// The kernel lists every socket that has a name, whoever owns it: a path, or "@" and an abstract name.
fn by_listener(proc: &Path) -> Vec<u32> {
    let table = read_if_any(&proc.join("net/unix")).ok().flatten().unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_ascii_whitespace().nth(NAME_COLUMN));
    let pid = |name: &str| {
        let name = name.trim_matches('@');
        pid_in(Path::new(name)).filter(|_| name.starts_with("/run/irqbalance/") || !name.contains('/'))
    };
    names.filter_map(pid).collect()
}

/// Num RefCount Protocol Flags Type St Inode Path.
const NAME_COLUMN: usize = 7;

/// The process id in "irqbalance77.sock".
fn pid_in(socket: &Path) -> Option<u32> {
    let digits = socket.file_name()?.to_str()?.strip_prefix("irqbalance")?.strip_suffix(".sock")?;
    digits.parse().ok()
}

/// False where processes of others are hidden (`hidepid`), or where a container sees its own alone.
fn sees_all_processes(proc: &Path) -> bool {
    let is_first = match fs::read_link(proc.join("self/ns/pid")) {
        Ok(namespace) => namespace.as_os_str() == FIRST_NAMESPACE,
        // A kernel without such namespaces has no such link.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    is_first && fs::read_to_string(proc.join("1/comm")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    fn find(tree: &str) -> Presence {
        Irqbalance::find(Machine::unpack(tree).root.path())
    }

    #[test]
    fn it_is_found_by_its_process_and_absent_only_where_all_processes_are_seen() {
        assert_eq!(find("proc/1/comm = systemd\nproc/345/comm = irqbalance"), Presence::Runs(Irqbalance::new(345)));
        assert_eq!(find("proc/1/comm = systemd\nproc/345/comm = sshd"), Presence::Absent);
        assert_eq!(
            find("proc/1/comm = systemd\nproc/self/ns/pid -> pid:[4026531836]"),
            Presence::Absent,
            "the first namespace sees all"
        );
    }

    #[test]
    fn a_process_of_the_name_is_not_it_when_another_user_started_it_or_another_one_listens() {
        let machine = Machine::unpack("proc/1/comm = systemd\nproc/345/comm = irqbalance");
        let proc = machine.root.path().join("proc");
        let root = fs::metadata(&proc).expect("a folder").uid();
        assert_eq!(by_process(&proc, root).expect("a folder"), [345]);
        assert_eq!(by_process(&proc, root + 1).expect("a folder"), [0; 0], "somebody else's");
        let line = "0000000000000000: 00000002 00000000 00010000 0001 01 2048 /run/irqbalance/irqbalance400.sock";
        let two = format!("proc/345/comm = irqbalance\nproc/400/comm = irqbalance\nproc/net/unix = {line}");
        assert_eq!(find(&two), Presence::Runs(Irqbalance::new(400)));
    }

    #[test]
    fn what_proc_hides_is_unknown_and_never_absent() {
        let unknown = |tree: &str| match find(tree) {
            Presence::Unknown(why) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(unknown("proc/345/comm = sshd"), "/proc does not show the processes of others here");
        let container = "proc/1/comm = sh\nproc/self/ns/pid -> pid:[4026532001]";
        assert_eq!(unknown(container), "/proc does not show the processes of others here");
        let why = unknown("proc/345/comm = sshd\nrun/irqbalance/irqbalance77.sock = x");
        assert!(why.contains("run/irqbalance has a socket of it"), "{why}");
    }

    #[test]
    fn with_a_hidden_proc_it_is_found_by_its_socket() {
        let header = "proc/net/unix = Num       RefCount Protocol Flags    Type St Inode Path";
        let line = "0000000000000000: 00000002 00000000 00010000 0001 01 2048";
        for name in ["/run/irqbalance/irqbalance77.sock", "@irqbalance77.sock", "@irqbalance77.sock@@@@@@@@"] {
            let tree = format!("{header}\\n{line} /run/dbus/socket\\n{line}\\n{line} {name}");
            assert_eq!(find(&tree), Presence::Runs(Irqbalance::new(77)), "{name}");
        }
        let other = format!("{header}\\n{line} /home/mallory/irqbalance77.sock");
        assert!(matches!(find(&other), Presence::Unknown(_)), "a file of somebody's");
    }
}
