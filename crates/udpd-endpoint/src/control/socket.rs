//! The control socket's file: made, taken over when stale, refused when in use, removed at the end.
//!
//! A socket's file outlives the process that made it, so a restart after a crash finds one in its way. Whether it is
//! stale is known only by connecting to it. To keep two daemons that start together from each taking the other's file
//! for stale, a lock is held from the first look until the socket listens.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, getsockopt, setsockopt, socket};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::time::{TimeVal, TimeValLike};

use super::lock::StartLock;
use crate::service::StreamListener;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::{runtime, trusted_files};

/// Owner and group may ask for the ledger.
const SOCKET_MODE: u32 = 0o660;

/// How many clients wait to be let in; as the standard library has it.
const BACKLOG: i32 = 128;

/// The directory is for the same people, and only its owner may replace the socket.
const DIRECTORY_MODE: u32 = 0o750;

/// Where all users may make files, only this one gets in.
const PRIVATE_MODE: u32 = 0o700;

/// How long to wait for a daemon that may be busy, when all that matters is whether it is there.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// A bound control socket, which is not served yet. Its file is removed when it is dropped.
#[derive(Debug)]
pub struct BoundControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, to tell it from one that took its place. The socket keeps its inode in use, so no
    /// other file can have the same number as long as this one is open.
    identity: (u64, u64),
}

impl BoundControlSocket {
    /// Makes the socket, and its directory when only that is missing.
    ///
    /// A socket that no process serves is replaced. Anything else in its place, above all the socket of a running
    /// daemon, is left alone and is an error.
    pub fn bind(path: &Path) -> Result<Self, Failure> {
        // What can never be a socket's path is said before anything is made.
        SocketAddr::from_pathname(path).map_err(|error| failure(path, "bind it", &error))?;
        make_directory(directory_of(path)).map_err(|error| failure(path, "make its directory", &error))?;
        trusted_files::check_directory_of_socket(directory_of(path)).map_err(|error| {
            let message = format!("cannot make the control socket {}: {error}", path.display());
            Failure::new(ExitCode::Permission, message)
        })?;
        let _lock = lock(path)?;
        let listener = match listen(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                remove_stale(path)?;
                listen(path)
            }
            outcome => outcome,
        };
        let listener = listener.map_err(|error| failure(path, "bind it", &error))?;
        fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))
            .map_err(|error| failure(path, "set its mode to 0660", &error))?;
        let metadata = fs::symlink_metadata(path).map_err(|error| failure(path, "look at it", &error))?;
        Ok(Self { listener, path: path.into(), identity: (metadata.dev(), metadata.ino()) })
    }

    /// Makes the directory of one when only that is missing; binding the socket says why that failed.
    pub fn make_directory_of(path: &Path) {
        let _ = make_directory(directory_of(path));
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless it is another's by now.
    pub(super) fn remove_file(&self) {
        let ours = |metadata: fs::Metadata| (metadata.dev(), metadata.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(ours)
            && let Err(error) = fs::remove_file(&self.path)
        {
            log::warn!("cannot remove the control socket {}: {error}; the next start replaces it", self.path.display());
        }
    }
}

impl Drop for BoundControlSocket {
    fn drop(&mut self) {
        self.remove_file();
    }
}

impl AsFd for BoundControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl StreamListener for BoundControlSocket {
    type Client = UnixStream;

    fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().map(|(client, _)| client)
    }
}

/// Binds it with its mode set before, so that no other user can connect meanwhile, whatever the umask.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let address = UnixAddr::new(path)?;
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    fchmod(&socket, Mode::from_bits_truncate(SOCKET_MODE))?;
    nix::sys::socket::bind(socket.as_raw_fd(), &address)?;
    nix::sys::socket::listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(UnixListener::from(socket))
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn make_directory(directory: &Path) -> io::Result<()> {
    if runtime::is_shared_place(directory) {
        // Also when another user was quicker.
        return match DirBuilder::new().mode(PRIVATE_MODE).create(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => runtime::check_private(directory),
        };
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
        // A read-only file system and missing rights are reported even for a directory that is there already.
        Err(error) if !directory.is_dir() => Err(error),
        _ => Ok(()),
    }
}

fn lock(path: &Path) -> Result<StartLock, Failure> {
    let lock = StartLock::path_for(path);
    StartLock::take(&lock).map_err(|error| {
        let (path_shown, lock) = (path.display(), lock.display());
        if error.kind() != ErrorKind::WouldBlock {
            return failure(path, &format!("take its lock {lock}"), &error);
        }
        let cure = format!("see who with `fuser {lock}`, or set control_socket to another path");
        let message =
            format!("cannot make the control socket {path_shown}: another process keeps {lock} locked; {cure}");
        Failure::new(ExitCode::Unavailable, message)
    })
}

/// Removes what is at `path` if that is a socket that no process serves.
fn remove_stale(path: &Path) -> Result<(), Failure> {
    let path_shown = path.display();
    let in_the_way =
        |what: String| Err(Failure::new(ExitCode::Unavailable, format!("control socket {path_shown}: {what}")));
    let metadata = fs::symlink_metadata(path).map_err(|error| failure(path, "look at what is there", &error))?;
    if !metadata.file_type().is_socket() {
        let cure = "remove it, or set control_socket to another path";
        return in_the_way(format!("the path is not a socket; {cure}"));
    }
    let who = match connect(path, PROBE_LIMIT) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            return fs::remove_file(path).map_err(|error| failure(path, "replace the stale one", &error));
        }
        // Its queue of clients is full, so a process does listen.
        Err(error) if error.kind() == ErrorKind::WouldBlock => "a process that does not answer".into(),
        Err(error) => return Err(failure(path, "find out who serves the socket that exists", &error)),
        Ok(stream) => match getsockopt(&stream, PeerCredentials).map(|credentials| credentials.pid()) {
            Ok(pid) if pid > 0 => format!("another daemon (pid {pid})"),
            // A process outside of this pid namespace has no pid here.
            _ => "another daemon (in another container)".into(),
        },
    };
    in_the_way(format!("{who} serves it already; stop that process first, or set control_socket to another path"))
}

/// Connects within `limit`. A server whose queue is full that long is reported as `WouldBlock`.
pub(super) fn connect(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = UnixAddr::new(path)?;
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // For a Unix socket this bounds the wait in connect as well.
    let limit_ms = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
    setsockopt(&socket, SendTimeout, &TimeVal::milliseconds(limit_ms))?;
    nix::sys::socket::connect(socket.as_raw_fd(), &address)?;
    Ok(UnixStream::from(socket))
}

fn failure(path: &Path, step: &str, error: &io::Error) -> Failure {
    let (code, cure) = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => (
            ExitCode::Permission,
            "set control_socket to a path in a directory that the daemon's user owns (a unit file: \
             RuntimeDirectory=udpd)",
        ),
        ErrorKind::NotFound => {
            (ExitCode::Unavailable, "udpd makes only the last directory of the path; make the ones above it")
        }
        ErrorKind::InvalidInput => {
            (ExitCode::Configuration, "such a path has at most 107 bytes; set control_socket to a shorter one")
        }
        ErrorKind::NotADirectory => {
            (ExitCode::Unavailable, "part of the path is a file; set control_socket to another path")
        }
        ErrorKind::StorageFull => (ExitCode::Disk, "make room"),
        _ => (ExitCode::Unavailable, "set control_socket to another path, or to \"\" to run without"),
    };
    Failure::new(code, format!("cannot make the control socket {}: {step}: {error}; {cure}", path.display()))
}
