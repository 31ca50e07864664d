//! Whether the process may open as many sockets and files as the plan needs. The usual soft limit is 1,024, for
//! programs that use `select`; the hard limit is far higher, and a process may raise the soft one to it. udpd does so
//! when a plan needs it. What does not fit even then is refused with the sum, before the first listener has opened
//! anything.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::PipelinePlan;
use crate::config::{Config, EngineKind};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::sink::settings::SinkTarget;

/// What else the process opens: output, log, endpoints and some clients of each, and what a client library opens.
const OTHERS: u64 = 96;

/// What a plan opens, in sockets and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Descriptors {
    /// Sockets of lanes, with their rings and their counters of cores.
    lanes: u64,
    /// The files that sinks write, each with the one that takes its place.
    files: u64,
    /// The connections of the other sinks.
    connections: u64,
}

impl Descriptors {
    fn of(config: &Config, plan: &PipelinePlan) -> Self {
        let lanes = plan.lanes.iter().map(|lane| {
            let ring = u64::from(lane.engine.kind == EngineKind::IoUring);
            let counter = if lane.intake.expected_cores().is_empty() { 0 } else { 2 };
            // The socket of a queue and what reads its counts; programs, link and two maps are of their listener.
            let past_the_stack = if lane.xdp.is_some() { 6 } else { 0 };
            1 + ring + counter + past_the_stack
        });
        let (mut files, mut connections) = (0, 0);
        for (sink, planned) in config.sinks.iter().zip(&plan.sinks) {
            let written = match sink.settings.target() {
                SinkTarget::Files(path) => planned.files(&config.listeners, &sink.name, path).len(),
                _ => 0,
            };
            // Sinks of other kinds have spills, and some of them several connections.
            files += sink.settings.files_open(planned.consumers, written);
            connections += match sink.settings.target() {
                SinkTarget::Nowhere | SinkTarget::Stdout | SinkTarget::Files(_) => 0,
                SinkTarget::Peers(peers) => planned.consumers * peers.len(),
                SinkTarget::Elsewhere(_) => planned.consumers,
            };
        }
        Self { lanes: lanes.sum(), files: files as u64, connections: connections as u64 }
    }

    /// The soft limit to be set, if one has to be.
    fn judge(&self, soft: u64, hard: u64) -> Result<Option<u64>, Failure> {
        let Self { lanes, files, connections } = self;
        let needed = lanes + files + connections + OTHERS;
        if needed <= soft {
            return Ok(None);
        }
        if needed <= hard {
            return Ok(Some(hard));
        }
        let message = format!(
            "the plan opens up to {needed} sockets and files ({lanes} for lanes, {files} for files, {connections} for \
             connections of sinks, {OTHERS} for udpd itself), and this process may open {hard}; raise that \
             (LimitNOFILE= in the unit file, ulimit -Hn, --ulimit nofile= of a container), or write fewer listeners, \
             lanes or files, or lower open_files"
        );
        Err(Failure::new(ExitCode::Configuration, message))
    }
}

/// Raises the limit as far as the plan needs, or refuses the plan.
pub fn provide(config: &Config, plan: &PipelinePlan) -> Result<(), Failure> {
    provide_for(&Descriptors::of(config, plan))
}

/// The same beside a plan that is running.
pub fn provide_beside(config: &Config, plan: &PipelinePlan, before: (&Config, &PipelinePlan)) -> Result<(), Failure> {
    let (own, other) = (Descriptors::of(config, plan), Descriptors::of(before.0, before.1));
    provide_for(&Descriptors {
        lanes: own.lanes + other.lanes,
        files: own.files + other.files,
        connections: own.connections + other.connections,
    })
}

/// The same for so many sockets that another process hands over.
pub fn provide_for_sockets(sockets: usize) -> Result<(), Failure> {
    provide_for(&Descriptors { lanes: sockets as u64, files: 0, connections: 0 })
}

/// The same for a plan that adopts sockets of another process, some of which it may close.
pub fn provide_with_sockets(config: &Config, plan: &PipelinePlan, sockets: usize) -> Result<(), Failure> {
    let own = Descriptors::of(config, plan);
    provide_for(&Descriptors { lanes: own.lanes + sockets as u64, ..own })
}

fn provide_for(descriptors: &Descriptors) -> Result<(), Failure> {
    // Where the limit cannot be read, the call that exceeds it fails with its own message.
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    let Some(raised) = descriptors.judge(soft, hard)? else { return Ok(()) };
    setrlimit(Resource::RLIMIT_NOFILE, raised, hard).map_err(|error| {
        let message = format!(
            "cannot raise the limit on open files from {soft} to {raised}: {error}; raise it for udpd (LimitNOFILE= in \
             the unit file, ulimit -n)"
        );
        Failure::new(ExitCode::Permission, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostView;
    use crate::plan::make;
    use udpd_endpoint::control::Neighbours;

    #[test]
    fn the_limit_is_raised_when_the_plan_needs_that_and_what_never_fits_is_refused_with_the_sum() {
        let plan = Descriptors { lanes: 1000, files: 2000, connections: 4 };
        assert_eq!(plan.judge(3100, 4096).expect("fits"), None);
        assert_eq!(plan.judge(1024, 3100).expect("fits when raised"), Some(3100));
        let failure = plan.judge(1024, 3099).expect_err("one too many");
        assert_eq!(failure.code, ExitCode::Configuration);
        for words in ["up to 3100", "1000 for lanes, 2000 for files, 4 for", "may open 3099", "LimitNOFILE="] {
            assert!(failure.message.contains(words), "{words}: {failure}");
        }
    }

    #[test]
    fn lanes_and_files_are_counted_by_what_they_open() {
        let text = "[[listener]]\nname = \"a\"\naddress = \"127.0.0.1:5140\"\nlanes = 2\nsinks = [\"x\", \"y\"]\n\
                    [[listener]]\nname = \"b\"\naddress = \"127.0.0.1:5141\"\nsinks = [\"x\"]\n\
                    [sink.x]\ntype = \"file\"\npath = \"/tmp/{listener}.log\"\n\
                    [sink.y]\ntype = \"udp\"\ndestinations = [\"127.0.0.1:9\"]\n";
        let config = Config::parse(text, "test", &HostView::default()).expect("a valid configuration");
        let plan = make(&config, &Neighbours::default()).expect("it fits");
        assert_eq!(Descriptors::of(&config, &plan), Descriptors { lanes: 3, files: 4, connections: 1 });
    }

    #[test]
    fn a_tcp_sink_is_counted_with_all_the_connections_that_it_has_at_once() {
        let of = |keys: &str| {
            let listener = "[[listener]]\nname = \"a\"\naddress = \"127.0.0.1:5140\"\nsinks = [\"x\"]";
            let peers = "destinations = [\"127.0.0.1:1\", \"127.0.0.1:2\", \"127.0.0.1:3\"]";
            let text = format!("{listener}\n[sink.x]\ntype = \"tcp\"\n{peers}\n{keys}\n");
            let config = Config::parse(&text, "test", &HostView::default()).expect("a valid configuration");
            let plan = make(&config, &Neighbours::default()).expect("it fits");
            let Descriptors { files, connections, .. } = Descriptors::of(&config, &plan);
            files + connections
        };
        assert_eq!(of("distribute = \"by_source\""), 4);
        assert_eq!(of("distribute = \"failover\""), 2, "one is tried beside the one in use");
    }
}
