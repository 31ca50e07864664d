//! Templates of both versions: found, replaced, withdrawn, bounded, and made into datagrams that a reader takes.

use super::*;

fn shorts(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

fn set(id: u16, content: &[u8]) -> Vec<u8> {
    [shorts(&[id, (4 + content.len()) as u16]), content.to_vec()].concat()
}

fn netflow9(number: u32, domain: u32, sets: &[Vec<u8>]) -> Vec<u8> {
    let numbers = [70_000, 1_700_000_000, number, domain];
    [shorts(&[9, sets.len() as u16]), numbers.map(u32::to_be_bytes).concat(), sets.concat()].concat()
}

fn ipfix(number: u32, domain: u32, sets: &[Vec<u8>]) -> Vec<u8> {
    let sets = sets.concat();
    let numbers = [1_700_000_000, number, domain];
    [shorts(&[10, (16 + sets.len()) as u16]), numbers.map(u32::to_be_bytes).concat(), sets].concat()
}

/// A template with so many fields, the same in both versions.
fn template(id: u16, fields: u16) -> Vec<u8> {
    let fields: Vec<u16> = (0..fields).flat_map(|field| [8 + field, 4]).collect();
    [shorts(&[id, fields.len() as u16 / 2]), shorts(&fields)].concat()
}

struct Kept {
    room: Vec<u8>,
    bytes: usize,
}

impl Kept {
    fn new(room: usize) -> Self {
        Self { room: vec![0xff; room], bytes: 0 }
    }

    fn take(&mut self, payload: &[u8]) -> u64 {
        TemplateSets { room: &mut self.room, bytes: &mut self.bytes }.take(payload)
    }

    fn sets(&self) -> &[u8] {
        &self.room[..self.bytes]
    }

    fn repeat(&self, next: &[u8]) -> Vec<Vec<u8>> {
        let (mut buffer, mut made) = (Vec::new(), Vec::new());
        repeat(self.sets(), next, &mut buffer, |datagram| made.push(datagram.to_vec()));
        made
    }
}

#[test]
fn templates_go_before_the_next_datagram_of_their_exporter_and_leave_no_gap() {
    let (first, second) = (template(256, 3), template(257, 2));
    // In NetFlow 9 the scope and the options have lengths in bytes: one field each.
    let options9 = shorts(&[300, 4, 4, 1, 4, 41, 2]);
    let datagram = netflow9(7, 5, &[set(0, &[first.clone(), second.clone()].concat()), set(1, &options9)]);
    let mut kept = Kept::new(2048);
    assert_eq!((kept.take(&datagram), count_templates(kept.sets())), (0, 3));
    let data = |number| netflow9(number, 5, &[set(256, &[1; 12])]);
    let sets = [set(0, &first), set(0, &second), set(1, &[options9, shorts(&[0])].concat())];
    assert_eq!(kept.repeat(&data(900)), [netflow9(899, 5, &sets)]);
    assert_eq!(kept.repeat(&data(0)), [netflow9(u32::MAX, 5, &sets)]);

    // In IPFIX three fields, of which one is the scope and one has the number of an enterprise.
    let options = [shorts(&[300, 3, 1, 149, 4, 0x8001, 4]), vec![0, 0, 0, 9], shorts(&[41, 8])].concat();
    let datagram = ipfix(7, 5, &[set(256, &[1; 12]), set(3, &options), set(2, &first)]);
    let mut kept = Kept::new(2048);
    assert_eq!((kept.take(&datagram), count_templates(kept.sets())), (0, 2));
    let padded = [options, shorts(&[0])].concat();
    let next = ipfix(900, 5, &[set(256, &[1; 12])]);
    assert_eq!(kept.repeat(&next), [ipfix(900, 5, &[set(3, &padded), set(2, &first)])]);
}

#[test]
fn a_template_takes_the_place_of_the_one_with_its_number_and_a_withdrawal_removes_it() {
    let mut kept = Kept::new(2048);
    kept.take(&ipfix(1, 5, &[set(2, &[template(256, 3), template(257, 2)].concat())]));
    let before = kept.sets().to_vec();
    kept.take(&ipfix(2, 5, &[set(2, &template(256, 3))]));
    assert_eq!(kept.sets(), before, "the same again changes nothing");
    kept.take(&ipfix(3, 5, &[set(2, &template(256, 4))]));
    assert_eq!(kept.sets(), [set(2, &template(257, 2)), set(2, &template(256, 4))].concat());
    kept.take(&ipfix(4, 5, &[set(2, &shorts(&[257, 0]))]));
    assert_eq!(kept.sets(), set(2, &template(256, 4)));
}

#[test]
fn what_finds_no_room_goes_oldest_first_and_is_counted() {
    let mut kept = Kept::new(100);
    let of = |id, fields| netflow9(1, 5, &[set(0, &template(id, fields))]);
    // 8 bytes and 4 for each field.
    assert_eq!([kept.take(&of(256, 8)), kept.take(&of(257, 8)), kept.take(&of(258, 8))], [0, 0, 1]);
    assert_eq!(kept.sets(), [set(0, &template(257, 8)), set(0, &template(258, 8))].concat());
    assert_eq!((kept.take(&of(259, 30)), count_templates(kept.sets())), (1, 2), "none is longer than all the room");
    assert_eq!((kept.take(&of(260, 20)), count_templates(kept.sets())), (2, 1));
}

#[test]
fn many_templates_are_several_datagrams_that_every_route_takes() {
    let mut kept = Kept::new(4096);
    let templates: Vec<Vec<u8>> = (0..20).map(|number| template(256 + number, 40)).collect();
    kept.take(&netflow9(1, 5, &templates.iter().map(|template| set(0, template)).collect::<Vec<_>>()));
    let made = kept.repeat(&netflow9(900, 5, &[]));
    let numbers = made.iter().map(|datagram| super::super::header::netflow9(datagram).expect("a header").number);
    assert_eq!(numbers.collect::<Vec<_>>(), [896, 897, 898, 899]);
    assert!(made.iter().all(|datagram| datagram.len() <= REPEAT_BYTES_MAX));
    let mut again = Kept::new(4096);
    made.iter().for_each(|datagram| _ = again.take(datagram));
    assert_eq!(again.sets(), kept.sets(), "nothing is left out");
}

#[test]
fn only_datagrams_with_templates_have_templates() {
    assert!(has_templates(&netflow9(1, 5, &[set(256, &[1; 12]), set(0, &template(256, 3))])));
    assert!(has_templates(&ipfix(1, 5, &[set(3, &shorts(&[300, 1, 1, 149, 4]))])));
    for without in [
        netflow9(1, 5, &[set(256, &[1; 12])]),
        ipfix(1, 5, &[set(256, &[1; 12])]),
        // The number of the other version's templates.
        ipfix(1, 5, &[set(0, &template(256, 3))]),
        b"<13>text".to_vec(),
        Vec::new(),
    ] {
        assert!(!has_templates(&without), "{without:?}");
        assert_eq!(Kept::new(100).take(&without), 0);
    }
    let [first, second] = [9, 10].map(|domain| ExporterDomain::of(&ipfix(1, domain, &[])));
    assert!(first.is_some() && first != second && ExporterDomain::of(&netflow9(1, 9, &[])) != first);
}

#[test]
fn nothing_that_is_cut_or_damaged_is_taken_for_a_template() {
    let whole = [
        netflow9(1, 5, &[set(0, &template(256, 3)), set(1, &shorts(&[300, 4, 4, 1, 4, 41, 2]))]),
        ipfix(1, 5, &[set(2, &template(256, 3)), set(3, &shorts(&[300, 2, 1, 149, 4, 41, 8]))]),
    ];
    for datagram in whole {
        for length in 0..datagram.len() {
            let mut kept = Kept::new(100);
            kept.take(&datagram[..length]);
            kept.repeat(&datagram[..length]);
            for at in 0..length {
                let mut damaged = datagram[..length].to_vec();
                damaged[at] ^= 0xff;
                let mut kept = Kept::new(100);
                kept.take(&damaged);
                // What is kept can always be read and sent again.
                assert_eq!(each_set(kept.sets()).map(|(_, content)| 4 + content.len()).sum::<usize>(), kept.bytes);
                kept.repeat(&damaged);
            }
        }
    }
}
