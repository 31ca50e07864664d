//! What changes too fast for two readings: how full receive buffers are, what they drop at once, how much memory UDP
//! and fragments have, and whether a process is stopped. Looked at ten times a second.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A buffer that is this full counts as full: the kernel keeps a part of it for itself while a reader works.
const FULL: f64 = 0.7;

/// All looks together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Looks {
    pub count: u32,
    /// By inode.
    pub sockets: BTreeMap<u64, Seen>,
    pub udp_pages_max: Option<u64>,
    pub fragments_max_bytes: Option<u64>,
    pub fragments6_max_bytes: Option<u64>,
    /// By process: at how many looks it was stopped.
    pub stopped: BTreeMap<u32, u32>,
}

/// One socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// As the kernel counts, from the socket's beginning, at the last look.
    drops: u32,
    pub dropped_at_once: u64,
    /// At how many looks it was full.
    pub full: u32,
}

impl Looks {
    /// Looks once more. `buffers` are the sizes of receive buffers by inode, `readers` the processes that are watched.
    pub fn look(&mut self, proc_root: &Path, buffers: &BTreeMap<u64, u64>, readers: &[u32]) {
        self.count += 1;
        for table in ["net/udp", "net/udp6"] {
            let text = fs::read_to_string(proc_root.join(table)).unwrap_or_default();
            for (inode, queued, drops) in text.lines().skip(1).filter_map(parse) {
                let Some(buffer) = buffers.get(&inode) else { continue };
                let is_first = !self.sockets.contains_key(&inode);
                let seen = self.sockets.entry(inode).or_default();
                let dropped = if is_first { 0 } else { u64::from(drops.wrapping_sub(seen.drops)) };
                seen.drops = drops;
                seen.dropped_at_once = seen.dropped_at_once.max(dropped);
                seen.full += u32::from(queued as f64 >= *buffer as f64 * FULL);
            }
        }
        let sockstat = fs::read_to_string(proc_root.join("net/sockstat")).unwrap_or_default();
        self.udp_pages_max = self.udp_pages_max.max(word(&sockstat, "UDP:", "mem"));
        self.fragments_max_bytes = self.fragments_max_bytes.max(word(&sockstat, "FRAG:", "memory"));
        let sockstat6 = fs::read_to_string(proc_root.join("net/sockstat6")).unwrap_or_default();
        self.fragments6_max_bytes = self.fragments6_max_bytes.max(word(&sockstat6, "FRAG6:", "memory"));
        for &reader in readers {
            let stat = fs::read_to_string(proc_root.join(format!("{reader}/stat"))).unwrap_or_default();
            *self.stopped.entry(reader).or_default() += u32::from(is_stopped(&stat));
        }
    }

    /// Of the looks, those at which the socket was full.
    pub fn full(&self, inode: u64) -> f64 {
        let full = self.sockets.get(&inode).map_or(0, |seen| seen.full);
        f64::from(full) / f64::from(self.count.max(1))
    }
}

/// Inode, bytes in the queue and drops of a line of the table of sockets.
fn parse(line: &str) -> Option<(u64, u64, u32)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (_, queued) = fields.get(4)?.split_once(':')?;
    let queued = u64::from_str_radix(queued, 16).ok()?;
    Some((fields.get(9)?.parse().ok()?, queued, fields.last()?.parse().ok()?))
}

/// The number behind a word in the line that begins so.
fn word(text: &str, line: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|found| found.strip_prefix(line))?;
    let mut words = line.split_ascii_whitespace().skip_while(|word| *word != name);
    words.nth(1)?.parse().ok()
}

/// The state stands behind the name, which may have anything in it.
fn is_stopped(stat: &str) -> bool {
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloss::testing::root;

    const HEADING: &str =
        "  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode\n";

    fn table(queued: &str, drops: u32) -> String {
        format!(
            "{HEADING}  1: 00000000:0202 00000000:0000 07 00000000:{queued} 00:00000000 00000000 0 0 4711 2 0 {drops}\n"
        )
    }

    #[test]
    fn the_most_that_was_dropped_between_two_looks_and_how_often_it_was_full_is_kept() {
        let buffers = BTreeMap::from([(4711, 1000)]);
        let mut looks = Looks::default();
        for (queued, drops) in [("00000000", 5), ("000003E8", 105), ("000003E8", 110), ("00000000", 110)] {
            let sockstat = "UDP: inuse 3 mem 17\nFRAG: inuse 1 memory 4096\n";
            let sockstat6 = "FRAG6: inuse 0 memory 512\n";
            let stat = "12 (a) b) T 1 2\n";
            let table = table(queued, drops);
            let files =
                [("net/udp", &*table), ("net/sockstat", sockstat), ("net/sockstat6", sockstat6), ("12/stat", stat)];
            let found = root(&files);
            looks.look(found.path(), &buffers, &[12]);
        }
        let seen = looks.sockets[&4711];
        assert_eq!((seen.dropped_at_once, looks.full(4711)), (100, 0.5));
        assert_eq!((looks.udp_pages_max, looks.fragments_max_bytes), (Some(17), Some(4096)));
        assert_eq!(looks.fragments6_max_bytes, Some(512));
        assert_eq!(looks.stopped, BTreeMap::from([(12, 4)]));
    }

    #[test]
    fn what_is_not_there_is_not_known() {
        let mut looks = Looks::default();
        looks.look(root(&[]).path(), &BTreeMap::new(), &[]);
        assert_eq!((looks.udp_pages_max, looks.fragments_max_bytes, looks.full(1)), (None, None, 0.0));
    }
}
