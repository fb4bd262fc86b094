//! Measures the engine on full clusters and prints one JSON object a line; `--help` names the rows.

use std::process::ExitCode;

use bench::measure::{self, Listed, Measured};
use bench::mig_scene;
use bench::scene::{Case, Scene, Size};

const HELP: &str = "\
Measures the placement engine and prints one JSON object a line; progress goes to standard error.

usage: bench_engine [--decisions N] [--only BENCH]... [--json]

  --decisions N  decisions a row (default 2000)
  --only BENCH   only this bench; may be given several times
  --json         JSON lines, which is all there is

Benches: reserve (100 x 16 cards with 5,000 pods, 5,000 x 8 with 80,000; the pod fits, fits only on the last node,
fits nowhere with nodes failing for every kind of reason; both node policies; all nodes as candidates, by the same
names as in the call before, or by shuffled names), reserve-with-reasons, what-if, explain, copy, charge, release,
reserve-fgd, reserve-mig (two instances a pod), growth-nodes, growth-cards, growth-pods.

Fields: p50_us and p99_us in microseconds; allocations of one step, rounded up over all (0: none allocated);
bytes_per_pod and bytes_per_card of kept state; cpu_p50_us and cpu_p99_us: processor time, which holds on a busy machine.
";

const SMALL: Size = Size { nodes: 100, cards_per_node: 16, pods: 5_000 };
const LARGE: Size = Size { nodes: 5_000, cards_per_node: 8, pods: 80_000 };

const STATE_BENCHES: [&str; 6] = ["what-if", "explain", "copy", "charge", "release", "reserve-with-reasons"];

struct Options {
    decisions: usize,
    only: Vec<String>,
}

impl Options {
    fn wants(&self, bench: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| bench.contains(word))
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options { decisions: 2_000, only: Vec::new() };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => return Ok(None),
            "--json" => {}
            "--decisions" => {
                let text = arguments.next().unwrap_or_default();
                options.decisions = text
                    .parse()
                    .ok()
                    .filter(|number| *number > 0)
                    .ok_or_else(|| format!("--decisions {text:?}: give a whole number above 0"))?;
            }
            "--only" => options.only.push(arguments.next().ok_or("--only: give the name of a bench")?),
            other => return Err(format!("{other:?} is unknown; --help names what there is")),
        }
    }
    Ok(Some(options))
}

fn print(bench: &str, scene: &Scene, candidates: &str, result: Measured) {
    let Size { nodes, cards_per_node, pods } = scene.size;
    let Measured { p50_us, p99_us, cpu_p50_us, cpu_p99_us, allocations } = result;
    println!(
        "{{\"bench\":\"{bench}\",\"nodes\":{nodes},\"cards_per_node\":{cards_per_node},\"pods\":{pods},\
         \"p50_us\":{p50_us:.1},\"p99_us\":{p99_us:.1},\"allocations\":{allocations},\
         \"bytes_per_pod\":{},\"bytes_per_card\":{},\"case\":\"{}\",\"policy\":\"{}\",\
         \"candidates\":\"{candidates}\",\"cpu_p50_us\":{cpu_p50_us:.1},\"cpu_p99_us\":{cpu_p99_us:.1}}}",
        scene.bytes_per_pod,
        scene.bytes_per_card,
        scene.case.word(),
        scene.node_policy,
    );
}

fn build(size: Size, case: Case, policy: &str) -> Scene {
    eprintln!(
        "{} nodes x {} cards, {} pods, {}, {policy}",
        size.nodes,
        size.cards_per_node,
        size.pods,
        case.word()
    );
    Scene::build(size, case, policy)
}

/// The decision itself.
fn reserve_rows(options: &Options) {
    for size in [SMALL, LARGE] {
        for case in Case::ALL {
            for policy in ["binpack", "spread"] {
                let mut scene = build(size, case, policy);
                for listed in [Listed::Same, Listed::Shuffled, Listed::All] {
                    let result = measure::reserve(&mut scene, options.decisions, listed);
                    print("reserve", &scene, listed.word(), result);
                }
            }
        }
    }
}

/// What else is done with the state.
fn state_rows(options: &Options) {
    let few = options.decisions.div_ceil(50);
    for size in [SMALL, LARGE] {
        let mut fits = build(size, Case::Fits, "binpack");
        if options.wants("what-if") {
            let result = measure::what_if(&mut fits, options.decisions);
            print("what-if", &fits, Listed::All.word(), result);
        }
        if options.wants("copy") {
            let result = measure::copy(&mut fits, few);
            print("copy", &fits, "none", result);
        }
        if options.wants("charge") || options.wants("release") {
            let (charge, release) = measure::charge_and_release(&mut fits, options.decisions);
            print("charge", &fits, "none", charge);
            print("release", &fits, "none", release);
        }
        let mut nowhere = build(size, Case::Nowhere, "binpack");
        if options.wants("explain") {
            let result = measure::explain(&mut nowhere, few);
            print("explain", &nowhere, Listed::All.word(), result);
        }
        if options.wants("reserve-with-reasons") {
            let result = measure::reserve_with_reasons(&mut nowhere, options.decisions.div_ceil(4));
            print("reserve-with-reasons", &nowhere, Listed::Same.word(), result);
        }
    }
}

/// Policies and modes that look deeper into a card.
fn special_rows(options: &Options) {
    if options.wants("reserve-fgd") {
        for size in [SMALL, LARGE] {
            let mut scene = build(size, Case::Fits, "fgd");
            let result = measure::reserve(&mut scene, options.decisions.div_ceil(10), Listed::All);
            print("reserve-fgd", &scene, Listed::All.word(), result);
        }
    }
    if options.wants("reserve-mig") {
        let size = Size { nodes: 1_000, cards_per_node: 8, pods: 16_000 };
        eprintln!("1000 nodes x 8 cards in MIG mode, 16000 instances");
        let Measured { p50_us, p99_us, cpu_p50_us, cpu_p99_us, allocations } =
            mig_scene::reserve(size, options.decisions.div_ceil(10));
        println!(
            "{{\"bench\":\"reserve-mig\",\"nodes\":{},\"cards_per_node\":{},\"pods\":{},\"p50_us\":{p50_us:.1},\
             \"p99_us\":{p99_us:.1},\"allocations\":{allocations},\"case\":\"fits\",\"policy\":\"spread\",\
             \"candidates\":\"all\",\"cpu_p50_us\":{cpu_p50_us:.1},\"cpu_p99_us\":{cpu_p99_us:.1}}}",
            size.nodes, size.cards_per_node, size.pods,
        );
    }
}

/// How a decision grows with the cluster, one dimension at a time.
fn growth_rows(options: &Options) {
    let nodes = [625, 1_250, 2_500, 5_000, 10_000];
    let cards = [1, 2, 4, 8, 16];
    let pods_per_card = [1, 2, 4, 8];
    let sizes = (nodes.map(|nodes| ("growth-nodes", Size { nodes, cards_per_node: 8, pods: nodes * 16 })))
        .into_iter()
        .chain(cards.map(|cards_per_node| {
            ("growth-cards", Size { nodes: 2_500, cards_per_node, pods: 5_000 * cards_per_node })
        }))
        .chain(
            pods_per_card
                .map(|pods| ("growth-pods", Size { nodes: 2_500, cards_per_node: 8, pods: 20_000 * pods })),
        );
    for (bench, size) in sizes.filter(|(bench, _)| options.wants(bench)) {
        for case in Case::ALL {
            let mut scene = build(size, case, "binpack");
            let result = measure::reserve(&mut scene, options.decisions, Listed::Same);
            print(bench, &scene, Listed::Same.word(), result);
        }
    }
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("bench_engine: {message}");
            return ExitCode::from(2);
        }
    };
    if options.wants("reserve") {
        reserve_rows(&options);
    }
    if STATE_BENCHES.iter().any(|row| options.wants(row)) {
        state_rows(&options);
    }
    special_rows(&options);
    growth_rows(&options);
    ExitCode::SUCCESS
}
