//! What the command line asks for.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::prelude::{Long, Short, Value};

/// What `--help` prints.
pub(crate) const HELP: &str = "\
Replays snapshots of the placement engine: what a scheduler decided, and whether it would decide so again.

  hami-engine replay FILE [--explain] [--json]   do what the file says; compare the answers with those recorded
  hami-engine check FILE [--json]                check the state: every kept sum against its recomputation
  hami-engine record FILE                        write the file to standard output with the answers given today
  hami-engine anonymise FILE                     write the file to standard output, its names replaced by numbers

FILE is what `hami-scheduler snapshot` wrote, `-` standard input.

  --explain   what each node says about each pod, card by card
  --json      one JSON object a line
  --version   print the version
  --help      print this

Exit status: 0 every answer as recorded, or nothing wrong; 1 an answer differs, or the state is inconsistent; 2 the file
or the command cannot be read, or the output cannot be written.
";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Help,
    Version,
    Replay { file: PathBuf, explain: bool, json: bool },
    Check { file: PathBuf, json: bool },
    Record { file: PathBuf },
    Anonymise { file: PathBuf },
}

/// # Errors
/// A sentence that says what to write instead.
pub(crate) fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Asked, String> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut words: Vec<OsString> = Vec::new();
    let (mut explain, mut json) = (false, false);
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Long("help") | Short('h') => return Ok(Asked::Help),
            Long("version") | Short('V') => return Ok(Asked::Version),
            Long("explain") => explain = true,
            Long("json") => json = true,
            Value(word) => words.push(word),
            other @ (Long(_) | Short(_)) => return Err(other.unexpected().to_string()),
        }
    }
    let mut words = words.into_iter();
    let Some(verb) = words.next() else { return Ok(Asked::Help) };
    let verb = verb.to_string_lossy().into_owned();
    let takes_explain = verb == "replay";
    let takes_json = verb == "replay" || verb == "check";
    let file = match (words.next(), words.next()) {
        (Some(file), None) => PathBuf::from(file),
        _ => return Err(format!("write: hami-engine {verb} FILE")),
    };
    if (explain && !takes_explain) || (json && !takes_json) {
        return Err(format!(
            "{verb} takes no --{}",
            if explain && !takes_explain { "explain" } else { "json" }
        ));
    }
    match verb.as_str() {
        "replay" => Ok(Asked::Replay { file, explain, json }),
        "check" => Ok(Asked::Check { file, json }),
        "record" => Ok(Asked::Record { file }),
        "anonymise" => Ok(Asked::Anonymise { file }),
        _ => Err(format!("there is no command {verb:?}; hami-engine --help lists them")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_or_refused_with_what_to_write() {
        let said = |line: &str| read(line.split_whitespace().map(OsString::from));
        let file = || PathBuf::from("f");
        assert_eq!(said(""), Ok(Asked::Help));
        assert_eq!(said("replay f --help"), Ok(Asked::Help));
        assert_eq!(said("--json replay f"), Ok(Asked::Replay { file: file(), explain: false, json: true }));
        assert_eq!(said("check f"), Ok(Asked::Check { file: file(), json: false }));
        assert_eq!(said("anonymise -"), Ok(Asked::Anonymise { file: "-".into() }));
        for (line, told) in [
            ("replay", "write: hami-engine replay FILE"),
            ("replay a b", "write: hami-engine replay FILE"),
            ("play f", "there is no command \"play\""),
            ("check f --explain", "check takes no --explain"),
            ("anonymise f --json", "anonymise takes no --json"),
            ("record f --explain", "record takes no --explain"),
            ("replay f --quiet", "--quiet"),
            ("replay f --json=1", "--json"),
        ] {
            let problem = said(line).unwrap_err();
            assert!(problem.contains(told), "{line}: {problem}");
        }
    }
}
