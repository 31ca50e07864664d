//! Files by source with their keeper and compressor in one thread, through failing calls, kills and restarts: each
//! record is once in a file of its sender, no more sources have files than may, and what an earlier run has finished
//! is compressed by a later one. The model reads the directory and believes no ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use mmsg::PackedBatch;
use seeds::{Chance, Run, Simulation};

use super::super::compress::{self, CompressJob, CompressJobs};
use super::super::settings::{FileSettings, Keep, Rotate, Sync};
use super::super::sources::SourcesSink;
use super::*;
use udpd_base::codec::{self, Method};
use udpd_base::format::{Format, Scene};
use udpd_base::handover::Caller;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{SinkTally, Tallies};
use udpd_base::sink::Sink;
use udpd_base::sink::testing::scenes;
use udpd_base::testing::simulated::{self, Simulated};
use udpd_base::testing::simulated_disk::{Call, SimulatedDisk, When};

const PATTERNS: [&str; 4] =
    ["{source}.log", "{source/24}.log", "{source/16}/{source}.log", "{source/16}/{source/24}-a"];

const SENDERS: usize = 12;

struct Process {
    sink: SourcesSink,
    keeper: KeeperThread,
    jobs: Receiver<CompressJob>,
    tallies: Tallies,
}

struct World {
    directory: tempfile::TempDir,
    disk: Arc<SimulatedDisk>,
    pattern: &'static str,
    settings: FileSettings,
    scenes: Arc<[Scene]>,
    process: Option<Process>,
    batch: LaneBatch,
    /// By sender, how many records it has sent.
    sent: [u32; SENDERS],
    delivered: u64,
    /// Records that no process has counted, because it was killed.
    unknown: u64,
}

/// Four networks of 24 bits in two of 16.
fn address(sender: usize) -> Ipv4Addr {
    let sender = u8::try_from(sender).expect("few");
    Ipv4Addr::new(10, sender % 2, sender % 4, sender)
}

/// The path of a sender's file, by a reading of the pattern that shares nothing with the sink's.
fn path_of(pattern: &str, sender: usize) -> String {
    let [a, b, c, d] = address(sender).octets();
    pattern
        .replace("{source/24}", &format!("{a}.{b}.{c}.0_24"))
        .replace("{source/16}", &format!("{a}.{b}.0.0_16"))
        .replace("{source}", &format!("{a}.{b}.{c}.{d}"))
}

impl World {
    fn new(run: &mut Run) -> Self {
        let directory = tempfile::tempdir_in(udpd_base::testing::memory()).expect("a directory");
        let chance = run.setup();
        let pattern = *chance.pick(&PATTERNS);
        let settings = FileSettings {
            path: format!("{}/{pattern}", directory.path().display()),
            format: Format::Lines,
            rotate: Rotate { bytes: chance.weighted(&[(1, 0), (3, 40), (1, 200)]), every: Duration::ZERO },
            keep: Keep { files: chance.weighted(&[(3, 0), (1, 1), (1, 3)]), bytes: 0 },
            sync: *chance.pick(&[Sync::Never, Sync::WhenFinished]),
            compress: chance.happens(2, 3).then_some(Method::Gzip),
            compress_level: Some(1),
            open_files: chance.weighted(&[(1, 2), (1, 100)]),
            sources_max: chance.weighted(&[(1, 3), (3, 100)]),
            ..FileSettings::default()
        };
        let disk = SimulatedDisk::of(directory.path(), chance.clone());
        disk.without_power_loss();
        let batch = PackedBatch::pool(1, 64 << 10, false).expect("memory").0.remove(0);
        Self {
            directory,
            disk,
            pattern,
            settings,
            scenes: scenes(1),
            process: None,
            batch: LaneBatch::unpacked(batch),
            sent: [0; SENDERS],
            delivered: 0,
            unknown: 0,
        }
    }

    fn start(&mut self) {
        let mut keeper = FileKeeper::new(1, OpenContext::default()).expect("a keeper");
        let paths = vec![Some(self.settings.path.clone())];
        let (registry, _events) = ThreadRegistry::new();
        let opened = SourcesSink::open(paths, &self.scenes, &self.settings, &mut keeper, &Caller::default(), &registry);
        let (sink, _) = opened.expect("it opens on a disk that works");
        let (own, jobs) = CompressJobs::new();
        let keeper = keeper.into_thread(self.settings.compress.is_some().then_some(own));
        keeper.is_in_force.store(true, Ordering::Release);
        self.process = Some(Process { sink, keeper, jobs, tallies: Tallies::from([SinkTally::default()]) });
    }

    fn accept(&mut self, chance: &mut Chance) {
        let Some(process) = &mut self.process else { return };
        let (mut packed, count) = (Vec::new(), 1 + chance.below(6));
        for _ in 0..count {
            let sender = chance.index(SENDERS);
            self.sent[sender] += 1;
            let record = format!("{sender} {}", self.sent[sender]);
            let from = SocketAddr::from((address(sender), 9));
            mmsg::pack_known(from, None, (record.as_bytes(), record.len()), &mut packed);
        }
        assert!(self.batch.unpack((0, 0), &packed, |_| true));
        process.tallies[0].pending += count;
        process.sink.accept(&self.batch, &mut process.tallies);
    }

    /// Does what is due.
    fn pass(&mut self, length: Duration) {
        self.disk.clock.advance(length);
        let Some(process) = &mut self.process else { return };
        if process.sink.due().is_some_and(|due| due <= clock::now()) {
            process.sink.when_due(&mut process.tallies);
        }
    }

    fn keep(&mut self) {
        self.process.iter_mut().for_each(|process| _ = process.keeper.work(Vec::new()));
    }

    fn compress(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.jobs.try_recv().map(compress::do_job).is_ok())
    }

    /// The process ends, in good order or not.
    fn end(&mut self, is_killed: bool) {
        let Some(mut process) = self.process.take() else { return };
        if !is_killed {
            // The sink waits until the keeper has closed.
            let Process { sink, keeper, tallies, .. } = &mut process;
            let disk = Arc::clone(&self.disk);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let _inside = simulated::enter(disk as Arc<dyn Simulated>);
                    while keeper.work(Vec::new()) {
                        std::thread::yield_now();
                    }
                });
                sink.finish(tallies, &mut |_| {});
            });
            assert_eq!(process.tallies[0].pending, 0, "nothing is pending after the end");
        }
        self.delivered += process.tallies[0].delivered;
        self.unknown += process.tallies[0].pending;
    }

    /// Every file below the directory, with its path there and its records.
    fn files(&self) -> BTreeMap<String, Vec<String>> {
        let root = self.directory.path();
        let mut found = BTreeMap::new();
        for path in self.disk.files() {
            let name = path.strip_prefix(root).expect("below").to_str().expect("UTF-8").to_owned();
            let is_hidden = Path::new(&name).file_name().is_some_and(|own| own.to_string_lossy().starts_with('.'));
            if is_hidden || name.ends_with(".torn") {
                continue;
            }
            let mut text = String::new();
            let file = fs::File::open(&path).expect("readable");
            codec::unpacked(file).and_then(|mut bytes| bytes.read_to_string(&mut text)).expect("whole");
            // What a failed write has left behind the last whole record is moved aside before the next one.
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            found.insert(name, text[..whole].lines().map(str::to_owned).collect());
        }
        found
    }

    /// What must hold at any moment, and when all is over.
    fn check(&self, is_over: bool) -> BTreeMap<String, Vec<String>> {
        let files = self.files();
        let own: Vec<String> = (0..SENDERS).map(|sender| path_of(self.pattern, sender)).collect();
        let (mut seen, mut sources) = (BTreeSet::new(), BTreeSet::new());
        for (name, records) in &files {
            let is_overflow = name.contains("overflow");
            for record in records {
                let (sender, number) = record.split_once(' ').expect("two words");
                let sender: usize = sender.parse().expect("a sender");
                number.parse::<u32>().unwrap_or_else(|_| panic!("{record} is no record"));
                assert!(is_overflow || name.starts_with(&own[sender]), "{record} is in {name}");
                assert!(seen.insert(record) || !is_over && self.is_twice(&files, record), "{record} is twice");
                if !is_overflow {
                    sources.insert(own[sender].clone());
                }
            }
            let numbers = |of: &str| -> Vec<u32> {
                let of = records.iter().filter_map(|record| record.strip_prefix(&format!("{of} ")));
                of.map(|number| number.parse().expect("a number")).collect()
            };
            (0..SENDERS).for_each(|sender| {
                assert!(numbers(&sender.to_string()).is_sorted(), "{name} is out of order: {records:?}");
            });
        }
        let sources_max = self.settings.sources_max;
        assert!(sources.len() <= sources_max, "{} sources have files: {sources:?}", sources.len());
        files
    }

    /// Whether a record is in the two forms of one file: the plain one is removed last.
    fn is_twice(&self, files: &BTreeMap<String, Vec<String>>, record: &str) -> bool {
        let names = files.iter().filter(|(_, records)| records.iter().any(|own| own == record));
        let names: BTreeSet<&str> = names.map(|(name, _)| name.trim_end_matches(".gz")).collect();
        names.len() == 1
    }

    /// Faults stop. What this run and earlier ones have finished is compressed, and everything delivered is there.
    fn recover(&mut self) -> String {
        self.disk.works();
        self.end(false);
        self.start();
        for _ in 0..3 {
            // Longer than any pause after a failure.
            self.pass(Duration::from_secs(601));
            self.keep();
            while self.compress() {
                self.keep();
            }
        }
        self.end(false);
        let files = self.check(true);
        let own: BTreeSet<String> = (0..SENDERS).map(|sender| path_of(self.pattern, sender)).collect();
        if self.settings.compress.is_some() {
            let is_plain =
                |name: &&String| !name.ends_with(".gz") && !own.contains(*name) && !name.contains("overflow");
            let left: Vec<&String> = files.keys().filter(is_plain).collect();
            assert!(left.is_empty(), "{left:?} are not compressed");
        }
        let found = files.values().map(Vec::len).sum::<usize>() as u64;
        if self.settings.keep == Keep::ALL {
            let all = self.delivered..=self.delivered + self.unknown;
            assert!(all.contains(&found), "{found} records are there, and {all:?} are delivered");
        }
        format!("{:?} {files:?}", self.sent)
    }
}

fn simulate(run: &mut Run) -> String {
    let mut world = World::new(run);
    let _inside = simulated::enter(Arc::clone(&world.disk) as Arc<dyn Simulated>);
    run.trace(|| format!("{:?}", world.settings));
    world.start();
    while let Some(mut chance) = run.step() {
        let what = chance.below(20);
        match what {
            0..=6 => world.accept(&mut chance),
            7..=10 => world.pass(Duration::from_millis(*chance.pick(&[1, 300, 1_001, 5_000, 61_000, 601_000]))),
            11..=13 => world.keep(),
            14..=15 => _ = world.compress(),
            16 => {
                let call = *chance.pick(&Call::ALL);
                world.disk.fail(call, When::After(chance.below(4)), libc::EIO);
            }
            17 => world.disk.works(),
            18 => {
                world.disk.works();
                world.end(false);
                world.start();
            }
            _ => {
                world.disk.works();
                world.end(true);
                world.start();
            }
        }
        run.trace(|| format!("{what}: {:?}", world.files()));
        // It reads every file.
        if run.steps_done().is_multiple_of(6) {
            world.check(false);
        }
    }
    world.recover()
}

#[test]
fn files_by_source_keep_each_record_once_and_a_later_run_goes_on_with_what_an_earlier_one_has_left() {
    Simulation::new("files_by_source_keep_each_record_once", 150, 60).check(simulate);
}
