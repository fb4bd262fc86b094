//! What it costs to choose cards by pair scores: one JSON object for each size and kind of scores.
//!
//! A row tries many sets of scores on a node of its own. Each is decided several times and counts with its fastest run,
//! so that what is left is the work and not the machine's other business; `worst_us` is that of the most costly set.

#![allow(clippy::disallowed_methods, reason = "benches measure time; the engine reads none")]

use std::time::Instant;

use bench::numbers::Numbers;
use placement::{
    Ask, Candidates, CardScores, CardSpec, Cluster, ContainerAsk, ContainerKind, Families, Family,
    MigPlacement, MigProfile, PodAsk,
};

const VENDOR: &str = "NVIDIA";
const SEEDS: u64 = 200;
const RUNS: usize = 5;

/// Scores of two cards, by their numbers and the row's random numbers.
type Scores = fn(u64, u64, &mut Numbers) -> i64;

const KINDS: [(&str, Scores); 6] = [
    ("equal", |_, _, _| 100),
    // Two sockets, four switches each; pairs of one switch are linked.
    ("hierarchy", |first, second, _| match first ^ second {
        1 => 250,
        2..4 => 40,
        4..8 => 20,
        _ => 10,
    }),
    ("links", |_, _, numbers| [10, 20, 40, 150, 250][numbers.below(5) as usize]),
    ("random", |_, _, numbers| numbers.below(1_000_000) as i64),
    // Nearly equal: bounds can hardly tell sets apart.
    ("nearly equal", |_, _, numbers| 1_000_000 - numbers.below(1_000) as i64),
    // Every card has many good pairs, which exclude each other: bounds promise what no set can have.
    ("two sides", |first, second, numbers| {
        100 * i64::from((first ^ second).count_ones() % 2) + numbers.below(2) as i64
    }),
];

fn id(card: u64) -> String {
    format!("GPU-{card:02}")
}

/// A node of whole cards, or of cards that can each give so many instances.
fn node(cards: u64, instances: u64, seed: u64, scores: Scores) -> Cluster {
    let family = Family { has_pair_scores: true, partitioned_mode: "mig".into(), ..Family::new(VENDOR) };
    let placements =
        (0..instances as i64).map(|start| MigPlacement::new(start, 1).expect("a valid placement"));
    let profile = MigProfile::new("1g", 18_000, 14, 1, placements.collect()).expect("a valid profile");
    let mut cluster = Cluster::new(Families::new(vec![family]).expect("one family"));
    let specs: Vec<CardSpec> = (0..cards)
        .map(|card| CardSpec {
            id: id(card),
            vendor: VENDOR.into(),
            model: "NVIDIA H200".into(),
            index: card as u32,
            slots: if instances > 0 { instances as i32 } else { 10 },
            memory_mib: 141_000,
            cores_percent: 100,
            healthy: true,
            mode: if instances > 0 { "mig" } else { "hami-core" }.into(),
            mig_profiles: if instances > 0 { vec![profile.clone()] } else { Vec::new() },
            ..CardSpec::default()
        })
        .collect();
    let mut numbers = Numbers::new(seed);
    let rows: Vec<CardScores> = (0..cards)
        .map(|card| {
            let peers = (0..cards).filter(|peer| *peer != card);
            (id(card), peers.map(|peer| (id(peer), scores(card, peer, &mut numbers))).collect())
        })
        .collect();
    cluster.set_node_with_pair_scores("node", &specs, &rows).expect("a valid inventory");
    cluster
}

fn pod(wanted: u64) -> PodAsk {
    let ask = Ask::new(VENDOR, wanted as i64, 1_000, None, 0).expect("a valid ask");
    let container = ContainerAsk::new("main", ContainerKind::App, vec![ask]).expect("a valid container");
    PodAsk::new("pod", "default", "pod", vec![container]).expect("a valid pod").with_policies(
        "binpack",
        "topology-aware",
        false,
    )
}

fn main() {
    let whole = [(8, 2), (8, 4), (16, 4), (16, 8), (16, 12), (32, 8), (56, 8)].map(|row| (row, 0));
    let mig = [(8, 4), (8, 12), (8, 28)].map(|row| (row, 7));
    for ((cards, wanted), instances) in whole.into_iter().chain(mig) {
        for (kind, scores) in KINDS {
            let pod = pod(wanted);
            let mut cut_short = 0;
            let mut times_us: Vec<f64> = (0..SEEDS)
                .map(|seed| {
                    let mut cluster = node(cards, instances, seed, scores);
                    let run = |_| {
                        let start = Instant::now();
                        let decision = cluster.what_if(&pod, Candidates::All);
                        let took = start.elapsed();
                        assert_eq!(decision.shares().len() as u64, wanted);
                        (took, decision.notes().iter().count())
                    };
                    let runs: Vec<_> = (0..RUNS).map(run).collect();
                    cut_short += runs[0].1;
                    runs.iter().map(|(took, _)| took.as_secs_f64() * 1e6).fold(f64::MAX, f64::min)
                })
                .collect();
            times_us.sort_by(f64::total_cmp);
            println!(
                "{{\"bench\":\"topology\",\"cards\":{cards},\"instances_each\":{instances},\"wanted\":{wanted},\"scores\":\"{kind}\",\
                 \"p50_us\":{:.1},\"worst_us\":{:.1},\"cut_short_percent\":{}}}",
                times_us[times_us.len() / 2],
                times_us[times_us.len() - 1],
                100 * cut_short as u64 / SEEDS,
            );
        }
    }
}
