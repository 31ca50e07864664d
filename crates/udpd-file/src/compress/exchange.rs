//! A compressed form takes the place of its file. Each step leaves one whole form under a name that is listed, whatever
//! comes between it and the next.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::super::handle::set_aside;
use super::super::index::Form;
use super::super::shelf::{Shelf, remove_unused};
use super::job::{Made, Refusal, Seen};

/// How many bytes a file was long, and is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchanged {
    pub from_bytes: u64,
    pub to_bytes: u64,
}

/// All of it, where nobody else writes the list and nobody else can begin to write the file.
pub(crate) fn exchange(shelf: &mut Shelf, plain: &Path, made: &Made) -> Result<Exchanged, Refusal> {
    list(shelf, plain, made)?;
    take_place(made)?;
    Ok(remove_plain(plain, made))
}

/// Lists the compressed form, which has its name afterwards.
pub(crate) fn list(shelf: &mut Shelf, plain: &Path, made: &Made) -> Result<(), Refusal> {
    if !is_unchanged(plain, &made.plain) || !made.temporary.is_in_place() {
        return Err(Refusal::Changed);
    }
    if made.target.symlink_metadata().is_ok() {
        let what = format!("somebody has made {} meanwhile", made.target.display());
        return Err(Refusal::Failed(io::Error::new(io::ErrorKind::AlreadyExists, what)));
    }
    shelf.list_compressed(plain, made.recipe.method, made.temporary.inode).map_err(Refusal::Failed)
}

/// Gives it that name, which is on the disk when this returns.
pub(crate) fn take_place(made: &Made) -> Result<(), Refusal> {
    set_aside(&made.temporary.path, std::iter::once(made.target.clone()), |_| ()).map_err(Refusal::Failed)?;
    let directory = made.target.parent().unwrap_or(Path::new("/"));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(Refusal::Failed)
}

/// Removes the plain file. Where that cannot be done now, the next look at the list does it.
pub(crate) fn remove_plain(plain: &Path, made: &Made) -> Exchanged {
    let form = Form { path: plain.to_owned(), inode: made.plain.inode, bytes: made.plain.bytes };
    if is_unchanged(plain, &made.plain)
        && let Err(error) = remove_unused(&form)
    {
        log::debug!("cannot remove {} yet, which is compressed: {error}", plain.display());
    }
    Exchanged { from_bytes: made.plain.bytes, to_bytes: made.bytes }
}

fn is_unchanged(path: &Path, seen: &Seen) -> bool {
    path.symlink_metadata().is_ok_and(|found| {
        let is_changed = found.modified().map_or(true, |changed| changed != seen.changed);
        found.is_file() && (found.ino(), found.len()) == (seen.inode, seen.bytes) && !is_changed
    })
}
