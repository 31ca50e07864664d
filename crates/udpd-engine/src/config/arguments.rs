//! `udpd run --listen ADDR --to URI`: a configuration without a file.
//!
//! The same checks and defaults as for a file; only the exit code differs, because it is the call that is wrong.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::Config;
use super::daemon::DaemonConfig;
use super::listener::{LANES_MAX, Lanes, ListenerConfig, MAX_LENGTH};
use super::sinks::{CommonKeys, SinkConfig};
use super::steer::SteerConfig;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::format::Format;
use udpd_base::format::prefix::LinePrefix;
use udpd_base::ledger::SINKS_PER_LISTENER_MAX;
use udpd_base::os::lookup::local_addresses;
use udpd_base::os::path_check;
use udpd_base::sink::settings::SinkTarget;
use udpd_base::sink::settings::{Uri, wrong};
use udpd_base::text::address;
use udpd_base::text::address::PeerAddress;
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::units::parse_size;
use udpd_sinks::types::SINK_TYPES;

/// A call, as it was typed.
#[derive(Debug, Clone, Default)]
pub struct RunArguments {
    pub listen: String,
    /// Every datagram goes to each of them.
    pub to: Vec<String>,
    pub lanes: Option<usize>,
    /// Of what is written to files and to standard output.
    pub format: Option<Format>,
    /// In front of each line there.
    pub prefix: LinePrefix,
    pub max_length: Option<String>,
    pub stats_on_exit: Option<PathBuf>,
}

impl RunArguments {
    pub fn new(listen: &str, to: &str) -> Self {
        Self { listen: listen.to_owned(), to: vec![to.to_owned()], ..Self::default() }
    }
}

/// See [`Config::from_arguments`].
pub(super) fn configure(arguments: &RunArguments, directory: &Path) -> Result<Config, Failure> {
    let RunArguments { listen, to, lanes, format, prefix, max_length, stats_on_exit } = arguments;
    let address = address::parse_listener(listen).map_err(|advice| usage("--listen", advice))?;
    if address.ip().is_multicast() {
        let what = format!("{listen:?} is a multicast group");
        return Err(usage(
            "--listen",
            ValueAdvice::new(what, "join it with multicast_groups in a file, and name that with -c"),
        ));
    }
    let mut sinks = parse_uris(to, *format, directory)?;
    put_in_front(*prefix, &mut sinks)?;
    let mut listener = ListenerConfig::new("cli", vec![address]);
    listener.sinks = (0..sinks.len()).collect();
    if let Some(count) = *lanes {
        let count = NonZeroUsize::new(count).filter(|count| count.get() as u64 <= LANES_MAX).ok_or_else(|| {
            usage(
                "--lanes",
                ValueAdvice::new(format!("{count} is outside 1 to {LANES_MAX}"), "leave it out for \"auto\""),
            )
        })?;
        listener.lanes = Lanes::Count(count);
    }
    if let Some(text) = max_length {
        listener.max_length_bytes = parse_length(text).map_err(|advice| usage("--max-length", advice))?;
    }
    let mut daemon = DaemonConfig::default();
    if let Some(path) = stats_on_exit {
        daemon.stats_on_exit = Some(own_file(path, &sinks, directory)?);
    }
    for sink in &sinks {
        if let SinkTarget::Peers(peers) = sink.settings.target()
            && let [&PeerAddress::Address(to)] = peers[..]
            && address::reaches(to, address, &local_addresses())
        {
            let what = format!("--listen receives on {to}: each datagram would come back forever");
            return Err(usage("--to", ValueAdvice::new(what, "send it elsewhere")));
        }
    }
    Ok(Config { daemon, listeners: vec![listener], sinks, steer: SteerConfig::default(), warnings: Vec::new() })
}

fn usage(option: &str, advice: ValueAdvice) -> Failure {
    Failure::new(ExitCode::Usage, format!("{option}: {advice}"))
}

fn parse_length(text: &str) -> Result<usize, ValueAdvice> {
    let bytes = parse_size(text)?;
    let (least, most) = (MAX_LENGTH.start(), MAX_LENGTH.end());
    let within = Some(bytes).filter(|bytes| MAX_LENGTH.contains(bytes)).and_then(|bytes| usize::try_from(bytes).ok());
    within.ok_or_else(|| {
        ValueAdvice::new(format!("{text:?} is outside {least} to {most} bytes"), "write 9KiB, for example")
    })
}

/// The file for the ledger at exit, which nothing else writes.
fn own_file(path: &Path, sinks: &[SinkConfig], directory: &Path) -> Result<PathBuf, Failure> {
    if path == Path::new("-") {
        let advice = ValueAdvice::new("\"-\" would be a file called -", "write /tmp/ledger.json, for example, or ./-");
        return Err(usage("--stats-on-exit", advice));
    }
    let path = path_check::absolute(path, directory).and_then(|text| path_check::check_replaced(&text));
    let path = path.map_err(|advice| usage("--stats-on-exit", advice))?;
    if sinks.iter().any(|sink| matches!(sink.settings.target(), SinkTarget::Files(file) if Path::new(file) == path)) {
        let advice = ValueAdvice::new(format!("{path:?} is what --to writes"), "give each its own file");
        return Err(usage("--stats-on-exit", advice));
    }
    Ok(path)
}

/// What `--to` can say, one form after the other.
pub fn forms() -> String {
    let forms = SINK_TYPES.iter().flat_map(|kind| kind.schemes).map(|scheme| scheme.form);
    forms.collect::<Vec<_>>().join("  ")
}

/// The sinks that URIs stand for, named after their schemes, each once.
fn parse_uris(uris: &[String], format: Option<Format>, directory: &Path) -> Result<Vec<SinkConfig>, Failure> {
    if uris.len() > SINKS_PER_LISTENER_MAX {
        let what = format!("there are {} of them", uris.len());
        return Err(wrong(ValueAdvice::new(what, format!("deliver to {SINKS_PER_LISTENER_MAX} at most"))));
    }
    let (mut sinks, mut takes_format): (Vec<SinkConfig>, bool) = (Vec::new(), format.is_none());
    for uri in uris {
        let mut sink = parse_uri(uri, directory)?;
        // A scheme that is a format says it already.
        let own = Format::WORDS.iter().find(|(word, _)| *word == sink.name).map(|(_, own)| *own);
        match format.filter(|_| own.is_none()).and_then(|format| sink.settings.in_format(format)) {
            Some(settings) => (sink.settings, takes_format) = (settings, true),
            None => takes_format |= own.is_some() && own == format,
        }
        if let Some(other) =
            sinks.iter().find(|other| is_same_stream(&other.settings.target(), &sink.settings.target()))
        {
            let what = format!("{uri:?} goes where {} goes already", other.name);
            return Err(wrong(ValueAdvice::new(what, "give each its own file, and standard output to one of them")));
        }
        let alike = sinks.iter().filter(|other| other.name.split('-').next() == Some(&sink.name)).count();
        if alike > 0 {
            sink.name = format!("{}-{}", sink.name, alike + 1);
        }
        sinks.push(sink);
    }
    if takes_format {
        return Ok(sinks);
    }
    let what = "what --to names has a format of its own, or none";
    let advice = ValueAdvice::new(what, "leave it out, or write to file:PATH or stdout:");
    Err(usage("--format", advice))
}

/// Gives the sinks that write lines this prefix.
fn put_in_front(prefix: LinePrefix, sinks: &mut [SinkConfig]) -> Result<(), Failure> {
    let mut takes_prefix = prefix == LinePrefix::None;
    for sink in sinks.iter_mut().filter(|_| prefix != LinePrefix::None) {
        if let Some(settings) = sink.settings.with_prefix(prefix) {
            (sink.settings, takes_prefix) = (settings, true);
        }
    }
    let advice = ValueAdvice::new("--to names nothing that writes lines", "write to file:PATH or stdout: in lines");
    if takes_prefix { Ok(()) } else { Err(usage("--prefix", advice)) }
}

/// Two writers there would mix their records.
fn is_same_stream(one: &SinkTarget<'_>, other: &SinkTarget<'_>) -> bool {
    match (one, other) {
        (SinkTarget::Stdout, SinkTarget::Stdout) => true,
        (SinkTarget::Files(one), SinkTarget::Files(other)) => {
            path_check::resolve(Path::new(one)) == path_check::resolve(Path::new(other))
        }
        _ => false,
    }
}

/// The sink that a URI stands for, named after its scheme.
fn parse_uri(uri: &str, directory: &Path) -> Result<SinkConfig, Failure> {
    let uri = if uri == "-" { "stdout:" } else { uri };
    let schemes = || SINK_TYPES.iter().flat_map(|kind| kind.schemes);
    let working = || format!("write one of  {}", forms());
    let Some((name, rest)) = uri.split_once(':') else {
        let what = format!("{uri:?} has no scheme");
        return Err(wrong(match schemes().any(|scheme| scheme.form.split(' ').next() == Some(&format!("{uri}:"))) {
            true => ValueAdvice::new(what, format!("write it with a colon, {uri}:")),
            false => ValueAdvice::new(what, format!("write file:{uri} for a file, or {}", working())),
        }));
    };
    let Some(scheme) = schemes().find(|scheme| scheme.name == name) else {
        return Err(wrong(ValueAdvice::new(format!("{name:?} is an unknown scheme"), working())));
    };
    let settings = (scheme.read)(&Uri { whole: uri, scheme: name, rest, directory })?;
    Ok(SinkConfig::with(name, settings, CommonKeys::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::format::Format;
    use udpd_file::stdout::StdoutSettings;
    use udpd_file::{FileSettings, Rotate};
    use udpd_sinks::null::NullSink;

    fn configure_in_tmp(listen: &str, to: &str) -> Result<Config, Failure> {
        configure(&RunArguments::new(listen, to), Path::new("/tmp"))
    }

    #[test]
    fn an_address_and_a_uri_make_a_configuration() {
        let config = configure_in_tmp("127.0.0.1:5514", "file:out.log").expect("valid");
        assert_eq!(config.listeners[0].name, "cli");
        assert_eq!(config.listeners[0].sinks, [0]);
        assert_eq!(config.sinks[0].name, "file");
        assert!(config.sinks[0].settings.target() == SinkTarget::Files("/tmp/out.log"));
        assert!(!config.daemon.metrics_address.written);
        for (uri, format) in [
            ("stdout:", Format::Lines),
            ("-", Format::Lines),
            ("pcapng:-", Format::Pcapng),
            ("jsonl:", Format::Jsonl),
            ("jsonl:-", Format::Jsonl),
        ] {
            let config = configure_in_tmp("[::]:5514", uri).expect("valid");
            let stdout: &StdoutSettings = config.sinks[0].settings.of_type().expect("standard output");
            assert_eq!(stdout.format, format);
        }
        let null = configure_in_tmp("[::]:5514", "null:").expect("valid");
        assert!(null.sinks[0].settings.of_type::<NullSink>().is_some());
        let call = RunArguments {
            lanes: Some(3),
            stats_on_exit: Some("x.json".into()),
            ..RunArguments::new("127.0.0.1:1", "null:")
        };
        let lanes = configure(&call, Path::new("/tmp")).expect("valid");
        assert_eq!(lanes.listeners[0].lanes, Lanes::Count(NonZeroUsize::new(3).expect("three")));
        assert_eq!(lanes.daemon.stats_on_exit, Some(PathBuf::from("/tmp/x.json")));
        assert!(configure_in_tmp("127.0.0.1:1", "file:///tmp/x.log").is_ok());
        let dash = configure_in_tmp("127.0.0.1:1", "file:./-").expect("valid");
        assert!(dash.sinks[0].settings.target() == SinkTarget::Files("/tmp/-"));
        for (uri, path, format) in
            [("pcapng:x.pcapng", "/tmp/x.pcapng", Format::Pcapng), ("jsonl:x.jsonl", "/tmp/x.jsonl", Format::Jsonl)]
        {
            let config = configure_in_tmp("127.0.0.1:1", uri).expect("valid");
            let file: &FileSettings = config.sinks[0].settings.of_type().expect("a file");
            assert_eq!((file.path.as_str(), file.format, file.rotate), (path, format, Rotate::NEVER));
        }
        assert!(configure_in_tmp("127.0.0.1:1", "udp:10.0.0.9:514").is_ok());
        let shown = |to: &str, format| {
            let prefix = LinePrefix::TimeSource;
            let call = RunArguments { prefix, format, ..RunArguments::new("127.0.0.1:1", to) };
            configure(&call, Path::new("/tmp")).map(|config| config.sinks[0].settings.clone())
        };
        let stdout = shown("stdout:", None).expect("lines");
        assert_eq!(stdout.of_type().map(|own: &StdoutSettings| own.prefix), Some(LinePrefix::TimeSource));
        let file = shown("file:x", None).expect("lines");
        assert_eq!(file.of_type().map(|own: &FileSettings| own.prefix), Some(LinePrefix::TimeSource));
        for (to, format) in [("null:", None), ("jsonl:-", None), ("stdout:", Some(Format::Jsonl))] {
            let failure = shown(to, format).expect_err("no lines").to_string();
            assert!(failure.contains("--prefix: --to names nothing that writes lines"), "{failure}");
        }
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
            ("127.0.0.1:1", "nosuch://x", "unknown scheme"),
            ("127.0.0.1:1", "loki:x", "begins with neither http:// nor https://"),
            ("127.0.0.1:1", "http://user:password@x", "is not shown here"),
        ] {
            let failure = configure_in_tmp(listen, to).expect_err(to);
            assert_eq!(failure.code, ExitCode::Usage);
            assert!(failure.message.contains(words), "{to}: {}", failure.message);
        }
        let refused = |call: &RunArguments| configure(call, Path::new("/tmp")).expect_err("refused");
        let zero = refused(&RunArguments { lanes: Some(0), ..RunArguments::new("127.0.0.1:1", "null:") });
        assert!(zero.message.starts_with("--lanes: 0 is outside 1 to 1024"));
        let same =
            refused(&RunArguments { stats_on_exit: Some("x".into()), ..RunArguments::new("127.0.0.1:1", "file:x") });
        assert!(same.message.contains("is what --to writes"));
        let dash =
            refused(&RunArguments { stats_on_exit: Some("-".into()), ..RunArguments::new("127.0.0.1:1", "null:") });
        assert!(dash.message.starts_with("--stats-on-exit: \"-\" would be a file"), "{dash}");
    }

    #[test]
    fn a_password_in_a_uri_is_refused_and_not_repeated() {
        for to in
            ["kafka://udpd:hunter2@10.0.0.5:9092/topic", "kafka://udpd:hunter2@10.0.0.5", "kafkas://udpd:hunter2@a/b"]
        {
            let failure = configure_in_tmp("127.0.0.1:1", to).expect_err(to);
            assert_eq!(failure.code, ExitCode::Usage);
            assert!(!failure.message.contains("hunter2"), "{}", failure.message);
        }
    }

    #[test]
    fn several_sinks_each_get_everything_and_a_name_of_their_own() {
        let to = ["file:a", "file:b", "pcapng:-", "udp:10.0.0.9:514", "file:c"].map(str::to_owned).to_vec();
        let call = RunArguments { to, max_length: Some("9KiB".to_owned()), ..RunArguments::new("127.0.0.1:1", "") };
        let config = configure(&call, Path::new("/tmp")).expect("valid");
        let names: Vec<&str> = config.sinks.iter().map(|sink| sink.name.as_str()).collect();
        assert_eq!(names, ["file", "file-2", "pcapng", "udp", "file-3"]);
        assert_eq!(config.listeners[0].sinks, [0, 1, 2, 3, 4]);
        assert_eq!(config.listeners[0].max_length_bytes, 9 << 10);
    }

    #[test]
    fn a_format_is_that_of_files_and_streams_and_of_nothing_else() {
        let with = |to: &[&str], format| {
            let to = to.iter().map(|uri| (*uri).to_owned()).collect();
            let call = RunArguments { to, format: Some(format), ..RunArguments::new("127.0.0.1:1", "") };
            configure(&call, Path::new("/tmp"))
        };
        let config = with(&["-", "file:x", "null:"], Format::Jsonl).expect("valid");
        let stdout: &StdoutSettings = config.sinks[0].settings.of_type().expect("standard output");
        let file: &FileSettings = config.sinks[1].settings.of_type().expect("a file");
        assert_eq!((stdout.format, file.format, file.rotate), (Format::Jsonl, Format::Jsonl, Rotate::NEVER));
        assert!(with(&["pcapng:x"], Format::Pcapng).is_ok());
        let beside = with(&["pcapng:y", "file:x"], Format::Jsonl).expect("valid");
        let formats = beside.sinks.iter().map(|sink| sink.settings.of_type().map(|file: &FileSettings| file.format));
        assert_eq!(formats.collect::<Vec<_>>(), [Some(Format::Pcapng), Some(Format::Jsonl)]);
        for to in [&["pcapng:x"][..], &["null:", "udp:10.0.0.9:514"]] {
            let failure = with(to, Format::Jsonl).expect_err("refused");
            assert!(failure.message.starts_with("--format: what --to names has a format of its own, or none"));
        }
    }

    #[test]
    fn what_two_sinks_would_mix_and_lengths_that_no_datagram_has_are_refused() {
        let refused = |to: &[&str], length: Option<&str>| {
            let to = to.iter().map(|uri| (*uri).to_owned()).collect();
            let max_length = length.map(str::to_owned);
            let call = RunArguments { to, max_length, ..RunArguments::new("127.0.0.1:1", "") };
            configure(&call, Path::new("/tmp")).expect_err("refused").message
        };
        assert!(refused(&["-", "pcapng:-"], None).contains("goes where stdout goes already"));
        assert!(refused(&["file:x", "jsonl:/tmp/./x"], None).contains("goes where file goes already"));
        let message = refused(&["null:"], Some("64KiB"));
        assert!(message.contains("--max-length: \"64KiB\" is outside 1 to 65535 bytes"), "{message}");
        assert!(refused(&["null:"], Some("big")).starts_with("--max-length: "));
    }
}
