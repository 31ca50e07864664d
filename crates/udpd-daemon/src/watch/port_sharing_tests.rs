//! Who is seen on a port, what it is said to take, and that each is said once; against tables that are made up.

use std::fs;
use std::io;

use netlink::sock_diag::UdpSocket;

use super::*;

fn bound(address: &str, interface: u32, v6_only: bool) -> Bound {
    Bound { address: address.parse().expect(address), interface, v6_only }
}

#[test]
fn what_another_socket_takes_is_what_the_kernel_gives_it() {
    use Takes::{Nothing, Part, Share};
    let of = |ours: &str, theirs: &str| takes(&bound(ours, 0, false), &bound(theirs, 0, false), false);
    assert_eq!(of("0.0.0.0:514", "0.0.0.0:514"), Some(Share));
    assert_eq!(of("0.0.0.0:514", "10.0.0.1:514"), Some(Part), "who names the address goes before who takes them all");
    assert_eq!(of("10.0.0.1:514", "0.0.0.0:514"), Some(Nothing));
    assert_eq!(of("10.0.0.1:514", "10.0.0.2:514"), None);
    assert_eq!(of("0.0.0.0:514", "0.0.0.0:515"), None);
    assert_eq!(of("[::]:514", "0.0.0.0:514"), Some(Part), "who takes IPv4 alone goes before who takes both");
    assert_eq!(of("0.0.0.0:514", "[::]:514"), Some(Nothing));
    assert_eq!(of("[::1]:514", "127.0.0.1:514"), None);
    assert_eq!(of("[::1]:514", "[::]:514"), Some(Nothing));
    let v6_only = bound("[::]:514", 0, true);
    assert_eq!(takes(&bound("0.0.0.0:514", 0, false), &v6_only, false), None);
    let on = |interface| bound("0.0.0.0:514", interface, false);
    assert_eq!(takes(&on(0), &on(2), false), Some(Part), "who names the interface goes before who takes them all");
    assert_eq!(takes(&on(2), &on(0), false), Some(Nothing));
    assert_eq!(takes(&on(2), &on(2), false), Some(Share));
    assert_eq!(takes(&on(2), &on(3), false), None);
    assert_eq!(takes(&on(0), &on(0), true), Some(Part), "a connected one takes what its peer sends");
}

/// A table of the kernel in which 100 and 101 are our own sockets, and what `ShareWatch` makes of it.
struct Rig {
    proc_root: tempfile::TempDir,
    watch: ShareWatch,
    own: Vec<u64>,
    details: Vec<UdpSocket>,
}

impl Rig {
    fn new(share_port: bool) -> Self {
        let proc_root = tempfile::tempdir().expect("a directory");
        fs::create_dir(proc_root.path().join("net")).expect("a directory");
        let bound = vec![bound("0.0.0.0:514", 0, false)];
        let watched = vec![SharedListener { listener: 0, name: "syslog".into(), bound, share_port }];
        let watch = ShareWatch::over(watched, proc_root.path());
        Self { proc_root, watch, own: vec![100, 101], details: Vec::new() }
    }

    /// Looks at a table of the first two of our own sockets and these: inode, user and address.
    fn look(&mut self, sockets: &[(u64, u32, [u8; 4])]) -> Option<Vec<String>> {
        self.write(&[&[(100, 990, ANY), (101, 990, ANY)], sockets].concat());
        self.said()
    }

    fn write(&self, sockets: &[(u64, u32, [u8; 4])]) {
        let line = |(inode, uid, address): &(u64, u32, [u8; 4])| {
            let address = u32::from_ne_bytes(*address);
            format!("1: {address:08X}:0202 00000000:0000 07 0:0 00:0 0 {uid} 0 {inode} 2 0 0\n")
        };
        let lines: String = sockets.iter().map(line).collect();
        fs::write(self.proc_root.path().join("net/udp"), format!("heading\n{lines}")).expect("a table");
    }

    fn said(&mut self) -> Option<Vec<String>> {
        let said = self.watch.compare(|_| self.own.clone(), |_| Ok(self.details.clone()));
        said.map(|lines| lines.into_iter().map(|(level, line)| format!("{level} {line}")).collect())
    }

    fn process(&self, pid: u32, inodes: &[u64]) {
        let directory = self.proc_root.path().join(pid.to_string());
        fs::create_dir_all(directory.join("fd")).expect("a directory");
        fs::write(directory.join("comm"), "rsyslogd\n").expect("a name");
        for inode in inodes {
            let link = directory.join("fd").join(inode.to_string());
            std::os::unix::fs::symlink(format!("socket:[{inode}]"), link).expect("a link");
        }
    }
}

const ANY: [u8; 4] = [0; 4];

#[test]
fn who_comes_and_who_goes_is_said_once_with_pid_and_command() {
    let mut rig = Rig::new(false);
    assert_eq!(rig.look(&[]).as_deref(), Some([].as_slice()), "the first look has a result, and nothing to say");
    assert_eq!(rig.look(&[]), None);
    rig.process(812, &[200, 201]);
    let said = rig.look(&[(200, 990, ANY), (201, 990, ANY)]).expect("something has changed");
    let [line] = said.as_slice() else { panic!("{said:?}") };
    assert!(line.starts_with("WARN listener syslog: rsyslogd (pid 812) also has 2 sockets on 0.0.0.0:514:"), "{line}");
    assert!(line.contains("splits the datagrams") && line.contains("share_port = true"), "{line}");
    assert_eq!(rig.look(&[(201, 990, ANY), (200, 990, ANY)]), None, "and once");
    assert_eq!(rig.look(&[(201, 990, ANY)]).as_deref(), Some([].as_slice()), "as long as one of them is there");
    assert_eq!(rig.watch.sharers(0).expect("seen")[0].sockets, 1, "though the ledger has the number");
    assert_eq!(rig.look(&[(200, 990, ANY), (201, 990, ANY)]).as_deref(), Some([].as_slice()));
    let sharers = rig.watch.sharers(0).expect("they can be seen");
    assert_eq!((sharers.len(), sharers[0].pid, sharers[0].sockets, sharers[0].takes), (1, Some(812), 2, Takes::Share));
    let said = rig.look(&[]).expect("something has changed");
    assert_eq!(said, ["INFO listener syslog: rsyslogd (pid 812) has closed its sockets on 0.0.0.0:514"]);
    assert_eq!(rig.watch.sharers(0), Some(Vec::new()));
}

#[test]
fn where_sharing_is_meant_it_is_said_as_a_fact_and_not_as_a_warning() {
    let mut rig = Rig::new(true);
    let said = rig.look(&[(200, 990, ANY)]).expect("something is there");
    assert!(said[0].starts_with("INFO ") && !said[0].contains("; stop one"), "{said:?}");
}

#[test]
fn who_takes_one_address_away_is_named_and_who_takes_nothing_is_no_trouble() {
    let mut rig = Rig::new(false);
    let said = rig.look(&[(200, 990, [10, 0, 0, 1])]).expect("something is there");
    assert!(said[0].starts_with("WARN ") && said[0].contains("1 socket on 10.0.0.1:514"), "{said:?}");
    rig.watch.watched[0].bound = vec![bound("10.0.0.1:514", 0, false)];
    let said = rig.look(&[(201, 990, ANY)]).expect("something has changed");
    assert!(
        said.iter().any(|line| line.starts_with("INFO ") && line.contains("only what is not for this")),
        "{said:?}"
    );
    assert_eq!(rig.watch.sharers(0).expect("seen")[0].takes, Takes::Nothing);
}

#[test]
fn a_socket_of_another_user_or_on_another_interface_is_nobody() {
    let mut rig = Rig::new(false);
    rig.watch.watched[0].bound = vec![bound("0.0.0.0:514", 2, false)];
    let address = "0.0.0.0:514".parse().expect("an address");
    rig.details =
        vec![UdpSocket { inode: 201, address, peer: None, uid: 0, interface: 3, v6_only: false, memory: None }];
    assert_eq!(rig.look(&[(200, 0, ANY), (201, 990, ANY)]).as_deref(), Some([].as_slice()));
    assert_eq!(rig.watch.sharers(0), Some(Vec::new()));
    assert_eq!(rig.look(&[(200, 0, ANY), (201, 990, ANY)]), None, "nor is it asked for again");
}

#[test]
fn our_own_sockets_are_nobody_also_while_new_ones_take_their_place() {
    let mut rig = Rig::new(false);
    rig.look(&[]);
    rig.own = vec![102, 103];
    assert_eq!(
        rig.look(&[(102, 990, ANY), (103, 990, ANY)]),
        None,
        "the old ones are closed a moment after the change"
    );
    rig.write(&[(102, 990, ANY), (103, 990, ANY)]);
    assert_eq!(rig.said(), None);
    let said = rig.look(&[(102, 990, ANY), (103, 990, ANY)]).expect("something has changed");
    assert_eq!(said.len(), 1, "an inode that was ours once and is in use again is another socket: {said:?}");
}

#[test]
fn what_nobody_can_see_is_null_and_said_once() {
    let mut rig = Rig::new(false);
    rig.look(&[]);
    fs::remove_file(rig.proc_root.path().join("net/udp")).expect("removed");
    let said = rig.said().expect("something has changed");
    assert!(said[0].starts_with("WARN cannot see who else") && said[0].contains("ProcSubset"), "{said:?}");
    assert_eq!(rig.watch.sharers(0), None);
    assert_eq!(rig.said(), None);
    assert_eq!(rig.look(&[]).as_deref(), Some([].as_slice()));
    assert_eq!(rig.watch.sharers(0), Some(Vec::new()), "and seen again it is known again");
}

#[test]
fn where_the_kernel_does_not_tell_the_interface_a_socket_is_taken_for_the_usual_one() {
    let mut rig = Rig::new(false);
    let path = rig.proc_root.path().join("net/udp");
    let line = "1: 00000000:0202 00000000:0000 07 0:0 0:0 0 990 0";
    fs::write(path, format!("heading\n{line} 100 2 0 0\n{line} 200 2 0 0\n")).expect("a table");
    let said = rig.watch.compare(|_| vec![100], |_| Err(io::Error::other("refused"))).expect("something is there");
    assert_eq!(said.len(), 1, "{said:?}");
}
