//! Reading a file, compressed or not: how it begins says which.

use std::io::{self, Read};

use flate2::read::MultiGzDecoder;

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
    use std::io::Write;
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::{CompressingWriter, Method, Recipe};
    use super::*;

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
