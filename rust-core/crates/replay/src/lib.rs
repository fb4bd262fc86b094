//! `hami-engine`: replays snapshots of the engine's state, so that a bug report can be looked at, and becomes a test.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod arguments;
mod replaying;
mod report;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::path::Path;

use placement::snapshot::{self, Snapshot};
use placement::Cluster;

use arguments::{Asked, HELP};

/// Every answer is the recorded one; nothing is wrong.
pub const SAME: u8 = 0;
/// An answer differs from the recorded one, or the state is inconsistent.
pub const DIFFERS: u8 = 1;
/// The file or the command cannot be read, or the output cannot be written.
pub const UNREADABLE: u8 = 2;

/// Runs the command; `arguments` without the program's name. Returns the exit status.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    out: &mut dyn Write,
    err: &mut dyn Write,
    show_progress: bool,
) -> u8 {
    let progress: &mut dyn Write = if show_progress { err } else { &mut io::sink() };
    let problem = match arguments::read(arguments).and_then(|asked| answer(&asked, out, progress)) {
        Ok(status) => return status,
        Err(problem) => problem,
    };
    // Where this cannot be written either, the status has to say it alone.
    let _ = writeln!(err, "hami-engine: {problem}");
    UNREADABLE
}

fn answer(asked: &Asked, out: &mut dyn Write, progress: &mut dyn Write) -> Result<u8, String> {
    let out = &mut io::BufWriter::new(out);
    let status = match asked {
        Asked::Help => write!(out, "{HELP}").map(|()| SAME),
        Asked::Version => writeln!(out, "hami-engine {}", env!("CARGO_PKG_VERSION")).map(|()| SAME),
        Asked::Replay { file, explain, json } => {
            let (snapshot, cluster) = load(file)?;
            replaying::replay(&snapshot, cluster, *explain, report::form(*json), out, progress)
                .map_err(|problem| in_file(file, problem))?
        }
        Asked::Record { file } => {
            let (mut snapshot, cluster) = load(file)?;
            replaying::record(&mut snapshot, cluster).map_err(|problem| in_file(file, problem))?;
            out.write_all(&snapshot.write()).map(|()| SAME)
        }
        Asked::Check { file, json } => {
            let (snapshot, cluster) = load(file)?;
            let faults = cluster.check_invariants();
            report::form(*json).checked(out, &snapshot, &faults).map(|()| u8::from(!faults.is_empty()))
        }
        Asked::Anonymise { file } => {
            let (snapshot, _) = load(file)?;
            out.write_all(&snapshot.anonymised().write()).map(|()| SAME)
        }
    };
    status
        .and_then(|status| out.flush().map(|()| status))
        .map_err(|error| format!("standard output: {error}"))
}

fn is_standard_input(file: &Path) -> bool {
    file == Path::new("-")
}

fn in_file(file: &Path, problem: impl Display) -> String {
    if is_standard_input(file) {
        format!("standard input: {problem}")
    } else {
        format!("{}: {problem}", file.display())
    }
}

fn load(file: &Path) -> Result<(Snapshot, Cluster), String> {
    let bytes = if is_standard_input(file) {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    let bytes = bytes.map_err(|error| in_file(file, error))?;
    let snapshot = snapshot::read(&bytes).map_err(|error| in_file(file, error))?;
    let cluster = Cluster::from_snapshot(&snapshot).map_err(|error| in_file(file, error))?;
    Ok((snapshot, cluster))
}
