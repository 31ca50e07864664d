//! Writing a compressed file.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};

use super::method::{Method, Recipe};

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
