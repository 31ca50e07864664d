//! Tests of asking irqbalance, with one that answers like it over a socket of its own.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;

use nix::sys::socket::{Backlog, bind, listen};

use super::*;
use crate::testing::Machine;

/// Answers like irqbalance: `setup` from its list, and `settings ban irqs` replaces that list, as far as its buffer
/// holds the numbers. Tells every command that it got.
fn serve(list: &[u32], buffer_bytes: usize) -> (tempfile::TempDir, mpsc::Receiver<String>) {
    let (folder, mut list) = (tempfile::tempdir().expect("a temporary directory"), list.to_vec());
    let listener =
        UnixListener::bind(folder.path().join(format!("irqbalance{}.sock", std::process::id()))).expect("a socket");
    let (said, heard) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut command = String::new();
            stream.read_to_string(&mut command).expect("a command");
            if let Some(numbers) = command.strip_prefix(BAN).filter(|_| buffer_bytes > 0) {
                let read = &numbers[..numbers.len().min(buffer_bytes)];
                list = if read == "NONE" {
                    Vec::new()
                } else {
                    read.split(' ').filter_map(|it| it.parse().ok()).collect()
                };
            }
            if command == "setup" {
                let irqs: String = list.iter().map(|number| format!("IRQ {number} LOAD 0 DIFF 0 CLASS 5 ")).collect();
                let _ = write!(stream, "SLEEP 10 {irqs}BANNED 00000000");
            }
            if said.send(command).is_err() {
                return;
            }
        }
    });
    (folder, heard)
}

/// What irqbalance 1.9 takes.
const WHOLE: usize = LIST_BYTES_MAX;

fn ours(folder: &tempfile::TempDir) -> Irqbalance {
    Irqbalance::in_folder(std::process::id(), folder.path())
}

#[test]
fn ours_are_added_to_what_is_banned_already() {
    let (folder, heard) = serve(&[40], WHOLE);
    assert_eq!(ours(&folder).balances(&[40, 44, 43]).expect("it answers"), [44, 43]);
    assert_eq!(ours(&folder).ban(&[44, 43, 44]).expect("it obeys"), [44, 43]);
    let commands: Vec<String> = heard.iter().take(4).collect();
    assert_eq!(commands, ["setup", "setup", "settings ban irqs 40 44 43", "setup"]);
    assert_eq!(ours(&folder).ban(&[43, 44]).expect("it obeys"), [0; 0], "told once is enough");
}

#[test]
fn unbanning_takes_back_ours_and_leaves_what_others_banned() {
    let (folder, heard) = serve(&[40, 43, 44], WHOLE);
    assert_eq!(ours(&folder).unban(&[43, 44, 99]).expect("it obeys"), [43, 44]);
    let commands: Vec<String> = heard.iter().take(3).collect();
    assert_eq!(commands, ["setup", "settings ban irqs 40", "setup"]);
    assert_eq!(ours(&folder).unban(&[43, 44]).expect("it obeys"), [0; 0], "told once is enough");
    assert_eq!(ours(&folder).unban(&[40]).expect("it obeys"), [40]);
    assert_eq!(heard.iter().nth(2).expect("a command"), "settings ban irqs NONE", "an empty list has a word");
}

#[test]
fn one_that_does_not_obey_is_told_with_the_options_that_would_do() {
    let (folder, _heard) = serve(&[], 0);
    let error = ours(&folder).ban(&[43]).expect_err("it does not");
    assert!(error.to_string().contains("--banirq=43"), "{error}");
    let error = Irqbalance::in_folder(7, folder.path()).ban(&[43]).expect_err("no process listens");
    assert!(error.to_string().contains("process 7"), "{error}");
    let socket = folder.path().join(format!("irqbalance{}.sock", std::process::id()));
    fs::rename(socket, folder.path().join("irqbalance1.sock")).expect("renamed");
    let other = Irqbalance::in_folder(1, folder.path()).ban(&[43]).expect_err("another process listens");
    assert!(other.to_string().contains("listens there instead") || other.to_string().contains("refused"), "{other}");
}

#[test]
fn the_mask_of_banned_cores_is_no_interrupt() {
    assert_eq!(banned("SLEEP 10 IRQ 40 LOAD 3 DIFF 1 CLASS 5 IRQ 41 LOAD 1 DIFF 0 CLASS 4 BANNED 00000003"), [40, 41]);
    assert_eq!(banned("SLEEP 10 BANNED 43"), [0; 0]);
}

#[test]
fn a_list_that_is_too_long_is_not_sent_and_the_script_that_would_do_is_told() {
    let (folder, heard) = serve(&[], WHOLE);
    let fits: Vec<u32> = (100..220).collect();
    assert_eq!(ours(&folder).ban(&fits).expect("479 bytes").len(), 120);
    let commands = heard.iter().take(3).count();
    let more: Vec<u32> = (220..300).collect();
    for number in &more {
        let path = folder.path().join(number.to_string());
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join("actions"), format!("mlx5_comp{}@pci:0000:3b:00.0\n", number - 220)).expect("a file");
    }
    let named = Irqbalance { names: folder.path().to_owned(), ..ours(&folder) };
    let error = named.ban(&more).expect_err("too long").to_string();
    assert!(error.contains("it takes a list of 482 bytes at most, and this one has 799"), "{error}");
    assert!(
        error.ends_with("case \"$(cat /sys/kernel/irq/$2/actions)\" in mlx5_comp*) echo ban=true;; esac"),
        "{error}"
    );
    assert_eq!((commands, heard.recv().as_deref()), (3, Ok("setup")), "it was asked only");
}

#[test]
fn one_that_cuts_the_list_keeps_what_others_banned_and_is_told_as_such() {
    let (folder, heard) = serve(&[0, 40, 41], 255);
    let many: Vec<u32> = (100..200).collect();
    let error = ours(&folder).ban(&many).expect_err("it reads 255 bytes").to_string();
    assert!(error.contains("it cut the list and would still move 38 of 100 interrupts, so none was added"), "{error}");
    let commands: Vec<String> = heard.iter().take(5).collect();
    assert_eq!(commands[3], "settings ban irqs 0 40 41", "as it was before");
    assert_eq!(ours(&folder).banned().expect("it answers"), [0, 40, 41]);
}

#[test]
fn interrupt_0_comes_first_because_the_list_ends_with_it() {
    assert_eq!(list(&[43, 0, 44, 0]), "0 43 44");
    assert_eq!(list(&[]), "NONE");
}

#[test]
fn one_that_was_stopped_and_takes_no_more_connections_is_not_waited_for_for_ever() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join(format!("irqbalance{}.sock", std::process::id()));
    let address = UnixAddr::new(&path).expect("a short path");
    let new = |flags| socket(AddressFamily::Unix, SockType::Stream, flags, None).expect("a socket");
    let listener = new(SockFlag::SOCK_CLOEXEC);
    bind(listener.as_raw_fd(), &address).expect("a new file");
    listen(&listener, Backlog::new(0).expect("a small one")).expect("it listens");
    let mut waiting = Vec::new();
    loop {
        waiting.push(new(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK));
        match connect(waiting.last().expect("one").as_raw_fd(), &address) {
            Ok(()) => {}
            Err(error) => break assert_eq!(error, Errno::EAGAIN, "no room for another one"),
        }
    }
    let error = ours(&folder).balances(&[43]).expect_err("no answer").to_string();
    assert!(error.contains("it takes no connection within 2 s, as if it was stopped"), "{error}");
}

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
    assert_eq!(by_process(&proc, root + 1).expect("a folder"), [0; 0], "of another user");
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
    assert!(matches!(find(&other), Presence::Unknown(_)), "a file of another user");
}
