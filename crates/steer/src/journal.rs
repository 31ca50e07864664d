//! What an interface was like before it was steered, on disk, so that it can be put back after a crash too.
//!
//! All of it is written before the first change and never touched again until it is restored: first to a file beside
//! it, then made durable, then renamed. So at any moment there is either the whole of it or nothing, and if there is
//! nothing, nothing was changed. A second apply finds it and leaves it: the oldest values are the ones to go back to.
//!
//! It belongs below /run: a reboot puts all these settings back by itself, and the file goes with them.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::settings::Setting;

const FIRST_LINE: &str = "steering journal 1: what was, before it was changed";
const LAST_LINE: &str = "end";

/// The folder with what was.
#[derive(Debug, Clone)]
pub struct Journal {
    folder: PathBuf,
}

/// What an interface was like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The number of the interface: another one of the same name is another device.
    pub index: u32,
    /// Every setting that a change could disturb, with its value, in the order of application.
    pub values: Vec<(Setting, String)>,
}

impl Journal {
    /// In this folder, which is made when something is saved.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder that holds the files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, interface: &str) -> PathBuf {
        self.folder.join(format!("{interface}.saved"))
    }

    /// The interfaces for which something is saved, in order.
    pub fn interfaces(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(".saved")).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// What is saved for an interface. A file that is damaged is an error: guessing at what was is worse than saying
    /// so.
    pub fn load(&self, interface: &str) -> io::Result<Option<Saved>> {
        let path = self.path(interface);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        parse(&text).map(Some).ok_or_else(|| {
            let what = format!("{} is damaged: nothing is restored from it", path.display());
            io::Error::new(io::ErrorKind::InvalidData, what)
        })
    }

    /// Saves, durably, unless something is saved already.
    pub fn save_first(&self, interface: &str, saved: &Saved) -> io::Result<()> {
        if self.load(interface)?.is_some_and(|earlier| earlier.index == saved.index) {
            return Ok(());
        }
        let describe = |error: io::Error| {
            let what = format!(
                "cannot save what {interface} was like in {}: {error}; nothing was changed",
                self.folder.display()
            );
            io::Error::new(error.kind(), what)
        };
        self.write(interface, saved).map_err(describe)
    }

    fn write(&self, interface: &str, saved: &Saved) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o750).create(&self.folder)?;
        let path = self.path(interface);
        let beside = path.with_extension("new");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(show(saved).as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &path)?;
        fs::File::open(&self.folder)?.sync_all()
    }

    /// Forgets: everything is as it was.
    pub fn remove(&self, interface: &str) -> io::Result<()> {
        fs::remove_file(self.path(interface))?;
        fs::File::open(&self.folder)?.sync_all()
    }
}

fn show(saved: &Saved) -> String {
    let lines: String = saved.values.iter().map(|(setting, value)| format!("{setting}\t{value}\n")).collect();
    format!("{FIRST_LINE}\nindex\t{}\n{lines}{LAST_LINE}\n", saved.index)
}

fn parse(text: &str) -> Option<Saved> {
    let lines: Vec<&str> = text.strip_suffix('\n')?.split('\n').collect();
    let [FIRST_LINE, index, values @ .., LAST_LINE] = lines.as_slice() else { return None };
    let index = index.strip_prefix("index\t")?.parse().ok()?;
    let value =
        |line: &&str| line.split_once('\t').and_then(|(name, value)| Some((Setting::parse(name)?, value.to_owned())));
    Some(Saved { index, values: values.iter().map(value).collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> Saved {
        let interrupt = Setting::Interrupt { number: 38, name: "virtio2-input.0".to_owned() };
        let values = vec![
            (Setting::Channels, "0 0 0 4".to_owned()),
            (Setting::Indirection, "0,1,2,3".to_owned()),
            (interrupt, "0-1".to_owned()),
            (Setting::Rps(0), "00000000".to_owned()),
        ];
        Saved { index: 2, values }
    }

    #[test]
    fn what_was_saved_is_loaded_and_the_oldest_wins() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let journal = Journal::in_folder(folder.path().join("steer"));
        assert_eq!(journal.load("eth0").expect("nothing there"), None);
        journal.save_first("eth0", &saved()).expect("saved");
        let later = Saved { values: vec![(Setting::Channels, "0 0 0 8".to_owned())], ..saved() };
        journal.save_first("eth0", &later).expect("left as it is");
        assert_eq!(journal.load("eth0").expect("a whole file"), Some(saved()));
        assert_eq!(journal.interfaces().expect("the folder"), ["eth0"]);
        journal.remove("eth0").expect("removed");
        assert_eq!(journal.load("eth0").expect("nothing there"), None);
    }

    #[test]
    fn another_device_of_the_same_name_is_saved_anew() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let journal = Journal::in_folder(folder.path());
        journal.save_first("eth0", &saved()).expect("saved");
        journal.save_first("eth0", &Saved { index: 9, ..saved() }).expect("saved");
        assert_eq!(journal.load("eth0").expect("a whole file").map(|saved| saved.index), Some(9));
    }

    #[test]
    fn a_file_that_was_cut_at_any_byte_is_never_taken_for_a_whole_one() {
        let text = show(&saved());
        assert_eq!(parse(&text), Some(saved()));
        for length in 0..text.len() {
            assert_eq!(parse(&text[..length]), None, "{length}");
        }
    }

    #[test]
    fn no_file_makes_the_parser_panic() {
        let text = show(&saved()).into_bytes();
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..if cfg!(debug_assertions) { 10_000 } else { 1_000_000 } {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut bytes = text.clone();
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = state.to_ne_bytes()[7];
            let _ = parse(&String::from_utf8_lossy(&bytes));
        }
    }
}
