//! The moments in which a socket lost something: whether its buffer stayed full, and what its reader did meanwhile.
//!
//! A reader that is slow for two of five seconds looks idle on the whole. So what it did counts only between two looks
//! of which the later one saw more drops: how long its thread ran, waited for a core, and in which call it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::sockets::{Owners, throttled_periods};
use crate::explain::evidence::Moment;

/// Of a process with more threads none is looked at: a look must stay cheap, and a part of them would be taken for all.
const THREADS_MAX: usize = 256;

/// So many moments of a socket are kept; the longest watch with one at each look has as many.
const MOMENTS_MAX: usize = 36_000;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct ThreadLook {
    /// In nanoseconds.
    times: Option<(u64, u64)>,
    state: char,
    /// The number of the call in which it is, and its first argument.
    call: Option<(i64, u64)>,
}

#[derive(Debug, Default)]
struct ProcessLook {
    threads: BTreeMap<u32, ThreadLook>,
    throttled: u64,
}

#[derive(Debug, Default)]
struct Track {
    /// At the look before this one, and before that.
    was_full: [bool; 2],
    moments: Vec<Moment>,
    /// The last moment belongs to the look before.
    is_fresh: bool,
}

#[derive(Debug, Default)]
pub(super) struct Moments {
    processes: BTreeMap<u32, ProcessLook>,
    sockets: BTreeMap<u64, Track>,
    looks: u32,
    /// By inode: threads that were seen in a call that receives from it.
    receivers: BTreeMap<u64, BTreeSet<(u32, u32)>>,
}

/// A socket at a look: inode, what it lost since the look before, and whether it is full.
pub(super) type SocketState = (u64, u64, bool);

impl Moments {
    /// Looks at the readers, and notes what they did where a socket has lost something since the look before.
    pub(super) fn look(&mut self, sockets: &[SocketState], owners: &Owners, seconds: f64, proc_root: &Path) {
        self.looks += 1;
        let mut now = BTreeMap::new();
        for process in owners.processes() {
            let look = ProcessLook::read(proc_root, process.pid, |name| process.may_receive(name));
            for (id, thread) in &look.threads {
                if let Some((number, argument)) = thread.call
                    && name(number).is_some_and(|(_, receives)| receives == Receives::FromIts)
                    && let Some(inode) = owners.socket(process.pid, argument)
                {
                    self.receivers.entry(inode).or_default().insert((process.pid, *id));
                }
            }
            now.insert(process.pid, look);
        }
        for (inode, lost, is_full) in sockets {
            let moment = (*lost > 0).then(|| self.moment(*inode, *lost, owners, &now, seconds));
            let track = self.sockets.entry(*inode).or_default();
            let [before, earlier] = track.was_full;
            if let Some(last) = track.moments.last_mut().filter(|_| track.is_fresh) {
                last.is_behind |= before && *is_full;
            }
            track.is_fresh = false;
            if let Some(moment) = moment.filter(|_| track.moments.len() < MOMENTS_MAX) {
                let is_behind = before && (*is_full || earlier);
                track.moments.push(Moment { is_behind, ..moment });
                track.is_fresh = true;
            }
            track.was_full = [*is_full, before];
        }
        self.processes = now;
    }

    pub(super) fn of(&mut self, inode: u64) -> Vec<Moment> {
        self.sockets.remove(&inode).map_or_else(Vec::new, |track| track.moments)
    }

    fn moment(&self, inode: u64, lost: u64, owners: &Owners, now: &BTreeMap<u32, ProcessLook>, seconds: f64) -> Moment {
        let share = |nanoseconds: u64| (nanoseconds as f64 / 1e9 / seconds.max(0.001)).min(1.0);
        let known = self.receivers.get(&inode);
        let mut chosen: Option<(u32, ThreadLook, f64, f64)> = None;
        for pid in owners.of_socket(inode) {
            let Some((look, before)) = now.get(pid).zip(self.processes.get(pid)) else { continue };
            for (id, thread) in &look.threads {
                if known.is_some_and(|known| !known.contains(&(*pid, *id))) {
                    continue;
                }
                let earlier = before.threads.get(id).and_then(|before| before.times);
                let Some(((ran, waited), (ran_before, waited_before))) = thread.times.zip(earlier) else { continue };
                let ran = share(ran.saturating_sub(ran_before));
                let waited = share(waited.saturating_sub(waited_before));
                if chosen.is_none_or(|(_, _, most_ran, most_waited)| ran + waited > most_ran + most_waited) {
                    chosen = Some((*pid, *thread, ran, waited));
                }
            }
        }
        let throttled = |look: &BTreeMap<u32, ProcessLook>| -> u64 {
            owners.of_socket(inode).iter().filter_map(|pid| Some(look.get(pid)?.throttled)).sum()
        };
        let mut moment = Moment { lost, look: self.looks, ..Moment::default() };
        moment.is_throttled = throttled(now) > throttled(&self.processes);
        if let Some((_, thread, ran, waited)) = chosen {
            (moment.ran, moment.waited) = (Some(ran), Some(waited));
            moment.is_stopped = matches!(thread.state, 'T' | 't');
            let call = thread.call.map(|(number, _)| name(number));
            moment.receives = call.is_some_and(|call| call.is_some_and(|(_, receives)| receives != Receives::Nothing));
            moment.call = call.map(|call| call.map_or("another call", |(name, _)| name));
        }
        moment
    }
}

impl ProcessLook {
    fn read(proc_root: &Path, pid: u32, receives: impl Fn(&str) -> bool) -> Self {
        let folder = proc_root.join(format!("{pid}/task"));
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            let stat = read("stat");
            // The name may contain anything.
            let Some((name, rest)) = stat.rsplit_once(')') else { continue };
            if !receives(name.split_once('(').map_or("", |(_, name)| name)) {
                continue;
            }
            let schedstat = read("schedstat");
            let mut numbers = schedstat.split_ascii_whitespace().map(str::parse::<u64>);
            let times = numbers.next().and_then(Result::ok).zip(numbers.next().and_then(Result::ok));
            let state = rest.trim_start().chars().next().unwrap_or(' ');
            if threads.len() == THREADS_MAX {
                threads.clear();
                break;
            }
            threads.insert(id, ThreadLook { times, state, call: parse_call(&read("syscall")) });
        }
        let throttled = throttled_periods(proc_root, pid);
        Self { threads, throttled }
    }
}

/// `running`, or the number of the call and its arguments; -1 outside of a call.
fn parse_call(text: &str) -> Option<(i64, u64)> {
    let mut words = text.split_ascii_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let argument = words.next().and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    Some((number, argument.unwrap_or(u64::MAX)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receives {
    /// From the descriptor that is its first argument.
    FromIts,
    /// From some.
    FromSome,
    Nothing,
}

/// The calls in which readers usually are.
fn name(number: i64) -> Option<(&'static str, Receives)> {
    use Receives::{FromIts, FromSome, Nothing};
    #[cfg(target_arch = "x86_64")]
    if let Some(name) = [(libc::SYS_poll, "poll"), (libc::SYS_select, "select"), (libc::SYS_epoll_wait, "epoll_wait")]
        .into_iter()
        .find_map(|(call, name)| (call == number).then_some((name, FromSome)))
    {
        return Some(name);
    }
    Some(match number {
        libc::SYS_recvfrom => ("recvfrom", FromIts),
        libc::SYS_recvmsg => ("recvmsg", FromIts),
        libc::SYS_recvmmsg => ("recvmmsg", FromIts),
        libc::SYS_ppoll => ("ppoll", FromSome),
        libc::SYS_pselect6 => ("pselect6", FromSome),
        libc::SYS_epoll_pwait => ("epoll_pwait", FromSome),
        libc::SYS_epoll_pwait2 => ("epoll_pwait2", FromSome),
        libc::SYS_io_uring_enter => ("io_uring_enter", FromSome),
        libc::SYS_read => ("read", Nothing),
        libc::SYS_write => ("write", Nothing),
        libc::SYS_writev => ("writev", Nothing),
        libc::SYS_pwrite64 => ("pwrite64", Nothing),
        libc::SYS_sendto => ("sendto", Nothing),
        libc::SYS_sendmsg => ("sendmsg", Nothing),
        libc::SYS_sendmmsg => ("sendmmsg", Nothing),
        libc::SYS_connect => ("connect", Nothing),
        libc::SYS_fsync => ("fsync", Nothing),
        libc::SYS_fdatasync => ("fdatasync", Nothing),
        libc::SYS_openat => ("openat", Nothing),
        libc::SYS_flock => ("flock", Nothing),
        libc::SYS_futex => ("futex", Nothing),
        libc::SYS_wait4 => ("wait4", Nothing),
        libc::SYS_nanosleep => ("nanosleep", Nothing),
        libc::SYS_clock_nanosleep => ("clock_nanosleep", Nothing),
        // A sleep that a signal has interrupted.
        libc::SYS_restart_syscall => ("restart_syscall", Nothing),
        libc::SYS_rt_sigtimedwait => ("sigtimedwait", Nothing),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_with_its_descriptor_and_a_running_thread_is_in_none() {
        assert_eq!(parse_call("45 0x3 0x7ffe 0x10 0x0 0x0 0x0 0x7ffe 0x7f\n"), Some((45, 3)));
        assert_eq!(parse_call("running\n"), None);
        assert_eq!(parse_call("-1 0x7ffe 0x7f\n"), None);
    }

    #[test]
    fn of_a_process_with_too_many_threads_none_is_taken_for_its_reader() {
        let looked_at = |count: usize| {
            let files: Vec<_> = (1..=count).map(|id| (format!("9/task/{id}/stat"), format!("{id} (x) S 1"))).collect();
            let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
            ProcessLook::read(hostloss::testing::root(&files).path(), 9, |_| true).threads.len()
        };
        assert_eq!((looked_at(THREADS_MAX), looked_at(THREADS_MAX + 1)), (THREADS_MAX, 0));
    }

    #[test]
    fn a_socket_that_is_full_at_two_looks_in_turn_is_behind_and_one_that_was_drained_is_not() {
        let owners = Owners::default();
        let looks = |states: &[(u64, bool)]| {
            let mut moments = Moments::default();
            for (lost, is_full) in states {
                moments.look(&[(7, *lost, *is_full)], &owners, 0.1, Path::new("/proc"));
            }
            moments.of(7).iter().map(|moment| (moment.lost, moment.is_behind)).collect::<Vec<_>>()
        };
        assert_eq!(looks(&[(0, false), (5, false), (0, false)]), [(5, false)]);
        assert_eq!(looks(&[(0, false), (5, true), (0, false)]), [(5, false)], "it was drained at once");
        assert_eq!(looks(&[(0, false), (5, true), (6, true), (7, false)]), [(5, true), (6, true), (7, true)]);
    }
}
