//! What an interface was like, as a text with a first and a last line, so that half of it is never taken for the whole.

use crate::identity::{Identity, Namespace};
use crate::setting::Setting;

const FIRST_LINE: &str = "steering journal 2: what was, before it was changed";
const LAST_LINE: &str = "end";

/// What an interface was like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Which interface.
    pub identity: Identity,
    /// The interrupts that irqbalance was asked to leave alone, and would not have otherwise.
    pub banned: Vec<u32>,
    /// Every setting that a change could disturb, with its value, in the order of application.
    pub values: Vec<(Setting, String)>,
    /// The same of settings that were not there at first, such as those of new queues. They may be gone again.
    pub later: Vec<(Setting, String)>,
}

impl Saved {
    /// True when what this setting was is saved.
    pub fn covers(&self, setting: &Setting) -> bool {
        self.values.iter().chain(&self.later).any(|(saved, _)| is_one(saved, setting))
    }
}

/// Whether both are the same thing. Drivers ask for new interrupts under the old names, and a line that several devices
/// share has several; one whose driver has let go of it has none, and only its number.
fn is_one(saved: &Setting, setting: &Setting) -> bool {
    match (saved, setting) {
        (Setting::Interrupt { number, name }, Setting::Interrupt { number: other_number, name: other }) => {
            let share_a_name = name.split(',').any(|name| other.split(',').any(|other| name == other));
            if name.is_empty() || other.is_empty() { number == other_number } else { share_a_name }
        }
        (saved, setting) => saved == setting,
    }
}

pub(super) fn show(saved: &Saved) -> String {
    let Saved { identity, banned, values, later } = saved;
    let Identity { name, index, namespace, address, bus } = identity;
    let numbers: Vec<String> = banned.iter().map(u32::to_string).collect();
    let lines = |values: &[(Setting, String)], mark: &str| -> String {
        values.iter().map(|(setting, value)| format!("{mark}{setting}\t{value}\n")).collect()
    };
    let namespace = format!("{}:{}", namespace.device, namespace.inode);
    let (address, bus) = (address.as_deref().unwrap_or_default(), bus.as_deref().unwrap_or_default());
    let numbers = numbers.join(" ");
    let which = format!("name\t{name}\nindex\t{index}\nnamespace\t{namespace}\naddress\t{address}\nbus\t{bus}\n");
    let (values, later) = (lines(values, ""), lines(later, "later "));
    format!("{FIRST_LINE}\n{which}banned\t{numbers}\n{values}{later}{LAST_LINE}\n")
}

pub(super) fn parse(text: &str) -> Option<Saved> {
    let lines: Vec<&str> = text.strip_suffix('\n')?.split('\n').collect();
    let [FIRST_LINE, name, index, namespace, address, bus, banned, rest @ .., LAST_LINE] = lines.as_slice() else {
        return None;
    };
    let (device, inode) = namespace.strip_prefix("namespace\t")?.split_once(':')?;
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let identity = Identity {
        name: some(name.strip_prefix("name\t")?)?,
        index: index.strip_prefix("index\t")?.parse().ok()?,
        namespace: Namespace { device: device.parse().ok()?, inode: inode.parse().ok()? },
        address: some(address.strip_prefix("address\t")?),
        bus: some(bus.strip_prefix("bus\t")?),
    };
    let banned = banned.strip_prefix("banned\t")?.split(' ').filter(|number| !number.is_empty());
    let banned = banned.map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let mut saved = Saved { identity, banned, values: Vec::new(), later: Vec::new() };
    for line in rest {
        let (setting, value) = line.split_once('\t')?;
        let (list, setting) = match setting.strip_prefix("later ") {
            Some(setting) => (&mut saved.later, setting),
            None => (&mut saved.values, setting),
        };
        list.push((Setting::parse(setting)?, value.to_owned()));
    }
    Some(saved)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn saved() -> Saved {
        let interrupt =
            |number: u32| Setting::Interrupt { number, name: format!("virtio2-input.{}", number.saturating_sub(38)) };
        let values = vec![
            (Setting::Channels, "0 0 0 4".to_owned()),
            (Setting::Indirection, "0,1,2,3".to_owned()),
            (interrupt(38), "0-1".to_owned()),
            (Setting::Rps(0), "00000000".to_owned()),
        ];
        let identity = Identity {
            name: "eth0".to_owned(),
            index: 2,
            namespace: Namespace { device: 4, inode: 4_026_531_840 },
            address: Some("52:54:00:12:34:56".to_owned()),
            bus: Some("0000:00:03.0".to_owned()),
        };
        Saved { identity, banned: vec![38, 39], values, later: vec![(interrupt(39), "0-3".to_owned())] }
    }

    #[test]
    fn what_is_shown_is_parsed_again() {
        let bare = Identity { address: None, bus: None, ..saved().identity };
        for saved in [saved(), Saved { identity: bare, banned: Vec::new(), later: Vec::new(), ..saved() }] {
            assert_eq!(parse(&show(&saved)), Some(saved));
        }
    }

    #[test]
    fn an_interrupt_is_known_by_its_name_and_without_one_by_its_number() {
        let interrupt = |number: u32, name: &str| Setting::Interrupt { number, name: name.to_owned() };
        assert!(saved().covers(&interrupt(77, "virtio2-input.0")), "a new number under the old name");
        assert!(saved().covers(&interrupt(38, "virtio2-input.0,uhci_hcd")), "a line that is shared");
        assert!(saved().covers(&interrupt(38, "")), "the driver has let go of it");
        assert!(!saved().covers(&interrupt(38, "virtio2-input.7")), "a new name on an old number");
        assert!(!saved().covers(&Setting::Rps(1)));
    }

    #[test]
    fn a_file_that_was_cut_at_any_byte_is_never_taken_for_a_whole_one() {
        let text = show(&saved());
        for length in 0..text.len() {
            assert_eq!(parse(&text[..length]), None, "{length}");
        }
    }

    #[test]
    fn no_file_makes_the_parser_panic() {
        let text = show(&saved()).into_bytes();
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..if cfg!(debug_assertions) { 10_000 } else { 1_000_000 } {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut bytes = text.clone();
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = state.to_ne_bytes()[7];
            let _ = parse(&String::from_utf8_lossy(&bytes));
        }
    }
}
