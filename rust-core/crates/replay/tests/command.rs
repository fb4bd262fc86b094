//! The command on real files: its words, its exit status, and the committed snapshots.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use placement::snapshot::{Answer, Operation, Question};
use placement::{Ask, Candidates, CardSpec, Cluster, ContainerAsk, ContainerKind, Families, Family, PodAsk};

fn card(id: &str, memory_mib: i64) -> CardSpec {
    let text = format!(
        r#"{{"id": "{id}", "vendor": "V", "model": "M", "index": 0, "slots": 4, "memory_mib": {memory_mib},
            "cores_percent": 100, "numa": 0, "mode": "", "healthy": true, "cordoned": false}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn pod(name: &str, memory_mib: i64) -> PodAsk {
    let ask = Ask::new("V", 1, memory_mib, None, 0).unwrap();
    let container = ContainerAsk::new("main", ContainerKind::App, vec![ask]).unwrap();
    PodAsk::new(&format!("uid-{name}"), "team", name, vec![container]).unwrap()
}

/// Two nodes; one pod was placed, one found no room. `spoil` changes the recorded answer of the first.
fn file(name: &str, spoil: bool) -> PathBuf {
    let mut cluster = Cluster::new(Families::new(vec![Family::new("V")]).unwrap());
    cluster.set_node("a", &[card("a-0", 1000)]).unwrap();
    cluster.set_node("b", &[card("b-0", 2000)]).unwrap();
    let mut snapshot = cluster.snapshot();
    for (name, memory_mib) in [("fits", 1500), ("waits", 1500)] {
        let pod = pod(name, memory_mib);
        let mut answer = Answer::of(&cluster.reserve(&pod, Candidates::All));
        if let (Answer::Placed { node, .. }, true) = (&mut answer, spoil) {
            *node = "a".into();
        }
        snapshot.push(Operation::Reserve(Question { pod, candidates: None, answer: Some(answer) }));
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, snapshot.write()).unwrap();
    path
}

/// Exit status, standard output, standard error.
fn run(arguments: &[&str]) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = replay::run(arguments.iter().map(OsString::from), &mut out, &mut err, false);
    (status, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn answers_are_told_and_compared() {
    let path = file("same.json", false);
    let (status, out, err) = run(&["replay", path.to_str().unwrap()]);
    assert_eq!((status, err.as_str()), (replay::SAME, ""));
    assert_eq!(
        out,
        "2 nodes, 2 cards, 0 bookings, 0 quotas; 2 operations\n\
         operations[0] reserve team/fits (uid-fits): as recorded: \
         node b, score 0.0000, 1 of 2 fit; container 0: b-0 1500 MiB 0 %\n\
         operations[1] reserve team/waits (uid-waits): as recorded: \
         none of 2 nodes fits, 1 never would: 2 CardInsufficientMemory\n\
         2 decisions, 0 differ, 0 without a recorded answer\n"
    );
}

#[test]
fn a_different_answer_is_shown_beside_the_recorded_one() {
    let path = file("differs.json", true);
    let (status, out, _) = run(&["replay", path.to_str().unwrap()]);
    assert_eq!(status, replay::DIFFERS);
    assert!(out.contains("operations[0] reserve team/fits (uid-fits): DIFFERS: node b"), "{out}");
    assert!(out.contains("  recorded: node a, score 0.0000"), "{out}");
}

#[test]
fn todays_answers_can_be_recorded() {
    let path = file("old.json", true);
    let (status, out, _) = run(&["record", path.to_str().unwrap()]);
    assert_eq!(status, replay::SAME);
    assert_eq!(out, std::fs::read_to_string(file("new.json", false)).unwrap());
}

/// A user's report becomes a test: its file is put into the folder.
#[test]
fn every_committed_snapshot_gets_its_recorded_answers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/replays");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    assert!(files.len() >= 3, "{files:?}");
    for path in files {
        let (status, out, err) = run(&["replay", path.to_str().unwrap()]);
        assert_eq!(status, replay::SAME, "{}\n{out}{err}", path.display());
        assert!(!out.contains("\n0 decisions") && out.contains(" 0 without a recorded answer"), "{out}");
    }
}

#[test]
fn an_explanation_names_every_card() {
    let path = file("explained.json", false);
    let (status, out, _) = run(&["replay", path.to_str().unwrap(), "--explain"]);
    assert_eq!(status, replay::SAME);
    for line in [
        "  a never fits, container main: 1/1 CardInsufficientMemory\n    a-0 CardInsufficientMemory (asked 1500, used 0 of 1000)\n",
        "  b fits\n    b-0 passes (asked 1500, used 0 of 2000)\n",
        "  b does not fit now, container main: 1/1 CardInsufficientMemory\n    b-0 CardInsufficientMemory (asked 1500, used 1500 of 2000)\n",
    ] {
        assert!(out.contains(line), "{line} is not in\n{out}");
    }
}

#[test]
fn programs_read_json_lines() {
    let path = file("json.json", true);
    let (status, out, _) = run(&["replay", path.to_str().unwrap(), "--json", "--explain"]);
    assert_eq!(status, replay::DIFFERS);
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["state"]["cards"], 2);
    assert_eq!(lines[1]["same"], false);
    assert_eq!(lines[1]["answer"]["placed"]["node"], "b");
    assert_eq!(lines[1]["recorded"]["placed"]["node"], "a");
    assert_eq!(lines[2]["nodes"][0]["cards"][0]["code"], "CardInsufficientMemory");
    assert_eq!((&lines[3]["decisions"], &lines[3]["differ"]), (&2.into(), &1.into()));
}

#[test]
fn an_anonymous_file_replays_alike() {
    let path = file("named.json", false);
    let (status, out, _) = run(&["anonymise", path.to_str().unwrap()]);
    assert_eq!(status, replay::SAME);
    assert!(!out.contains("team") && !out.contains("fits\"") && !out.contains("uid-fits"), "{out}");
    let anonymous = path.with_file_name("anonymous.json");
    std::fs::write(&anonymous, out).unwrap();
    assert_eq!(run(&["replay", anonymous.to_str().unwrap()]).0, replay::SAME);
    assert_eq!(run(&["check", anonymous.to_str().unwrap()]).0, replay::SAME);
}

#[test]
fn what_cannot_be_read_is_named_with_its_place() {
    let path = file("torn.json", false);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"slots\": 4", "\"slots\": 4.5", 1)).unwrap();
    let (status, out, err) = run(&["replay", path.to_str().unwrap()]);
    assert_eq!((status, out.as_str()), (replay::UNREADABLE, ""));
    assert!(err.contains("torn.json: line 9, column "), "{err}");
    assert!(err.contains("nodes[0].cards[0].slots: invalid type: floating point `4.5`"), "{err}");
    let (status, _, err) = run(&["record", path.to_str().unwrap()]);
    assert_eq!(status, replay::UNREADABLE);
    assert!(err.contains("slots"), "{err}");
    for (arguments, said) in [
        (&["replay", "no-such-file"][..], "no-such-file: "),
        (&["replay"][..], "write: hami-engine replay FILE"),
        (&["--quiet"][..], "--quiet"),
    ] {
        let (status, _, err) = run(arguments);
        assert_eq!(status, replay::UNREADABLE);
        assert!(err.starts_with("hami-engine: ") && err.contains(said), "{err}");
    }
}

#[test]
fn the_program_reads_standard_input() {
    let path = file("input.json", false);
    let program = |arguments: &[&str], input: &[u8]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hami-engine"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, out) = program(&["check", "-"], &std::fs::read(path).unwrap());
    assert_eq!(status, Some(0));
    assert_eq!(out, "2 nodes, 2 cards, 0 bookings, 0 quotas; 2 operations\n0 inconsistencies\n");
    assert_eq!(program(&["check", "-"], b"{}").0, Some(2));
    assert!(program(&["--help"], b"").1.contains("hami-engine replay FILE"));
    assert!(program(&["--version"], b"").1.starts_with("hami-engine 0."));
}
