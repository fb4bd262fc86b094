//! Full clusters to decide on, the same on every run.

use placement::{
    Ask, BoundPod, BoundShare, CardConstraint, CardSpec, Cluster, ContainerAsk, ContainerKind, Families,
    Family, PodAsk,
};

const VENDOR: &str = "NVIDIA";
const CARD_MEMORY_MIB: i64 = 81_559;
const CARD_SLOTS: i32 = 10;
/// Different pods to place in turn.
const ASKS: usize = 64;

/// How large a cluster is.
#[derive(Clone, Copy)]
pub struct Size {
    pub nodes: usize,
    pub cards_per_node: usize,
    pub pods: usize,
}

/// Where the pods to place fit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Case {
    Fits,
    Last,
    Nowhere,
}

impl Case {
    pub fn word(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Last => "last",
            Self::Nowhere => "nowhere",
        }
    }
}

/// A cluster with the pods to place on it.
pub struct Scene {
    pub cluster: Cluster,
    pub names: Vec<String>,
    pub asks: Vec<PodAsk>,
    pub case: Case,
}

/// Numbers from a seed (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Puts a list in an order that follows from the seed.
pub fn shuffle<T>(list: &mut [T], seed: u64) {
    let mut numbers = Numbers(seed);
    for end in (1..list.len()).rev() {
        list.swap(end, numbers.below(end as u64 + 1) as usize);
    }
}

fn families() -> Families {
    let nvidia =
        Family { model_contains: "nvidia".into(), partitioned_mode: "mig".into(), ..Family::new(VENDOR) };
    Families::new(vec![nvidia]).expect("one family")
}

impl Scene {
    pub fn build(size: Size, case: Case, node_policy: &str) -> Self {
        let mut numbers = Numbers(20_261_129);
        let names: Vec<String> = (0..size.nodes).map(|node| format!("gpu-node-{node:05}")).collect();
        let mut cluster = Cluster::new(families());
        for (node, name) in names.iter().enumerate() {
            let cards: Vec<CardSpec> = (0..size.cards_per_node).map(|card| spec(node, card, case)).collect();
            cluster.set_node(name, &cards).expect("inventories are valid");
        }
        for pod in 0..size.pods {
            let card = pod % (size.nodes * size.cards_per_node);
            let node = card / size.cards_per_node;
            let is_last = node + 1 == size.nodes;
            charge(&mut cluster, pod, &names[node], &card_id(node, card % size.cards_per_node), {
                // Of two or three pods a card; what they leave decides where the pods to place fit.
                let memory = if case == Case::Last && is_last { 1_000 } else { 12_000 };
                let cores = if case == Case::Nowhere && card % 6 == 5 { 45 } else { 5 };
                (memory + numbers.below(12_000) as i64, cores + numbers.below(8) as i64)
            });
        }
        let asks = (0..ASKS).map(|number| ask(number, case, node_policy, &mut numbers)).collect();
        Self { cluster, names, asks, case }
    }
}

fn card_id(node: usize, card: usize) -> String {
    format!("GPU-{node:08x}-4a5b-6c7d-8e9f-{card:012x}")
}

/// Where nothing is to fit, cards fail in turn by health, cordon, model, mode, or by what is booked on them.
fn spec(node: usize, card: usize, case: Case) -> CardSpec {
    let spoiled = if case == Case::Nowhere { (node * 8 + card) % 6 } else { usize::MAX };
    CardSpec {
        id: card_id(node, card),
        vendor: VENDOR.into(),
        model: if spoiled == 2 { "NVIDIA A30" } else { "NVIDIA H100 80GB HBM3" }.into(),
        index: card as u32,
        slots: if spoiled == 3 { 2 } else { CARD_SLOTS },
        memory_mib: CARD_MEMORY_MIB,
        cores_percent: 100,
        numa: (card / 4) as i32,
        mode: "hami-core".into(),
        healthy: spoiled != 0,
        cordoned: spoiled == 1,
    }
}

fn charge(cluster: &mut Cluster, pod: usize, node: &str, card_id: &str, (memory, cores): (i64, i64)) {
    let share = BoundShare::new(card_id, VENDOR, memory, cores).expect("shares are valid");
    cluster.charge(&BoundPod {
        uid: &format!("{pod:08x}-1111-2222-3333-444444444444"),
        namespace: "default",
        node,
        containers: &[(ContainerKind::App, vec![share])],
        init_done: false,
        blocked_cards: &[],
    });
}

fn ask(number: usize, case: Case, node_policy: &str, numbers: &mut Numbers) -> PodAsk {
    let vary = numbers.below(3_000) as i64;
    let (memory, cores) = match case {
        Case::Fits => (20_000 + vary * 5, 5 + vary % 20),
        // More than any card but those of the last node has left, and less than those have.
        Case::Last => (58_000 + vary / 1_000 - 3, 5),
        Case::Nowhere => (60_000 + vary, 20),
    };
    let ask = Ask::new(VENDOR, 1, memory, None, cores).expect("asks are valid");
    let container = ContainerAsk::new("main", ContainerKind::App, vec![ask]).expect("one vendor");
    let pod = PodAsk::new(&format!("ask-{number:08}-5555-6666"), "default", "ask", vec![container])
        .expect("one container")
        .with_policies(node_policy, "spread", false);
    if case == Case::Nowhere {
        let models = CardConstraint::new(None, Some(vec!["A30".into()]), None, None, None);
        return pod.with_constraint(VENDOR, models);
    }
    pod
}
