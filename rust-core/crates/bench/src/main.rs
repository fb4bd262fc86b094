//! Measures `reserve` on full clusters and prints one JSON object a line.
//!
//! Rows: the pod fits on many nodes, only on the last candidate, or nowhere (nodes failing for every kind of
//! reason), each with both node policies. All node names are candidates, listed
//! as in the call before; `reserve-shuffled-names` lists them in a new order each time.

#![allow(clippy::disallowed_methods, reason = "this program measures time; the engine reads none")]

mod allocations;
mod scene;

use std::time::Instant;

use placement::Candidates;
use scene::{Case, Scene, Size};

const WARM_UP: usize = 200;

const SIZES: [Size; 2] = [
    Size { nodes: 100, cards_per_node: 16, pods: 5_000 },
    Size { nodes: 5_000, cards_per_node: 8, pods: 80_000 },
];

/// How the candidates are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// As in the call before.
    Same,
    /// Anew for every call.
    Shuffled,
}

struct Measured {
    p50_us: f64,
    p99_us: f64,
    /// Per decision, rounded up: 0 means that not one decision allocated.
    allocations: u64,
}

fn measure(scene: &mut Scene, decisions: usize, order: Order) -> Measured {
    let mut names: Vec<&str> = scene.names.iter().map(String::as_str).collect();
    let mut nanoseconds = Vec::with_capacity(decisions);
    let mut allocated = 0;
    for round in 0..WARM_UP + decisions {
        let pod = &scene.asks[round % scene.asks.len()];
        if order == Order::Shuffled {
            scene::shuffle(&mut names, round as u64);
        }
        let before = allocations::count();
        let start = Instant::now();
        let decision = scene.cluster.reserve(pod, Candidates::Named(&names));
        let took = start.elapsed();
        let after = allocations::count();
        assert_eq!(
            decision.chosen().is_some(),
            scene.case != Case::Nowhere,
            "the scene is not what it claims"
        );
        if scene.case == Case::Last {
            assert_eq!(decision.fitting_nodes(), 1, "the scene is not what it claims");
        }
        drop(decision);
        scene.cluster.release(pod.uid());
        if round >= WARM_UP {
            nanoseconds.push(took.as_nanos() as f64);
            allocated += after - before;
        }
    }
    nanoseconds.sort_by(f64::total_cmp);
    let quantile = |part: f64| nanoseconds[((nanoseconds.len() - 1) as f64 * part) as usize] / 1000.0;
    Measured {
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        allocations: allocated.div_ceil(decisions as u64),
    }
}

fn main() {
    let decisions = std::env::args().nth(1).map_or(2_000, |text| {
        text.parse().unwrap_or_else(|_| panic!("usage: bench_reserve [DECISIONS]; {text:?} is not a number"))
    });
    for size in SIZES {
        for case in [Case::Fits, Case::Last, Case::Nowhere] {
            for (policy, order, bench) in [
                ("binpack", Order::Same, "reserve"),
                ("spread", Order::Same, "reserve"),
                ("binpack", Order::Shuffled, "reserve-shuffled-names"),
            ] {
                let mut scene = Scene::build(size, case, policy);
                let result = measure(&mut scene, decisions, order);
                println!(
                    "{{\"bench\":\"{bench}\",\"nodes\":{},\"cards_per_node\":{},\"pods\":{},\"case\":\"{}\",\
                     \"policy\":\"{policy}\",\"p50_us\":{:.1},\"p99_us\":{:.1},\"allocations\":{}}}",
                    size.nodes,
                    size.cards_per_node,
                    size.pods,
                    case.word(),
                    result.p50_us,
                    result.p99_us,
                    result.allocations
                );
            }
        }
    }
}
