//! Who listens on a port in another network namespace of this host: a container whose port nobody published, or a
//! daemon that was started in the wrong place.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::explain::evidence::Elsewhere;
use udpd_base::os::holder;

/// One socket of each other namespace that has the port, as far as this process may look.
pub fn listeners(port: u16, proc_root: &Path) -> Vec<Elsewhere> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let mut seen: BTreeSet<_> = namespace(&proc_root.join("self")).into_iter().collect();
    let mut pids: Vec<u32> = fs::read_dir(proc_root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut found = Vec::new();
    for pid in pids {
        let process = proc_root.join(pid.to_string());
        let Some(other) = namespace(&process) else { continue };
        if !seen.insert(other) {
            continue;
        }
        let mut sockets = holder::sockets(&process, |bound| bound == port).unwrap_or_default();
        sockets.truncate(1);
        holder::name_processes(&mut sockets, proc_root);
        found.extend(sockets.into_iter().map(|socket| Elsewhere {
            pid: socket.pid.unwrap_or(pid),
            command: socket.command.unwrap_or_else(|| "a process".to_owned()),
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use hostloss::testing::root;

    #[test]
    fn a_socket_in_another_namespace_is_found_and_those_of_this_one_are_not() {
        let table =
            "heading\n 1: 00000000:0202 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 4711 2 0 0\n";
        let tree = root(&[("7/net/udp", table), ("8/net/udp", table), ("8/comm", "rsyslogd\n"), ("self/x", "")]);
        for (process, namespace) in [("self", "net:[1]"), ("7", "net:[1]"), ("8", "net:[2]")] {
            fs::create_dir_all(tree.path().join(process).join("ns")).expect("a folder");
            symlink(namespace, tree.path().join(process).join("ns/net")).expect("a link");
        }
        fs::create_dir_all(tree.path().join("8/fd")).expect("a folder");
        symlink("socket:[4711]", tree.path().join("8/fd/3")).expect("a link");
        assert_eq!(listeners(514, tree.path()), [Elsewhere { pid: 8, command: "rsyslogd".into() }]);
        assert_eq!(listeners(515, tree.path()), []);
    }
}
