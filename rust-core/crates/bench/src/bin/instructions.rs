//! Counts the instructions of decisions under callgrind: the same usage of every card, reached in different ways.
//!
//! Without an argument it runs itself under valgrind, once for each history, and prints one JSON object a line.

use std::env;
use std::process::{Command, ExitCode, Stdio};

use bench::numbers::Numbers;
use bench::scene::{bound, card_id, container, pod_uid, Case, Scene, Size};
use placement::Candidates;

const HELP: &str = "\
Counts instructions of decisions after different histories with callgrind: one JSON object a line.

usage: bench_instructions

Exits with 77 where valgrind is missing, with 1 where two histories differ by more than 2 %.
";

/// The same at the end of every history.
const SIZE: Size = Size { nodes: 1_000, cards_per_node: 8, pods: 16_000 };
const DECISIONS: usize = 20;
/// Pods that came and went before the decisions.
const HISTORIES: [usize; 3] = [0, 8_000, 80_000];
const TOLERANCE_PERCENT: f64 = 2.0;
const UNAVAILABLE: u8 = 77;

/// What is counted.
#[inline(never)]
fn measured_decisions(scene: &mut Scene) -> usize {
    let names: Vec<&str> = scene.names.iter().map(String::as_str).collect();
    (0..DECISIONS)
        .filter(|round| {
            let pod = &scene.asks[round % scene.asks.len()];
            let fits = scene.cluster.reserve(pod, Candidates::Named(&names)).chosen().is_some();
            scene.cluster.release(pod.uid());
            fits
        })
        .count()
}

/// Adds and removes so many pods, at most 5,000 at a time, on all cards.
fn live_through(scene: &mut Scene, pods: usize) {
    const AT_A_TIME: usize = 5_000;
    let mut numbers = Numbers::new(7);
    for first in (0..pods).step_by(AT_A_TIME) {
        let batch = first..pods.min(first + AT_A_TIME);
        for pod in batch.clone() {
            let card = numbers.below(SIZE.cards() as u64) as usize;
            let containers = [container(&card_id(SIZE, card), 100 + numbers.below(900) as i64, 1)];
            let node = &scene.names[card / SIZE.cards_per_node];
            scene.cluster.charge(&bound(&pod_uid(SIZE.pods + pod), node, &containers));
        }
        for pod in batch {
            scene.cluster.release(&pod_uid(SIZE.pods + pod));
        }
    }
}

fn case_of(word: &str) -> Option<Case> {
    Case::ALL.into_iter().find(|case| case.word() == word)
}

/// One history, in this process: `CASE PODS`.
fn run_history(word: &str, pods: &str) -> ExitCode {
    let (Some(case), Ok(pods)) = (case_of(word), pods.parse()) else {
        eprintln!("bench_instructions: {word:?} {pods:?} is no case and number of pods");
        return ExitCode::from(2);
    };
    let mut scene = Scene::build(SIZE, case, "binpack");
    live_through(&mut scene, pods);
    measured_decisions(&mut scene); // buffers grow to their size
    let fitting = measured_decisions(&mut scene);
    assert_eq!(fitting == 0, case == Case::Nowhere, "the scene is not what it claims");
    ExitCode::SUCCESS
}

/// Instructions of one decision; None when callgrind said nothing of them.
fn count(case: Case, pods: usize) -> std::io::Result<Option<u64>> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*measured_decisions*"])
        .arg("--callgrind-out-file=/dev/null")
        .arg(env::current_exe()?)
        .args([case.word(), &pods.to_string()])
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        eprintln!("{text}");
        return Ok(None);
    }
    let collected =
        text.lines().find_map(|line| line.split_once("Collected : ")).map(|(_, number)| number.trim());
    // Both runs are counted.
    Ok(collected.and_then(|number| number.parse::<u64>().ok()).map(|number| number / (2 * DECISIONS as u64)))
}

fn compare_histories() -> ExitCode {
    let mut differs = false;
    for case in Case::ALL {
        let mut first = None;
        for pods in HISTORIES {
            eprintln!("{}: {pods} pods came and went", case.word());
            let instructions = match count(case, pods) {
                Ok(Some(instructions)) => instructions,
                Ok(None) => return ExitCode::FAILURE,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    eprintln!("bench_instructions: valgrind is not installed, so nothing was counted");
                    return ExitCode::from(UNAVAILABLE);
                }
                Err(error) => {
                    eprintln!("bench_instructions: valgrind did not start: {error}");
                    return ExitCode::FAILURE;
                }
            };
            let without = *first.get_or_insert(instructions);
            let percent = (instructions as f64 / without as f64 - 1.0) * 100.0;
            differs |= percent.abs() > TOLERANCE_PERCENT;
            println!(
                "{{\"bench\":\"instructions\",\"nodes\":{},\"cards_per_node\":{},\"pods\":{},\"case\":\"{}\",\
                 \"pods_before\":{pods},\"instructions\":{instructions},\"difference_percent\":{percent:.3}}}",
                SIZE.nodes,
                SIZE.cards_per_node,
                SIZE.pods,
                case.word(),
            );
        }
    }
    ExitCode::from(u8::from(differs))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare_histories(),
        ["--help" | "-h"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        [case, pods] => run_history(case, pods),
        _ => {
            eprint!("{HELP}");
            ExitCode::from(2)
        }
    }
}
