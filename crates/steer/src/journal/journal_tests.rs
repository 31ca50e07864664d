//! Tests of the folder: what is saved, who may save, and what is not believed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::sync::mpsc;

use super::*;
use crate::identity::Namespace;
use crate::testing::mutate;

struct Place {
    journal: Journal,
    root: tempfile::TempDir,
}

fn place() -> Place {
    let root = tempfile::tempdir().expect("a temporary directory");
    Place { journal: Journal::in_folder(root.path().join("run/steer")), root }
}

impl Place {
    fn lock(&self) -> LockedJournal {
        self.journal.lock("a test", Duration::ZERO, |_| ()).expect("no other process has it")
    }

    fn why_unusable(&self) -> String {
        match self.journal.entries() {
            Err(error @ JournalError::Unusable(_)) => error.to_string(),
            Ok(entries) => match entries.first().map(|entry| &entry.saved) {
                Some(Err(error @ JournalError::Unusable(_))) => error.to_string(),
                other => panic!("believed: {other:?}"),
            },
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn what_was_saved_is_found_again_whatever_the_interface_is_called_by_then() {
    let place = place();
    assert!(place.journal.interfaces().expect("nothing there").is_empty());
    let mut journal = place.lock();
    assert_eq!(journal.find(&saved().identity).expect("nothing there"), None);
    journal.save(&saved()).expect("saved");
    let renamed = Identity { name: "lan0".to_owned(), ..saved().identity };
    assert_eq!(journal.find(&renamed).expect("a whole file"), Some(saved()));
    assert_eq!(place.journal.interfaces().expect("the folder"), ["eth0"]);
    let banned = Saved { banned: vec![40], ..saved() };
    journal.save(&banned).expect("saved");
    assert_eq!(journal.find(&renamed).expect("a whole file"), Some(banned));
    let [entry] = &journal.entries().expect("the folder")[..] else { panic!("one file") };
    journal.remove(entry).expect("removed");
    assert_eq!(journal.find(&renamed).expect("nothing there"), None);
}

#[test]
fn interfaces_of_one_name_do_not_share_a_file() {
    let place = place();
    let mut journal = place.lock();
    let identity = saved().identity;
    let namespace = Namespace { inode: 7, ..identity.namespace };
    for identity in [identity.clone(), Identity { index: 9, ..identity.clone() }, Identity { namespace, ..identity }] {
        journal.save(&Saved { identity, ..saved() }).expect("saved");
    }
    assert_eq!(place.journal.interfaces().expect("the folder"), ["eth0"; 3]);
    assert!(journal.entries().expect("the folder").iter().all(|entry| entry.saved.is_ok()));
}

#[test]
fn another_device_of_the_same_number_is_not_taken_for_the_one_that_was_saved() {
    let place = place();
    let mut journal = place.lock();
    journal.save(&saved()).expect("saved");
    let address = Some("02:00:00:00:00:01".to_owned());
    let renumbered = Identity { address: address.clone(), ..saved().identity };
    assert_eq!(journal.find(&renumbered).expect("the same device"), Some(saved()), "its address was changed");
    for other in [
        Identity { address, bus: None, ..saved().identity },
        Identity { bus: Some("0000:00:04.0".to_owned()), ..saved().identity },
    ] {
        let error = journal.find(&other).expect_err("another device").to_string();
        assert!(error.contains("52:54:00:12:34:56 on bus 0000:00:03.0"), "{error}");
    }
}

#[test]
fn what_cannot_be_written_as_lines_is_not_saved() {
    let place = place();
    let values = vec![(Setting::Rps(0), "1\n2".to_owned())];
    let error = place.lock().save(&Saved { values, ..saved() }).expect_err("two lines");
    assert!(error.to_string().contains("cannot be written"), "{error}");
    assert!(place.journal.interfaces().expect("the folder").is_empty());
}

#[test]
fn the_second_process_is_told_which_one_has_the_lock_and_gets_it_afterwards() {
    let place = place();
    let first = place.lock();
    let refused = place.journal.lock("another test", Duration::ZERO, |_| ()).expect_err("it is taken");
    let named = format!("process {} (a test) holds", std::process::id());
    assert!(matches!(refused, JournalError::Busy(_)) && refused.to_string().starts_with(&named), "{refused}");
    let (told, heard) = mpsc::channel();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            place.journal.lock("another test", Duration::MAX, |holder| {
                told.send(holder.to_owned()).expect("the test listens");
            })
        });
        assert_eq!(heard.recv().expect("it waits"), format!("process {} (a test)", std::process::id()));
        drop(first);
        assert!(second.join().expect("no panic").is_ok());
    });
}

#[test]
fn what_a_killed_process_left_unfinished_is_swept_away() {
    let place = place();
    drop(place.lock());
    let left = place.journal.folder().join(".99-0.new");
    fs::write(&left, "half of it").expect("a file");
    drop(place.lock());
    assert!(!left.exists());
}

#[test]
fn no_link_is_followed_on_the_way_to_the_folder() {
    let place = place();
    let (elsewhere, run) = (place.root.path().join("elsewhere"), place.root.path().join("run"));
    fs::create_dir_all(elsewhere.join("steer")).expect("directories");
    symlink(&elsewhere, &run).expect("a link");
    assert_eq!(place.why_unusable(), format!("{} is not a directory itself but a link or a file", run.display()));
    fs::remove_file(&run).expect("removed");
    fs::create_dir(&run).expect("a directory");
    symlink(elsewhere.join("steer"), run.join("steer")).expect("a link");
    place.journal.lock("a test", Duration::ZERO, |_| ()).expect_err("a link");
    assert_eq!(fs::read_dir(elsewhere.join("steer")).expect("a directory").count(), 0, "nothing was written there");
}

#[test]
fn a_folder_that_others_may_write_to_is_not_believed() {
    let place = place();
    place.lock().save(&saved()).expect("saved");
    for mode in [0o720, 0o702, 0o1777] {
        fs::set_permissions(place.journal.folder(), fs::Permissions::from_mode(mode)).expect("ours");
        let why = place.why_unusable();
        assert!(why.ends_with(&format!("is writable by others than its owner (mode {mode:o})")), "{why}");
    }
    fs::set_permissions(place.journal.folder(), fs::Permissions::from_mode(0o755)).expect("ours");
    assert!(place.journal.entries().expect("the folder")[0].saved.is_ok());
    // Only root can give it away.
    if chown(place.journal.folder(), Some(65_534), None).is_ok() {
        assert!(place.why_unusable().ends_with("belongs to user 65534 and not to root"));
    }
}

#[test]
fn a_file_that_another_user_can_have_made_is_not_believed() {
    let place = place();
    place.lock().save(&saved()).expect("saved");
    let file = place.journal.folder().join("eth0.2.4026531840.saved");
    let text = fs::read_to_string(&file).expect("the file");
    let outside = place.root.path().join("outside");
    fs::write(&outside, &text).expect("a file");
    // Refused for this reason; then there is the file as it was again.
    let check = |ending: &str| {
        assert!(place.why_unusable().ends_with(ending), "{ending}: {}", place.why_unusable());
        fs::remove_file(&file).or_else(|_| fs::remove_dir(&file)).expect("removed");
        fs::write(&file, &text).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
    };
    let remove = || fs::remove_file(&file).expect("removed");
    remove();
    symlink(&outside, &file).expect("a link");
    check("is a symbolic link");
    fs::hard_link(&file, place.root.path().join("hard")).expect("a link");
    check("has 2 names, and one of them is not ours");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).expect("ours");
    check("is writable by others than its owner (mode 620)");
    // Only root can give it away.
    if chown(&file, Some(65_534), None).is_ok() {
        check("belongs to user 65534 and not to root");
    }
    remove();
    fs::create_dir(&file).expect("a directory");
    check("is not a regular file");
    remove();
    // The writer of a pipe is not waited for.
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    check("is not a regular file");
    assert!(place.journal.entries().expect("the folder")[0].saved.is_ok());
}

#[test]
fn a_file_that_is_not_what_its_name_says_is_damaged() {
    let place = place();
    place.lock().save(&saved()).expect("saved");
    let file = place.journal.folder().join("eth0.2.4026531840.saved");
    let text = fs::read_to_string(&file).expect("the file");
    for (from, to) in [("name\teth0", "name\teth1"), ("index\t2", "index\t3"), ("4:4026531840", "4:4026531841")] {
        assert!(text.contains(from));
        fs::write(&file, text.replace(from, to)).expect("a file");
        assert!(place.why_unusable().ends_with("is damaged: nothing is restored from it"), "{to}");
    }
    for bytes in [vec![0xff; 100], vec![b'x'; 2 << 20]] {
        fs::write(&file, bytes).expect("a file");
        assert!(place.why_unusable().ends_with("is damaged: nothing is restored from it"));
    }
}

fn saved() -> Saved {
    let interrupt =
        |number: u32| Setting::Interrupt { number, name: format!("virtio2-input.{}", number.saturating_sub(38)) };
    let values = vec![
        (Setting::Channels, "0 0 0 4".to_owned()),
        (Setting::Indirection, "0,1,2,3".to_owned()),
        (interrupt(38), "0-1".to_owned()),
        (Setting::Rps(0), "00000000".to_owned()),
    ];
    let identity = Identity {
        name: "eth0".to_owned(),
        index: 2,
        namespace: Namespace { device: 4, inode: 4_026_531_840 },
        address: Some("52:54:00:12:34:56".to_owned()),
        bus: Some("0000:00:03.0".to_owned()),
    };
    Saved { identity, banned: vec![38, 39], values, later: vec![(interrupt(39), "0-3".to_owned())] }
}

#[test]
fn what_is_shown_is_parsed_again() {
    let bare = Identity { address: None, bus: None, ..saved().identity };
    for saved in [saved(), Saved { identity: bare, banned: Vec::new(), later: Vec::new(), ..saved() }] {
        assert_eq!(parse(&show(&saved)), Some(saved));
    }
}

#[test]
fn an_interrupt_is_known_by_its_name_and_without_one_by_its_number() {
    let interrupt = |number: u32, name: &str| Setting::Interrupt { number, name: name.to_owned() };
    assert!(saved().covers(&interrupt(77, "virtio2-input.0")), "a new number under the old name");
    assert!(saved().covers(&interrupt(38, "virtio2-input.0,uhci_hcd")), "a line that is shared");
    assert!(saved().covers(&interrupt(38, "")), "the driver has let go of it");
    assert!(!saved().covers(&interrupt(38, "virtio2-input.7")), "a new name on an old number");
    assert!(!saved().covers(&Setting::Rps(1)));
}

#[test]
fn a_file_that_was_cut_at_any_byte_is_never_taken_for_a_whole_one() {
    let text = show(&saved());
    for length in 0..text.len() {
        assert_eq!(parse(&text[..length]), None, "{length}");
    }
}

#[test]
fn no_file_makes_the_parser_panic() {
    mutate(show(&saved()).as_bytes(), |bytes| drop(parse(&String::from_utf8_lossy(bytes))));
}
