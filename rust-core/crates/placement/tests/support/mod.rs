//! Builders of clusters and pods for tests.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod random;

use placement::{
    Amount, Ask, BoundPod, BoundShare, Candidates, CardConstraint, CardSpec, Cluster, ContainerAsk,
    ContainerKind, Decision, Families, Family, PodAsk,
};
use std::sync::Arc;

pub const VENDOR: &str = "NVIDIA";

/// The family of [`VENDOR`].
pub fn families() -> Families {
    let family = Family {
        model_contains: "nvidia".into(),
        partitioned_mode: "mig".into(),
        has_pair_scores: true,
        ..Family::new(VENDOR)
    };
    Families::new(vec![family]).unwrap()
}

/// A cluster without nodes that knows them.
pub fn empty_cluster() -> Cluster {
    Cluster::new(families())
}

/// A healthy card of 10 slots, 10,000 MiB and 100 % cores.
pub fn card(id: &str) -> CardSpec {
    CardSpec {
        id: id.into(),
        vendor: VENDOR.into(),
        model: "NVIDIA A100-SXM4-40GB".into(),
        index: 0,
        slots: 10,
        memory_mib: 10_000,
        cores_percent: 100,
        numa: 0,
        mode: "hami-core".into(),
        healthy: true,
        cordoned: false,
        mig_profiles: Vec::new(),
        group: None,
    }
}

/// `count` such cards, named after the node, `a-0` being listed first.
pub fn cards(node: &str, count: usize) -> Vec<CardSpec> {
    (0..count).map(|number| CardSpec { index: number as u32, ..card(&format!("{node}-{number}")) }).collect()
}

/// A cluster of nodes with their cards.
pub fn cluster(nodes: &[(&str, Vec<CardSpec>)]) -> Cluster {
    let mut cluster = empty_cluster();
    for (name, cards) in nodes {
        cluster.set_node(name, cards).unwrap();
    }
    cluster
}

/// An ask of `count` cards with `memory` MiB and `cores` percent of each.
pub fn ask(count: i64, memory: i64, cores: i64) -> Ask {
    Ask::new(VENDOR, count, memory, None, cores).unwrap()
}

/// An ask of `count` cards by percentage of memory.
pub fn ask_percent(count: i64, percent: i64) -> Ask {
    Ask::new(VENDOR, count, 0, Some(percent), 0).unwrap()
}

pub fn container(name: &str, kind: ContainerKind, asks: Vec<Ask>) -> ContainerAsk {
    ContainerAsk::new(name, kind, asks).unwrap()
}

/// A pod of app containers, one for each ask.
pub fn pod(uid: &str, asks: Vec<Ask>) -> PodAsk {
    let containers = asks
        .into_iter()
        .enumerate()
        .map(|(number, ask)| container(&format!("c{number}"), ContainerKind::App, vec![ask]))
        .collect();
    PodAsk::new(uid, "default", uid, containers).unwrap()
}

/// A pod of containers of any kind, each asking one card.
pub fn pod_of(uid: &str, containers: &[(ContainerKind, i64)]) -> PodAsk {
    let containers = containers
        .iter()
        .enumerate()
        .map(|(number, (kind, memory))| container(&format!("c{number}"), *kind, vec![ask(1, *memory, 0)]))
        .collect();
    PodAsk::new(uid, "default", uid, containers).unwrap()
}

/// Which models and ids a pod accepts.
pub fn only_models(models: &[&str]) -> CardConstraint {
    let models = models.iter().map(|model| (*model).to_string()).collect();
    CardConstraint::new(Some(models), None, None, None, None)
}

/// Books a bound pod of one container on one card.
pub fn charge(cluster: &mut Cluster, uid: &str, node: &str, card_id: &str, memory: i64, cores: i64) {
    let share = BoundShare::new(card_id, VENDOR, memory, cores).unwrap();
    charge_containers(cluster, uid, node, &[(ContainerKind::App, vec![share])], false);
}

pub fn charge_containers(
    cluster: &mut Cluster,
    uid: &str,
    node: &str,
    containers: &[(ContainerKind, Vec<BoundShare>)],
    init_done: bool,
) {
    cluster.charge(&BoundPod {
        uid,
        namespace: "default",
        node,
        containers,
        init_done,
        blocked_cards: &[],
        claims: &[],
    });
}

/// Reserves on any node.
pub fn reserve(cluster: &mut Cluster, pod: &PodAsk) -> Arc<Decision> {
    let decision = cluster.reserve(pod, Candidates::All);
    assert_eq!(cluster.check_invariants(), Vec::<String>::new());
    decision
}

/// The chosen node, if any.
pub fn node_of(decision: &Decision) -> Option<&str> {
    decision.chosen().map(|(node, _)| node)
}

/// Ids of the chosen cards, containers in their order.
pub fn cards_of(decision: &Decision) -> Vec<&str> {
    decision.shares().iter().map(|share| &*share.card_id).collect()
}

/// The text for a node that does not fit.
pub fn text_of(decision: &Decision, node: &str) -> String {
    let failed = decision.failed_nodes(None);
    failed.into_iter().find(|(name, _)| *name == node).map(|(_, text)| text).unwrap_or_default()
}

/// Memory, cores and slots booked on each card of a node.
pub fn used(cluster: &Cluster, node: &str) -> Vec<Amount> {
    cluster.node_cards(node).into_iter().map(|card| card.used).collect()
}
