//! The methods, and what each can be told and takes.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::text::advice::ValueAdvice;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    Gzip,
    Zstd,
}

/// A method, and how hard it tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    pub method: Method,
    pub level: u32,
}

/// What zstd takes for each level from 1 on, in KiB, for a file of any length. A test asks the library.
const ZSTD_KIBIBYTES: [usize; 19] = [
    1_500, 2_200, 3_800, 5_100, 5_700, 5_700, 8_400, 8_400, 16_000, 27_000, 27_000, 48_200, 39_600, 56_800, 74_000,
    39_800, 61_200, 62_000, 96_400,
];

/// What deflate takes for any level: its window, its tables of hashes and its output.
const GZIP_BYTES: usize = 1 << 20;

impl Method {
    pub const ALL: [Self; 2] = [Self::Gzip, Self::Zstd];

    /// As the configuration names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// What is appended to the name of a file.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
        }
    }

    /// Where the compressed form of a file is.
    pub fn path_of(self, plain: &Path) -> PathBuf {
        let mut path = OsString::from(plain);
        path.push(self.suffix());
        PathBuf::from(path)
    }

    /// The name of the file of which this is the compressed form, and the method.
    pub fn of_name(name: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|method| Some((method, name.strip_suffix(method.suffix())?)))
    }

    /// How hard it can try.
    pub fn levels(self) -> RangeInclusive<u32> {
        match self {
            Self::Gzip => 1..=9,
            Self::Zstd => 1..=19,
        }
    }

    /// As hard as the programs of that name do.
    pub fn level_default(self) -> u32 {
        match self {
            Self::Gzip => 6,
            Self::Zstd => 3,
        }
    }

    /// Whether this build has it.
    pub fn available(self) -> Result<(), ValueAdvice> {
        match self {
            Self::Zstd if !cfg!(feature = "zstd") => Err(ValueAdvice::new(
                "this udpd is built without zstd",
                "build it with `cargo build --release --features zstd`, which takes a C compiler, or write \"gzip\"",
            )),
            _ => Ok(()),
        }
    }
}

impl Recipe {
    /// What writing one file takes at most.
    pub fn memory_bytes(self) -> usize {
        match self.method {
            Method::Gzip => GZIP_BYTES,
            Method::Zstd => {
                let place = (self.level as usize).clamp(1, ZSTD_KIBIBYTES.len()) - 1;
                ZSTD_KIBIBYTES[place] << 10
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compressed_form_is_known_by_its_name() {
        for method in Method::ALL {
            let path = method.path_of(Path::new("/log/a.log"));
            let name = path.to_str().expect("UTF-8");
            assert_eq!(Method::of_name(name), Some((method, "/log/a.log")));
            assert!(method.levels().contains(&method.level_default()), "{}", method.name());
        }
        assert_eq!(Method::of_name("a.log"), None);
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn no_level_takes_more_memory_than_is_said() {
        use zstd::zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};
        let (input, mut output) = (vec![7_u8; 64 << 10], vec![0_u8; 256 << 10]);
        let mut seen = Vec::new();
        for level in Method::Zstd.levels() {
            let mut context = CCtx::create();
            context.set_parameter(CParameter::CompressionLevel(level as i32)).expect("a level");
            context.set_parameter(CParameter::ChecksumFlag(true)).expect("a flag");
            let mut into = OutBuffer::around(&mut output[..]);
            context.compress_stream(&mut into, &mut InBuffer::around(&input)).expect("compressed");
            seen.push((level, context.sizeof() >> 10, Recipe { method: Method::Zstd, level }.memory_bytes() >> 10));
        }
        let wrong: Vec<_> = seen.iter().filter(|(_, is, said)| is > said || *said > 2 * is + 1024).collect();
        assert!(wrong.is_empty(), "level, KiB that it takes, KiB that are said: {seen:?}");
    }
}
