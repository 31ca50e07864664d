//! What is measured: the pipeline of a configuration, moved to a port of loopback where it disturbs nobody.

use std::path::Path;

use crate::config::{Config, Lanes, Listener, SinkKind, Spread, Steer};
use crate::exit::{ExitCode, Failure};
use crate::pipeline;

/// A pipeline to be measured, and what was changed for it.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    /// One listener on a free port of loopback, and its sinks.
    pub(super) config: Config,
    /// Its name.
    pub(super) name: String,
    /// What is not as it was written, in words.
    pub(super) changed: Vec<String>,
}

impl Subject {
    /// A default listener and the sink of a URI.
    pub(super) fn of_uri(uri: &str) -> Result<Self, Failure> {
        // The address is replaced; nobody has written it, so nobody has to be told.
        let subject = Self::of(Config::from_arguments("127.0.0.1:1", uri, None, None)?, None, Vec::new())?;
        Ok(Self { changed: Vec::new(), ..subject })
    }

    /// A listener of a file: the one called so, or the only one.
    pub(super) fn of_file(path: &Path, listener: Option<&str>) -> Result<Self, Failure> {
        let changed = vec!["metrics, control socket and stats_on_exit are not used".to_owned()];
        Self::of(Config::load(path, &pipeline::host())?, listener, changed)
    }

    fn of(config: Config, name: Option<&str>, mut changed: Vec<String>) -> Result<Self, Failure> {
        let mut listener = chosen(&config.listeners, name)?.clone();
        let mut sinks = Vec::new();
        for index in &mut listener.sinks {
            let sink = config.sinks[*index].clone();
            if matches!(sink.kind, SinkKind::Stdout(_)) {
                let text =
                    format!("sink {}: standard output is where the report goes; measure another sink", sink.name);
                return Err(Failure::new(ExitCode::Usage, text));
            }
            *index = sinks.len();
            sinks.push(sink);
        }
        if name.is_some() || config.listeners.len() > 1 {
            changed.push(format!("only listener {} is measured", listener.name));
        }
        let addresses: Vec<String> = listener.addresses.iter().map(ToString::to_string).collect();
        changed.push(format!("it listens on a free port of 127.0.0.1 instead of {}", addresses.join(", ")));
        listener.addresses = vec![([127, 0, 0, 1], 0).into()];
        if let Some(interface) = listener.interface.take() {
            if listener.lanes == Lanes::Auto {
                changed.push(format!("lanes = \"auto\" does not follow the queues of {interface}"));
            }
            if listener.spread == Spread::Queue {
                listener.spread = Spread::Flow;
                changed.push("spread is \"flow\" instead of \"queue\": loopback has no queues".to_owned());
            }
        }
        let name = listener.name.clone();
        Ok(Self {
            config: Config { listeners: vec![listener], sinks, steer: Steer::default(), ..config },
            name,
            changed,
        })
    }
}

fn chosen<'a>(listeners: &'a [Listener], name: Option<&str>) -> Result<&'a Listener, Failure> {
    let names = || listeners.iter().map(|listener| listener.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, listeners) {
        (None, [only]) => Ok(only),
        (None, _) => {
            let text = format!("--listener: the file has several, {}; write which one is to be measured", names());
            Err(Failure::new(ExitCode::Usage, text))
        }
        (Some(name), _) => listeners.iter().find(|listener| listener.name == name).ok_or_else(|| {
            Failure::new(ExitCode::Usage, format!("--listener: there is no listener {name}; the file has {}", names()))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Host;

    fn config() -> Config {
        let text = r#"
            [[listener]]
            name = "a"
            address = "192.0.2.1:514"
            sinks = ["one"]
            [[listener]]
            name = "b"
            address = ["192.0.2.1:515", "192.0.2.1:516"]
            sinks = ["two"]
            [sink.one]
            type = "null"
            [sink.two]
            type = "null"
            queue_batches = 7
        "#;
        Config::parse(text, "test.toml", &Host::default()).expect("a good file")
    }

    #[test]
    fn one_listener_and_its_sinks_move_to_loopback_and_it_is_said() {
        let subject = Subject::of(config(), Some("b"), Vec::new()).expect("a subject");
        let listener = &subject.config.listeners[0];
        assert_eq!((listener.name.as_str(), listener.sinks.as_slice()), ("b", &[0][..]));
        assert_eq!(listener.addresses, ["127.0.0.1:0".parse().expect("an address")]);
        assert_eq!((subject.config.sinks.len(), subject.config.sinks[0].queue_batches), (1, 7));
        assert!(
            subject.changed.iter().any(|line| line.contains("192.0.2.1:515, 192.0.2.1:516")),
            "{:?}",
            subject.changed
        );
    }

    #[test]
    fn of_several_listeners_one_has_to_be_named() {
        let failure = Subject::of(config(), None, Vec::new()).expect_err("which one?");
        assert!(failure.code == ExitCode::Usage && failure.message.contains("a, b"), "{failure}");
        let failure = Subject::of(config(), Some("c"), Vec::new()).expect_err("no such listener");
        assert!(failure.message.contains("no listener c") && failure.message.contains("a, b"), "{failure}");
    }

    #[test]
    fn standard_output_cannot_be_measured() {
        assert_eq!(Subject::of_uri("stdout:").expect_err("no").code, ExitCode::Usage);
        assert_eq!(Subject::of_uri("null:").expect("yes").config.sinks.len(), 1);
    }
}
