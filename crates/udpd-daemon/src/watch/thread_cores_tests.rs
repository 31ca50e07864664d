//! A machine whose cores are switched off and on, and threads that others move.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use super::*;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::ThreadRegistry;

/// Four cores on two nodes, of which core 3 is isolated, and what the kernel knows of each thread.
#[derive(Default)]
struct Fake {
    online: RefCell<BTreeSet<usize>>,
    lives: RefCell<BTreeMap<usize, u64>>,
    masks: RefCell<BTreeMap<i32, BTreeSet<usize>>>,
    refuses: RefCell<bool>,
}

impl CoreHost for Fake {
    fn online(&self) -> io::Result<Vec<usize>> {
        Ok(self.online.borrow().iter().copied().collect())
    }

    fn life(&self, core: usize) -> Option<u64> {
        self.online.borrow().contains(&core).then(|| self.lives.borrow()[&core])
    }

    fn cores_of(&self, thread: i32) -> io::Result<Vec<usize>> {
        let masks = self.masks.borrow();
        let mask = masks.get(&thread).ok_or_else(|| io::Error::from_raw_os_error(nix::libc::ESRCH))?;
        Ok(mask.intersection(&self.online.borrow()).copied().collect())
    }

    fn confine(&self, thread: i32, cores: &[usize]) -> io::Result<()> {
        if *self.refuses.borrow() {
            return Err(io::Error::from_raw_os_error(nix::libc::EPERM));
        }
        self.masks.borrow_mut().insert(thread, cores.iter().copied().collect());
        Ok(())
    }
}

impl Fake {
    /// As the kernel does it: who has no core left may run anywhere.
    fn off(&self, core: usize) {
        self.online.borrow_mut().remove(&core);
        let online = self.online.borrow();
        for mask in self.masks.borrow_mut().values_mut().filter(|mask| mask.is_disjoint(&online)) {
            *mask = (0..4).collect();
        }
    }

    fn on(&self, core: usize) {
        self.online.borrow_mut().insert(core);
        *self.lives.borrow_mut().get_mut(&core).expect("one of the four") += 1;
    }

    fn moves(&self, thread: i32, cores: &[usize]) {
        self.masks.borrow_mut().insert(thread, cores.iter().copied().collect());
    }
}

/// A receiver on core 1, a consumer on the cores 0 and 2, and who watches them.
struct Scene {
    machine: Fake,
    watch: CoreWatch,
    receiver: i32,
    consumer: i32,
    threads: Vec<(Sender<()>, JoinHandle<()>)>,
}

impl Scene {
    fn new() -> Self {
        let (registry, _events) = ThreadRegistry::new();
        let mut threads = Vec::new();
        let mut pinned = |who: &str, cores: &[usize], lane| {
            let (end, ending) = channel::<()>();
            let body = move || ending.recv().unwrap_or_default();
            let starting = registry.spawn_one_of_many(who, ThreadRole::Unconfined, body).expect("a thread");
            let thread = starting.handle();
            threads.push((end, starting.wait()));
            let is_pinned = Arc::new(AtomicBool::new(true));
            Pinned { name: who.to_owned(), thread, cores: cores.to_vec(), is_pinned, lane }
        };
        let pinned = vec![pinned("the receiver", &[1], Some(7)), pinned("the consumer", &[0, 2], None)];
        let machine = Fake::default();
        machine.online.borrow_mut().extend(0..4);
        machine.lives.borrow_mut().extend((0..4).map(|core| (core, 100)));
        let ids: Vec<i32> = pinned.iter().map(|pinned| pinned.thread_id().expect("it lives")).collect();
        for (id, pinned) in ids.iter().zip(&pinned) {
            machine.moves(*id, &pinned.cores);
        }
        let topology = Topology {
            online: (0..4).collect(),
            isolated: vec![3],
            node_of_core: [(0, 0), (1, 0), (2, 1), (3, 1)].into(),
            ..Topology::default()
        };
        let watch = CoreWatch::new(pinned, &[0, 1, 2, 3], &topology, &machine);
        Self { machine, watch, receiver: ids[0], consumer: ids[1], threads }
    }

    /// The lines of a look, each behind its level, and where the lane is said to be.
    fn look(&mut self) -> (Vec<String>, Vec<(usize, Vec<usize>)>) {
        let found = self.watch.look(&self.machine);
        let lines = found.lines.iter().map(|line| format!("{} {}", line.level, line.text));
        (lines.collect(), found.moved)
    }

    fn mask(&self, thread: i32) -> Vec<usize> {
        self.machine.masks.borrow()[&thread].iter().copied().collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for (end, thread) in self.threads.drain(..) {
            drop(end);
            thread.join().expect("it does not panic");
        }
    }
}

#[test]
fn while_a_core_is_off_its_receiver_is_kept_to_its_node_and_when_it_is_back_it_is_pinned_again() {
    let mut scene = Scene::new();
    assert_eq!(scene.look(), (vec![], vec![]), "all at home");
    scene.machine.off(1);
    let said = "WARN the receiver runs on core 0: core 1 is off; udpd pins it again when it is back (echo 1 > \
                /sys/devices/system/cpu/cpu1/online)";
    assert_eq!(scene.look(), (vec![said.to_owned()], vec![(7, vec![0])]));
    assert_eq!(scene.mask(scene.receiver), [0], "neither on the other node nor on the isolated core");
    assert_eq!(scene.look(), (vec![], vec![]), "said once");
    scene.machine.on(1);
    assert_eq!(
        scene.look(),
        (vec!["INFO the receiver is pinned again: core 1 is back".to_owned()], vec![(7, vec![1])])
    );
    assert_eq!(scene.mask(scene.receiver), [1]);
    assert_eq!(scene.look(), (vec![], vec![]));
}

#[test]
fn a_node_without_another_core_lends_none_and_those_of_others_that_are_not_isolated_are_taken() {
    let mut scene = Scene::new();
    scene.machine.off(0);
    scene.machine.off(1);
    assert_eq!(scene.look().1, [(7, vec![2])]);
    assert_eq!(scene.mask(scene.receiver), [2]);
    assert_eq!(scene.mask(scene.consumer), [0, 2], "who has a core left is not touched");
    scene.machine.on(0);
    assert_eq!(
        scene.look(),
        (vec![], vec![(7, vec![0])]),
        "it goes to its node as soon as it can, and nothing is said"
    );
}

#[test]
fn a_core_that_was_off_between_two_looks_costs_a_receiver_nothing() {
    let mut scene = Scene::new();
    scene.machine.off(1);
    scene.machine.on(1);
    assert_eq!(scene.mask(scene.receiver), [0, 1, 2, 3], "the kernel has forgotten");
    assert_eq!(scene.look().0, ["INFO the receiver is pinned again: core 1 is back"]);
    assert_eq!(scene.mask(scene.receiver), [1]);
}

#[test]
fn what_another_program_does_to_a_thread_is_named_once_and_left_alone() {
    let mut scene = Scene::new();
    scene.machine.moves(scene.receiver, &[0, 2]);
    let (lines, moved) = scene.look();
    let cure = format!("`taskset -pc 1 {}`", scene.receiver);
    assert!(lines.len() == 1 && lines[0].starts_with("WARN the receiver was moved from core 1 to the cores 0,2 by"));
    assert!(lines[0].contains(&cure), "{lines:?}");
    assert_eq!(moved, [(7, vec![0, 2])]);
    assert_eq!(scene.look(), (vec![], vec![]));
    // Its core has nothing to do with where it is now.
    scene.machine.off(1);
    scene.machine.on(1);
    assert_eq!(scene.look(), (vec![], vec![]));
    assert_eq!(scene.mask(scene.receiver), [0, 2], "what an operator has done stands");
    scene.machine.moves(scene.receiver, &[1]);
    assert_eq!(scene.look(), (vec!["INFO the receiver is on core 1 again".to_owned()], vec![(7, vec![1])]));
}

#[test]
fn a_consumer_whose_cores_are_all_off_is_taken_care_of_too() {
    let mut scene = Scene::new();
    scene.machine.off(2);
    assert_eq!(scene.look(), (vec![], vec![]), "one is left");
    scene.machine.off(0);
    let (lines, _) = scene.look();
    assert!(lines.len() == 1 && lines[0].starts_with("WARN the consumer runs on core 1: the cores 0,2 are off"));
    scene.machine.on(2);
    assert_eq!(scene.look().0, ["INFO the consumer is pinned again: core 2 is back"]);
    scene.machine.on(0);
    assert_eq!(scene.look(), (vec![], vec![]));
    assert_eq!(scene.mask(scene.consumer), [0, 2]);
}

#[test]
fn what_the_kernel_refuses_is_said_once_and_the_ledger_has_what_is_true() {
    let mut scene = Scene::new();
    *scene.machine.refuses.borrow_mut() = true;
    scene.machine.off(1);
    let (lines, moved) = scene.look();
    assert!(lines.len() == 1 && lines[0].contains("runs wherever the kernel puts it, now on the cores 0,2-3"));
    assert_eq!(moved, [(7, vec![0, 2, 3])]);
    assert_eq!(scene.look(), (vec![], vec![]));
    scene.machine.on(1);
    let (lines, _) = scene.look();
    assert!(lines.len() == 1 && lines[0].contains("core 1 is back, but Operation not permitted"), "{lines:?}");
    assert_eq!(scene.look(), (vec![], vec![]));
}
