//! `hami-engine`, as a program of its own. The Python package installs the same as a command.

use std::io::{stderr, stdout, IsTerminal};
use std::process::ExitCode;

fn main() -> ExitCode {
    let show_progress = stderr().is_terminal();
    let status =
        replay::run(std::env::args_os().skip(1), &mut stdout().lock(), &mut stderr().lock(), show_progress);
    ExitCode::from(status)
}
