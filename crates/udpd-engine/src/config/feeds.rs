//! The feeds of a configuration: which listeners drop copies of the same datagrams, and what they must have in common.

use udpd_base::settings::{Findings, Section};
use udpd_inspect::deduplicate::{Copies, CopyKey, FeedPlan, SIDES_MAX};

use super::listener::ListenerConfig;

/// The feed of each listener, by its place among the feeds, and the feeds.
pub fn feeds(listeners: &[ListenerConfig]) -> (Vec<Option<usize>>, Vec<FeedPlan>) {
    let mut feeds: Vec<FeedPlan> = Vec::new();
    let of_listener = |listener: &ListenerConfig| {
        let Copies { window, key, feed } = listener.deduplicate.as_ref()?;
        let known = feed.as_ref().and_then(|_| feeds.iter().position(|known| known.name == *feed));
        let place = known.unwrap_or_else(|| {
            feeds.push(FeedPlan {
                name: feed.clone(),
                window: *window,
                key: *key,
                sequence: listener.sequence.filter(|_| *key == CopyKey::Sequence),
                rate: 0,
                sides: Vec::new(),
            });
            feeds.len() - 1
        });
        feeds[place].rate += listener.absorb.rate;
        feeds[place].sides.extend(listener.addresses.iter().map(|address| (listener.name.clone(), *address)));
        Some(place)
    };
    let of_listeners = listeners.iter().map(of_listener).collect();
    (of_listeners, feeds)
}

/// Refuses a number that does not tell datagrams apart, more sides than are told apart, and sides that differ.
pub(super) fn check(sections: &[Section<'_, ListenerConfig>], findings: &mut Findings<'_>) {
    for (index, section) in sections.iter().enumerate() {
        let Section { settings: listener, written } = section;
        let Some(copies) = &listener.deduplicate else { continue };
        let Some(place) = written.place("deduplicate") else { continue };
        let key = written.inner("deduplicate", "key").unwrap_or_else(|| place.clone());
        match listener.sequence {
            _ if copies.key == CopyKey::Payload || written.is_wrong("sequence") => {}
            None => {
                findings.say(&key, "the listener has no sequence to compare", "write sequence, or key = \"payload\"")
            }
            Some(sequence) if !sequence.needs_no_address() => {
                let what = "two exporters of NetFlow or IPFIX may send the same number of the same source id";
                findings.say(&key, what, "write key = \"payload\"");
            }
            Some(sequence) => {
                let within = u128::from(listener.absorb.rate) * copies.window.as_millis() / 1000;
                if let Some(numbers) = sequence.numbers_until_again().filter(|count| u128::from(*count) <= within) {
                    let what = format!(
                        "after {numbers} datagrams a number comes again, and at absorb.rate {within} come within the \
                         window: new ones would count as copies"
                    );
                    findings.say(&key, what, "write key = \"payload\", a shorter window or a lower absorb.rate");
                }
            }
        }
        if listener.addresses.len() > SIDES_MAX {
            let what = format!("{} addresses are more sides than udpd tells apart", listener.addresses.len());
            findings.say(&place, what, format!("write at most {SIDES_MAX}, and the others in another listener"));
        }
        let Some(feed) = &copies.feed else { continue };
        let place = written.inner("deduplicate", "feed").unwrap_or(place);
        let of_feed = |other: &&Section<'_, ListenerConfig>| {
            other.settings.deduplicate.as_ref().is_some_and(|other| other.feed.as_ref() == Some(feed))
        };
        let earlier: Vec<&ListenerConfig> = sections[..index].iter().filter(of_feed).map(|one| &one.settings).collect();
        let Some(first) = earlier.first() else { continue };
        let differs = [
            ("deduplicate", first.deduplicate != listener.deduplicate),
            ("sinks", first.sinks != listener.sinks),
            ("sequence", copies.key == CopyKey::Sequence && first.sequence != listener.sequence),
        ];
        if let Some((what, _)) = differs.iter().find(|(_, differs)| *differs) {
            let what = format!("listener {:?} is of this feed and has another {what}", first.name);
            findings.say(&place, what, "write the same for all sides of a feed: each has a part of what is new");
        }
        let sides = listener.addresses.len() + earlier.iter().map(|one| one.addresses.len()).sum::<usize>();
        if sides > SIDES_MAX {
            findings.say(&place, format!("the feed has {sides} addresses"), format!("write at most {SIDES_MAX}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, HostView};

    fn listener(name: &str, port: u16, keys: &str) -> String {
        format!("[[listener]]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\nsinks = [\"out\"]\n{keys}\n")
    }

    fn read(listeners: &[String]) -> Result<Config, String> {
        let text = format!("{}[sink.out]\ntype = \"null\"\n[sink.other]\ntype = \"null\"\n", listeners.concat());
        Config::parse(&text, "f", &HostView::default()).map_err(|problems| problems.to_string())
    }

    #[test]
    fn listeners_of_one_feed_share_a_table_and_one_alone_has_its_own() {
        let feed = "deduplicate = { window = \"2s\", feed = \"a\" }";
        let alone = "deduplicate = { window = \"1s\" }";
        let config = read(&[
            listener("a", 1, alone),
            listener("b", 2, feed),
            listener("c", 3, ""),
            listener("d", 4, &format!("{feed}\nabsorb = {{ rate = 1000 }}")),
            listener("e", 5, alone),
        ]);
        let (of_listeners, feeds) = feeds(&config.expect("valid").listeners);
        assert_eq!(of_listeners, [Some(0), Some(1), None, Some(1), Some(2)]);
        let facts: Vec<_> = feeds.iter().map(|feed| (feed.name.as_deref(), feed.rate, feed.sides.len())).collect();
        assert_eq!(facts, [(None, 200_000, 1), (Some("a"), 201_000, 2), (None, 200_000, 1)]);
        let names: Vec<&str> = feeds[1].sides.iter().map(|(listener, _)| listener.as_str()).collect();
        assert_eq!(names, ["b", "d"]);
    }

    #[test]
    fn what_could_take_a_new_datagram_for_a_copy_is_refused_with_what_would_be_right() {
        let by_number = "deduplicate = { window = \"2s\", key = \"sequence\" }";
        let feed = "deduplicate = { window = \"2s\", feed = \"a\" }";
        let addresses: Vec<String> = (1..10).map(|host| format!("\"127.0.0.{host}:9\"")).collect();
        let many = listener("a", 1, feed).replace("\"127.0.0.1:1\"", &format!("[{}]", addresses.join(",")));
        let others = |text: &str| vec![listener("a", 1, feed), listener("b", 2, text)];
        for (listeners, words) in [
            (vec![listener("a", 1, "deduplicate = { key = \"payload\", feed = \"x\" }")], "without a window"),
            (vec![listener("a", 1, "deduplicate = { window = \"5ms\" }")], "write at least \"10ms\""),
            (vec![listener("a", 1, by_number)], "no sequence to compare"),
            (vec![listener("a", 1, &format!("sequence = \"ipfix\"\n{by_number}"))], "write key = \"payload\""),
            (
                vec![listener("a", 1, &format!("sequence = {{ offset = 0, bytes = 2 }}\n{by_number}"))],
                "after 65536 datagrams a number comes again, and at absorb.rate 400000 come",
            ),
            (vec![many], "9 addresses are more sides"),
            (others("deduplicate = { window = \"3s\", feed = \"a\" }"), "has another deduplicate"),
            (vec![listener("a", 1, feed), listener("b", 2, feed).replace("\"out\"", "\"other\"")], "has another sinks"),
        ] {
            let error = read(&listeners).expect_err(words);
            assert!(error.contains(words), "{words}: {error}");
        }
        for sequence in ["\"rtp\"", "\"sflow\"", "{ offset = 0, bytes = 3 }"] {
            let keys = format!("sequence = {sequence}\n{by_number}");
            assert!(read(&[listener("a", 1, &keys)]).is_ok(), "{sequence}");
        }
    }
}
