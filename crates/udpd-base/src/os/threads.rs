//! Every thread of the daemon is started here and nowhere else.
//!
//! A daemon with a dead thread must not look healthy. So when a thread panics, the main thread is told, closes the
//! ledger and ends. Every thread also has a heartbeat: a counter that moves with each step of its work and that is odd
//! while the thread blocks. A thread blocks while it waits for work, and inside a system call that waits for a disk or
//! a peer; neither is a fault of the thread. An even heartbeat that does not move belongs to a thread that hangs.
//!
//! A step costs one relaxed store to the thread's own memory, once for each batch or call, never for a datagram.

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use crossbeam_utils::CachePadded;
use crossbeam_utils::sync::WaitGroup;
use nix::sys::resource::{Resource, getrlimit};

use super::role::ThreadRole;
use crate::exit::{ExitCode, Failure};
use crate::seams::waits;
pub use crate::seams::waits::lock;

/// The stack of a thread of which there may be many, a lane or a consumer: several times what it was seen to use.
pub const STACK_OF_MANY_BYTES: usize = 512 << 10;

/// What the threads tell the main thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DaemonEvent {
    /// The number of a signal that has an effect.
    Signal(i32),
    /// A sink can never take anything again.
    SinkClosed(String),
    /// A client asks for the configuration to be read again, and waits for the answer.
    Reload,
    /// A client asks udpd to leave a fleet or to stay in it, and waits for the answer.
    Drain,
    /// udpd has received on for as long as it was to, and why that is now.
    Drained(String),
    /// A process that is to take over has a request, and waits for the answer.
    TakeOver,
    /// Another process has taken over.
    TakenOver(String),
    /// No process receives any more: another one should have taken over.
    Stranded(String),
    /// The name of a thread that has panicked.
    ThreadPanicked(String),
}

/// Takes from a thread what its roles do not need.
pub trait ThreadSandbox: fmt::Debug + Send + Sync {
    /// Confines the calling thread to what its roles need together. It is called once for each thread, and nothing
    /// leads out again.
    fn enter(&self, roles: &[ThreadRole]);
}

/// Starts the threads of a daemon and knows those that live.
#[derive(Debug, Clone)]
pub struct ThreadRegistry {
    events: Sender<DaemonEvent>,
    members: Arc<Mutex<Vec<Weak<Member>>>>,
    confinement: Option<Arc<Confinement>>,
}

/// The sandbox of a registry's threads.
#[derive(Debug)]
struct Confinement {
    sandbox: Arc<dyn ThreadSandbox>,
    /// Each thread holds a clone until it is inside; `None` once all have to be inside.
    outside: Mutex<Option<WaitGroup>>,
}

/// A thread that is not yet in the sandbox.
#[derive(Debug)]
struct Candidate {
    sandbox: Arc<dyn ThreadSandbox>,
    roles: Vec<ThreadRole>,
    /// Dropped when the thread is inside or ends, for which [`ThreadRegistry::close_sandbox`] waits.
    _outside: Option<WaitGroup>,
}

/// One living thread.
#[derive(Debug)]
struct Member {
    name: Arc<str>,
    thread_id: AtomicI32,
    heartbeat: CachePadded<AtomicU64>,
    /// No other thread waits any more for what it does.
    is_given_up: AtomicBool,
}

/// A thread that was started and may not run yet.
#[derive(Debug)]
pub struct StartingThread<T> {
    handle: JoinHandle<T>,
    beginning: Receiver<()>,
    member: Weak<Member>,
}

/// A thread of the registry, as other threads see it.
#[derive(Debug, Clone)]
pub struct ThreadHandle(Weak<Member>);

impl ThreadHandle {
    /// Its number while it lives: afterwards the kernel may give the number to another thread.
    pub fn thread_id(&self) -> Option<i32> {
        let id = self.0.upgrade()?.thread_id.load(Ordering::Relaxed);
        (id > 0).then_some(id)
    }

    /// Whether [`give_up`](Self::give_up) was called; also true once the thread has ended.
    pub fn is_given_up(&self) -> bool {
        self.0.upgrade().is_none_or(|member| member.is_given_up.load(Ordering::Relaxed))
    }

    /// Tells the thread that no other waits any more for what it does, see [`is_given_up`].
    pub fn give_up(&self) {
        if let Some(member) = self.0.upgrade() {
            member.is_given_up.store(true, Ordering::Relaxed);
        }
    }
}

impl<T> StartingThread<T> {
    pub fn handle(&self) -> ThreadHandle {
        ThreadHandle(Weak::clone(&self.member))
    }

    /// Waits until it runs.
    pub fn wait(self) -> JoinHandle<T> {
        // The standard library ends the process when it has no memory for a new thread's guard. That has to happen
        // while the daemon starts, and not after it has said that it is ready.
        let _ = waits::recv(&self.beginning);
        self.handle
    }
}

/// What a look at a thread finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStatus {
    pub name: Arc<str>,
    pub thread_id: i32,
    /// Moves with every step; odd while the thread blocks.
    pub heartbeat: u64,
}

impl ThreadStatus {
    /// Whether it waits for work, a disk or a peer.
    pub fn is_blocking(&self) -> bool {
        self.heartbeat % 2 == 1
    }
}

thread_local! {
    static SELF: OnceCell<Arc<Member>> = const { OnceCell::new() };
    static CANDIDATE: RefCell<Option<Candidate>> = const { RefCell::new(None) };
}

/// Confines the calling thread to its roles, if its registry has a sandbox and the thread is not inside.
pub fn enter_sandbox() {
    enter_sandbox_with(&[]);
}

/// The same for a thread that finds out late which roles it has besides.
pub fn enter_sandbox_with(besides: &[ThreadRole]) {
    if let Some(Candidate { sandbox, roles, _outside }) = CANDIDATE.take() {
        sandbox.enter(&[&roles, besides].concat());
    }
}

impl ThreadRegistry {
    /// An empty registry, and what its threads report.
    pub fn new() -> (Self, Receiver<DaemonEvent>) {
        let (events, inbox) = unbounded();
        (Self { events, members: Arc::default(), confinement: None }, inbox)
    }

    /// The same registry; the threads that it starts from now on go into this sandbox.
    pub fn with_sandbox(self, sandbox: Arc<dyn ThreadSandbox>) -> Self {
        let confinement = Confinement { sandbox, outside: Mutex::new(Some(WaitGroup::new())) };
        Self { confinement: Some(Arc::new(confinement)), ..self }
    }

    /// Waits until every thread is in the sandbox, and takes the calling main thread there. Threads that start from now
    /// on are born inside.
    pub fn close_sandbox(&self) {
        let Some(confinement) = &self.confinement else { return };
        let outside = lock(&confinement.outside).take();
        if let Some(outside) = outside {
            blocking(|| outside.wait());
        }
        confinement.sandbox.enter(&[ThreadRole::Main]);
    }

    /// Starts a thread, and returns when it runs. It goes into the sandbox before it does anything. Its panic becomes a
    /// [`DaemonEvent`].
    pub fn spawn<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        roles: impl Into<Vec<ThreadRole>>,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let body = move || {
            enter_sandbox();
            body()
        };
        Ok(self.launch(name, roles, thread::Builder::new(), body)?.wait())
    }

    /// Starts one of many threads and does not wait until it runs, so that many come to run at the same time. Its stack
    /// is as long as a lane or a consumer needs: a thousand of the usual two megabytes are refused where memory may not
    /// be overcommitted.
    ///
    /// Such a thread has something to do before it goes into the sandbox, if only to move to its cores, and calls
    /// [`enter_sandbox`] itself.
    pub fn spawn_one_of_many<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        roles: impl Into<Vec<ThreadRole>>,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<StartingThread<T>> {
        self.launch(name, roles, thread::Builder::new().stack_size(STACK_OF_MANY_BYTES), body)
    }

    fn launch<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        roles: impl Into<Vec<ThreadRole>>,
        builder: thread::Builder,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<StartingThread<T>> {
        let name = name.into();
        let member = Arc::new(Member::new(&name));
        let alarm = PanicAlarm { member: Arc::clone(&member), events: self.events.clone() };
        let (begun, beginning) = bounded(1);
        let candidate = self.candidate(roles.into());
        let handle = waits::spawn(builder.name(name), move || {
            let alarm = alarm;
            CANDIDATE.set(candidate);
            alarm.member.thread_id.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
            SELF.with(|own| own.set(Arc::clone(&alarm.member))).expect("a new thread is not registered");
            let _ = begun.send(());
            body()
        })?;
        self.add(&member);
        Ok(StartingThread { handle, beginning, member: Arc::downgrade(&member) })
    }

    fn candidate(&self, roles: Vec<ThreadRole>) -> Option<Candidate> {
        let confinement = self.confinement.as_ref()?;
        if let [ThreadRole::Unconfined | ThreadRole::ShortLived] = roles[..] {
            return None;
        }
        let outside = lock(&confinement.outside).clone();
        Some(Candidate { sandbox: Arc::clone(&confinement.sandbox), roles, _outside: outside })
    }

    /// Registers the calling thread until it ends: the main thread, which is not started here. Its panic is not
    /// reported; the process ends with it.
    pub fn register_current(&self, name: &str) {
        let member = Arc::new(Member::new(name));
        member.thread_id.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
        self.add(&member);
        // A thread that has a heartbeat already keeps it.
        let _ = SELF.with(|own| own.set(member));
    }

    fn add(&self, member: &Arc<Member>) {
        let mut members = lock(&self.members);
        // Only when the list would grow, or a thousand threads would look at each other a million times.
        if members.len() == members.capacity() {
            members.retain(|member| member.strong_count() > 0);
        }
        members.push(Arc::downgrade(member));
    }

    pub fn report(&self, event: DaemonEvent) {
        // The receiver is gone while the process ends.
        let _ = self.events.send(event);
    }

    pub fn statuses(&self) -> Vec<ThreadStatus> {
        let members = lock(&self.members);
        let status = |member: Arc<Member>| ThreadStatus {
            name: Arc::clone(&member.name),
            thread_id: member.thread_id.load(Ordering::Relaxed),
            heartbeat: member.heartbeat.load(Ordering::Relaxed),
        };
        members.iter().filter_map(Weak::upgrade).map(status).collect()
    }
}

/// Notes that the calling thread has made a step. It does nothing on a thread outside of any registry.
pub fn step() {
    SELF.with(|own| own.get().map(|member| member.advance(2)));
    waits::turn();
}

/// Whether no other thread waits any more for what the calling one does: a wait for a peer that takes nothing is to
/// end, and what the peer would have taken has failed.
pub fn is_given_up() -> bool {
    SELF.with(|own| own.get().is_some_and(|member| member.is_given_up.load(Ordering::Relaxed)))
}

/// Marks the calling thread as blocked while it waits for work, a disk or a peer inside of `wait`.
pub fn blocking<T>(wait: impl FnOnce() -> T) -> T {
    SELF.with(|own| match own.get() {
        // A nested call belongs to the outer one.
        Some(member) if member.heartbeat.load(Ordering::Relaxed) % 2 == 0 => {
            let _blocked = Blocked::begin(member);
            wait()
        }
        _ => wait(),
    })
}

/// Ends also when the wait panics.
struct Blocked<'a>(&'a Member);

impl<'a> Blocked<'a> {
    fn begin(member: &'a Member) -> Self {
        member.advance(1);
        Self(member)
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.advance(1);
    }
}

impl Member {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            thread_id: AtomicI32::new(0),
            heartbeat: CachePadded::default(),
            is_given_up: AtomicBool::new(false),
        }
    }

    /// Only its own thread writes it, so this needs no atomic addition.
    fn advance(&self, by: u64) {
        self.heartbeat.store(self.heartbeat.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }
}

/// Held by a thread for as long as it lives.
struct PanicAlarm {
    member: Arc<Member>,
    events: Sender<DaemonEvent>,
}

impl Drop for PanicAlarm {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.events.send(DaemonEvent::ThreadPanicked(self.member.name.to_string()));
        }
    }
}

impl fmt::Display for ThreadStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (thread {})", self.name, self.thread_id)
    }
}

/// The last part of each cure: each lane and each consumer takes a thread.
const CURE: &str = "or have fewer lanes and consumers, which take a thread each";

/// The failure when the thread of `name` cannot be started. The kernel has one error for every limit on threads and for
/// a lack of memory as well, "Resource temporarily unavailable", so this looks at the limits and names the one that is
/// reached.
pub fn start_failure(name: &str, error: &io::Error) -> Failure {
    Failure::new(ExitCode::Failure, format!("{name}: cannot start its thread: {error}; {}", cause(Path::new("/"))))
}

/// The limit that is reached, with its cure. Everything is read below `root`, which is `/` on a live machine; a limit
/// that cannot be read counts as not reached.
fn cause(root: &Path) -> String {
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    if let Some((limit, file)) = full_group(root) {
        return format!(
            "the control group allows {limit} threads ({}) and has them; raise that (TasksMax= in the unit file, \
             --pids-limit of a container), {CURE}",
            file.display()
        );
    }
    let load = fs::read_to_string(root.join("proc/loadavg")).unwrap_or_default();
    // RUNNING/ALL is the fourth field.
    let all = load.split(' ').nth(3).and_then(|field| field.split_once('/')?.1.parse::<u64>().ok()).unwrap_or(0);
    for (key, use_) in [("threads-max", "threads"), ("pid_max", "numbers for threads")] {
        let limit = number(&root.join("proc/sys/kernel").join(key));
        if let Some(limit) = limit.filter(|limit| all >= limit.saturating_sub(limit / 100)) {
            return format!(
                "this machine has {all} threads, and kernel.{key} allows {limit} {use_}; raise that with sysctl, {CURE}"
            );
        }
    }
    let limit =
        |resource| getrlimit(resource).ok().map(|(soft, _)| soft).filter(|soft| *soft != nix::libc::RLIM_INFINITY);
    let mut known = Vec::new();
    if let Some(count) = limit(Resource::RLIMIT_NPROC) {
        known.push(format!("its user may have {count} threads in all processes (ulimit -u, LimitNPROC=)"));
    }
    if let Some(bytes) = limit(Resource::RLIMIT_AS) {
        known.push(format!("its address space may have {bytes} bytes (ulimit -v, LimitAS=)"));
    }
    match known.is_empty() {
        true => format!("no limit on threads is reached, so memory is short; free some, {CURE}"),
        false => format!("{}; raise what is reached, {CURE}", known.join(", ")),
    }
}

/// The first control group up to the root that has as many threads as it may have: how many, and where that is written.
fn full_group(root: &Path) -> Option<(u64, PathBuf)> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let groups = own.lines().filter_map(|line| {
        // NUMBER:CONTROLLERS:PATH, with neither number nor controllers in the second version.
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let mounted = match controllers {
            "" => "/sys/fs/cgroup",
            "pids" => "/sys/fs/cgroup/pids",
            _ => return None,
        };
        Some(Path::new(mounted).join(path.trim_start_matches('/')))
    });
    // In a container a path may lead to where the group is mounted, and not below that.
    let ancestors = groups.flat_map(|group| group.ancestors().map(Path::to_owned).collect::<Vec<_>>());
    ancestors.take_while(|group| group.starts_with("/sys")).find_map(|group| {
        let number = |name: &str| {
            let path = root.join(group.strip_prefix("/").ok()?).join(name);
            fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
        };
        let limit = number("pids.max")?;
        (number("pids.current")? >= limit).then(|| (limit, group.join("pids.max")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;
    use hostloss::testing::root;

    #[test]
    fn a_thread_that_panics_is_reported_by_its_name() {
        let (registry, events) = ThreadRegistry::new();
        let outcome = registry.spawn("rx0-syslog", ThreadRole::Unconfined, || panic!("on purpose")).unwrap().join();
        assert!(outcome.is_err());
        assert_eq!(events.recv().unwrap(), DaemonEvent::ThreadPanicked("rx0-syslog".into()));
        assert_eq!(registry.statuses(), []);
    }

    #[test]
    fn a_thread_that_ends_is_not_registered_any_more_and_no_event() {
        let (registry, events) = ThreadRegistry::new();
        assert_eq!(registry.spawn("keeper", ThreadRole::Unconfined, || 7).unwrap().join().unwrap(), 7);
        assert_eq!(registry.statuses(), []);
        assert!(events.try_recv().is_err());
    }

    #[test]
    fn the_heartbeat_is_odd_while_a_thread_blocks_and_moves_with_every_step() {
        let (registry, _events) = ThreadRegistry::new();
        let (said, heard) = bounded(0);
        let (go_on, going_on) = bounded::<()>(0);
        let body = move || {
            step();
            said.send(()).unwrap();
            going_on.recv().unwrap();
            blocking(|| {
                blocking(|| said.send(()).unwrap());
                going_on.recv().unwrap();
            });
            said.send(()).unwrap();
            going_on.recv().unwrap();
        };
        let thread = registry.spawn("sink0", ThreadRole::Unconfined, body).unwrap();
        let mut heartbeat = Vec::new();
        for _ in 0..3 {
            heard.recv().unwrap();
            heartbeat.push(registry.statuses()[0].clone());
            go_on.send(()).unwrap();
        }
        thread.join().unwrap();
        assert_eq!(heartbeat.iter().map(|statuses| statuses.heartbeat).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(heartbeat.iter().map(ThreadStatus::is_blocking).collect::<Vec<_>>(), [false, true, false]);
        assert!(heartbeat[0].thread_id > 0);
    }

    #[test]
    fn a_thread_that_was_not_started_here_has_a_heartbeat_once_it_is_registered() {
        let (registry, _events) = ThreadRegistry::new();
        let own = registry.clone();
        let body = move || {
            own.register_current("main");
            blocking(|| assert!(own.statuses()[0].is_blocking()));
            assert_eq!((&*own.statuses()[0].name, own.statuses()[0].heartbeat), ("main", 2));
        };
        thread::spawn(body).join().unwrap();
        assert_eq!(registry.statuses(), []);
    }

    #[test]
    fn a_thread_that_was_started_runs() {
        let (registry, _events) = ThreadRegistry::new();
        for number in 0..100 {
            let thread = registry.spawn(format!("{number}"), ThreadRole::Unconfined, thread::park).unwrap();
            assert!(registry.statuses()[0].thread_id > 0, "{number}");
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_thread_is_known_by_its_number_for_as_long_as_it_lives() {
        let (registry, _events) = ThreadRegistry::new();
        let starting = registry.spawn_one_of_many("rx0", ThreadRole::Unconfined, thread::park).unwrap();
        let handle = starting.handle();
        let thread = starting.wait();
        assert_eq!(handle.thread_id(), Some(registry.statuses()[0].thread_id));
        thread.thread().unpark();
        thread.join().unwrap();
        assert_eq!(handle.thread_id(), None);
    }

    #[test]
    fn a_thread_whose_wait_panics_is_not_blocked_any_more() {
        let (registry, _events) = ThreadRegistry::new();
        let body = || {
            let _ = std::panic::catch_unwind(|| blocking(|| panic!("on purpose")));
            SELF.with(|own| own.get().unwrap().heartbeat.load(Ordering::Relaxed))
        };
        assert_eq!(registry.spawn("one", ThreadRole::Unconfined, body).unwrap().join().unwrap(), 2);
    }

    #[test]
    fn the_control_group_that_is_full_is_named_however_far_up_it_is() {
        for (own, place) in [("0::/a.slice/b\n", ""), ("7:pids:/a.slice/b\n3:cpu:/\n", "pids/")] {
            let group = format!("sys/fs/cgroup/{place}a.slice");
            let root = root(&[
                ("proc/self/cgroup", own),
                (&format!("{group}/b/pids.max"), "max\n"),
                (&format!("{group}/b/pids.current"), "9\n"),
                (&format!("{group}/pids.max"), "512\n"),
                (&format!("{group}/pids.current"), "512\n"),
            ]);
            let said = cause(root.path());
            let expected = format!("the control group allows 512 threads (/{group}/pids.max) and has them");
            assert!(said.starts_with(&expected) && said.contains("TasksMax="), "{said}");
        }
    }

    #[test]
    fn a_machine_that_has_all_the_threads_it_may_have_is_named() {
        let loadavg = ("proc/loadavg", "0.2 0.1 0.0 1/1990 77\n");
        let of_threads = root(&[loadavg, ("proc/sys/kernel/threads-max", "2000\n")]);
        assert!(cause(of_threads.path()).contains("1990 threads, and kernel.threads-max allows 2000"));
        let of_numbers =
            root(&[loadavg, ("proc/sys/kernel/threads-max", "90000\n"), ("proc/sys/kernel/pid_max", "1990\n")]);
        assert!(cause(of_numbers.path()).contains("kernel.pid_max allows 1990"));
    }

    #[test]
    fn where_no_limit_is_seen_to_be_reached_those_that_are_known_are_told() {
        let said = cause(root(&[("proc/self/cgroup", "0::/\nx\n")]).path());
        assert!(said.contains("ulimit") || said.contains("memory is short"), "{said}");
        assert!(said.ends_with(CURE), "{said}");
    }
}
