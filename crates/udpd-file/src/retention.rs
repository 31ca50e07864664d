//! The finished files of a sink: which are kept, and which are removed. Only files that this sink finished are removed,
//! compressed or uploaded, see `finished_files`, and of those none that is open here or locked by another process. The
//! newest is never removed.
//!
//! A file that waits to be uploaded stays until the files take twice what `keep` says.
//!
//! A file counts once, whether it lies here as it was written, compressed, or, after a crash, in both forms.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::OFlag;

use super::compress::FileStamp;
use super::compress::remove_left;
use super::finished_files::{FinishedFile, FinishedForm, Index};
use super::handle::{LogHandle, set_aside};
use super::lock;
use super::name::{FileName, finished_names};
use super::settings::{FileSettings, Keep};
use udpd_base::codec::{Method, Recipe};
use udpd_base::ledger::FileLedger;
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::seams::clock;
use udpd_base::seams::disk;

/// What happens to finished files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Treatment {
    pub(super) keep: Keep,
    pub(super) recipe: Option<Recipe>,
    /// Whether they are uploaded, and then removed.
    pub(super) upload: Option<RemoveUploaded>,
}

/// Whether a file is removed when the server has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RemoveUploaded(pub(super) bool);

impl Treatment {
    pub(super) fn of(settings: &FileSettings) -> Self {
        let upload = settings.upload.service.0.as_ref().map(|_| RemoveUploaded(settings.upload.remove));
        Self { keep: settings.keep, recipe: settings.recipe(), upload }
    }

    /// Whether finished files are left as they are.
    pub(super) fn is_none(&self) -> bool {
        *self == Self { keep: Keep::ALL, recipe: None, upload: None }
    }
}

/// The finished files of one path.
#[derive(Debug)]
pub(super) struct FileRetention {
    name: FileName,
    treatment: Treatment,
    /// The list of them; `None` when nothing is ever removed or compressed.
    index: Option<Index>,
    /// Limits that many share.
    limiters: Option<RetentionLimiters>,
    /// The log says that `keep` removes files that were not uploaded.
    has_told_of_unsent: bool,
    /// Files that the log has named as not removable.
    logged: HashSet<PathBuf>,
}

/// Of the lines about an index that cannot be read, one that cannot be added to, and files removed before their upload.
pub(super) type RetentionLimiters = Arc<[LogLimiter; 3]>;

/// A file that waits to be compressed or uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaitingFile {
    pub(super) path: PathBuf,
    pub(super) inode: u64,
    /// An earlier run may have left its last record unfinished.
    pub(super) may_be_torn: bool,
}

impl FileRetention {
    /// Without the index, which [`FileRetention::read`] reads.
    pub(super) fn new(name: &FileName, treatment: Treatment) -> Self {
        let (name, logged) = (name.clone(), HashSet::new());
        Self { name, treatment, index: None, limiters: None, has_told_of_unsent: false, logged }
    }

    /// With limits that many share.
    pub(super) fn limited_by(self, limiters: &RetentionLimiters) -> Self {
        Self { limiters: Some(Arc::clone(limiters)), ..self }
    }

    /// How many lines were suppressed before this one; `None` when this one is too.
    fn may_speak(&self, of: usize) -> Option<u64> {
        self.limiters.as_ref().map_or(Some(0), |limiters| limiters[of].pass(clock::now()))
    }

    /// Reads the index of an earlier run, once no other sink adds to it.
    pub(super) fn read(&mut self) {
        if self.treatment.is_none() {
            return;
        }
        match Index::open(&self.name) {
            Ok(index) => self.index = Some(index),
            Err(error) => {
                let Some(silent) = self.may_speak(0) else { return };
                log::error!(
                    "cannot read the list of finished files, {}: {error}; keep removes nothing, and nothing is \
                     compressed or uploaded; move the list away or remove it, and restart udpd{}",
                    Index::path_of(&self.name).display(),
                    repeats(silent)
                );
            }
        }
    }

    /// Logs how many files look like finished ones but will never be removed.
    pub(super) fn warn_unlisted(&self, current: &Path) {
        let Some(index) = &self.index else { return };
        let unlisted = index.unlisted(current);
        if unlisted > 0 {
            log::warn!(
                "{unlisted} files have names like finished ones of {}, but {} does not list them: keep neither \
                 counts nor removes them, and compress and upload leave them as they are",
                current.display(),
                index.path().display()
            );
        }
    }

    /// Lists a file that is about to get this name as a finished one.
    pub(super) fn list(&mut self, path: &Path, handle: &LogHandle) {
        self.list_by(path, handle.inode());
    }

    /// The same for a file that is not open.
    pub(super) fn list_by(&mut self, path: &Path, inode: io::Result<u64>) {
        let Some(index) = &mut self.index else { return };
        let Err(error) = inode.and_then(|inode| index.add(path, inode)) else { return };
        let list = index.path().display().to_string();
        let Some(silent) = self.may_speak(1) else { return };
        log::warn!(
            "cannot list {} in {list}: {error}; unless udpd can before it ends, keep never removes that file, and \
             compress and upload leave it as it is{}",
            path.display(),
            repeats(silent)
        );
    }

    /// Lists a file that is begun, if the path has time codes: then it has its final name already. A file that existed
    /// before and is not listed belongs to another program.
    pub(super) fn begun(&mut self, path: &Path, handle: &LogHandle, is_new: bool) {
        let is_known = |index: &Index| handle.inode().is_ok_and(|inode| index.has(path, inode));
        if self.name.is_dated() && (is_new || self.index.as_ref().is_some_and(is_known)) {
            self.list(path, handle);
        }
    }

    pub(super) fn sync(&self) {
        if let Some(index) = &self.index
            && let Err(error) = index.sync()
        {
            log::warn!("cannot sync {} to the disk: {error}", index.path().display());
        }
    }

    /// Ends what a crash has left half done at the path of a file that is about to be begun. On a file system without
    /// `RENAME_NOREPLACE` a file gets its final name by a link, and a crash may leave it with both names: removes the
    /// first one, which finishes the file. And where time codes of the path repeat, a file of before may be there in
    /// both forms: removes the plain one, else new records would be written behind those that are compressed already.
    pub(super) fn finish_interrupted(&mut self, path: &Path) {
        let Ok(found) = path.symlink_metadata() else { return };
        if let Some(index) = self.index.as_mut().filter(|_| self.name.is_dated()) {
            let mut files = index.present();
            files.retain(|file| file.plain.as_ref().is_some_and(|plain| plain.path == path));
            files.iter_mut().for_each(|file| _ = self.bytes_without_copy(file));
        }
        if !found.is_file() || found.nlink() != 2 {
            return;
        }
        let is_same = |other: &PathBuf| {
            other != path
                && other.parent() == path.parent()
                && other.symlink_metadata().is_ok_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
        };
        if self.name.finished().iter().any(is_same) {
            let _ = disk::remove_file(path);
        }
    }

    /// Removes the oldest files beyond what is to be kept, but none of those that are `open` here; returns which.
    pub(super) fn clear(&mut self, open: &[u64], ledger: &FileLedger) -> Vec<PathBuf> {
        let Treatment { keep, upload, .. } = self.treatment;
        let Some(index) = self.index.as_mut().filter(|_| keep != Keep::ALL) else { return Vec::new() };
        let mut finished = index.present();
        finished.retain(|file| !file.plain.as_ref().is_some_and(|plain| open.contains(&plain.inode)));
        // What a crash or a fault has left of a compression takes no other file's place.
        let own: Vec<u64> = finished.iter_mut().map(|file| self.bytes_without_copy(file)).collect();
        let (mut files, mut bytes) = (0, 0);
        // Beyond `keep`, and beyond twice that.
        let mut is_beyond = [false; 2];
        let mut stay: Vec<bool> = Vec::with_capacity(finished.len());
        for (file, length) in finished.iter().zip(own).rev() {
            files += 1;
            bytes += length;
            for (is_beyond, times) in is_beyond.iter_mut().zip([1, 2]) {
                let is_more = |count: u64, most: u64| most > 0 && count > most.saturating_mul(times);
                // The newest stays, however long it is.
                *is_beyond |= files > 1 && (is_more(files, keep.files) || is_more(bytes, keep.bytes));
            }
            stay.push(!is_beyond[usize::from(upload.is_some() && !file.is_uploaded())]);
        }
        let mut removed = Vec::new();
        for (file, _) in finished.iter().zip(stay.iter().rev()).filter(|(_, stays)| !**stays) {
            if !self.remove(file) {
                continue;
            }
            ledger.note_removed();
            removed.extend(file.forms().next().map(|form| form.path.clone()));
            if upload.is_some() && !file.is_uploaded() {
                ledger.note_removed_unsent();
                self.tell_of_unsent(file);
            }
        }
        removed
    }

    /// Logs once that a file is gone that the server has not got.
    fn tell_of_unsent(&mut self, file: &FinishedFile) {
        let Some(form) = file.forms().next().filter(|_| !self.has_told_of_unsent) else { return };
        self.has_told_of_unsent = true;
        let Some(silent) = self.may_speak(2) else { return };
        log::error!(
            "keep has removed {} before it was uploaded, because finished files took twice what keep says; see why \
             uploads fail, or raise keep; removed_unsent counts such files{}",
            form.path.display(),
            repeats(silent)
        );
    }

    /// How long a file is. Where it is in both forms, and these hold the same, removes the plain one, which does not
    /// count even if it cannot be removed yet.
    fn bytes_without_copy(&mut self, file: &mut FinishedFile) -> u64 {
        if let (Some(plain), Some(compressed)) = (&file.plain, &file.compressed)
            && is_the_same(plain, compressed)
        {
            let bytes = compressed.bytes;
            if self.remove_form(plain) {
                file.plain = None;
            }
            return bytes;
        }
        file.bytes()
    }

    /// Removes the unfinished compressed forms that a crash has left.
    pub(super) fn remove_left(&self) {
        self.name.begun_to_be_compressed().iter().for_each(|plain| remove_left(plain));
    }

    /// Removes a file in each of its forms.
    fn remove(&mut self, file: &FinishedFile) -> bool {
        let mut forms = file.forms();
        forms.all(|form| self.remove_form(form))
    }

    /// Removes one file, if it is the listed one and not in use.
    fn remove_form(&mut self, file: &FinishedForm) -> bool {
        if let Err(error) = remove_unused(file) {
            if self.logged.insert(file.path.clone()) {
                log::warn!("cannot remove {}: {error}; udpd keeps it and tries again", file.path.display());
            }
            return false;
        }
        self.logged.remove(&file.path);
        true
    }

    /// The files that wait to be compressed, the oldest first: none that is `open` here, and not the one at the current
    /// path, which may come again. Where a crash has left a file in both forms, removes the plain one.
    pub(super) fn candidates(&mut self, open: &[u64], now: u64) -> Vec<WaitingFile> {
        let current = self.name.at(now);
        let Some(index) = self.index.as_mut().filter(|_| self.treatment.recipe.is_some()) else { return Vec::new() };
        let mut candidates = Vec::new();
        for file in index.present() {
            let FinishedFile { plain: Some(plain), compressed, is_from_before, .. } = file else { continue };
            if open.contains(&plain.inode) || plain.path == current {
                continue;
            }
            match compressed {
                None => {
                    let FinishedForm { path, inode, .. } = plain;
                    candidates.push(WaitingFile { path, inode, may_be_torn: is_from_before });
                }
                Some(compressed) if is_the_same(&plain, &compressed) => drop(self.remove_form(&plain)),
                // One of the two was changed, so neither may be removed.
                Some(_) => {}
            }
        }
        candidates
    }

    /// The files that wait to be uploaded, the oldest first: none that is `open` here or may be written again, and
    /// where files are compressed none that is not yet.
    pub(super) fn waiting_for_upload(&mut self, open: &[u64], now: u64) -> Vec<WaitingFile> {
        let current = self.name.at(now);
        let (Some(index), Some(RemoveUploaded(removes))) = (&mut self.index, self.treatment.upload) else {
            return Vec::new();
        };
        let mut waiting = Vec::new();
        for file in index.present() {
            if file.is_uploaded() {
                // It could not be removed when the server had got it.
                if removes {
                    self.remove(&file);
                }
                continue;
            }
            let is_open = |plain: &FinishedForm| open.contains(&plain.inode) || plain.path == current;
            let (form, may_be_torn) = match (file.plain, file.compressed) {
                (None, Some(compressed)) => (compressed, false),
                (Some(plain), None) if self.treatment.recipe.is_none() && !is_open(&plain) => {
                    (plain, file.is_from_before)
                }
                _ => continue,
            };
            waiting.push(WaitingFile { path: form.path, inode: form.inode, may_be_torn });
        }
        waiting
    }

    /// The server has a file: removes it, or notes that it was uploaded. Returns whether it was removed.
    pub(super) fn note_uploaded(&mut self, path: &Path, FileStamp { inode, bytes, .. }: FileStamp) -> bool {
        let form = FinishedForm { path: path.to_owned(), inode, bytes };
        if self.treatment.upload == Some(RemoveUploaded(true)) && self.remove_form(&form) {
            return true;
        }
        if let Some(Err(error)) = self.index.as_mut().map(|index| index.add_uploaded(path, inode, bytes))
            && let Some(silent) = self.may_speak(1)
        {
            log::warn!(
                "cannot note in the list of finished files that {} was uploaded: {error}; the next start asks the \
                 server for it{}",
                path.display(),
                repeats(silent)
            );
        }
        false
    }

    /// Renames the file if the name of its compressed form is taken; returns it with its name. That happens when a time
    /// code of the path repeats, such as the hour of the day.
    pub(super) fn with_free_name(&mut self, file: WaitingFile, method: Method, now: u64) -> io::Result<WaitingFile> {
        if method.path_of(&file.path).symlink_metadata().is_err() {
            return Ok(file);
        }
        let base = self.name.before_finishing(&file.path).unwrap_or_else(|| file.path.clone());
        let names = finished_names(&base, now, self.name.zone());
        let path = set_aside(&file.path, names, |name| self.list_by(name, Ok(file.inode)))?;
        Ok(WaitingFile { path, ..file })
    }

    /// Lists the compressed form of a file, with this inode, which is about to get its name.
    pub(super) fn list_compressed(&mut self, plain: &Path, method: Method, inode: u64) -> io::Result<()> {
        let Some(index) = &mut self.index else { return Err(io::Error::other("there is no list of finished files")) };
        index.add_compressed(plain, method, inode)
    }
}

/// Removes a file, if it is this one and not in use.
pub(super) fn remove_unused(file: &FinishedForm) -> io::Result<()> {
    let opened = open_to_look(&file.path)?;
    if opened.metadata()?.ino() != file.inode {
        return Err(io::Error::other("it is now another file"));
    }
    if lock::is_locked(&opened) {
        return Err(io::Error::other("another process has locked it"));
    }
    disk::remove_file(&file.path)
}

/// Whether a compressed form was made of this file and neither was changed since: both have the same mtime.
fn is_the_same(plain: &FinishedForm, compressed: &FinishedForm) -> bool {
    let changed = |form: &FinishedForm| form.path.symlink_metadata().and_then(|metadata| metadata.modified()).ok();
    changed(plain).is_some_and(|changed_at| changed(compressed) == Some(changed_at))
}

/// Opens a file to inspect it, without blocking.
fn open_to_look(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(path)
}
