//! Uploads of finished files: the keys, which file goes to the thread that uploads, and what happens to it afterwards.
//!
//! How a file gets to a server is written in a crate above, which knows connections: it puts an [`UploadService`] into
//! the settings when they are read. The keeper offers it finished files, compressed first where the sink compresses,
//! one at a time for each path ([`UploadJob`]). When the server has one, the keeper removes it or notes that in the
//! index, as the sink says. A file of which the index does not say that waits: so no crash and no refusal of a server
//! loses one. After a crash a file may be offered again, and the service finds what the server has of it.

use std::any::Any;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crossbeam_channel::Sender;

use super::compress::{CompressError, FileStamp, ReportReceiver, mend};
use super::handle::open_there;
use super::lock;
use super::queue::JobQueue;
use super::retention::{FileRetention, WaitingFile};
use udpd_base::exit::Failure;
use udpd_base::format::Boundary;
use udpd_base::ledger::FileLedger;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::seams::clock;
use udpd_base::settings::kinds::{Flag, QuotedText, TimeSpan};
use udpd_base::settings::{TableSettings, settings};
use udpd_base::text::advice::ValueAdvice;

/// A file that did not get to the server is offered again after this; others are meanwhile.
const RETURNED_PAUSE: Duration = Duration::from_secs(5);

/// Where finished files go; no `url` is nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadSettings {
    pub url: String,
    pub region: String,
    pub credentials_file: String,
    pub ca_file: String,
    pub timeout: Duration,
    pub remove: bool,
    pub service: ServiceSlot,
}

settings! {
    for UploadSettings {
        /// The bucket, by S3 or what speaks it, and what names of objects begin with: "" = no uploads.
        url: String = "" like "https://s3.eu-central-1.amazonaws.com/BUCKET/PREFIX", QuotedText(as_written);
        /// The region of the bucket, which signatures name; many servers take any.
        region: String = "us-east-1" like "eu-central-1", QuotedText(as_written);
        /// A file with the keys aws_access_key_id and aws_secret_access_key, as the tools of AWS have it.
        credentials_file: String = "" like "$CREDENTIALS_DIRECTORY/s3", QuotedText(as_written);
        /// Certificates of the authorities that may vouch for the server, as PEM; "" = those that the system trusts.
        ca_file: String = "" like "/etc/udpd/ca.pem", QuotedText(as_written);
        /// How long the server may take to accept a connection, to take 8 MiB and to answer.
        timeout: Duration = "60s", TimeSpan(Duration::from_secs(1)..=Duration::from_secs(3_600));
        /// Whether a file is removed here when the server has it.
        remove: bool = false, Flag;
        .. service = ServiceSlot(None);
    }
}

impl Default for UploadSettings {
    fn default() -> Self {
        TableSettings::defaults()
    }
}

/// Texts are judged by who makes the service.
fn as_written(text: &str) -> Result<String, ValueAdvice> {
    Ok(text.to_owned())
}

/// What uploads, for settings that were read. Its keys alone say whether it is another one.
#[derive(Debug, Clone)]
pub struct ServiceSlot(pub Option<Arc<dyn UploadService>>);

impl PartialEq for ServiceSlot {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ServiceSlot {}

/// Brings files to a server.
pub trait UploadService: std::fmt::Debug + Send + Sync {
    /// Starts the thread for the files of a sink, which stays on these cores, if there are any. It does not have to
    /// reach the server for that.
    fn start(&self, registry: &ThreadRegistry, sink: &str, cores: &[usize]) -> Result<UploadJobs, Failure>;

    /// What it reads besides the files.
    fn reads(&self) -> Vec<PathBuf>;

    /// Whether the name of the server is looked up.
    fn is_named(&self) -> bool;

    /// Where files go, in words.
    fn place(&self) -> String;

    fn memory_bytes(&self) -> usize;
}

/// Where files to be uploaded are brought. What is dropped with it ends the thread, also in the middle of a request.
pub struct UploadJobs {
    pub jobs: Sender<UploadJob>,
    pub ends_with: Box<dyn Any + Send>,
}

impl std::fmt::Debug for UploadJobs {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("UploadJobs").field("waiting", &self.jobs.len()).finish_non_exhaustive()
    }
}

/// A file to be uploaded.
#[derive(Debug)]
pub struct UploadJob {
    pub path: PathBuf,
    pub(crate) stamp: FileStamp,
    pub ledger: Arc<FileLedger>,
    /// The number of its owner at the keeper.
    pub(crate) owner: usize,
    /// When it is gone the sink has ended.
    pub(crate) receiver: Weak<dyn ReportReceiver>,
}

/// How an attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadOutcome {
    /// The server has the file, with its checksum.
    Uploaded,
    /// The file was changed or removed meanwhile, or it failed.
    Returned,
}

#[derive(Debug)]
pub struct UploadReport {
    pub(crate) path: PathBuf,
    pub(crate) stamp: FileStamp,
    pub(crate) owner: usize,
    pub(crate) outcome: UploadOutcome,
}

impl UploadJob {
    /// Opens the file to read it; an error where it is not what it was any more.
    pub fn open(&self) -> io::Result<File> {
        let file = open_there(&self.path)?;
        match FileStamp::of(&file)? == self.stamp {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::NotFound, "it was changed meanwhile")),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Whether its sink still runs.
    pub fn is_wanted(&self) -> bool {
        self.receiver.strong_count() > 0
    }

    pub fn report(self, outcome: UploadOutcome) {
        if let Some(receiver) = self.receiver.upgrade() {
            let Self { path, stamp, owner, .. } = self;
            receiver.report_upload(UploadReport { path, stamp, owner, outcome });
        }
    }
}

/// Jobs for tests of what uploads.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::*;
    use crate::compress::CompressReport;

    /// Takes the outcomes of jobs.
    #[derive(Debug)]
    pub struct Outcomes(pub Sender<UploadOutcome>);

    impl ReportReceiver for Outcomes {
        fn report(&self, _: CompressReport) {}

        fn report_upload(&self, report: UploadReport) {
            let _ = self.0.send(report.outcome);
        }
    }

    /// To upload the file at this path, as long as its outcome is taken.
    pub fn job(path: &Path, outcomes: &Arc<Outcomes>) -> UploadJob {
        let stamp = FileStamp::of(&File::open(path).expect("a file")).expect("its stamp");
        let receiver: Weak<dyn ReportReceiver> = Arc::<Outcomes>::downgrade(outcomes);
        UploadJob { path: path.to_owned(), stamp, ledger: Arc::default(), owner: 0, receiver }
    }
}

/// A file that the keeper offers.
#[derive(Debug)]
pub(crate) struct UploadOffer {
    pub(crate) path: PathBuf,
    pub(crate) stamp: FileStamp,
    pub(crate) ledger: Arc<FileLedger>,
}

impl UploadOffer {
    /// Looks at a file that was chosen, and moves aside what a crash has left of a record at its end. A file that
    /// cannot be had now goes back to the queue.
    pub(crate) fn of(
        file: &WaitingFile,
        boundary: Boundary,
        files_lock: Option<&Mutex<()>>,
        queue: &mut JobQueue,
        ledger: &Arc<FileLedger>,
    ) -> Option<Self> {
        match look(file, boundary, files_lock) {
            Ok(stamp) => {
                queue.note_asked();
                Some(Self { path: file.path.clone(), stamp, ledger: Arc::clone(ledger) })
            }
            Err(why) => {
                log::debug!("{} is not uploaded now: {why}", file.path.display());
                queue.note_returned(&file.path, clock::now() + RETURNED_PAUSE);
                None
            }
        }
    }
}

fn look(file: &WaitingFile, boundary: Boundary, files_lock: Option<&Mutex<()>>) -> Result<FileStamp, CompressError> {
    let opened = open_there(&file.path)?;
    if lock::is_locked(&opened) {
        return Err(CompressError::InUse);
    }
    if file.may_be_torn {
        mend(&opened, file, boundary, files_lock)?;
    }
    let stamp = FileStamp::of(&opened)?;
    if stamp.inode == file.inode { Ok(stamp) } else { Err(CompressError::Changed) }
}

/// Takes the outcome of an upload. Returns whether the file was removed.
pub(crate) fn settle(
    report: &UploadReport,
    queue: &mut JobQueue,
    retention: &mut FileRetention,
    ledger: &FileLedger,
) -> bool {
    let UploadReport { path, stamp, outcome, .. } = report;
    if *outcome == UploadOutcome::Returned || !stamp.is_of(path) {
        queue.note_returned(path, clock::now() + RETURNED_PAUSE);
        return false;
    }
    queue.note_uploaded();
    ledger.note_uploaded(stamp.bytes);
    retention.note_uploaded(path, *stamp)
}

/// The directory below which the names of objects begin: all above the first code or placeholder of a path.
pub fn base_of(path: &str) -> &Path {
    let fixed = &path[..path.find(['%', '{']).unwrap_or(path.len())];
    Path::new(&fixed[..=fixed.rfind('/').unwrap_or_default()])
}
