//! `udpd run --listen ADDR --to URI`: a configuration without a file.
//!
//! The same checks and defaults as for a file; only the exit code differs, because it is the call that is wrong.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::daemon::Daemon;
use super::listener::{LANES_MAX, Lanes, Listener};
use super::sinks::{Common, Sink};
use super::steer::Steer;
use super::whole::Config;
use crate::exit::{ExitCode, Failure};
use crate::os::lookup::local_addresses;
use crate::os::paths;
use crate::sink::settings::Target;
use crate::sink::types::SINK_TYPES;
use crate::sink::written::{Uri, wrong};
use crate::text::address;
use crate::text::advice::Advice;
use crate::text::peer::Peer;

/// See [`Config::from_arguments`].
pub(super) fn configure(
    listen: &str,
    to: &str,
    lanes: Option<usize>,
    stats_on_exit: Option<PathBuf>,
    directory: &Path,
) -> Result<Config, Failure> {
    let usage = |option: &str, advice: Advice| Failure::new(ExitCode::Usage, format!("{option}: {advice}"));
    let address = address::parse_listener(listen).map_err(|advice| usage("--listen", advice))?;
    if address.ip().is_multicast() {
        let what = format!("{listen:?} is a multicast group");
        return Err(usage(
            "--listen",
            Advice::new(what, "join it with multicast_groups in a file, and name that with -c"),
        ));
    }
    let sink = parse_uri(to, directory)?;
    let mut listener = Listener::new("cli", vec![address]);
    listener.sinks = vec![0];
    if let Some(count) = lanes {
        let count = NonZeroUsize::new(count).filter(|count| count.get() as u64 <= LANES_MAX).ok_or_else(|| {
            usage("--lanes", Advice::new(format!("{count} is outside 1 to {LANES_MAX}"), "leave it out for \"auto\""))
        })?;
        listener.lanes = Lanes::Count(count);
    }
    let mut daemon = Daemon::default();
    if let Some(path) = stats_on_exit {
        if path == Path::new("-") {
            let advice = Advice::new("\"-\" would be a file called -", "write /tmp/ledger.json, for example, or ./-");
            return Err(usage("--stats-on-exit", advice));
        }
        let path = paths::absolute(&path, directory).and_then(|text| paths::check_replaced(&text));
        let path = path.map_err(|advice| usage("--stats-on-exit", advice))?;
        if matches!(sink.settings.target(), Target::Files(file) if Path::new(file) == path) {
            let advice = Advice::new(format!("{path:?} is what --to writes"), "give each its own file");
            return Err(usage("--stats-on-exit", advice));
        }
        daemon.stats_on_exit = Some(path);
    }
    if let Target::Peers(peers) = sink.settings.target()
        && let [&Peer::Address(to)] = peers[..]
        && address::reaches(to, address, &local_addresses())
    {
        let what = format!("--listen receives on {to}: each datagram would come back forever");
        return Err(usage("--to", Advice::new(what, "send it elsewhere")));
    }
    Ok(Config { daemon, listeners: vec![listener], sinks: vec![sink], steer: Steer::default(), warnings: Vec::new() })
}

/// What `--to` can say, one form after the other.
pub fn forms() -> String {
    let forms = SINK_TYPES.iter().flat_map(|kind| kind.schemes).map(|scheme| scheme.form);
    forms.collect::<Vec<_>>().join("  ")
}

/// The sink that a URI stands for, named after its scheme.
fn parse_uri(uri: &str, directory: &Path) -> Result<Sink, Failure> {
    let uri = if uri == "-" { "stdout:" } else { uri };
    let schemes = || SINK_TYPES.iter().flat_map(|kind| kind.schemes);
    let working = || format!("write one of  {}", forms());
    let Some((name, rest)) = uri.split_once(':') else {
        let what = format!("{uri:?} has no scheme");
        return Err(wrong(match schemes().any(|scheme| scheme.form.split(' ').next() == Some(&format!("{uri}:"))) {
            true => Advice::new(what, format!("write it with a colon, {uri}:")),
            false => Advice::new(what, format!("write file:{uri} for a file, or {}", working())),
        }));
    };
    let Some(scheme) = schemes().find(|scheme| scheme.name == name) else {
        return Err(wrong(Advice::new(format!("{uri:?} has an unknown scheme"), working())));
    };
    let settings = (scheme.read)(&Uri { whole: uri, scheme: name, rest, directory })?;
    Ok(Sink::with(name, settings, Common::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use crate::sink::file::{FileSettings, Rotate};
    use crate::sink::null::NullSink;
    use crate::sink::stdout::StdoutSettings;

    fn configure_in_tmp(listen: &str, to: &str) -> Result<Config, Failure> {
        configure(listen, to, None, None, Path::new("/tmp"))
    }

    #[test]
    fn an_address_and_a_uri_make_a_configuration() {
        let config = configure_in_tmp("127.0.0.1:5514", "file:out.log").expect("valid");
        assert_eq!(config.listeners[0].name, "cli");
        assert_eq!(config.listeners[0].sinks, [0]);
        assert_eq!(config.sinks[0].name, "file");
        assert!(config.sinks[0].settings.target() == Target::Files("/tmp/out.log"));
        assert!(!config.daemon.metrics_address.written);
        for (uri, format) in [("stdout:", Format::Lines), ("-", Format::Lines), ("pcapng:-", Format::Pcapng)] {
            let config = configure_in_tmp("[::]:5514", uri).expect("valid");
            let stdout: &StdoutSettings = config.sinks[0].settings.of_type().expect("standard output");
            assert_eq!(stdout.format, format);
        }
        let null = configure_in_tmp("[::]:5514", "null:").expect("valid");
        assert!(null.sinks[0].settings.of_type::<NullSink>().is_some());
        let lanes =
            configure("127.0.0.1:1", "null:", Some(3), Some("x.json".into()), Path::new("/tmp")).expect("valid");
        assert_eq!(lanes.listeners[0].lanes, Lanes::Count(NonZeroUsize::new(3).expect("three")));
        assert_eq!(lanes.daemon.stats_on_exit, Some(PathBuf::from("/tmp/x.json")));
        assert!(configure_in_tmp("127.0.0.1:1", "file:///tmp/x.log").is_ok());
        let dash = configure_in_tmp("127.0.0.1:1", "file:./-").expect("valid");
        assert!(dash.sinks[0].settings.target() == Target::Files("/tmp/-"));
        for (uri, path, format) in
            [("pcapng:x.pcapng", "/tmp/x.pcapng", Format::Pcapng), ("jsonl:x.jsonl", "/tmp/x.jsonl", Format::Jsonl)]
        {
            let config = configure_in_tmp("127.0.0.1:1", uri).expect("valid");
            let file: &FileSettings = config.sinks[0].settings.of_type().expect("a file");
            assert_eq!((file.path.as_str(), file.format, file.rotate), (path, format, Rotate::NEVER));
        }
        assert!(configure_in_tmp("127.0.0.1:1", "udp:10.0.0.9:514").is_ok());
        assert!(configure_in_tmp("127.0.0.1:1", "unix:/run/x.sock").is_ok());
    }

    #[test]
    fn a_wrong_call_is_a_usage_error_that_says_what_works() {
        for (listen, to, words) in [
            ("514", "null:", "--listen: \"514\" has no address; write \"0.0.0.0:514\""),
            ("127.0.0.1:0", "null:", "--listen: port 0"),
            ("127.0.0.1:1", "null", "write it with a colon, null:"),
            ("127.0.0.1:1", "stdout", "write it with a colon, stdout:"),
            ("127.0.0.1:1", "/tmp/x", "write file:/tmp/x"),
            ("127.0.0.1:1", "null:x", "something behind the colon"),
            ("127.0.0.1:1", "file:", "names no file"),
            ("127.0.0.1:1", "file:/tmp", "is a directory"),
            ("127.0.0.1:1", "file:new/", "is a directory"),
            ("127.0.0.1:1", "file://host/x", "names a host"),
            ("127.0.0.1:1", "file:/tmp/%y.log", "not a code for the time"),
            ("127.0.0.1:1", "udp:10.0.0.9", "has no port"),
            ("127.0.0.1:1", "udp:collector", "is not an address and a port"),
            ("localhost:1", "null:", "names are not looked up"),
            ("127.0.0.1:1", "file:-", "write stdout: for standard output, or file:./-"),
            ("127.0.0.1:1", "unix:-", "write unix:./-"),
            ("127.0.0.1:1", "file:/dev/stdout", "--to stdout:"),
            ("127.0.0.1:1", "udp:127.0.0.1:1", "would come back forever"),
            ("127.0.0.1:1", "unix:", "unix: names no file"),
            ("127.0.0.1:1", "http://x", "unknown scheme"),
        ] {
            let failure = configure_in_tmp(listen, to).expect_err(to);
            assert_eq!(failure.code, ExitCode::Usage);
            assert!(failure.message.contains(words), "{to}: {}", failure.message);
        }
        let zero = configure("127.0.0.1:1", "null:", Some(0), None, Path::new("/tmp")).expect_err("no lanes");
        assert!(zero.message.starts_with("--lanes: 0 is outside 1 to 1024"));
        let same = configure("127.0.0.1:1", "file:x", None, Some("x".into()), Path::new("/tmp")).expect_err("same");
        assert!(same.message.contains("is what --to writes"));
        let dash = configure("127.0.0.1:1", "null:", None, Some("-".into()), Path::new("/tmp")).expect_err("a dash");
        assert!(dash.message.starts_with("--stats-on-exit: \"-\" would be a file"), "{dash}");
    }
}
