//! The kernel's own description of its types and functions (BTF, `/sys/kernel/btf/vmlinux`): the number of a function,
//! and where a field lies in a structure. Pure: bytes go in, every bound is checked, and what is not understood counts
//! as not found.

use std::io;

/// Where the kernel shows it; no right is needed to read it.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
/// What every type has; what follows depends on its kind.
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;

// Kinds, each with its name in linux/btf.h.
const STRUCTURE: u32 = 4; // BTF_KIND_STRUCT
const UNION: u32 = 5; // BTF_KIND_UNION
const ENUMERATION: u32 = 6; // BTF_KIND_ENUM
const FUNCTION: u32 = 12; // BTF_KIND_FUNC

/// How deep structures without a name may be nested.
const DEPTH_MAX: usize = 8;

/// How many members are looked at for one field.
const LOOKS_MAX: usize = 100_000;

/// A parsed description.
#[derive(Debug)]
pub struct Types<'a> {
    bytes: &'a [u8],
    /// Where each type lies; the first one has the number 1.
    places: Vec<usize>,
    strings: usize,
}

/// The head of a type.
#[derive(Clone, Copy)]
struct Head {
    name: usize,
    kind: u32,
    members: usize,
    /// The offsets of its members are in the lower 24 bits, with the sizes of bit fields above.
    has_bit_fields: bool,
}

impl<'a> Types<'a> {
    /// The bytes that [`parse`](Self::parse) takes, of the running kernel.
    ///
    /// # Errors
    /// The kernel has no description of its types.
    pub fn of_kernel() -> io::Result<Vec<u8>> {
        std::fs::read(KERNEL_TYPES).map_err(|error| io::Error::new(error.kind(), format!("{KERNEL_TYPES}: {error}")))
    }

    /// Finds every type. `None`: this is no such description, or has kinds that came later.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let word = |at| array::<4>(bytes, at).map(u32::from_ne_bytes).and_then(|word| usize::try_from(word).ok());
        if u16::from_ne_bytes(array(bytes, 0)?) != MAGIC {
            return None;
        }
        let header = word(4).filter(|header| *header >= HEADER_BYTES)?;
        let types = header.checked_add(word(8)?)?;
        let end = types.checked_add(word(12)?)?;
        let strings = header.checked_add(word(16)?)?;
        let mut found = Self { bytes, places: Vec::new(), strings };
        let mut at = types;
        while at < end {
            let head = found.head(at)?;
            let more = match head.kind {
                // Integers, variables and tags have one word more, arrays three.
                1 | 14 | 17 => 4,
                3 => 12,
                STRUCTURE | UNION | 15 | 19 => head.members * MEMBER_BYTES,
                // Enumerations and prototypes.
                ENUMERATION | 13 => head.members * 8,
                2 | 7..=12 | 16 | 18 => 0,
                _ => return None,
            };
            found.places.push(at);
            at = at.checked_add(TYPE_BYTES + more)?;
        }
        Some(found)
    }

    /// The number of a function.
    pub fn function(&self, name: &str) -> Option<u32> {
        let is_it = |place: &usize| self.head(*place).is_some_and(|head| head.kind == FUNCTION && self.is(head, name));
        u32::try_from(self.places.iter().position(is_it)? + 1).ok()
    }

    /// The offset of a field in a structure, in bytes, also of a field inside a nested structure without a name.
    pub fn field(&self, structure: &str, field: &str) -> Option<usize> {
        let is_it =
            |place: &&usize| self.head(**place).is_some_and(|head| head.kind == STRUCTURE && self.is(head, structure));
        let mut looks = LOOKS_MAX;
        let bits = self.bits(*self.places.iter().find(is_it)?, field, DEPTH_MAX, &mut looks)?;
        (bits % 8 == 0).then_some(bits / 8)
    }

    /// The values of an enumeration with their names; empty where there is none of this name.
    pub fn values(&self, enumeration: &str) -> Vec<(u32, String)> {
        let is_it = |head: Head| head.kind == ENUMERATION && self.is(head, enumeration);
        let Some((place, head)) =
            self.places.iter().find_map(|at| Some((*at, self.head(*at).filter(|it| is_it(*it))?)))
        else {
            return Vec::new();
        };
        let value = |at: usize| Some((self.word(at + 4)?, self.name(self.word(at)? as usize)?));
        let values = (0..head.members).filter_map(|member| value(place + TYPE_BYTES + member * 8));
        values.map(|(value, name)| (value, String::from_utf8_lossy(name).into_owned())).collect()
    }

    /// Looks at no more members than `looks`: a type that holds itself several times would take for ever.
    fn bits(&self, place: usize, field: &str, depth: usize, looks: &mut usize) -> Option<usize> {
        let head = self.head(place)?;
        let members = (0..head.members).map(|member| place + TYPE_BYTES + member * MEMBER_BYTES);
        members.filter(|_| matches!(head.kind, STRUCTURE | UNION) && depth > 0).find_map(|at| {
            *looks = looks.checked_sub(1)?;
            let [name, kind, offset] = [0, 4, 8].map(|word| self.word(at + word));
            let offset = offset? & if head.has_bit_fields { 0x00ff_ffff } else { u32::MAX };
            let inner = match self.name(name? as usize)? {
                b"" => self.bits(*self.places.get((kind? as usize).checked_sub(1)?)?, field, depth - 1, looks)?,
                found if found == field.as_bytes() => 0,
                _ => return None,
            };
            Some(offset as usize + inner)
        })
    }

    fn head(&self, place: usize) -> Option<Head> {
        let information = self.word(place + 4)?;
        Some(Head {
            name: self.word(place)? as usize,
            kind: information >> 24 & 0x1f,
            members: (information & 0xffff) as usize,
            has_bit_fields: information >> 31 == 1,
        })
    }

    fn is(&self, head: Head, name: &str) -> bool {
        self.name(head.name) == Some(name.as_bytes())
    }

    fn name(&self, offset: usize) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.strings.checked_add(offset)?..)?;
        rest.split(|byte| *byte == 0).next()
    }

    fn word(&self, at: usize) -> Option<u32> {
        array(self.bytes, at).map(u32::from_ne_bytes)
    }
}

/// `N` bytes from `at` on.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct pair { int first; union { int inner; }; }; void work(void);`
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0pair\0first\0inner\0work\0";
        let mut words: Vec<u32> = Vec::new();
        words.extend([1, 1 << 24, 4, 32]); // int
        words.extend([0, UNION << 24 | 1, 4, 16, 1, 0]);
        words.extend([5, STRUCTURE << 24 | 2, 8, 10, 1, 0, 0, 2, 32]);
        words.extend([22, FUNCTION << 24, 0]);
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend([1, 0]);
        for word in [24, 0, 4 * words.len() as u32, 4 * words.len() as u32, strings.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn a_function_has_its_number_and_a_field_its_place_whether_or_not_what_holds_it_has_a_name() {
        let bytes = sample();
        let types = Types::parse(&bytes).expect("a description");
        assert_eq!(types.function("work"), Some(4));
        assert_eq!(types.function("pair"), None, "that is no function");
        assert_eq!((types.field("pair", "first"), types.field("pair", "inner")), (Some(0), Some(4)));
        assert_eq!((types.field("pair", "other"), types.field("work", "first")), (None, None));
    }

    #[test]
    fn whatever_the_bytes_are_nothing_outside_of_them_is_read() {
        let mut random = fastrand::Rng::with_seed(0x5eed_0107);
        for _ in 0..if cfg!(miri) { 200 } else { 50_000 } {
            let mut bytes = sample();
            for _ in 0..random.usize(..4) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            bytes.truncate(random.usize(..bytes.len() * 2));
            if let Some(types) = Types::parse(&bytes) {
                let _ = (types.function("work"), types.field("pair", "inner"));
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads a file of the kernel")]
    #[allow(clippy::print_stderr)]
    fn the_kernels_own_description_has_its_packets() {
        let Ok(bytes) = Types::of_kernel() else {
            eprintln!("not tested: this kernel shows no {KERNEL_TYPES}");
            return;
        };
        let types = Types::parse(&bytes).expect("a description");
        assert!(types.field("sk_buff", "head").is_some() && types.field("skb_shared_info", "gso_size").is_some());
        let families = types.values("sock_type");
        assert!(families.contains(&(2, "SOCK_DGRAM".to_owned())), "{families:?}");
        assert!(types.values("no_such_enumeration").is_empty());
    }
}
