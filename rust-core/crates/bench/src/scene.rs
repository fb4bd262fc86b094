//! Full clusters to decide on, the same on every run.

use placement::{
    Ask, BoundPod, BoundShare, CardConstraint, CardSpec, Cluster, ContainerAsk, ContainerKind, Families,
    Family, PodAsk,
};

use crate::allocations::live_bytes;
use crate::numbers::Numbers;

pub const VENDOR: &str = "NVIDIA";
const SEED: u64 = 20_261_129;
const CARD_MEMORY_MIB: i64 = 81_559;
const CARD_SLOTS: i32 = 10;
/// Different pods to place in turn.
const ASKS: usize = 64;
/// What all pods of one card take together at least, and as much again at most on top.
const TAKEN_MIB: u64 = 24_000;

/// How large a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub nodes: usize,
    pub cards_per_node: usize,
    pub pods: usize,
}

impl Size {
    /// How many cards there are.
    pub fn cards(self) -> usize {
        self.nodes * self.cards_per_node
    }
}

/// Where the pods to place fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    Fits,
    Last,
    Nowhere,
}

impl Case {
    /// Every case.
    pub const ALL: [Self; 3] = [Self::Fits, Self::Last, Self::Nowhere];

    /// The case's name in a row.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Last => "fits-only-on-last",
            Self::Nowhere => "fits-nowhere",
        }
    }
}

/// A cluster with the pods to place on it.
pub struct Scene {
    pub size: Size,
    pub case: Case,
    pub node_policy: String,
    pub cluster: Cluster,
    pub names: Vec<String>,
    pub asks: Vec<PodAsk>,
    pub bytes_per_card: u64,
    /// 0 without pods.
    pub bytes_per_pod: u64,
}

pub fn families() -> Families {
    let nvidia =
        Family { model_contains: "nvidia".into(), partitioned_mode: "mig".into(), ..Family::new(VENDOR) };
    Families::new(vec![nvidia]).expect("one family")
}

impl Scene {
    /// Builds the cluster: pods of mixed sizes, evenly over all cards. What they take of a card together depends on
    /// their number as little as whole numbers allow.
    pub fn build(size: Size, case: Case, node_policy: &str) -> Self {
        let mut numbers = Numbers::new(SEED);
        let names: Vec<String> = (0..size.nodes).map(|node| format!("gpu-node-{node:05}")).collect();
        let empty = live_bytes();
        let mut cluster = Cluster::new(families());
        for (node, name) in names.iter().enumerate() {
            let cards: Vec<CardSpec> =
                (0..size.cards_per_node).map(|card| spec(size, node, card, case)).collect();
            cluster.set_node(name, &cards).expect("inventories are valid");
        }
        let registered = live_bytes();
        for pod in 0..size.pods {
            let card = pod % size.cards();
            let node = card / size.cards_per_node;
            let (memory_mib, cores_percent) = share(size, case, card, &mut numbers);
            let containers = [container(&card_id(size, card), memory_mib, cores_percent)];
            cluster.charge(&bound(&pod_uid(pod), &names[node], &containers));
        }
        let filled = live_bytes();
        let asks = (0..ASKS).map(|number| ask(number, case, node_policy, &mut numbers)).collect();
        Self {
            size,
            case,
            node_policy: node_policy.into(),
            cluster,
            names,
            asks,
            bytes_per_card: (registered - empty) / size.cards() as u64,
            bytes_per_pod: (filled - registered).checked_div(size.pods as u64).unwrap_or(0),
        }
    }
}

/// The id of a card, by its number in the cluster.
pub fn card_id(size: Size, card: usize) -> String {
    format!("GPU-{:08x}-4a5b-6c7d-8e9f-{:012x}", card / size.cards_per_node, card % size.cards_per_node)
}

/// Where nothing is to fit, cards fail in turn by health, cordon, model, slots, memory and cores.
fn spoiled(case: Case, card: usize) -> Option<usize> {
    (case == Case::Nowhere).then_some(card % 6)
}

fn spec(size: Size, node: usize, card: usize, case: Case) -> CardSpec {
    let number = node * size.cards_per_node + card;
    let spoiled = spoiled(case, number);
    let mut spec = CardSpec {
        id: card_id(size, number),
        vendor: VENDOR.into(),
        model: "NVIDIA H100 80GB HBM3".into(),
        index: card as u32,
        slots: CARD_SLOTS,
        memory_mib: CARD_MEMORY_MIB,
        cores_percent: 100,
        numa: (card / 4) as i32,
        mode: "hami-core".into(),
        healthy: spoiled != Some(0),
        cordoned: spoiled == Some(1),
        mig_profiles: Vec::new(),
        group: None,
    };
    if spoiled == Some(2) {
        spec.model = "NVIDIA A30".into();
    }
    if spoiled == Some(3) {
        spec.slots = 1;
    }
    spec
}

/// Memory in MiB and cores in percent of one of the pods on a card.
fn share(size: Size, case: Case, card: usize, numbers: &mut Numbers) -> (i64, i64) {
    let part = |whole: u64| whole * size.cards() as u64 / size.pods as u64;
    let is_on_last_node = card / size.cards_per_node + 1 == size.nodes;
    let memory_mib = if case == Case::Last && is_on_last_node || spoiled(case, card) == Some(5) {
        part(2_000)
    } else {
        part(TAKEN_MIB) + numbers.below(part(TAKEN_MIB))
    };
    let cores_percent = if spoiled(case, card) == Some(5) { part(92) } else { part(12) };
    (memory_mib as i64, cores_percent as i64)
}

/// The UID of a running pod.
pub fn pod_uid(pod: usize) -> String {
    format!("{pod:08x}-1111-2222-3333-444444444444")
}

/// A running pod of one container.
pub fn bound<'a>(
    uid: &'a str,
    node: &'a str,
    containers: &'a [(ContainerKind, Vec<BoundShare>)],
) -> BoundPod<'a> {
    BoundPod {
        uid,
        namespace: "default",
        node,
        containers,
        init_done: false,
        blocked_cards: &[],
        claims: &[],
    }
}

/// A container with one share of one card.
pub fn container(card_id: &str, memory_mib: i64, cores_percent: i64) -> (ContainerKind, Vec<BoundShare>) {
    let share = BoundShare::new(card_id, VENDOR, memory_mib, cores_percent).expect("shares are valid");
    (ContainerKind::App, vec![share])
}

fn ask(number: usize, case: Case, node_policy: &str, numbers: &mut Numbers) -> PodAsk {
    let vary = numbers.below(3_000) as i64;
    let (memory, cores) = match case {
        Case::Fits => (20_000 + vary * 5, 5 + vary % 20),
        // More than any card but those of the last node has left, and less than those have.
        Case::Last => (62_000 + vary, 5),
        Case::Nowhere => (60_000 + vary, 20),
    };
    let ask = Ask::new(VENDOR, 1, memory, None, cores).expect("asks are valid");
    let container = ContainerAsk::new("main", ContainerKind::App, vec![ask]).expect("one vendor");
    let pod = PodAsk::new(&format!("ask-{number:08}-5555-6666"), "default", "ask", vec![container])
        .expect("one container")
        .with_policies(node_policy, if node_policy == "fgd" { "fgd" } else { "spread" }, false);
    if case == Case::Nowhere {
        let models = CardConstraint::new(None, Some(vec!["A30".into()]), None, None, None);
        return pod.with_constraint(VENDOR, models);
    }
    pod
}
