//! Made-up trees for tests: what a kernel would say below `/`, written into a directory.

use std::fs;

/// A directory with these files: the path of each below it, and its text.
pub fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, text).expect("a file");
    }
    root
}
