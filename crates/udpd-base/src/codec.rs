//! Compressed files: by which method, how one is written, and how one is read.
//!
//! gzip is in every build, by a library that is Rust alone: `zcat` is on every host. zstd takes less time for shorter
//! files, and a C compiler: what is written in Rust alone of it is young, and what it has written is
//! all that is left of a file. So it is a cargo feature, and a build without it says so.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};

use crate::text::advice::ValueAdvice;

// The methods, and what each can be told and takes.

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

// Writing a compressed file.

/// Compresses what is written to it.
pub struct CompressingWriter<W: Write>(AnyEncoder<W>);

impl<W: Write> std::fmt::Debug for CompressingWriter<W> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Encoder").finish_non_exhaustive()
    }
}

enum AnyEncoder<W: Write> {
    Gzip(GzEncoder<W>),
    #[cfg(feature = "zstd")]
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

impl<W: Write> CompressingWriter<W> {
    /// Of a file that was last changed at `changed` and that long. The reader of the compressed one finds both, and a
    /// sum by which to know it is whole.
    pub fn new(recipe: Recipe, writer: W, length: u64, changed: SystemTime) -> io::Result<Self> {
        Ok(Self(match recipe.method {
            Method::Gzip => {
                let seconds = changed.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                // It has 32 bits for that, and 0 for not known.
                let builder = GzBuilder::new().mtime(u32::try_from(seconds).unwrap_or(0));
                // Its end says the length, as far as 32 bits can.
                let _ = length;
                AnyEncoder::Gzip(builder.write(writer, Compression::new(recipe.level)))
            }
            #[cfg(feature = "zstd")]
            Method::Zstd => {
                let level = i32::try_from(recipe.level).map_err(io::Error::other)?;
                let mut encoder = zstd::stream::write::Encoder::new(writer, level)?;
                encoder.include_checksum(true)?;
                encoder.set_pledged_src_size(Some(length))?;
                AnyEncoder::Zstd(encoder)
            }
            #[cfg(not(feature = "zstd"))]
            Method::Zstd => return Err(io::Error::other("this udpd is built without zstd")),
        }))
    }

    /// Writes the end.
    pub fn finish(self) -> io::Result<W> {
        match self.0 {
            AnyEncoder::Gzip(encoder) => encoder.finish(),
            #[cfg(feature = "zstd")]
            AnyEncoder::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for CompressingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            AnyEncoder::Gzip(encoder) => encoder.write(bytes),
            #[cfg(feature = "zstd")]
            AnyEncoder::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            AnyEncoder::Gzip(encoder) => encoder.flush(),
            #[cfg(feature = "zstd")]
            AnyEncoder::Zstd(encoder) => encoder.flush(),
        }
    }
}

// Reading a file, compressed or not: how it begins says which.

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// What a file holds, compressed or not.
pub fn unpacked<'r>(mut reader: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let mut beginning = Vec::new();
    (&mut reader).take(ZSTD.len() as u64).read_to_end(&mut beginning)?;
    let (is_gzip, is_zstd) = (beginning.starts_with(&GZIP), beginning == ZSTD);
    let whole = io::Cursor::new(beginning).chain(reader);
    match (is_gzip, is_zstd) {
        (true, _) => Ok(Box::new(Unpacked(MultiGzDecoder::new(whole)))),
        (_, true) => by_zstd(whole),
        _ => Ok(Box::new(whole)),
    }
}

#[cfg(feature = "zstd")]
fn by_zstd<'r>(whole: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    Ok(Box::new(Unpacked(zstd::stream::read::Decoder::new(whole)?)))
}

#[cfg(not(feature = "zstd"))]
fn by_zstd<'r>(_: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "it is compressed by zstd, and this udpd is built without (cargo feature `zstd`); unpack it first: zstd -d",
    ))
}

/// Says of what it cannot unpack that it is damaged; what the system says is left as it is.
struct Unpacked<R>(R);

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| match error.raw_os_error() {
            Some(_) => error,
            None if error.kind() == io::ErrorKind::Interrupted => error,
            None => io::Error::new(io::ErrorKind::InvalidData, format!("its compression is damaged: {error}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::{Duration, UNIX_EPOCH};

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

    fn packed(method: Method, content: &[u8]) -> Vec<u8> {
        let recipe = Recipe { method, level: method.level_default() };
        let changed = UNIX_EPOCH + Duration::from_secs(1_795_243_341);
        let mut encoder = CompressingWriter::new(recipe, Vec::new(), content.len() as u64, changed).expect("begun");
        encoder.write_all(content).expect("compressed");
        encoder.finish().expect("finished")
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        unpacked(bytes)?.read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn what_was_written_is_read_compressed_or_not_also_several_in_one() {
        let content = b"a line\nanother\n".repeat(10_000);
        assert_eq!(read(&content).expect("plain"), content);
        assert_eq!(read(b"").expect("empty"), b"");
        assert_eq!(read(b"\x1f").expect("short"), b"\x1f");
        for method in Method::ALL.into_iter().filter(|method| method.available().is_ok()) {
            let packed = packed(method, &content);
            assert!(packed.len() < content.len() / 20, "{}", method.name());
            assert_eq!(read(&packed).expect("compressed"), content, "{}", method.name());
            assert_eq!(read(&packed.repeat(2)).expect("two"), content.repeat(2), "{}", method.name());
        }
    }

    #[test]
    fn what_is_cut_off_or_changed_is_damaged() {
        let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        for method in Method::ALL.into_iter().filter(|method| method.available().is_ok()) {
            let packed = packed(method, &content);
            let mut changed = packed.clone();
            let middle = changed.len() / 2;
            changed[middle] ^= 1;
            for damaged in [&packed[..packed.len() - 1], &packed[..100], &changed] {
                let error = read(damaged).expect_err(method.name());
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{}: {error}", method.name());
            }
        }
        if Method::Zstd.available().is_err() {
            assert_eq!(read(&ZSTD).expect_err("a build without").kind(), io::ErrorKind::Unsupported);
        }
    }
}
