//! The thread that keeps the files of a sink: it begins and finishes files, forces them to the disk, removes old ones,
//! and gets a broken one going again. All of that can take as long as a disk likes, and no consumer waits for it: each
//! goes on writing to the file it has, and finds the next one on its desk when it is ready.
//!
//! One thread serves all files of all consumers of a sink, each in a room of its own that knows nothing of the others.
//! A disk that takes its time over one file delays what is to be done for the others, and nothing else.
//!
//! The thread sleeps until there is an order or until somebody moves or removes a file. Only while a file cannot be
//! begun does it wake by itself, to try again. It ends when the last consumer has.

mod packing;

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};

use super::compress::{Compressor, Jobs, Report};
use super::desk::{At, Desk, Order};
use super::lookout::Lookout;
use super::office::{Office, REQUESTS_MAX, Reopened, Reopener};
use super::room::Room;
use super::sources::{Annex, AnnexPost, SourcePiles};
use udpd_base::os::crew;
use udpd_base::os::crew::Crew;
use udpd_base::os::duty::Duty;
use udpd_base::sink::Prospect;

/// How often a file that cannot be written is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// The most orders of one consumer that can be under way: each kind once, and once more for the file that lies on the
/// desk.
const ORDERS_MAX: usize = 9;

/// The consumer's end, for one file.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) desk: Arc<Desk>,
    room: usize,
    office: Arc<Office>,
    /// Hears when the first file has been begun late, or could not be.
    begun: Receiver<()>,
    /// Disconnected when everything asked for is done.
    done: Receiver<Infallible>,
}

/// A file, and who waits for what is done about it.
struct Tenant {
    room: Room,
    begun: Sender<()>,
    /// Declared after the room: when it is gone the room is closed.
    _alive: Sender<Infallible>,
}

impl Post {
    /// Asks for something. Never more orders are under way than the channel has room for, so this does not wait.
    pub(super) fn order(&self, order: Order) {
        let _ = self.office.orders.send((self.room, order));
        self.office.bell.ring();
    }

    /// Has the first file begun, and waits until that is done or cannot be.
    pub(super) fn begin(&self) {
        self.order(Order::Begin);
        let _ = crew::at_rest(|| self.begun.recv());
    }

    /// Waits until everything asked for is done.
    pub(super) fn close(self, at: At) {
        self.order(Order::Close(at));
        // Nothing is ever sent: it ends when the keeper lets go of the other end.
        let _ = crew::at_rest(|| self.done.recv());
    }
}

/// A wish that has not been answered yet: some consumer still has a file that was moved.
struct Waiting {
    answer: Sender<Reopened>,
    outcome: Reopened,
    /// By room, the files before which generation must be closed.
    generations: Vec<u64>,
    /// By annex, the number of the wish there, until it is answered.
    wishes: Vec<Option<u64>>,
}

/// The files by source of one consumer.
struct AnnexTenant {
    annex: Arc<Annex>,
    /// Those of them that wait to be compressed.
    piles: Option<SourcePiles>,
    /// The end of it for who waits for that.
    _alive: Sender<Infallible>,
}

/// The keeper of the files of a sink, before it is started.
pub struct FileKeeper {
    prospect: Prospect,
    rooms: Vec<Option<Tenant>>,
    annexes: Vec<Option<AnnexTenant>>,
    office: Arc<Office>,
    orders: Receiver<(usize, Order)>,
    requests: Receiver<Sender<Reopened>>,
    reports: Receiver<Report>,
    lookout: Lookout,
    waiting: Vec<Waiting>,
    /// Some of its files are to be compressed.
    compresses: bool,
}

impl std::fmt::Debug for FileKeeper {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FileKeeper").field("files", &self.rooms.len()).finish_non_exhaustive()
    }
}

impl FileKeeper {
    /// A keeper of so many files at most.
    pub fn new(files_max: usize, prospect: Prospect) -> io::Result<Self> {
        let (lookout, bell) = Lookout::new()?;
        let (orders, ordered) = bounded(ORDERS_MAX * files_max);
        let (requests, requested) = bounded(REQUESTS_MAX);
        // One for each path that has a file with the thread.
        let (reports, reported) = unbounded();
        let office = Arc::new(Office { orders, requests, reports, bell });
        Ok(Self {
            prospect,
            rooms: Vec::new(),
            annexes: Vec::new(),
            office,
            orders: ordered,
            requests: requested,
            reports: reported,
            lookout,
            waiting: Vec::new(),
            compresses: false,
        })
    }

    pub(super) fn prospect(&self) -> &Prospect {
        &self.prospect
    }

    /// Takes a file whose first one is open.
    pub(super) fn take(&mut self, room: Room, desk: Arc<Desk>) -> Post {
        self.compresses |= room.compresses();
        let ((begun, first), (alive, done)) = (bounded(1), bounded(0));
        self.rooms.push(Some(Tenant { room, begun, _alive: alive }));
        Post { desk, room: self.rooms.len() - 1, office: Arc::clone(&self.office), begun: first, done }
    }

    /// Takes the files by source of one consumer.
    pub(super) fn take_sources(&mut self, annex: Annex, piles: Option<SourcePiles>) -> AnnexPost {
        self.compresses |= piles.is_some();
        let (annex, (alive, done)) = (Arc::new(annex), bounded(0));
        self.annexes.push(Some(AnnexTenant { annex: Arc::clone(&annex), piles, _alive: alive }));
        AnnexPost::new(annex, Arc::clone(&self.office), done)
    }

    /// Starts it; where files are to be compressed, by `compressor`, on these cores if there are any.
    pub fn start(self, crew: &Crew, compressor: &Compressor, cores: &[usize]) -> io::Result<Reopener> {
        let jobs = self.compresses.then(|| compressor.engage(crew, cores)).transpose()?;
        let Self { prospect, rooms, annexes, office, orders, requests, reports, lookout, waiting, .. } = self;
        let reopener = Reopener::new(&office);
        let own_office = Arc::downgrade(&office);
        drop(office);
        let retry_at = Instant::now();
        let (office, is_in_force) = (own_office, prospect.is_in_force);
        let work =
            Work { rooms, annexes, orders, requests, reports, jobs, office, is_in_force, lookout, waiting, retry_at };
        crew.spawn("udpd-keeper", Duty::Keeper, move || work.run())?;
        Ok(reopener)
    }
}

/// What the thread has.
struct Work {
    rooms: Vec<Option<Tenant>>,
    annexes: Vec<Option<AnnexTenant>>,
    orders: Receiver<(usize, Order)>,
    requests: Receiver<Sender<Reopened>>,
    reports: Receiver<Report>,
    /// Where files to be compressed are brought.
    jobs: Option<Arc<Jobs>>,
    /// For those who bring them back.
    office: Weak<Office>,
    /// Set when the pipeline of the sink receives.
    is_in_force: Arc<AtomicBool>,
    lookout: Lookout,
    waiting: Vec<Waiting>,
    /// Not before then is a file that could not be begun tried again.
    retry_at: Instant,
}

impl Work {
    fn run(mut self) {
        let mut is_wanted = true;
        while is_wanted {
            let is_in_trouble = self.rooms().any(|(_, room)| room.is_in_trouble());
            let retry = is_in_trouble.then_some(self.retry_at);
            let wake = self.rooms().filter_map(|(_, room)| room.looks_at()).chain(retry).min();
            let wake = [wake, self.offers_at()].into_iter().flatten().min();
            // What it does there is what a disk does: as long as that takes, nothing hangs but the disk.
            crew::at_rest(|| {
                for room in self.lookout.wait(wake) {
                    self.room(room).map(Room::hear);
                }
                is_wanted = self.take_orders();
                self.serve_sources();
                self.take_reports();
                self.offer();
                self.try_again();
                self.follow();
                self.answer();
            });
        }
        for tenant in self.rooms.iter_mut().flatten() {
            // Of a consumer that ended without a word.
            tenant.room.close_unheard();
        }
    }

    fn rooms(&mut self) -> impl Iterator<Item = (usize, &mut Room)> {
        self.rooms.iter_mut().enumerate().filter_map(|(index, tenant)| Some((index, &mut tenant.as_mut()?.room)))
    }

    fn room(&mut self, index: usize) -> Option<&mut Room> {
        self.rooms.get_mut(index)?.as_mut().map(|tenant| &mut tenant.room)
    }

    /// Does what was asked for; false when nobody is left who could.
    fn take_orders(&mut self) -> bool {
        let is_wanted = loop {
            match self.orders.try_recv() {
                Ok((index, order)) => self.handle(index, order),
                Err(TryRecvError::Empty) => break true,
                Err(TryRecvError::Disconnected) => break false,
            }
        };
        while let Ok(answer) = self.requests.try_recv() {
            self.reopen(answer);
        }
        is_wanted
    }

    /// Does what consumers of files by source have asked for, and lets go of those that have ended.
    fn serve_sources(&mut self) {
        for tenant in &mut self.annexes {
            // And with it what its consumer waits for.
            tenant.take_if(|AnnexTenant { annex, piles, .. }| {
                !annex.serve(&mut |name| piles.iter_mut().for_each(|piles| piles.add(name.clone())))
            });
        }
    }

    fn handle(&mut self, index: usize, order: Order) {
        let Some(Tenant { room, begun, .. }) = self.rooms.get_mut(index).and_then(Option::as_mut) else { return };
        match order {
            Order::Begin => {
                room.begin_first();
                let _ = begun.try_send(());
            }
            Order::Sync(at) => {
                room.sync(at);
                room.desk().is_syncing.store(false, Ordering::Release);
            }
            Order::FinishFull(generation) => room.change(generation, true),
            Order::FinishDue(generation) => room.change(generation, false),
            Order::Look => {
                room.hear();
                room.desk().is_looking.store(false, Ordering::Release);
            }
            Order::Left(At { generation, written }) => room.settle(generation, written),
            Order::Broken { at, errno, whole_bytes } => room.break_off(at, errno, whole_bytes),
            Order::Close(At { written, .. }) => {
                room.close(written);
                self.lookout.follow(index, None);
                // And with it what the consumer waits for.
                self.rooms[index] = None;
            }
        }
    }

    fn try_again(&mut self) {
        let now = Instant::now();
        self.rooms().filter(|(_, room)| room.looks_at().is_some_and(|at| at <= now)).for_each(|(_, room)| room.look());
        if self.retry_at <= now && self.rooms().any(|(_, room)| room.is_in_trouble()) {
            self.rooms().filter(|(_, room)| room.is_in_trouble()).for_each(|(_, room)| room.try_again());
            self.retry_at = Instant::now() + RETRY;
        }
    }

    /// Watches the newest file of each room. One that was moved before it was watched is found by looking.
    fn follow(&mut self) {
        let rooms = self.rooms.iter_mut().enumerate();
        let rooms = rooms.filter_map(|(index, tenant)| Some((index, &mut tenant.as_mut()?.room)));
        for (index, room) in rooms {
            if self.lookout.follow(index, room.newest()) {
                room.hear();
            }
        }
    }

    fn reopen(&mut self, answer: Sender<Reopened>) {
        let mut outcome = Reopened::default();
        for (_, room) in self.rooms() {
            match room.reopen() {
                Ok(true) => outcome.begun += 1,
                Ok(false) => outcome.stayed += 1,
                Err(why) => outcome.refused.push(why),
            }
        }
        let generations =
            self.rooms.iter().map(|tenant| tenant.as_ref().map_or(0, |tenant| tenant.room.generation())).collect();
        let wishes = self.annexes.iter().map(|tenant| tenant.as_ref().map(|tenant| tenant.annex.ask_to_reopen()));
        let wishes = wishes.collect();
        self.waiting.push(Waiting { answer, outcome, generations, wishes });
    }

    /// Answers those whose old files are all closed.
    fn answer(&mut self) {
        let (rooms, annexes) = (&self.rooms, &self.annexes);
        self.waiting.retain_mut(|waiting| {
            for (tenant, wish) in annexes.iter().zip(&mut waiting.wishes) {
                // Who has ended has closed everything.
                let Some(tenant) = tenant else { continue };
                if let Some(Reopened { left, stayed, .. }) = wish.and_then(|number| tenant.annex.answer_to(number)) {
                    waiting.outcome.left += left;
                    waiting.outcome.stayed += stayed;
                    *wish = None;
                }
            }
            let waits = annexes.iter().zip(&waiting.wishes).any(|(tenant, wish)| tenant.is_some() && wish.is_some());
            let mut rooms = rooms.iter().zip(&waiting.generations);
            let is_closed =
                rooms.all(|(own, &generation)| !own.as_ref().is_some_and(|own| own.room.has_before(generation)));
            let is_closed = is_closed && !waits;
            if is_closed {
                // Who asked may have given up.
                let _ = waiting.answer.try_send(std::mem::take(&mut waiting.outcome));
            }
            !is_closed
        });
    }
}
