//! The sinks of a trial: those of the configuration, with everything that leaves the process replaced.
//!
//! The bench measures what a sink costs without touching its destination. So each sink keeps its type, its settings and
//! its number of consumers, and gets another destination: files go to a directory of the bench's own beside the named
//! ones, on the same disk; sockets lead to peers on this host that read and throw away; standard output is a pipe that
//! is read; a Kafka cluster is a mock in this process. All of it goes away with the [`SinkStandIns`]. `--real-sinks`
//! leaves everything as it is, see [`real_sink_files`](super::real_sink_files).

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

#[cfg(feature = "kafka")]
use super::cluster::Cluster;
use super::discarding_peer::{Diverted, StandInPeer};
use super::listener::MeasuredListener;
use super::real_sink_files::{self, Disk, FREE_MIN_BYTES};
use super::scratch::ScratchDirs;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::sink::settings::{AnySettings, SinkTarget};
use udpd_endpoint::control::Neighbours;
use udpd_engine::config::{Config, SinkConfig};
use udpd_engine::plan::{self, PipelinePlan};
use udpd_file::FileSettings;
#[cfg(feature = "kafka")]
use udpd_sinks::kafka::KafkaSettings;
use udpd_sinks::relay::{KeepSource, RelaySettings};
use udpd_sinks::unix::{UnixSettings, UnixSocket};

/// The most that one directory of the bench holds, however much space the disk has.
const MOST_BYTES: u64 = 2 << 30;

/// The share of a path is divided into so many files: one is written, some are kept, one is being removed.
const PARTS: u64 = 4;

/// The sinks of all trials.
#[derive(Debug)]
pub(super) struct SinkStandIns {
    /// The measured configuration, with replaced sinks.
    config: Config,
    /// What was replaced, or what the real sinks will touch, in words.
    notes: Vec<String>,
    disks: Vec<Disk>,
    scratches: ScratchDirs,
    /// By the directory that the configuration names.
    directories: BTreeMap<PathBuf, TrialDir>,
    sockets: Option<PathBuf>,
    peers: Vec<StandInPeer>,
    diverted: Option<Diverted>,
    #[cfg(feature = "kafka")]
    clusters: Vec<Cluster>,
}

/// A directory of the bench's own.
#[derive(Debug, Clone)]
struct TrialDir {
    path: PathBuf,
    /// The most that it may hold, shared by its files.
    bytes: u64,
    files: u64,
    /// Why it is where it is.
    why: String,
}

impl SinkStandIns {
    /// Replaces the sinks of a listener, or with `real` checks whether they may be used.
    pub(super) fn set(
        subject: &MeasuredListener,
        real: bool,
        registry: &ThreadRegistry,
        scratches: &ScratchDirs,
    ) -> Result<Self, Failure> {
        let mut stage = Self {
            config: subject.config.clone(),
            notes: subject.changed.clone(),
            disks: Vec::new(),
            scratches: scratches.clone(),
            directories: BTreeMap::new(),
            sockets: None,
            peers: Vec::new(),
            diverted: None,
            #[cfg(feature = "kafka")]
            clusters: Vec::new(),
        };
        let plan = plan::make(&stage.config, &Neighbours::default())?;
        if real {
            let (touched, disks) = real_sink_files::touched(&stage.config, &plan)?;
            stage.notes.extend(touched);
            stage.disks = disks;
        } else {
            stage.replace(&plan, registry)?;
        }
        Ok(stage)
    }

    /// The configuration of a trial's pipeline.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// What differs from the configuration, in words.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Why a trial must not go on writing, if so.
    pub(super) fn trouble(&self) -> Option<String> {
        self.disks.iter().find_map(Disk::trouble)
    }

    /// Removes what the last trial has written, so that the next one begins as it did.
    pub(super) fn clear(&self) -> Result<(), Failure> {
        self.directories.values().try_for_each(|own| {
            self.scratches.empty(&own.path).map_err(|error| {
                let text = format!("cannot remove the files of a trial in {}: {error}", own.path.display());
                Failure::new(ExitCode::Disk, text)
            })
        })
    }

    fn replace(&mut self, plan: &PipelinePlan, registry: &ThreadRegistry) -> Result<(), Failure> {
        let mut sinks = self.config.sinks.clone();
        self.make_directories(plan)?;
        for sink in &mut sinks {
            if let Some(stand_in) = self.stand_in(sink, registry)? {
                sink.settings = stand_in;
            }
        }
        self.config.sinks = sinks;
        Ok(())
    }

    /// The settings that replace those of a sink; `None` where the sink can stay as it is.
    fn stand_in(&mut self, sink: &SinkConfig, registry: &ThreadRegistry) -> Result<Option<AnySettings>, Failure> {
        let (name, settings) = (&sink.name, &sink.settings);
        let failed = |error: io::Error| {
            let text = format!("sink {name}: cannot make a peer for it on this host: {error}");
            Failure::new(ExitCode::Failure, text)
        };
        if let Some(file) = settings.of_type() {
            return Ok(Some(Arc::new(self.file(name, file)?)));
        }
        if let Some(relay) = settings.of_type() {
            return Ok(Some(Arc::new(self.relay(name, relay, registry).map_err(failed)?)));
        }
        if let Some(unix) = settings.of_type() {
            return Ok(Some(Arc::new(self.unix(name, unix, registry).map_err(failed)?)));
        }
        #[cfg(feature = "kafka")]
        {
            if let Some(kafka) = settings.of_type() {
                return Ok(Some(Arc::new(self.kafka(name, kafka)?)));
            }
        }
        match settings.target() {
            SinkTarget::Nowhere => Ok(None),
            SinkTarget::Stdout => {
                if self.diverted.is_none() {
                    self.diverted = Some(Diverted::start(registry).map_err(failed)?);
                }
                self.notes.push(format!("sink {name}: writes to a pipe of the bench instead of standard output"));
                Ok(None)
            }
            _ => {
                let text =
                    format!("sink {name}: nothing can stand in for a sink of its type; measure with --real-sinks");
                Err(Failure::new(ExitCode::Usage, text))
            }
        }
    }

    /// One directory for all files of one directory of the configuration.
    fn make_directories(&mut self, plan: &PipelinePlan) -> Result<(), Failure> {
        for (sink, planned) in self.config.sinks.iter().zip(&plan.sinks) {
            let SinkTarget::Files(pattern) = sink.settings.target() else { continue };
            let (directory, _) = real_sink_files::split(pattern);
            let own = match self.directories.entry(directory) {
                std::collections::btree_map::Entry::Occupied(own) => own.into_mut(),
                std::collections::btree_map::Entry::Vacant(place) => {
                    let own = make_directory(&self.scratches, place.key(), &sink.name)?;
                    let free = real_sink_files::free_bytes(&own.path).unwrap_or(0);
                    // Removing is slower than writing now and then.
                    self.disks.push(Disk::new(&own.path, Some(2 * own.bytes), free));
                    place.insert(own)
                }
            };
            own.files += planned.files(&self.config.listeners, &sink.name, pattern).len() as u64;
        }
        Ok(())
    }

    fn file(&mut self, name: &str, written: &FileSettings) -> Result<FileSettings, Failure> {
        let mut file = written.clone();
        let (directory, below) = real_sink_files::split(&file.path);
        let own = &self.directories[&directory];
        let path = own.path.join(below);
        let Some(path) = path.to_str() else {
            let text = format!(
                "sink {name}: the name {} is not UTF-8; set TMPDIR to a directory with a UTF-8 name",
                path.display()
            );
            return Err(Failure::new(ExitCode::Usage, text));
        };
        let at_most = |written: u64, most: u64| if written == 0 { most } else { written.min(most) };
        let share = own.bytes / own.files.max(1);
        file.rotate.bytes = at_most(file.rotate.bytes, share / PARTS);
        file.keep.bytes = at_most(file.keep.bytes, share / PARTS * (PARTS - 2));
        self.notes.push(format!(
            "sink {name}: files in {} instead of {}{}; a new one every {} MiB, at most {} MiB of them at a time, \
             removed afterwards",
            own.path.display(),
            file.path,
            own.why,
            file.rotate.bytes >> 20,
            own.bytes >> 20,
        ));
        path.clone_into(&mut file.path);
        Ok(file)
    }

    fn relay(&mut self, name: &str, written: &RelaySettings, registry: &ThreadRegistry) -> io::Result<RelaySettings> {
        let mut relay = written.clone();
        if !std::mem::take(&mut relay.routes).is_empty() {
            self.notes.push(format!("sink {name}: has no routes, because the bench is one source"));
        }
        for destination in &mut relay.destinations {
            let is_v6 = destination.fixed().is_some_and(|address| address.is_ipv6());
            // A source that is kept is that of the bench's sender, and a packet has one family.
            let (peer, address) = StandInPeer::udp(is_v6 && relay.keep_source != KeepSource::Address, registry)?;
            self.peers.push(peer);
            self.notes
                .push(format!("sink {name}: sends to {address} instead of {destination}; the bench throws it away"));
            *destination = address.into();
        }
        Ok(relay)
    }

    fn unix(&mut self, name: &str, unix: &UnixSettings, registry: &ThreadRegistry) -> io::Result<UnixSettings> {
        // Not beside the socket that is named: paths of sockets are short, and the disk under them costs nothing.
        if self.sockets.is_none() {
            self.sockets = Some(self.scratches.make(&temporary())?);
        }
        let directory = self.sockets.clone().unwrap_or_default();
        let path = directory.join(self.peers.len().to_string());
        self.peers.push(match unix.socket {
            UnixSocket::Datagram => StandInPeer::unix_datagram(&path, registry)?,
            UnixSocket::Stream => StandInPeer::unix_stream(&path, registry)?,
        });
        let (named, own) = (unix.path.display(), path.display());
        self.notes.push(format!("sink {name}: sends to {own} instead of {named}; the bench throws it away"));
        Ok(UnixSettings { path, ..unix.clone() })
    }

    #[cfg(feature = "kafka")]
    fn kafka(&mut self, name: &str, written: &KafkaSettings) -> Result<KafkaSettings, Failure> {
        let mut kafka = written.clone();
        let brokers = kafka.brokers.clone();
        let cluster = Cluster::start(&kafka.topic)?;
        let left = cluster.take(&mut kafka);
        self.clusters.push(cluster);
        let without = if left.is_empty() { String::new() } else { format!("; without {}", left.join(", ")) };
        self.notes.push(format!(
            "sink {name}: sends to a mock of a cluster in this process instead of {brokers}; real brokers answer at \
             another speed{without}"
        ));
        Ok(kafka)
    }
}

impl Drop for SinkStandIns {
    fn drop(&mut self) {
        // Their sockets are in the directories.
        self.peers.clear();
        self.scratches.remove();
    }
}

/// Makes a directory beside the files of a sink or, where that fails, in a directory for temporary files.
fn make_directory(scratches: &ScratchDirs, directory: &Path, sink: &str) -> Result<TrialDir, Failure> {
    let wanted = real_sink_files::nearest_existing(directory);
    let (path, why) = match scratches.make(wanted) {
        Ok(path) => (path, " (the same file system)".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => return Err(too_full(sink, wanted, 0)),
        Err(error) => {
            let other = temporary();
            let path = scratches.make(&other).map_err(|other_error| {
                let text = format!(
                    "sink {sink}: cannot make a directory for the bench in {} ({error}) nor in {} ({other_error}); \
                     let it write in one of them, or set TMPDIR",
                    wanted.display(),
                    other.display()
                );
                Failure::new(ExitCode::Permission, text)
            })?;
            let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
            let same = if device(&path) == device(wanted) {
                "the same file system"
            } else {
                "another file system, whose figure may differ"
            };
            (path, format!(" ({}: {error}; {same})", wanted.display()))
        }
    };
    let free = real_sink_files::free_bytes(&path).unwrap_or(0);
    if free < FREE_MIN_BYTES {
        return Err(too_full(sink, &path, free));
    }
    Ok(TrialDir { path, bytes: (free / 4).min(MOST_BYTES), files: 0, why })
}

fn too_full(sink: &str, place: &Path, free: u64) -> Failure {
    let text = format!(
        "sink {sink}: {} MiB are free in {}, and trials need {} MiB; free some space, or measure with --to null:",
        free >> 20,
        place.display(),
        FREE_MIN_BYTES >> 20
    );
    Failure::new(ExitCode::Disk, text)
}

/// A directory for temporary files: TMPDIR, or one on a disk.
fn temporary() -> PathBuf {
    let chosen = std::env::var_os("TMPDIR").map(PathBuf::from);
    let places = chosen.into_iter().chain([PathBuf::from("/var/tmp"), PathBuf::from("/tmp")]);
    // A path with codes or placeholders would be taken for a pattern.
    let is_plain =
        |path: &PathBuf| path.is_absolute() && path.is_dir() && !path.to_string_lossy().contains(['{', '}', '%']);
    places.into_iter().find(is_plain).unwrap_or_else(|| PathBuf::from("/tmp"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_engine::config::HostView;

    /// The stage of a configuration whose `@` is a directory, with four lanes.
    fn stage(directory: &Path, sinks: &str) -> (SinkStandIns, ScratchDirs) {
        let text = format!(
            "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:25141\"\nlanes = 4\nsinks = [\"one\", \"two\"]\n{}",
            sinks.replace('@', directory.to_str().expect("UTF-8"))
        );
        let config = Config::parse(&text, "test.toml", &HostView::default()).expect("a good file");
        let scratches = ScratchDirs::default();
        let subject = MeasuredListener { config, changed: Vec::new() };
        (SinkStandIns::set(&subject, false, &ThreadRegistry::new().0, &scratches).expect("a stage"), scratches)
    }

    #[test]
    fn all_files_of_one_directory_share_what_may_lie_there_and_keep_what_is_stricter() {
        let directory = tempfile::tempdir().expect("a directory");
        let (stage, _) = stage(
            directory.path(),
            r#"
            [sink.one]
            type = "file"
            path = "@/{lane}.log"
            keep = { files = 3 }
            [sink.two]
            type = "file"
            path = "@/%Y/two.log"
            rotate = { bytes = "1MiB" }
            keep = { bytes = "2MiB" }
            "#,
        );
        let own = stage.directories.values().next().expect("one directory");
        assert_eq!((stage.directories.len(), own.files), (1, 5));
        let files: Vec<&FileSettings> = stage.config.sinks.iter().filter_map(|sink| sink.settings.of_type()).collect();
        let [one, two] = files[..] else { panic!("two sinks of files") };
        let largest = 5 * (one.rotate.bytes + one.keep.bytes);
        assert!(one.rotate.bytes > 0 && one.keep.bytes > 0 && largest <= own.bytes, "{one:?} of {own:?}");
        assert_eq!(one.keep.files, 3);
        assert_eq!((two.rotate.bytes, two.keep.bytes), (1 << 20, 2 << 20));
        for file in files {
            assert!(Path::new(&file.path).starts_with(&own.path), "{file:?}");
        }
        assert!(two.path.ends_with("/%Y/two.log"), "{two:?}");
    }

    #[test]
    fn what_a_trial_has_written_is_gone_before_the_next_and_everything_when_the_stage_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = "[sink.one]\ntype = \"file\"\npath = \"@/a.log\"\n[sink.two]\ntype = \"null\"\n";
        let (stage, scratches) = stage(directory.path(), files);
        let own = stage.directories.values().next().expect("one directory").path.clone();
        fs::write(own.join("a.log"), "a trial").expect("written");
        stage.clear().expect("cleared");
        assert_eq!((own.exists(), own.join("a.log").exists()), (true, false));
        fs::write(own.join("a.log"), "another").expect("written");
        // Also by a panic, as everything that has a Drop.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _stage = stage;
            panic!("on purpose");
        }));
        assert!(outcome.is_err() && !own.exists());
        drop(scratches);
    }
}
