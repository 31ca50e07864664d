//! The sink of files: hands each batch to the file of its lane.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::clock::WallClock;
use super::keeper::FileKeeper;
use super::log_file::LogFile;
use super::settings::FileSettings;
use super::template::{self, PathNames};
use udpd_base::format::encoder::Scene;
use udpd_base::handover::Caller;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{FileLedger, Tallies};
use udpd_base::sink::{ConsumerFeeders, Sink};

/// The files of one consumer, by lane.
#[derive(Debug)]
pub(super) struct FileSink {
    /// Their path, with the placeholders that a lane fills in.
    path: String,
    files: Vec<LogFile>,
    /// The file of each lane, by the lane's index; lanes that do not feed this consumer have none.
    file_of_lane: Vec<Option<usize>>,
    /// The sink of the previous pipeline writes them.
    has_predecessor: bool,
}

impl FileSink {
    /// Opens the file of each lane; `path_of_lane` is indexed like the lanes and may hold codes for the time. Lanes
    /// with the same path share a file. Each file has its own ledger. `keeper` wakes the consumer by `consumer`.
    pub(super) fn open(
        path_of_lane: &[Option<String>],
        scenes: &Arc<[Scene]>,
        settings: &FileSettings,
        keeper: &mut FileKeeper,
        consumer: &Caller,
    ) -> io::Result<(Self, Vec<Arc<FileLedger>>)> {
        let mut paths: Vec<&String> = Vec::new();
        let mut file_of_lane = Vec::with_capacity(path_of_lane.len());
        for path in path_of_lane {
            let Some(path) = path else {
                file_of_lane.push(None);
                continue;
            };
            let known = paths.iter().position(|other| *other == path);
            file_of_lane.push(Some(known.unwrap_or_else(|| {
                paths.push(path);
                paths.len() - 1
            })));
        }
        let mut files = Vec::with_capacity(paths.len());
        for (index, path) in paths.into_iter().enumerate() {
            let encoder = settings.encoder(scenes, |lane| file_of_lane[lane] == Some(index));
            let settings = FileSettings { path: path.clone(), ..settings.clone() };
            files.push(LogFile::open(settings, encoder, WallClock::default(), keeper, consumer.clone())?);
        }
        let ledgers = files.iter().map(LogFile::ledger).collect();
        let has_predecessor = keeper.context().has_predecessor;
        Ok((Self { path: settings.path.clone(), files, file_of_lane, has_predecessor }, ledgers))
    }
}

/// The path of each lane that feeds the consumer.
pub(super) fn paths_of_lanes(
    path: &str,
    scenes: &[Scene],
    feeds: &[bool],
    sink: &str,
    consumer: usize,
) -> Vec<Option<String>> {
    let path_of = |(scene, feeds): (&Scene, &bool)| {
        let names = PathNames { listener: &scene.listener, lane: scene.lane, consumer, sink };
        feeds.then(|| template::expand(path, &names))
    };
    scenes.iter().zip(feeds).map(path_of).collect()
}

impl Sink for FileSink {
    fn begin(&mut self) {
        if std::mem::take(&mut self.has_predecessor) {
            self.files.iter_mut().for_each(LogFile::begin);
        }
    }

    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        let index = self.file_of_lane[batch.lane].expect("the pipeline gave every lane of this consumer a file");
        let file = &mut self.files[index];
        file.accept(batch, tallies);
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.files.iter_mut().for_each(|file| file.flush(tallies));
    }

    fn due(&self) -> Option<Instant> {
        self.files.iter().filter_map(LogFile::due).min()
    }

    fn when_due(&mut self, _tallies: &mut Tallies) {
        self.files.iter_mut().for_each(LogFile::when_due);
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        let paths = paths_of_lanes(&self.path, &feeders.scenes, &feeders.feeds, &feeders.sink, feeders.consumer);
        let file_of = |path: Option<String>| self.files.iter().position(|file| Some(file.path()) == path.as_deref());
        self.file_of_lane = paths.into_iter().map(file_of).collect();
        self.files.iter_mut().for_each(|file| file.go_on_for(Arc::clone(&feeders.scenes)));
    }

    fn finish(&mut self, tallies: &mut Tallies, _publish: &mut dyn FnMut(&mut Tallies)) {
        self.files.iter_mut().for_each(|file| file.flush(tallies));
        self.files.drain(..).for_each(LogFile::close);
    }
}
