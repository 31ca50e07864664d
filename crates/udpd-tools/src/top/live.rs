//! The live view: waits for a reading, a key or a signal, and draws.
//!
//! One thread asks the daemon, because a daemon that hangs answers after seconds, and keys are to work meanwhile. All
//! else happens here, between two polls.

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError, unbounded};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd;

use super::draw;
use super::model::Model;
use super::screen::{Screen, paint, show};
use super::view::{KeyCommand, View, parse_keys};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{self, ThreadRegistry};

/// What the terminal sends for Ctrl-Z, which is no signal while we read keys.
const SUSPEND: u8 = 0x1a;

/// An answer of the daemon, and when it was asked for.
type Timed = (Instant, Answer);

/// One answer of the daemon, or why there is none.
type Answer = Result<Snapshot, Failure>;

/// How the daemon is asked.
pub type Ask = Box<dyn FnMut() -> Answer + Send>;

/// Shows the daemon until the operator quits.
pub(super) fn run(ask: Ask, interval: Duration, has_colour: bool) -> Result<(), Failure> {
    let sources = EventSources::open(ask, interval)?;
    let mut state = LiveState { view: View { has_colour, ..View::default() }, ..LiveState::default() };
    let screen = Screen::take();
    let mut has_keys = io::stdin().is_terminal();
    while !state.view.is_over {
        let (width, height) = Screen::size();
        let lines = draw::screen(state.model(), &state.view, &state.notice(), (width, height));
        show(&paint(&lines, width, height, has_colour)).map_err(|error| lost("write to", error))?;
        let wakeup = sources.wait(has_keys)?;
        wakeup.answers.into_iter().for_each(|(asked, answer)| state.take(answer, asked));
        let mut suspend = wakeup.signals.contains(&(Signal::SIGTSTP as u32));
        if wakeup.has_keys {
            let mut bytes = [0; 256];
            let count = unistd::read(io::stdin(), &mut bytes).unwrap_or(0);
            // A terminal that is gone has no keys and never will.
            has_keys = count > 0;
            suspend |= bytes[..count].contains(&SUSPEND);
            for key in parse_keys(&bytes[..count]) {
                state.press(key, (width, height));
            }
        }
        if suspend {
            screen.leave();
            // Returns after SIGCONT.
            raise(Signal::SIGSTOP).map_err(|error| lost("give back", error.into()))?;
        }
        if suspend || wakeup.signals.contains(&(Signal::SIGCONT as u32)) {
            // Another program had the terminal meanwhile and left it in another state.
            screen.enter();
        }
        state.view.is_over |= wakeup.signals.iter().any(|&signal| is_end(signal));
    }
    Ok(())
}

fn is_end(signal: u32) -> bool {
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT].iter().any(|&end| end as u32 == signal)
}

fn lost(operation: &str, error: io::Error) -> Failure {
    let message = format!("cannot {operation} the terminal: {error}; `udpd top --once` needs none");
    Failure::new(ExitCode::Failure, message)
}

#[derive(Default)]
struct LiveState {
    view: View,
    live: Model,
    /// What is shown while the picture stands still.
    frozen: Option<Model>,
    /// Since when and why there is no answer.
    silent: Option<(Instant, String)>,
}

impl LiveState {
    fn model(&self) -> &Model {
        self.frozen.as_ref().unwrap_or(&self.live)
    }

    fn take(&mut self, answer: Answer, asked: Instant) {
        match answer {
            Ok(snapshot) => {
                self.silent = None;
                self.live.read(snapshot, asked);
            }
            Err(failure) => {
                self.live.miss();
                let since = self.silent.take().map_or_else(Instant::now, |(since, _)| since);
                self.silent = Some((since, failure.message));
            }
        }
    }

    fn press(&mut self, key: KeyCommand, size: (usize, usize)) {
        let shown = self.frozen.as_ref().unwrap_or(&self.live);
        let extent = draw::extent(shown, &self.view, &self.notice(), size);
        self.view.press(key, shown, extent);
        match (self.view.is_frozen, &self.frozen) {
            (true, None) => self.frozen = Some(self.live.clone()),
            (false, Some(_)) => self.frozen = None,
            _ => {}
        }
    }

    fn notice(&self) -> draw::Notice {
        match &self.silent {
            None => draw::Notice::None,
            Some((since, why)) => draw::Notice::Silent { seconds: since.elapsed().as_secs(), why: why.clone() },
        }
    }
}

/// Everything that the live view waits for.
struct EventSources {
    answers: Receiver<Timed>,
    answered: Arc<EventFd>,
    signals: SignalFd,
}

/// Wakes the view with each answer, and when no answer will come any more.
struct AnswerSignal(Arc<EventFd>);

impl AnswerSignal {
    fn ring(&self) {
        let _ = self.0.write(1);
    }
}

impl Drop for AnswerSignal {
    fn drop(&mut self) {
        self.ring();
    }
}

#[derive(Default)]
struct Wakeup {
    answers: Vec<Timed>,
    signals: Vec<u32>,
    has_keys: bool,
}

impl EventSources {
    /// To be called before there is another thread, because threads inherit what is blocked.
    fn open(mut ask: Ask, interval: Duration) -> Result<Self, Failure> {
        let fail = |error: io::Error| {
            let message = format!("cannot wait for keys and signals: {error}; raise the limits on threads and files");
            Failure::new(ExitCode::Failure, message)
        };
        let mut handled = SigSet::empty();
        for signal in [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
            Signal::SIGQUIT,
            Signal::SIGTSTP,
            Signal::SIGCONT,
            Signal::SIGWINCH,
        ] {
            handled.add(signal);
        }
        handled.thread_block().map_err(|error| fail(error.into()))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&handled, flags).map_err(|error| fail(error.into()))?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let answered = Arc::new(EventFd::from_flags(flags).map_err(|error| fail(error.into()))?);
        let (sender, answers) = unbounded();
        let bell = AnswerSignal(Arc::clone(&answered));
        let body = move || {
            let mut next = Instant::now();
            let mut timed = || {
                let asked = Instant::now();
                (asked, ask())
            };
            while sender.send(timed()).is_ok() {
                bell.ring();
                next = (next + interval).max(Instant::now());
                threads::blocking(|| std::thread::sleep(next.saturating_duration_since(Instant::now())));
            }
        };
        ThreadRegistry::new().0.spawn("udpd-top-ask", ThreadRole::Unconfined, body).map_err(fail)?;
        Ok(Self { answers, answered, signals })
    }

    /// Waits until something has come.
    fn wait(&self, wants_keys: bool) -> Result<Wakeup, Failure> {
        let stdin = io::stdin();
        let mut places = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.answered.as_fd(), PollFlags::POLLIN),
        ];
        if wants_keys {
            places.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut places, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(lost("wait for keys of", error.into())),
        }
        let has_keys = places.get(2).and_then(PollFd::any).unwrap_or(false);
        // Read first: an answer that comes in between rings again.
        let _ = self.answered.read();
        let mut wakeup = Wakeup { has_keys, ..Wakeup::default() };
        loop {
            match self.answers.try_recv() {
                Ok(answer) => wakeup.answers.push(answer),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    let message = "the thread that asks the daemon has ended; this is a bug of udpd: please report it";
                    return Err(Failure::new(ExitCode::Failure, message.to_owned()));
                }
            }
        }
        while let Ok(Some(signal)) = self.signals.read_signal() {
            wakeup.signals.push(signal.ssi_signo);
        }
        Ok(wakeup)
    }
}
