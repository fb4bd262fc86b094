//! Random clusters, pods and histories.

use placement::{
    Ask, BoundShare, Candidates, CardConstraint, CardScores, CardSpec, CardView, Cluster, ContainerAsk,
    ContainerKind, Decision, MigInstance, MigPlacement, MigProfile, PodAsk,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{charge_containers, VENDOR};

pub const NODES: [&str; 4] = ["a", "b", "c", "d"];
pub const MODELS: [&str; 3] = ["NVIDIA A100", "NVIDIA H100 80GB", "Tesla V100"];
const NODE_POLICIES: [&str; 3] = ["binpack", "spread", "fgd"];
pub const POLICIES: [&str; 12] = [
    "binpack",
    "spread",
    "fgd",
    "numa,fgd",
    "mutex",
    "numa",
    "binpack,numa",
    "spread,mutex",
    "unknown",
    "numa,binpack,mutex",
    "topology-aware",
    "binpack,topology-aware",
];
pub const KINDS: [ContainerKind; 3] = [ContainerKind::Init, ContainerKind::Sidecar, ContainerKind::App];

/// Of a card of four memory slices with a little memory of its own each.
fn profiles(memory_gib: i64) -> Vec<MigProfile> {
    [("1g.x", 1, 24, vec![0, 1, 2, 3]), ("2g.x", 2, 50, vec![0, 2]), ("4g.x", 4, 100, vec![0])]
        .into_iter()
        .map(|(name, size, cores, starts)| {
            let placements =
                starts.into_iter().map(|start| MigPlacement::new(start, size).unwrap()).collect();
            MigProfile::new(name, memory_gib * 245 * size, cores, size, placements).unwrap()
        })
        .collect()
}

pub fn any_card(id: String) -> impl Strategy<Value = CardSpec> {
    let totals = (1..4i64, prop::sample::select(vec![0, 100, 100, 100, 200]), 0..4i32);
    let rest = (0..MODELS.len(), 0..3i32, 0..10u8, prop::bool::weighted(0.25));
    (totals, rest).prop_map(move |((memory, cores, slots), (model, numa, fault, partitioned))| CardSpec {
        id: id.clone(),
        vendor: VENDOR.into(),
        model: MODELS[model].into(),
        index: numa as u32,
        slots,
        memory_mib: memory * 1000,
        cores_percent: cores,
        numa,
        mode: if partitioned { "mig" } else { "hami-core" }.into(),
        healthy: fault != 0,
        cordoned: fault == 1,
        group: None,
        mig_profiles: profiles(memory),
    })
}

pub fn any_node(node: usize) -> impl Strategy<Value = (&'static str, Vec<CardSpec>)> {
    let card = move |number: usize| any_card(format!("{}-{number}", NODES[node]));
    (card(0), card(1), card(2), 1..=3usize).prop_map(move |(first, second, third, count)| {
        (NODES[node], [first, second, third].into_iter().take(count).collect())
    })
}

pub fn any_nodes() -> impl Strategy<Value = Vec<(&'static str, Vec<CardSpec>)>> {
    (any_node(0), any_node(1), any_node(2), any_node(3), 1..=4usize).prop_map(
        |(first, second, third, fourth, count)| {
            [first, second, third, fourth].into_iter().take(count).collect()
        },
    )
}

pub fn any_ask() -> impl Strategy<Value = Ask> {
    let cores = prop::sample::select(vec![0, 0, 30, 60, 100, 130]);
    (1..3i64, 0..1500i64, prop::option::of(0..=100i64), cores)
        .prop_map(|(count, memory, percent, cores)| Ask::new(VENDOR, count, memory, percent, cores).unwrap())
}

pub fn any_constraint() -> impl Strategy<Value = CardConstraint> {
    let models =
        || prop::option::weighted(0.2, vec(prop::sample::select(vec!["a100", "NVIDIA", "h1"]), 0..2));
    let ids =
        || prop::option::weighted(0.2, vec(prop::sample::select(vec!["a-0", "a-1", "b-0", "c-2"]), 0..3));
    let accepted_modes =
        prop::option::weighted(0.2, prop::sample::select(vec!["mig", "hami-core", "mig,hami-core"]));
    let own = |words: Option<Vec<&str>>| words.map(|words| words.into_iter().map(String::from).collect());
    (models(), models(), ids(), ids(), accepted_modes).prop_map(
        move |(use_models, avoid_models, use_ids, avoid_ids, accepted)| {
            CardConstraint::new(
                own(use_models),
                own(avoid_models),
                own(use_ids),
                own(avoid_ids),
                accepted.map(String::from),
            )
        },
    )
}

pub fn any_pod(uid: u8) -> impl Strategy<Value = PodAsk> {
    let containers = vec((0..5usize, prop::option::weighted(0.8, any_ask())), 1..4);
    let policies = (0..NODE_POLICIES.len(), 0..POLICIES.len(), prop::bool::weighted(0.2));
    (containers, policies, any_constraint()).prop_map(move |(mut containers, policies, constraint)| {
        let kind = |number: usize| KINDS[number.min(2)];
        containers.sort_by_key(|(number, _)| kind(*number) == ContainerKind::App);
        let containers = containers
            .into_iter()
            .map(|(number, ask)| ContainerAsk::new("c", kind(number), ask.into_iter().collect()).unwrap())
            .collect();
        let uid = format!("pod-{uid}");
        PodAsk::new(&uid, if uid.ends_with('1') { "team" } else { "default" }, &uid, containers)
            .unwrap()
            .with_policies(NODE_POLICIES[policies.0], POLICIES[policies.1], policies.2)
            .with_constraint(VENDOR, constraint)
    })
}

/// A pod another writer placed: its cards need not have room, nor exist.
#[derive(Clone, Debug)]
pub struct Bound {
    pub uid: String,
    pub node: &'static str,
    pub containers: Vec<(ContainerKind, Vec<BoundShare>)>,
    pub init_done: bool,
}

/// Node and number of a card, memory, cores, start and size of the instance.
type AnyShare = (usize, usize, i64, i64, Option<(i64, i64)>);

pub fn any_bound(uid: u8) -> impl Strategy<Value = Bound> {
    let instance = prop::option::weighted(0.4, (0..4i64, 1..3i64));
    let share = (0..4usize, 0..4usize, 0..1200i64, 0..80i64, instance);
    (0..NODES.len(), vec((0..KINDS.len(), vec(share, 0..3)), 1..4), prop::bool::ANY).prop_map(
        move |(node, containers, init_done)| Bound {
            uid: format!("pod-{uid}"),
            node: NODES[node],
            containers: containers
                .into_iter()
                .map(|(kind, shares)| {
                    let share = |(node, number, memory, cores, instance): AnyShare| {
                        let share =
                            BoundShare::new(&format!("{}-{number}", NODES[node]), VENDOR, memory, cores)
                                .unwrap();
                        match instance {
                            Some((start, size)) => share.on_instance(MigInstance {
                                profile: "1g.x".into(),
                                placement: MigPlacement::new(start, size).unwrap(),
                            }),
                            None => share,
                        }
                    };
                    (KINDS[kind], shares.into_iter().map(share).collect())
                })
                .collect(),
            init_done,
        },
    )
}

pub fn charge_all(running: &[Bound], cluster: &mut Cluster) {
    for bound in running {
        bound.charge(cluster);
    }
}

impl Bound {
    pub fn charge(&self, cluster: &mut Cluster) {
        charge_containers(cluster, &self.uid, self.node, &self.containers, self.init_done);
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    Reserve(PodAsk),
    Charge(Bound),
    Release(String),
    Confirm(String),
    SetNode(&'static str, Vec<CardSpec>),
    RemoveNode(&'static str),
    Health(&'static str, String, bool),
    Quota(Option<i64>, Option<i64>),
}

pub fn any_step() -> impl Strategy<Value = Step> {
    let uid = || (0..8u8).prop_map(|uid| format!("pod-{uid}"));
    let limit = || prop::option::weighted(0.7, 0..4000i64);
    prop_oneof![
        8 => (0..8u8).prop_flat_map(any_pod).prop_map(Step::Reserve),
        3 => (0..8u8).prop_flat_map(any_bound).prop_map(Step::Charge),
        4 => uid().prop_map(Step::Release),
        1 => uid().prop_map(Step::Confirm),
        2 => (0..NODES.len()).prop_flat_map(any_node).prop_map(|(node, cards)| Step::SetNode(node, cards)),
        1 => prop::sample::select(NODES.to_vec()).prop_map(Step::RemoveNode),
        1 => (prop::sample::select(NODES.to_vec()), 0..3usize, prop::bool::ANY)
            .prop_map(|(node, number, healthy)| Step::Health(node, format!("{node}-{number}"), healthy)),
        1 => (limit(), limit()).prop_map(|(memory, cores)| Step::Quota(memory, cores)),
    ]
}

/// Everything a decision says, as text.
pub fn told(decision: &Decision) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        decision.chosen(),
        decision.shares(),
        decision.best().collect::<Vec<_>>(),
        decision.node_scores(),
        decision.failed_nodes(Some(true)),
        decision.failed_nodes(Some(false)),
        decision.tally()
    )
}

/// Scores between cards, of some to some.
fn some_scores(cards: &[CardSpec]) -> Vec<CardScores> {
    let peers = |card: &CardSpec| {
        let others = cards.iter().filter(|peer| peer.id != card.id && peer.memory_mib >= card.memory_mib);
        others.map(|peer| (peer.id.clone(), i64::from(peer.slots * 3 - card.slots))).collect()
    };
    cards.iter().filter(|card| card.numa < 2).map(|card| (card.id.clone(), peers(card))).collect()
}

/// Runs a step; what a decision said is returned.
pub fn run(cluster: &mut Cluster, step: &Step) -> Option<String> {
    match step {
        Step::Reserve(pod) => return Some(told(&cluster.reserve(pod, Candidates::Named(&NODES)))),
        Step::Charge(bound) => bound.charge(cluster),
        Step::Release(uid) => drop(cluster.release(uid)),
        Step::Confirm(uid) => drop(cluster.confirm(uid)),
        Step::SetNode(node, cards) => {
            cluster.set_node_with_pair_scores(node, cards, &some_scores(cards)).unwrap();
        }
        Step::RemoveNode(node) => drop(cluster.remove_node(node)),
        Step::Health(node, card, healthy) => drop(cluster.set_card_health(node, card, *healthy)),
        Step::Quota(memory, cores) => cluster.set_quota("default", VENDOR, *memory, *cores),
    }
    None
}

pub fn build(nodes: &[(&'static str, Vec<CardSpec>)]) -> Cluster {
    super::cluster(nodes)
}

/// What others see of the whole state.
pub fn seen(cluster: &Cluster) -> (Vec<Vec<CardView>>, Vec<(i64, i64)>) {
    let quotas = ["default", "team"].map(|namespace| cluster.quota_used(namespace, VENDOR));
    (NODES.iter().map(|node| cluster.node_cards(node)).collect(), quotas.to_vec())
}
