//! Threads: which cores one may use, and how it is put on one or kept to some. The calling thread, and others of the
//! process by their number, for whoever sees to it that they stay where they were put.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

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
    confine(SELF, &[core]).map_err(|error| {
        let why = match error.raw_os_error() {
            Some(nix::libc::EINVAL) => "it is offline or outside the allowed set".to_owned(),
            _ => error.to_string(),
        };
        io::Error::new(error.kind(), format!("cannot pin a thread to core {core}: {why}"))
    })
}

/// Keeps the calling thread to these cores; the scheduler still moves it among them.
pub fn confine_current_thread(cores: &[usize]) -> io::Result<()> {
    confine(SELF, cores)
}

/// Keeps another thread to these cores, of which one at least must be online. It is named by its number (`gettid`), and
/// should be one of this process: nobody else's are for it to move.
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
    fn a_core_that_no_set_can_name_is_an_error() {
        for core in [CpuSet::count(), usize::MAX] {
            let error = pin_current_thread(core).expect_err("no such core");
            assert!(error.to_string().contains(&core.to_string()), "{error}");
        }
    }

    #[test]
    fn a_pinned_thread_is_allowed_on_its_core_only() {
        let last = *allowed_cores().expect("an affinity").last().expect("a core");
        std::thread::spawn(move || {
            pin_current_thread(last).expect("an allowed core");
            assert_eq!(allowed_cores().expect("an affinity"), [last]);
        })
        .join()
        .expect("the thread's assertions hold");
    }

    #[test]
    fn a_confined_thread_keeps_exactly_the_given_cores() {
        let cores = allowed_cores().expect("an affinity");
        std::thread::spawn(move || {
            confine_current_thread(&cores[..1]).expect("an allowed core");
            assert_eq!(allowed_cores().expect("an affinity"), cores[..1]);
        })
        .join()
        .expect("the thread's assertions hold");
    }

    #[test]
    fn another_thread_is_confined_and_asked_by_its_number() {
        let cores = allowed_cores().expect("an affinity");
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ending) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).expect("somebody listens");
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

    #[test]
    fn a_core_that_does_not_exist_is_an_error() {
        assert!(pin_current_thread(1023).is_err());
    }
}
