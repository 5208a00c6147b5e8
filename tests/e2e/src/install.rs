//! Checks that the extension installed in the PostgreSQL under test is the one that was built here.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::shell::{pg_config, repository, target};

/// # Panics
/// When what is installed differs from what was built; the message says what to run.
pub fn check_installed() {
    static CHECKED: OnceLock<Result<(), String>> = OnceLock::new();
    if let Err(reason) = CHECKED.get_or_init(compare) {
        panic!("{reason}; run: make install");
    }
}

fn compare() -> Result<(), String> {
    let mut pairs = vec![
        (
            target().join("release/liboutbox_ext.so"),
            pg_config("--pkglibdir").join("outbox_ext.so"),
        ),
        (
            repository().join("outbox_ext.control"),
            extension_folder().join("outbox_ext.control"),
        ),
    ];
    let scripts = fs::read_dir(repository().join("sql")).map_err(|error| format!("sql/: {error}"))?;
    for script in scripts.flatten().map(|entry| entry.path()) {
        if script.extension().is_some_and(|extension| extension == "sql") {
            let name = script.file_name().expect("a listed file has a name").to_owned();
            pairs.push((script, extension_folder().join(name)));
        }
    }
    pairs.iter().try_for_each(|(built, installed)| same(built, installed))
}

fn extension_folder() -> PathBuf {
    pg_config("--sharedir").join("extension")
}

fn same(built: &Path, installed: &Path) -> Result<(), String> {
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    if read(built)? == read(installed)? {
        Ok(())
    } else {
        Err(format!(
            "{} is not the one built here ({})",
            installed.display(),
            built.display()
        ))
    }
}
