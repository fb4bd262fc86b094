//! A cluster of cards in MIG mode, filled by the engine itself.

use placement::{
    Ask, Candidates, CardSpec, Cluster, ContainerAsk, ContainerKind, MigPlacement, MigProfile, PodAsk,
};

use crate::measure::{Measured, Meter};
use crate::numbers::Numbers;
use crate::scene::{card_id, families, Size, VENDOR};

/// Memory of the profiles of an A100 of 40 GB, smallest first.
const PROFILE_MIB: [i64; 3] = [4_864, 9_856, 19_968];

fn profile(
    name: &str,
    memory_mib: i64,
    cores_percent: i64,
    slices: i64,
    size: i64,
    starts: &[i64],
) -> MigProfile {
    let placements =
        starts.iter().map(|start| MigPlacement::new(*start, size).expect("placements are valid")).collect();
    MigProfile::new(name, memory_mib, cores_percent, slices, placements).expect("profiles are valid")
}

fn spec(size: Size, card: usize) -> CardSpec {
    CardSpec {
        id: card_id(size, card),
        vendor: VENDOR.into(),
        model: "NVIDIA A100-SXM4-40GB".into(),
        index: (card % size.cards_per_node) as u32,
        slots: 7,
        memory_mib: 40_960,
        cores_percent: 100,
        numa: 0,
        mode: "mig".into(),
        healthy: true,
        mig_profiles: vec![
            profile("1g.5gb", PROFILE_MIB[0], 15, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
            profile("2g.10gb", PROFILE_MIB[1], 29, 2, 2, &[0, 2, 4]),
            profile("3g.20gb", PROFILE_MIB[2], 43, 3, 4, &[0, 4]),
            profile("7g.40gb", 40_192, 100, 7, 8, &[0]),
        ],
        ..CardSpec::default()
    }
}

fn pod(uid: &str, count: i64, memory_mib: i64) -> PodAsk {
    let ask = Ask::new(VENDOR, count, memory_mib, None, 0).expect("asks are valid");
    let container = ContainerAsk::new("main", ContainerKind::App, vec![ask]).expect("one vendor");
    PodAsk::new(uid, "default", uid, vec![container])
        .expect("one container")
        .with_policies("spread", "spread", false)
}

/// `reserve` of pods with two instances each, on a cluster with so many instances.
pub fn reserve(size: Size, rounds: usize) -> Measured {
    let mut cluster = Cluster::new(families());
    for node in 0..size.nodes {
        let first = node * size.cards_per_node;
        let cards: Vec<CardSpec> =
            (first..first + size.cards_per_node).map(|card| spec(size, card)).collect();
        cluster.set_node(&format!("gpu-node-{node:05}"), &cards).expect("inventories are valid");
    }
    let mut numbers = Numbers::new(11);
    for number in 0..size.pods {
        let memory_mib = PROFILE_MIB[numbers.below(2) as usize];
        let placed = cluster.reserve(&pod(&format!("running-{number}"), 1, memory_mib), Candidates::All);
        assert!(placed.chosen().is_some(), "the scene is not what it claims");
    }
    let mut meter = Meter::new(rounds);
    for round in meter.rounds() {
        let pod = pod("new", 2, PROFILE_MIB[round % PROFILE_MIB.len()]);
        let decision = meter.step(|| cluster.reserve(&pod, Candidates::All));
        assert_eq!(decision.shares().len(), 2, "the scene is not what it claims");
        drop(decision);
        cluster.release("new");
    }
    meter.end()
}
