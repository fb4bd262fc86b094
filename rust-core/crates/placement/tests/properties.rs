//! What must hold for random clusters, pods and histories.

mod support;

use std::collections::BTreeMap;

use placement::{
    Amount, Ask, BoundShare, Candidates, CardConstraint, CardSpec, CardView, Cluster, ContainerAsk,
    ContainerKind, Decision, PodAsk,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::{charge_containers, empty_cluster, VENDOR};

const NODES: [&str; 4] = ["a", "b", "c", "d"];
const MODELS: [&str; 3] = ["NVIDIA A100", "NVIDIA H100 80GB", "Tesla V100"];
const POLICIES: [&str; 8] =
    ["binpack", "spread", "mutex", "numa", "binpack,numa", "spread,mutex", "unknown", "numa,binpack,mutex"];
const KINDS: [ContainerKind; 3] = [ContainerKind::Init, ContainerKind::Sidecar, ContainerKind::App];

fn any_card(id: String) -> impl Strategy<Value = CardSpec> {
    let totals = (1..4i64, prop::sample::select(vec![0, 100, 100, 100, 200]), 0..4i32);
    let rest = (0..MODELS.len(), 0..3i32, 0..10u8, prop::bool::weighted(0.1));
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
    })
}

fn any_node(node: usize) -> impl Strategy<Value = (&'static str, Vec<CardSpec>)> {
    let card = move |number: usize| any_card(format!("{}-{number}", NODES[node]));
    (card(0), card(1), card(2), 1..=3usize).prop_map(move |(first, second, third, count)| {
        (NODES[node], [first, second, third].into_iter().take(count).collect())
    })
}

fn any_nodes() -> impl Strategy<Value = Vec<(&'static str, Vec<CardSpec>)>> {
    (any_node(0), any_node(1), any_node(2), any_node(3), 1..=4usize).prop_map(
        |(first, second, third, fourth, count)| {
            [first, second, third, fourth].into_iter().take(count).collect()
        },
    )
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let cores = prop::sample::select(vec![0, 0, 30, 60, 100, 130]);
    (1..3i64, 0..1500i64, prop::option::of(0..=100i64), cores)
        .prop_map(|(count, memory, percent, cores)| Ask::new(VENDOR, count, memory, percent, cores).unwrap())
}

fn any_constraint() -> impl Strategy<Value = CardConstraint> {
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

fn any_pod(uid: u8) -> impl Strategy<Value = PodAsk> {
    let containers = vec((0..5usize, prop::option::weighted(0.8, any_ask())), 1..4);
    let policies = (prop::bool::ANY, 0..POLICIES.len(), prop::bool::weighted(0.2));
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
            .with_policies(if policies.0 { "spread" } else { "binpack" }, POLICIES[policies.1], policies.2)
            .with_constraint(VENDOR, constraint)
    })
}

/// A pod another writer placed: its cards need not have room, nor exist.
#[derive(Clone, Debug)]
struct Bound {
    uid: String,
    node: &'static str,
    containers: Vec<(ContainerKind, Vec<BoundShare>)>,
    init_done: bool,
}

fn any_bound(uid: u8) -> impl Strategy<Value = Bound> {
    let share = (0..4usize, 0..4usize, 0..1200i64, 0..80i64);
    (0..NODES.len(), vec((0..KINDS.len(), vec(share, 0..3)), 1..4), prop::bool::ANY).prop_map(
        move |(node, containers, init_done)| Bound {
            uid: format!("pod-{uid}"),
            node: NODES[node],
            containers: containers
                .into_iter()
                .map(|(kind, shares)| {
                    let share = |(node, number, memory, cores): (usize, usize, i64, i64)| {
                        BoundShare::new(&format!("{}-{number}", NODES[node]), VENDOR, memory, cores).unwrap()
                    };
                    (KINDS[kind], shares.into_iter().map(share).collect())
                })
                .collect(),
            init_done,
        },
    )
}

fn charge_all(running: &[Bound], cluster: &mut Cluster) {
    for bound in running {
        bound.charge(cluster);
    }
}

impl Bound {
    fn charge(&self, cluster: &mut Cluster) {
        charge_containers(cluster, &self.uid, self.node, &self.containers, self.init_done);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Reserve(PodAsk),
    Charge(Bound),
    Release(String),
    Confirm(String),
    SetNode(&'static str, Vec<CardSpec>),
    RemoveNode(&'static str),
    Health(&'static str, String, bool),
    Quota(Option<i64>, Option<i64>),
}

fn any_step() -> impl Strategy<Value = Step> {
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
fn told(decision: &Decision) -> String {
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

/// Runs a step; what a decision said is returned.
fn run(cluster: &mut Cluster, step: &Step) -> Option<String> {
    match step {
        Step::Reserve(pod) => return Some(told(&cluster.reserve(pod, Candidates::Named(&NODES)))),
        Step::Charge(bound) => bound.charge(cluster),
        Step::Release(uid) => drop(cluster.release(uid)),
        Step::Confirm(uid) => drop(cluster.confirm(uid)),
        Step::SetNode(node, cards) => cluster.set_node(node, cards).unwrap(),
        Step::RemoveNode(node) => drop(cluster.remove_node(node)),
        Step::Health(node, card, healthy) => drop(cluster.set_card_health(node, card, *healthy)),
        Step::Quota(memory, cores) => cluster.set_quota("default", VENDOR, *memory, *cores),
    }
    None
}

fn build(nodes: &[(&'static str, Vec<CardSpec>)]) -> Cluster {
    support::cluster(nodes)
}

/// What others see of the whole state.
fn seen(cluster: &Cluster) -> (Vec<Vec<CardView>>, Vec<(i64, i64)>) {
    let quotas = ["default", "team"].map(|namespace| cluster.quota_used(namespace, VENDOR));
    (NODES.iter().map(|node| cluster.node_cards(node)).collect(), quotas.to_vec())
}

/// `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: config.cases.max(400), failure_persistence: None, ..config }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn kept_sums_equal_their_recomputation_after_every_step(steps in vec(any_step(), 1..40)) {
        let mut cluster = empty_cluster();
        for step in &steps {
            run(&mut cluster, step);
            prop_assert_eq!(cluster.check_invariants(), Vec::<String>::new());
            // A second bookkeeping, by what each pod is said to hold.
            for node in NODES {
                let mut sums: BTreeMap<String, Amount> = BTreeMap::new();
                for pod in cluster.pods(node) {
                    for (card, held) in cluster.booked(pod.uid) {
                        let sum = sums.entry(card.into()).or_default();
                        sum.memory_mib += held.memory_mib;
                        sum.cores_percent += held.cores_percent;
                        sum.slots += held.slots;
                    }
                }
                for card in cluster.node_cards(node) {
                    prop_assert_eq!(card.used, sums.get(&card.spec.id).copied().unwrap_or_default());
                }
            }
        }
    }

    #[test]
    fn our_own_decisions_never_overcommit(
        nodes in any_nodes(),
        quota in prop::option::of(0..5000i64),
        steps in vec(any_step(), 1..60),
    ) {
        let mut cluster = build(&nodes);
        cluster.set_quota("default", VENDOR, quota, None);
        for step in steps {
            if !matches!(step, Step::Reserve(_) | Step::Release(_) | Step::Confirm(_) | Step::Health(..)) {
                continue;
            }
            run(&mut cluster, &step);
            for card in NODES.iter().flat_map(|node| cluster.node_cards(node)) {
                prop_assert!(card.used.memory_mib <= card.spec.memory_mib, "{:?}", card);
                prop_assert!(card.used.cores_percent <= i64::from(card.spec.cores_percent), "{:?}", card);
                prop_assert!(card.used.slots <= i64::from(card.spec.slots.max(0)), "{:?}", card);
            }
            prop_assert!(quota.is_none_or(|limit| cluster.quota_used("default", VENDOR).0 <= limit));
        }
    }

    #[test]
    fn release_restores_what_was_before_reserve(
        nodes in any_nodes(),
        running in vec((0..6u8).prop_flat_map(any_bound), 0..6),
        pod in any_pod(7),
    ) {
        let mut cluster = build(&nodes);
        charge_all(&running, &mut cluster);
        let before = seen(&cluster);
        let asked = told(&cluster.what_if(&pod, Candidates::All));
        prop_assert_eq!(&seen(&cluster), &before);
        let answered = told(&cluster.reserve(&pod, Candidates::All));
        prop_assert_eq!(asked, answered);
        cluster.release(pod.uid());
        prop_assert_eq!(seen(&cluster), before);
    }

    #[test]
    fn the_order_of_arrival_does_not_matter(
        (nodes, shuffled) in any_nodes().prop_flat_map(|nodes| (Just(nodes.clone()), Just(nodes).prop_shuffle())),
        running in vec((0..200u8).prop_flat_map(any_bound), 0..10)
            .prop_filter("one pod a uid", |pods| {
                pods.iter().enumerate().all(|(index, pod)| pods[..index].iter().all(|other| other.uid != pod.uid))
            })
            .prop_flat_map(|pods| (Just(pods.clone()), Just(pods).prop_shuffle())),
        names in Just(NODES.to_vec()).prop_shuffle(),
        pod in any_pod(201),
    ) {
        let mut straight = build(&nodes);
        charge_all(&running.0, &mut straight);
        let mut other = empty_cluster();
        charge_all(&running.1, &mut other);
        for (name, cards) in &shuffled {
            other.set_node(name, cards).unwrap();
        }
        let first = told(&straight.reserve(&pod, Candidates::Named(&NODES)));
        prop_assert_eq!(&told(&other.reserve(&pod, Candidates::Named(&names))), &first);
        prop_assert_eq!(seen(&straight), seen(&other));
    }

    #[test]
    fn the_same_history_gives_the_same_answers_also_on_a_copy(
        steps in vec(any_step(), 1..30),
        copied_at in 0..30usize,
    ) {
        let mut one = empty_cluster();
        let mut other = empty_cluster();
        for (number, step) in steps.iter().enumerate() {
            if number == copied_at {
                other = other.clone();
            }
            prop_assert_eq!(run(&mut one, step), run(&mut other, step));
        }
        prop_assert_eq!(seen(&one), seen(&other));
    }

    #[test]
    fn counting_and_walking_agree(
        nodes in any_nodes(),
        running in vec((0..6u8).prop_flat_map(any_bound), 0..6),
        quota in prop::option::of(0..5000i64),
        pod in any_pod(7),
    ) {
        // `reserve` counts where it may; `explain` always walks.
        let mut cluster = build(&nodes);
        cluster.set_quota("default", VENDOR, quota, None);
        charge_all(&running, &mut cluster);
        let decision = cluster.what_if(&pod, Candidates::Named(&NODES));
        let verdicts = cluster.explain(&pod, Candidates::Named(&NODES));
        let fitting: Vec<_> = verdicts
            .iter()
            .filter_map(|verdict| verdict.score.map(|score| (verdict.node.as_str(), score)))
            .collect();
        prop_assert_eq!(decision.node_scores(), fitting);
        let failing: Vec<_> = verdicts
            .iter()
            .filter(|verdict| !verdict.fits)
            .map(|verdict| (verdict.node.as_str(), verdict.reason.clone()))
            .collect();
        prop_assert_eq!(decision.failed_nodes(None), failing);
        if decision.chosen().is_none() {
            let never: Vec<_> =
                verdicts.iter().filter(|verdict| verdict.never).map(|verdict| verdict.node.as_str()).collect();
            let said = decision.failed_nodes(Some(true));
            prop_assert_eq!(said.iter().map(|(node, _)| *node).collect::<Vec<_>>(), never);
        }
    }

    #[test]
    fn never_means_not_on_the_empty_node_either(
        nodes in any_nodes(),
        running in vec((0..6u8).prop_flat_map(any_bound), 0..6),
        pod in any_pod(7),
    ) {
        let mut cluster = build(&nodes);
        charge_all(&running, &mut cluster);
        let decision = cluster.what_if(&pod, Candidates::All);
        prop_assume!(decision.chosen().is_none());
        let never: Vec<_> = decision.failed_nodes(Some(true)).into_iter().map(|(node, _)| node.to_string()).collect();
        for (node, mut cards) in nodes {
            for card in &mut cards {
                card.healthy = true;
                card.cordoned = false;
            }
            let alone = build(&[(node, cards)]).reserve(&pod, Candidates::All);
            prop_assert_eq!(alone.chosen().is_none(), never.contains(&node.to_string()), "{}", node);
        }
    }
}
