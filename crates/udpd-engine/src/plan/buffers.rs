//! What the receive buffers of a plan need, what the kernel grants of it, and whether `net.ipv4.udp_mem` covers the
//! sum. Where it does not, even a socket with room drops datagrams.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::PipelinePlan;
use super::memory::Bytes;

/// The receive buffers of all lanes, in bytes as the kernel accounts them: twice what is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Buffers {
    /// All of them together.
    pub needed_bytes: usize,
    /// What a process without CAP_NET_ADMIN gets of it; null where the kernel does not tell its limit.
    pub granted_bytes: Option<usize>,
    /// What all UDP sockets of the host may have together; null where the kernel does not tell.
    pub udp_mem_bytes: Option<usize>,
    /// Whether that is enough for these alone.
    pub is_covered: Option<bool>,
    /// The largest value for SO_RCVBUF, and the limit for it.
    #[serde(skip)]
    largest: usize,
    #[serde(skip)]
    limit: Option<usize>,
    /// What udp_mem is counted in.
    #[serde(skip)]
    page_bytes: usize,
}

impl Buffers {
    /// The buffers of a plan on the running kernel.
    pub fn of(plan: &PipelinePlan) -> Self {
        let asked: Vec<usize> = plan.lanes.iter().map(|lane| lane.receive_buffer_bytes).collect();
        Self::under(&asked, Path::new("/proc/sys/net"), mmsg::page_bytes())
    }

    /// `settings` is the folder of the kernel's settings of the network.
    fn under(asked: &[usize], settings: &Path, page_bytes: usize) -> Self {
        let read = |name: &str| fs::read_to_string(settings.join(name)).ok();
        let limit = read("core/rmem_max").and_then(|text| text.trim().parse::<usize>().ok());
        let pages = read("ipv4/udp_mem").and_then(|text| text.split_whitespace().nth(2)?.parse::<usize>().ok());
        let udp_mem_bytes = pages.and_then(|pages| pages.checked_mul(page_bytes));
        let needed_bytes = asked.iter().map(|asked| 2 * asked).sum();
        Self {
            needed_bytes,
            granted_bytes: limit.map(|limit| asked.iter().map(|&asked| 2 * asked.min(limit)).sum()),
            udp_mem_bytes,
            is_covered: udp_mem_bytes.map(|limit| needed_bytes <= limit),
            largest: asked.iter().copied().max().unwrap_or(0),
            limit,
            page_bytes,
        }
    }

    /// A warning where an unprivileged process gets less. The start of the daemon notices that by itself.
    pub fn clamped(&self) -> Option<String> {
        let limit = self.limit.filter(|limit| self.largest > *limit)?;
        Some(format!(
            "the plan has a receive buffer of {}, but an unprivileged process gets {}; {}",
            Bytes(2 * self.largest),
            Bytes(2 * limit),
            buffer_cure(self.largest)
        ))
    }

    /// A warning where `udp_mem` does not cover the sum, which no start notices.
    pub fn uncovered(&self) -> Option<String> {
        let limit = self.udp_mem_bytes.filter(|limit| self.needed_bytes > *limit)?;
        let pages = self.needed_bytes.div_ceil(self.page_bytes).div_ceil(4) * 5;
        Some(format!(
            "the receive buffers together may take {}, and net.ipv4.udp_mem allows all UDP sockets of this host \
             together {}: beyond it even a socket with room drops; sysctl -w net.ipv4.udp_mem=\"{} {} {pages}\", or \
             lower receive_buffer or absorb",
            Bytes(self.needed_bytes),
            Bytes(limit),
            pages / 2,
            pages / 4 * 3
        ))
    }

    /// The line of `udpd check`.
    pub fn text(&self) -> String {
        let bytes = |bytes: Option<usize>| bytes.map_or("not known".to_owned(), |bytes| Bytes(bytes).to_string());
        let covers = match self.is_covered {
            Some(true) => "which covers them",
            Some(false) => "which does not cover them",
            None => "so whether that covers them is not known",
        };
        format!(
            "{} needed together, {} granted without CAP_NET_ADMIN; net.ipv4.udp_mem gives all UDP sockets {}, {covers}",
            Bytes(self.needed_bytes),
            bytes(self.granted_bytes),
            bytes(self.udp_mem_bytes)
        )
    }
}

/// How to get a receive buffer of `asked` bytes.
pub fn buffer_cure(asked: usize) -> String {
    format!(
        "grant CAP_NET_ADMIN (AmbientCapabilities= and CapabilityBoundingSet= in the unit file), or: sysctl -w \
         net.core.rmem_max={asked}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloss::testing::root;

    fn buffers(asked: &[usize], files: &[(&str, &str)]) -> Buffers {
        Buffers::under(asked, root(files).path(), 4096)
    }

    #[test]
    fn what_is_needed_granted_and_covered_is_the_sum_over_all_lanes() {
        let files = [("core/rmem_max", "1000000\n"), ("ipv4/udp_mem", "1 2 1000\n")];
        let two = buffers(&[2_000_000, 500_000], &files);
        assert_eq!((two.needed_bytes, two.granted_bytes), (5_000_000, Some(3_000_000)));
        assert_eq!((two.udp_mem_bytes, two.is_covered), (Some(4_096_000), Some(false)));
        let clamped = two.clamped().expect("clamped");
        assert!(clamped.contains("sysctl -w net.core.rmem_max=2000000"), "{clamped}");
        let uncovered = two.uncovered().expect("not covered");
        assert!(uncovered.contains("sysctl -w net.ipv4.udp_mem=\"765 1146 1530\""), "{uncovered}");
        let one = buffers(&[500_000], &files);
        assert_eq!((one.clamped(), one.uncovered(), one.is_covered), (None, None, Some(true)));
    }

    #[test]
    fn udp_mem_is_counted_in_the_pages_of_this_machine_and_the_cure_covers_what_is_needed() {
        let read = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).expect("known").expect("every kernel has");
        assert_eq!(read, mmsg::page_bytes() as i64);
        for (page_bytes, udp_mem, cure) in [
            (4 << 10, 40 << 12, "udp_mem=\"765 1146 1530\""),
            (16 << 10, 40 << 14, "udp_mem=\"192 288 385\""),
            (64 << 10, 40 << 16, "udp_mem=\"50 75 100\""),
        ] {
            let files = root(&[("ipv4/udp_mem", "10 20 40\n")]);
            let found = Buffers::under(&[2_500_000], files.path(), page_bytes);
            assert_eq!((found.udp_mem_bytes, found.is_covered), (Some(udp_mem), Some(false)));
            let words = found.uncovered().expect("not covered");
            assert!(words.contains(cure), "{page_bytes}: {words}");
        }
    }

    #[test]
    fn limits_that_the_kernel_does_not_tell_are_not_known() {
        let found = buffers(&[500_000], &[]);
        assert_eq!((found.granted_bytes, found.udp_mem_bytes, found.is_covered), (None, None, None));
        assert_eq!((found.clamped(), found.uncovered()), (None, None));
        assert!(
            found.text().contains("not known granted") && found.text().ends_with("is not known"),
            "{}",
            found.text()
        );
    }
}
