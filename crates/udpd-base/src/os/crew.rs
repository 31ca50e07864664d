//! The crew: every thread of the daemon, started here and nowhere else.
//!
//! A daemon with a dead thread must not look healthy. So every thread carries an alarm: when it panics, the main thread
//! hears of it, closes the books and ends. And every thread carries a pulse: a counter that moves with each step of its
//! work, and that is odd while the thread rests. Resting is waiting for work, and waiting inside a system call for a
//! disk or a peer, because neither is a fault of the thread. A pulse that is even and does not move belongs to a thread
//! that hangs.
//!
//! A step costs one relaxed store to memory of the thread's own, once for each batch or call, never for a datagram.

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use crossbeam_utils::CachePadded;
use crossbeam_utils::sync::WaitGroup;

use super::duty::Duty;

/// The stack of a thread of which there may be many, a lane or a consumer: several times what it has been seen to use.
pub const STACK_OF_MANY_BYTES: usize = 512 << 10;

/// What the threads tell the main thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A signal that somebody has to act upon: its number.
    Signal(i32),
    /// A sink can never take anything again.
    SinkClosed(String),
    /// Somebody wants the configuration read again, and waits for the answer.
    Reload,
    /// A process that is to take over asks for something, and waits for the answer.
    TakeOver,
    /// Another process has taken over.
    TakenOver(String),
    /// Nobody receives any more: another process should have taken over.
    Stranded(String),
    /// A thread has panicked: its name.
    ThreadPanicked(String),
}

/// Takes from a thread what its duty does not need.
pub trait Confine: fmt::Debug + Send + Sync {
    /// Confines the calling thread to what its duties need together, the first of which says what it opens. It is
    /// called once for each thread, and nothing leads out again.
    fn confine(&self, duties: &[Duty]);
}

/// Starts the threads of a daemon and knows those that live.
#[derive(Debug, Clone)]
pub struct Crew {
    events: Sender<Event>,
    members: Arc<Mutex<Vec<Weak<Member>>>>,
    confinement: Option<Arc<Confinement>>,
}

/// What the threads of a crew go into.
#[derive(Debug)]
struct Confinement {
    sandbox: Arc<dyn Confine>,
    /// Held by each thread that has yet to go in; none when all have to be inside.
    outside: Mutex<Option<WaitGroup>>,
}

/// A thread that has yet to go in.
#[derive(Debug)]
struct Candidate {
    sandbox: Arc<dyn Confine>,
    duty: Duty,
    /// Who waits for it hears of its entry, and of its end.
    _outside: Option<WaitGroup>,
}

/// One living thread.
#[derive(Debug)]
struct Member {
    name: Arc<str>,
    thread_id: AtomicI32,
    pulse: CachePadded<AtomicU64>,
    /// What it does is not waited for any more.
    is_given_up: AtomicBool,
}

/// A thread that has been started and may not run yet.
#[derive(Debug)]
pub struct Starting<T> {
    handle: JoinHandle<T>,
    beginning: Receiver<()>,
    member: Weak<Member>,
}

/// A thread of the crew as those know it who see to it from outside.
#[derive(Debug, Clone)]
pub struct Known(Weak<Member>);

impl Known {
    /// Its number, for as long as it lives: the kernel may give it to another thread afterwards.
    pub fn thread_id(&self) -> Option<i32> {
        let id = self.0.upgrade()?.thread_id.load(Ordering::Relaxed);
        (id > 0).then_some(id)
    }

    /// Whether it was told so; also when it has ended meanwhile.
    pub fn is_given_up(&self) -> bool {
        self.0.upgrade().is_none_or(|member| member.is_given_up.load(Ordering::Relaxed))
    }

    /// Tells it that what it does is not waited for any more, see [`is_given_up`].
    pub fn give_up(&self) {
        if let Some(member) = self.0.upgrade() {
            member.is_given_up.store(true, Ordering::Relaxed);
        }
    }
}

impl<T> Starting<T> {
    pub fn known(&self) -> Known {
        Known(Weak::clone(&self.member))
    }

    /// Waits until it runs.
    pub fn wait(self) -> JoinHandle<T> {
        // The standard library ends the process when it has no memory for a new thread's guard. That is to happen while
        // the daemon starts, and not when it has said that it is ready.
        let _ = self.beginning.recv();
        self.handle
    }
}

/// How a thread was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vitals {
    pub name: Arc<str>,
    pub thread_id: i32,
    /// Moves with every step; odd while the thread rests.
    pub pulse: u64,
}

impl Vitals {
    /// Whether it waits for work, a disk or a peer.
    pub fn is_at_rest(&self) -> bool {
        self.pulse % 2 == 1
    }
}

thread_local! {
    static SELF: OnceCell<Arc<Member>> = const { OnceCell::new() };
    static CANDIDATE: RefCell<Option<Candidate>> = const { RefCell::new(None) };
}

/// Confines the calling thread to its duty, if its crew has a sandbox and it is not inside.
pub fn enter_sandbox() {
    enter_sandbox_with(&[]);
}

/// The same for a thread that does besides what others have a thread for. Those duties open no files.
pub fn enter_sandbox_with(besides: &[Duty]) {
    if let Some(Candidate { sandbox, duty, _outside }) = CANDIDATE.take() {
        sandbox.confine(&[&[duty], besides].concat());
    }
}

impl Crew {
    /// A crew without members, and where it reports to.
    pub fn new() -> (Self, Receiver<Event>) {
        let (events, inbox) = unbounded();
        (Self { events, members: Arc::default(), confinement: None }, inbox)
    }

    /// Whose threads go into this sandbox from now on.
    pub fn confined_by(self, sandbox: Arc<dyn Confine>) -> Self {
        let confinement = Confinement { sandbox, outside: Mutex::new(Some(WaitGroup::new())) };
        Self { confinement: Some(Arc::new(confinement)), ..self }
    }

    /// Waits until every thread is in the sandbox, and takes the calling one there. Whatever starts from now on is born
    /// inside.
    pub fn confine_the_rest(&self) {
        let Some(confinement) = &self.confinement else { return };
        let outside = confinement.outside.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(outside) = outside {
            at_rest(|| outside.wait());
        }
        confinement.sandbox.confine(&[Duty::Main]);
    }

    /// Starts a thread, and returns when it runs. It goes into the sandbox before it does anything. Its death by panic
    /// becomes an [`Event`].
    pub fn spawn<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        duty: Duty,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        self.spawn_with(name, duty, Vec::new(), body)
    }

    /// The same for a thread that does besides what others have a thread for. Those duties open no files.
    pub fn spawn_with<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        duty: Duty,
        besides: Vec<Duty>,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let body = move || {
            enter_sandbox_with(&besides);
            body()
        };
        Ok(self.launch(name, duty, thread::Builder::new(), body)?.wait())
    }

    /// Starts one of many threads and does not wait until it runs, so that many come to run at the same time. Its stack
    /// is as long as a lane or a consumer needs: a thousand of the usual two megabytes are refused where memory may not
    /// be overcommitted.
    ///
    /// Such a thread has something to do before it goes into the sandbox, if only to sit on its cores, and calls
    /// [`enter_sandbox`] itself.
    pub fn spawn_one_of_many<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        duty: Duty,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Starting<T>> {
        self.launch(name, duty, thread::Builder::new().stack_size(STACK_OF_MANY_BYTES), body)
    }

    fn launch<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        duty: Duty,
        builder: thread::Builder,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Starting<T>> {
        let name = name.into();
        let member = Arc::new(Member::new(&name));
        let alarm = Alarm { member: Arc::clone(&member), events: self.events.clone() };
        let (begun, beginning) = bounded(1);
        let candidate = self.candidate(duty);
        let handle = builder.name(name).spawn(move || {
            let alarm = alarm;
            CANDIDATE.set(candidate);
            alarm.member.thread_id.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
            SELF.with(|own| own.set(Arc::clone(&alarm.member))).expect("a new thread is nobody yet");
            let _ = begun.send(());
            body()
        })?;
        self.add(&member);
        Ok(Starting { handle, beginning, member: Arc::downgrade(&member) })
    }

    fn candidate(&self, duty: Duty) -> Option<Candidate> {
        let confinement = self.confinement.as_ref().filter(|_| !matches!(duty, Duty::Free | Duty::Errand))?;
        let outside = confinement.outside.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some(Candidate { sandbox: Arc::clone(&confinement.sandbox), duty, _outside: outside })
    }

    /// Makes the calling thread a member until it ends: the main thread, which nobody has started here. Nobody hears
    /// its death either; the process ends with it.
    pub fn enlist(&self, name: &str) {
        let member = Arc::new(Member::new(name));
        member.thread_id.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
        self.add(&member);
        // A thread that has a pulse already keeps it.
        let _ = SELF.with(|own| own.set(member));
    }

    fn add(&self, member: &Arc<Member>) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        // Only when the list would grow, or a thousand threads would look at each other a million times.
        if members.len() == members.capacity() {
            members.retain(|member| member.strong_count() > 0);
        }
        members.push(Arc::downgrade(member));
    }

    pub fn report(&self, event: Event) {
        // Nobody listens any more when the process ends.
        let _ = self.events.send(event);
    }

    pub fn vitals(&self) -> Vec<Vitals> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let vitals = |member: Arc<Member>| Vitals {
            name: Arc::clone(&member.name),
            thread_id: member.thread_id.load(Ordering::Relaxed),
            pulse: member.pulse.load(Ordering::Relaxed),
        };
        members.iter().filter_map(Weak::upgrade).map(vitals).collect()
    }
}

/// Says that the calling thread has made a step. A thread outside of any crew says it to nobody.
pub fn step() {
    SELF.with(|own| own.get().map(|member| member.advance(2)));
}

/// Whether what the calling thread does is not waited for any more: a wait for a peer that takes nothing is to end, and
/// what it would have taken has failed.
pub fn is_given_up() -> bool {
    SELF.with(|own| own.get().is_some_and(|member| member.is_given_up.load(Ordering::Relaxed)))
}

/// Lets the calling thread wait for work, a disk or a peer inside of `wait`.
pub fn at_rest<T>(wait: impl FnOnce() -> T) -> T {
    SELF.with(|own| match own.get() {
        // A rest within a rest is the same rest.
        Some(member) if member.pulse.load(Ordering::Relaxed) % 2 == 0 => {
            let _rest = Rest::begin(member);
            wait()
        }
        _ => wait(),
    })
}

/// Ends also when the wait panics.
struct Rest<'a>(&'a Member);

impl<'a> Rest<'a> {
    fn begin(member: &'a Member) -> Self {
        member.advance(1);
        Self(member)
    }
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.0.advance(1);
    }
}

impl Member {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            thread_id: AtomicI32::new(0),
            pulse: CachePadded::default(),
            is_given_up: AtomicBool::new(false),
        }
    }

    /// Only its own thread writes it, so this needs no atomic addition.
    fn advance(&self, by: u64) {
        self.pulse.store(self.pulse.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }
}

/// Held by a thread for as long as it lives.
struct Alarm {
    member: Arc<Member>,
    events: Sender<Event>,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.events.send(Event::ThreadPanicked(self.member.name.to_string()));
        }
    }
}

impl fmt::Display for Vitals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (thread {})", self.name, self.thread_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    #[test]
    fn a_thread_that_panics_is_reported_by_its_name() {
        let (crew, events) = Crew::new();
        let outcome = crew.spawn("rx0-syslog", Duty::Free, || panic!("on purpose")).unwrap().join();
        assert!(outcome.is_err());
        assert_eq!(events.recv().unwrap(), Event::ThreadPanicked("rx0-syslog".into()));
        assert_eq!(crew.vitals(), []);
    }

    #[test]
    fn a_thread_that_ends_is_no_member_any_more_and_no_event() {
        let (crew, events) = Crew::new();
        assert_eq!(crew.spawn("keeper", Duty::Free, || 7).unwrap().join().unwrap(), 7);
        assert_eq!(crew.vitals(), []);
        assert!(events.try_recv().is_err());
    }

    #[test]
    fn the_pulse_is_odd_at_rest_and_moves_with_every_step() {
        let (crew, _events) = Crew::new();
        let (said, heard) = bounded(0);
        let (go_on, going_on) = bounded::<()>(0);
        let body = move || {
            step();
            said.send(()).unwrap();
            going_on.recv().unwrap();
            at_rest(|| {
                at_rest(|| said.send(()).unwrap());
                going_on.recv().unwrap();
            });
            said.send(()).unwrap();
            going_on.recv().unwrap();
        };
        let thread = crew.spawn("sink0", Duty::Free, body).unwrap();
        let mut pulses = Vec::new();
        for _ in 0..3 {
            heard.recv().unwrap();
            pulses.push(crew.vitals()[0].clone());
            go_on.send(()).unwrap();
        }
        thread.join().unwrap();
        assert_eq!(pulses.iter().map(|vitals| vitals.pulse).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(pulses.iter().map(Vitals::is_at_rest).collect::<Vec<_>>(), [false, true, false]);
        assert!(pulses[0].thread_id > 0);
    }

    #[test]
    fn a_thread_that_was_not_started_here_has_a_pulse_once_it_is_enlisted() {
        let (crew, _events) = Crew::new();
        let own = crew.clone();
        let body = move || {
            own.enlist("main");
            at_rest(|| assert!(own.vitals()[0].is_at_rest()));
            assert_eq!((&*own.vitals()[0].name, own.vitals()[0].pulse), ("main", 2));
        };
        thread::spawn(body).join().unwrap();
        assert_eq!(crew.vitals(), []);
    }

    #[test]
    fn a_thread_that_was_started_runs() {
        let (crew, _events) = Crew::new();
        for number in 0..100 {
            let thread = crew.spawn(format!("{number}"), Duty::Free, thread::park).unwrap();
            assert!(crew.vitals()[0].thread_id > 0, "{number}");
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_thread_is_known_by_its_number_for_as_long_as_it_lives() {
        let (crew, _events) = Crew::new();
        let starting = crew.spawn_one_of_many("rx0", Duty::Free, thread::park).unwrap();
        let known = starting.known();
        let thread = starting.wait();
        assert_eq!(known.thread_id(), Some(crew.vitals()[0].thread_id));
        thread.thread().unpark();
        thread.join().unwrap();
        assert_eq!(known.thread_id(), None);
    }

    #[test]
    fn a_rest_that_panics_is_over() {
        let (crew, _events) = Crew::new();
        let body = || {
            let _ = std::panic::catch_unwind(|| at_rest(|| panic!("on purpose")));
            SELF.with(|own| own.get().unwrap().pulse.load(Ordering::Relaxed))
        };
        assert_eq!(crew.spawn("one", Duty::Free, body).unwrap().join().unwrap(), 2);
    }
}
