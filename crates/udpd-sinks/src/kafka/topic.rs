//! What the topic of a listener's datagrams is called: one name, or one with `{listener}` and `{sink}` to be filled in.

use super::error::KafkaError;

/// The longest name that a broker takes for a topic.
const BYTES_MAX: usize = 249;

/// The longest name of a listener or a sink.
const NAME: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

/// The topic of a listener. Names hold no braces, so what is filled in cannot become a placeholder.
pub(super) fn expand(template: &str, listener: &str, sink: &str) -> String {
    template.replace("{listener}", listener).replace("{sink}", sink)
}

/// Refuses what no broker could have as a topic, whatever the names are: a name has letters that a topic may have.
pub(super) fn check(template: &str) -> Result<(), KafkaError> {
    let wrong =
        |reason: String| Err(KafkaError::Setting { key: "topic".to_owned(), value: template.to_owned(), reason });
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let longest = expand(template, NAME, NAME);
    if longest.contains(['{', '}']) {
        return wrong("the placeholders of a topic are {listener} and {sink}".to_owned());
    }
    if longest.is_empty() || !longest.bytes().all(allowed) || matches!(longest.as_str(), "." | "..") {
        return wrong(format!(
            "no broker has such a topic; use 1 to {BYTES_MAX} letters, digits, dots, dashes, underscores"
        ));
    }
    if longest.len() > BYTES_MAX {
        return wrong(format!(
            "with the longest names it is {} bytes long, and a topic has at most {BYTES_MAX}; write a shorter one",
            longest.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_has_a_topic_of_its_own_where_the_name_says_so() {
        assert_eq!(expand("udp.{listener}.{sink}", "syslog", "stream"), "udp.syslog.stream");
        assert_eq!(expand("all", "syslog", "stream"), "all");
    }

    #[test]
    fn what_no_broker_can_have_is_refused_whatever_the_names_are() {
        for (topic, words) in [
            ("", "no broker"),
            (".", "no broker"),
            ("a/b", "no broker"),
            ("ä", "no broker"),
            ("{lane}", "{listener} and {sink}"),
            ("{listener", "{listener} and {sink}"),
            (&"x".repeat(250), "250 bytes"),
            (&format!("{}{{listener}}", "x".repeat(186)), "250 bytes"),
        ] {
            let error = check(topic).expect_err(topic).to_string();
            assert!(error.starts_with(&format!("topic = {topic:?}: ")) && error.contains(words), "{error}");
        }
        assert_eq!(check(&"x".repeat(249)), Ok(()));
        assert_eq!(check("net.flow_v9-{listener}"), Ok(()));
    }
}
