//! Any history: bytes are read as operations on a small cluster. Kept sums stay true, and no decision overfills a card.

#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::{
    Ask, BoundPod, BoundShare, Candidates, CardSpec, Cluster, ContainerAsk, ContainerKind, Families, Family,
    PodAsk,
};
use serde_json::json;

const VENDOR: &str = "V";
const NODES: [&str; 3] = ["a", "b", "c"];
const UIDS: [&str; 6] = ["p", "q", "r", "s", "t", "u"];
const KINDS: [ContainerKind; 3] = [ContainerKind::Init, ContainerKind::Sidecar, ContainerKind::App];
const POLICIES: [&str; 6] =
    ["spread", "binpack", "mutex", "numa,binpack", "topology-aware", "topology-aware,mutex"];

/// The bytes as small numbers; zeros once they are used up.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn below(&mut self, limit: u8) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first % limit
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::from(self.below(values.len() as u8))]
    }

    fn card(&mut self) -> CardSpec {
        // As JSON: what the card has besides keeps its default.
        let card = json!({
            "id": format!("card-{}", self.below(4)),
            "vendor": VENDOR,
            "model": VENDOR,
            "index": self.below(4),
            "slots": self.below(4),
            "memory_mib": i64::from(self.below(12)) - 1,
            "cores_percent": self.one_of(&[100, 100, 50, 200, 0]),
            "numa": self.below(2),
            "mode": "",
            "healthy": self.below(8) > 0,
            "cordoned": self.below(8) == 0,
        });
        serde_json::from_value(card).expect("a card")
    }

    fn pod(&mut self) -> PodAsk {
        let mut kinds: Vec<ContainerKind> = (0..self.below(3)).map(|_| self.one_of(&KINDS[..2])).collect();
        kinds.extend((0..self.below(3)).map(|_| ContainerKind::App));
        let containers = kinds.into_iter().enumerate().map(|(number, kind)| {
            let percent = (self.below(2) == 0).then(|| i64::from(self.below(101)));
            let (count, memory) = (i64::from(self.below(4)), i64::from(self.below(10)));
            let ask = Ask::new(VENDOR, count, memory, percent, i64::from(self.below(121))).expect("in range");
            ContainerAsk::new(&number.to_string(), kind, vec![ask]).expect("one ask")
        });
        let containers = containers.collect();
        let pod = PodAsk::new(self.one_of(&UIDS), "n", "p", containers).expect("apps last");
        let (node_policy, card_policy) = (self.one_of(&["binpack", "spread"]), self.one_of(&POLICIES));
        pod.with_policies(node_policy, card_policy, self.below(3) == 0)
    }
}

fn charge(cluster: &mut Cluster, numbers: &mut Numbers<'_>) {
    let containers: Vec<_> = (0..numbers.below(3))
        .map(|_| {
            let card = format!("card-{}", numbers.below(5));
            let (memory, cores) = (i64::from(numbers.below(6)), i64::from(numbers.below(101)));
            let share = BoundShare::new(&card, VENDOR, memory, cores).expect("in range");
            (numbers.one_of(&KINDS), vec![share])
        })
        .collect();
    let blocked = if numbers.below(6) == 0 { vec![format!("card-{}", numbers.below(5))] } else { Vec::new() };
    cluster.charge(&BoundPod {
        uid: numbers.one_of(&UIDS),
        namespace: "n",
        node: numbers.one_of(&NODES),
        containers: &containers,
        init_done: numbers.below(2) == 0,
        blocked_cards: &blocked,
        claims: &[],
    });
}

/// A pod is given nothing beyond what is there, and the state is as it was where it is only asked about.
fn place(cluster: &mut Cluster, numbers: &mut Numbers<'_>) {
    let pod = numbers.pod();
    let asked = cluster.what_if(&pod, Candidates::All).chosen().map(|(node, _)| node.to_string());
    let decision = cluster.reserve(&pod, Candidates::All);
    let chosen = decision.chosen().map(|(node, _)| node.to_string());
    assert_eq!(asked, chosen);
    let held = cluster.booked(pod.uid());
    let Some(node) = chosen else {
        assert!(held.is_empty());
        return;
    };
    for card in cluster.node_cards(&node) {
        if held.iter().any(|(id, _)| *id == card.spec.id) {
            assert!(card.used.memory_mib <= card.spec.memory_mib, "{card:?}");
            assert!(card.used.slots <= i64::from(card.spec.slots), "{card:?}");
            assert!(card.used.cores_percent <= i64::from(card.spec.cores_percent), "{card:?}");
            assert!(card.spec.healthy && !card.spec.cordoned && !card.blocked, "{card:?}");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let family = Family { has_pair_scores: true, ..Family::new(VENDOR) };
    let mut cluster = Cluster::new(Families::new(vec![family]).expect("one family"));
    let mut numbers = Numbers(bytes);
    while !numbers.0.is_empty() {
        match numbers.below(9) {
            0 | 1 => {
                let cards: Vec<_> = (0..numbers.below(5)).map(|_| numbers.card()).collect();
                let _twice_the_same_card = cluster.set_node(numbers.one_of(&NODES), &cards);
            }
            2 => drop(cluster.remove_node(numbers.one_of(&NODES))),
            3 => charge(&mut cluster, &mut numbers),
            4 => drop(cluster.release(numbers.one_of(&UIDS))),
            5 => {
                let limit = |number: u8| (number > 0).then(|| i64::from(number));
                let (memory, cores) = (limit(numbers.below(20)), limit(numbers.below(200)));
                cluster.set_quota("n", VENDOR, memory, cores);
            }
            6 => {
                let card = format!("card-{}", numbers.below(4));
                cluster.set_card_health(numbers.one_of(&NODES), &card, numbers.below(2) == 0);
            }
            _ => place(&mut cluster, &mut numbers),
        }
        assert_eq!(cluster.check_invariants(), Vec::<String>::new());
    }
});
