//! Which core each receiver gets where there is no plan, decided without any I/O; and threads, put on their cores.
//!
//! Receivers are dealt out from the highest core downwards, because the lowest cores are where a kernel puts the
//! interrupts and the housekeeping that are not told to be elsewhere. A thread of a physical core without a receiver
//! goes before the sibling of one, because two threads of a core share what it does. Consumers get what is left on the
//! nodes of the receivers; where nothing is left they share all allowed cores rather than one, so the scheduler can
//! still move them.

use std::io;

use core_affinity::CoreId;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::topology::Topology;

/// Where one receiver sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// The number of its core.
    pub core: usize,
    /// The memory node of that core, when known.
    pub node: Option<usize>,
}

/// Where receivers and consumers sit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seating {
    /// One seat for each receiver, in order.
    pub receivers: Vec<Seat>,
    /// The cores that consumers may run on.
    pub consumer_cores: Vec<usize>,
    /// True when receivers share cores because there are more of them than cores.
    pub shared: bool,
}

/// Places `receivers` threads on the `allowed` cores that are online.
///
/// With no usable core at all the seating has no receivers, and threads stay where the scheduler puts them.
pub fn place(receivers: usize, allowed: &[usize], topology: &Topology) -> Seating {
    let usable: Vec<usize> = allowed.iter().copied().filter(|core| topology.online.contains(core)).collect();
    let seat = |core: usize| Seat { core, node: topology.node_of_core.get(&core).copied() };
    let mut order: Vec<usize> = usable.iter().rev().copied().collect();
    let siblings_before = |(at, &core): (usize, &usize)| {
        (order[..at].iter().filter(|&&earlier| topology.are_siblings(earlier, core)).count(), core)
    };
    let mut turns: Vec<(usize, usize)> = order.iter().enumerate().map(siblings_before).collect();
    turns.sort_by_key(|(turn, _)| *turn);
    order = turns.into_iter().map(|(_, core)| core).collect();
    let seats: Vec<Seat> = order.iter().cycle().take(receivers).map(|&core| seat(core)).collect();
    let taken = |core: &usize| seats.iter().any(|seat| seat.core == *core);
    let near = |core: &usize| {
        let node = topology.node_of_core.get(core).copied();
        seats.iter().any(|seat| seat.node == node)
    };
    let beside = |core: &usize| seats.iter().any(|seat| topology.are_siblings(seat.core, *core));
    let tiers: [&dyn Fn(&usize) -> bool; 5] = [
        &|core| !taken(core) && !beside(core) && near(core),
        &|core| !taken(core) && !beside(core),
        &|core| !taken(core) && near(core),
        &|core| !taken(core),
        &|_| true,
    ];
    let of_tier = |tier: &dyn Fn(&usize) -> bool| -> Vec<usize> { usable.iter().copied().filter(tier).collect() };
    let consumer_cores = tiers.into_iter().map(of_tier).find(|cores| !cores.is_empty()).unwrap_or_default();
    Seating { shared: receivers > usable.len(), receivers: seats, consumer_cores }
}

/// The calling thread; what the affinity calls take for "me".
const SELF: Pid = Pid::from_raw(0);

/// The cores that the calling thread may run on, in order.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    cores_of(SELF)
}

/// The cores that a thread may run on and that are online, in order. The thread is named by its number (`gettid`).
pub fn cores_of_thread(thread: i32) -> io::Result<Vec<usize>> {
    cores_of(Pid::from_raw(thread))
}

fn cores_of(thread: Pid) -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(thread)?;
    Ok((0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect())
}

/// Puts the calling thread on one core, for good.
pub fn pin_current_thread(core: usize) -> io::Result<()> {
    // Beyond its set `core_affinity` panics. It tells only that it failed; the error of its one call is still there.
    if core < CpuSet::count() && core_affinity::set_for_current(CoreId { id: core }) {
        return Ok(());
    }
    let error = if core < CpuSet::count() { io::Error::last_os_error() } else { Errno::EINVAL.into() };
    let why = match error.raw_os_error() {
        Some(nix::libc::EINVAL) => "it is offline or outside the allowed set".to_owned(),
        _ => error.to_string(),
    };
    Err(io::Error::new(error.kind(), format!("cannot pin a thread to core {core}: {why}")))
}

/// Keeps the calling thread to these cores; the scheduler still moves it among them.
pub fn confine_current_thread(cores: &[usize]) -> io::Result<()> {
    confine(SELF, cores)
}

/// Keeps another thread to these cores, of which one at least must be online. It is named by its number (`gettid`), and
/// should be one of this process: the threads of other processes are not ours to move.
pub fn confine_thread(thread: i32, cores: &[usize]) -> io::Result<()> {
    confine(Pid::from_raw(thread), cores)
}

fn confine(thread: Pid, cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core)?;
    }
    sched_setaffinity(thread, &set)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_take_the_highest_cores_and_consumers_what_is_left_near_them() {
        let node_of_core = [(0, 0), (1, 0), (2, 1), (3, 1)].into();
        let two_nodes = Topology { online: vec![0, 1, 2, 3], node_of_core, ..Topology::default() };
        for (receivers, allowed, cores, consumer_cores, shared) in [
            (1, &[0, 1, 2, 3][..], &[3][..], &[2][..], false),
            (2, &[0, 1, 2, 3], &[3, 2], &[0, 1], false),
            (3, &[0, 1], &[1, 0, 1], &[0, 1], true),
        ] {
            let seat = |&core: &usize| Seat { core, node: Some(core / 2) };
            let (receivers, consumer_cores) = (place(receivers, allowed, &two_nodes), consumer_cores.to_vec());
            assert_eq!(receivers, Seating { receivers: cores.iter().map(seat).collect(), consumer_cores, shared });
        }
        let offline = Topology { online: vec![0], ..two_nodes };
        assert_eq!(place(1, &[0, 1], &offline).receivers[0].core, 0);
        assert!(place(1, &[1], &offline).receivers.is_empty());
    }

    #[test]
    fn whole_physical_cores_go_before_the_siblings_of_receivers() {
        let topology = Topology {
            online: (0..8).collect(),
            node_of_core: (0..8).map(|core| (core, 0)).collect(),
            physical_of_core: (0..8).map(|core| (core, core / 2)).collect(),
            ..Topology::default()
        };
        let all: Vec<usize> = (0..8).collect();
        let cores = |receivers: usize| -> Vec<usize> {
            place(receivers, &all, &topology).receivers.iter().map(|seat| seat.core).collect()
        };
        assert_eq!(cores(3), [7, 5, 3]);
        assert_eq!(cores(6), [7, 5, 3, 1, 6, 4]);
        assert_eq!(place(3, &all, &topology).consumer_cores, [0, 1], "no sibling of a receiver");
        assert_eq!(place(4, &all, &topology).consumer_cores, [0, 2, 4, 6], "nothing but siblings is left");
    }

    #[test]
    fn a_core_that_does_not_exist_or_that_no_set_can_name_is_an_error() {
        for core in [1023, CpuSet::count(), usize::MAX] {
            let error = pin_current_thread(core).expect_err("no such core");
            assert!(error.to_string().contains(&core.to_string()), "{error}");
        }
    }

    #[test]
    fn a_pinned_thread_is_allowed_on_its_core_only_and_a_confined_one_on_its_cores() {
        let cores = allowed_cores().expect("an affinity");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let last = *cores.last().expect("a core");
                pin_current_thread(last).expect("an allowed core");
                assert_eq!(allowed_cores().expect("an affinity"), [last]);
            });
            scope.spawn(|| {
                confine_current_thread(&cores[..1]).expect("an allowed core");
                assert_eq!(allowed_cores().expect("an affinity"), cores[..1]);
            });
        });
    }

    #[test]
    fn another_thread_is_confined_and_asked_by_its_number() {
        let cores = allowed_cores().expect("an affinity");
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ending) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).expect("the test waits for it");
            let _ = ending.recv();
        });
        let number = told.recv().expect("a number");
        assert_eq!(cores_of_thread(number).expect("an affinity"), cores);
        confine_thread(number, &cores[..1]).expect("an allowed core");
        assert_eq!(cores_of_thread(number).expect("an affinity"), cores[..1]);
        assert_eq!(allowed_cores().expect("an affinity"), cores, "and no other thread with it");
        drop(end);
        thread.join().expect("it does not panic");
    }
}
