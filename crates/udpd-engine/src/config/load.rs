//! The file, up to the point where it is text: everything that can be wrong with it before a parser sees it.
//!
//! Each problem is reported like any other, with a line and a column, so that a script needs one pattern only.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use udpd_base::settings::{Findings, Keys, Problems};
use udpd_base::text::advice::ValueAdvice;

/// A configuration is written by hand; what is larger is some other file.
const FILE_BYTES_MAX: u64 = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = &[0xEF, 0xBB, 0xBF];

pub(super) fn read_text(path: &Path, name: &str) -> Result<String, Problems> {
    let refuse = |what: String, cure: String| Err(Problems::single(name, 1, 1, "file", ValueAdvice::new(what, cure)));
    // Looked at before it is opened: opening a pipe would wait for somebody to write into it.
    match std::fs::metadata(path) {
        Err(error) => return refuse(format!("cannot be read: {error}"), cure_for(&error, path)),
        Ok(metadata) if metadata.is_dir() => {
            let file = path.join("udpd.toml");
            return refuse("is a directory".into(), format!("name the file in it, such as {}", file.display()));
        }
        Ok(metadata) if !metadata.is_file() => {
            return refuse("is not a regular file".into(), "write the configuration into a file and name that".into());
        }
        Ok(_) => {}
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    if let Err(error) = read {
        return refuse(format!("cannot be read: {error}"), cure_for(&error, path));
    }
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return refuse("is larger than 1 MiB".into(), "name the configuration, not some other file".into());
    }
    decode(bytes, name)
}

fn cure_for(error: &io::Error, path: &Path) -> String {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            "create it, name another with -c FILE, or do without: udpd run --listen ADDR --to URI".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "let the user that runs udpd read it and enter its directories: namei -l {shown} shows their rights"
            )
        }
        _ => format!("check that {shown} is a readable file"),
    }
}

fn decode(bytes: Vec<u8>, name: &str) -> Result<String, Problems> {
    if bytes.starts_with(BYTE_ORDER_MARK) {
        let cure = "save it as UTF-8 without BOM, or remove the first three bytes: sed -i '1s/^\\xEF\\xBB\\xBF//' FILE";
        return Err(Problems::single(name, 1, 1, "file", ValueAdvice::new("begins with a byte order mark", cure)));
    }
    if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        let advice = ValueAdvice::new("is UTF-16", "save it as UTF-8 without BOM: iconv -f UTF-16 -t UTF-8 FILE");
        return Err(Problems::single(name, 1, 1, "file", advice));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let bad = error.as_bytes()[valid];
        let before = String::from_utf8_lossy(&error.as_bytes()[..valid]);
        let (line, column) = Findings::new(name, &before, Keys::default()).position(before.len());
        let cure = "save the file as UTF-8; if it is Latin-1: iconv -f LATIN1 -t UTF-8 FILE";
        Problems::single(name, line, column, "file", ValueAdvice::new(format!("byte 0x{bad:02X} is not UTF-8"), cure))
    })
}
