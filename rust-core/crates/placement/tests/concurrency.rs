//! Many threads over one state behind a lock, as the compiled module has it.
//!
//! Every step is written down with its number as it is done. Afterwards the same steps run one after the other on a new
//! state and must give the same answers: so no step saw another one half done, and a decision that a thread still holds
//! is not touched by those that come after it.

mod support;

use std::sync::{Arc, Mutex};

use placement::{BoundShare, Candidates, CardScores, CardSpec, Cluster, ContainerKind, Decision, PodAsk};
use support::{ask, cards, charge_containers, container, VENDOR};

const THREADS: u64 = 8;
const STEPS_PER_THREAD: usize = 300;
const NODES: [&str; 4] = ["a", "b", "c", "d"];
const CARD_POLICIES: [&str; 6] =
    ["spread", "binpack", "mutex", "topology-aware", "numa,topology-aware", "binpack,mutex"];

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

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

#[derive(Clone, Debug)]
enum Step {
    Reserve(PodAsk),
    WhatIf(PodAsk),
    Explain(PodAsk),
    Release(String),
    Confirm(String),
    Charge(String, &'static str, i64),
    SetNode(&'static str, Vec<CardSpec>, Vec<CardScores>),
    RemoveNode(&'static str),
    Health(&'static str, usize, bool),
    Quota(Option<i64>),
    Copy,
}

/// What a step answered. Decisions are read only after other threads went on.
enum Answer {
    Decided(Arc<Decision>),
    Told(String),
}

impl Answer {
    fn text(&self) -> String {
        match self {
            Self::Told(text) => text.clone(),
            Self::Decided(decision) => format!(
                "{:?} {:?} {:?} {:?} {:?}",
                decision.chosen(),
                decision.shares(),
                decision.node_scores(),
                decision.tally(),
                decision.notes().iter().collect::<Vec<_>>(),
            ),
        }
    }
}

fn any_pod(numbers: &mut Numbers, uid: &str) -> PodAsk {
    let containers = (0..=numbers.below(2))
        .map(|_| {
            let kind = ContainerKind::App;
            let wanted =
                ask(1 + numbers.below(3) as i64, numbers.below(4_000) as i64, numbers.below(40) as i64);
            container("c", kind, vec![wanted])
        })
        .collect();
    PodAsk::new(uid, "default", uid, containers).unwrap().with_policies(
        numbers.of(&["binpack", "spread"]),
        numbers.of(&CARD_POLICIES),
        numbers.below(4) == 0,
    )
}

fn any_step(numbers: &mut Numbers, thread: u64) -> Step {
    let uid = format!("{thread}-{}", numbers.below(6));
    let node = numbers.of(&NODES);
    match numbers.below(20) {
        0..=7 => Step::Reserve(any_pod(numbers, &uid)),
        8 => Step::WhatIf(any_pod(numbers, &uid)),
        9 => Step::Explain(any_pod(numbers, &uid)),
        10..=12 => Step::Release(uid),
        13 => Step::Confirm(uid),
        14 => Step::Charge(uid, node, numbers.below(500) as i64),
        15 | 16 => {
            let mut specs = cards(node, 1 + numbers.below(4) as usize);
            for spec in &mut specs {
                spec.numa = numbers.below(2) as i32;
            }
            let ids: Vec<String> = specs.iter().map(|spec| spec.id.clone()).collect();
            let peers = |numbers: &mut Numbers| {
                ids.iter().map(|peer| (peer.clone(), numbers.below(300) as i64)).collect::<Vec<_>>()
            };
            let scores = ids.iter().map(|id| (id.clone(), peers(numbers))).collect();
            Step::SetNode(node, specs, scores)
        }
        17 => Step::Health(node, numbers.below(4) as usize, numbers.below(2) == 0),
        18 => Step::Quota((numbers.below(2) == 0).then(|| numbers.below(30_000) as i64)),
        _ if numbers.below(3) == 0 => Step::RemoveNode(node),
        _ => Step::Copy,
    }
}

fn run(cluster: &mut Cluster, step: &Step) -> Answer {
    match step {
        Step::Reserve(pod) => Answer::Decided(cluster.reserve(pod, Candidates::Named(&NODES))),
        Step::WhatIf(pod) => Answer::Decided(cluster.what_if(pod, Candidates::All)),
        Step::Explain(pod) => {
            Answer::Told(format!("{:?}", cluster.explain(pod, Candidates::All, placement::Detail::default())))
        }
        Step::Release(uid) => Answer::Told(cluster.release(uid).to_string()),
        Step::Confirm(uid) => Answer::Told(cluster.confirm(uid).to_string()),
        Step::Charge(uid, node, memory) => {
            let share = BoundShare::new(&format!("{node}-1"), VENDOR, *memory, 1).unwrap();
            charge_containers(cluster, uid, node, &[(ContainerKind::App, vec![share])], false);
            Answer::Told(String::new())
        }
        Step::SetNode(node, specs, scores) => {
            cluster.set_node_with_pair_scores(node, specs, scores).unwrap();
            Answer::Told(String::new())
        }
        Step::RemoveNode(node) => Answer::Told(cluster.remove_node(node).to_string()),
        Step::Health(node, number, healthy) => {
            Answer::Told(cluster.set_card_health(node, &format!("{node}-{number}"), *healthy).to_string())
        }
        Step::Quota(memory) => {
            cluster.set_quota("default", VENDOR, *memory, None);
            Answer::Told(String::new())
        }
        Step::Copy => {
            // What happens to the copy must not be seen here.
            let mut copy = cluster.clone();
            for node in NODES {
                copy.remove_node(node);
            }
            Answer::Told(copy.booking_count().to_string())
        }
    }
}

/// Everything that can be read of a state.
fn state(cluster: &Cluster) -> String {
    let nodes: Vec<_> = NODES.iter().map(|node| (cluster.node_cards(node), cluster.pods(node))).collect();
    format!("{nodes:?} {:?}", cluster.quota_used("default", VENDOR))
}

struct Shared {
    cluster: Cluster,
    steps: Vec<Step>,
}

fn new_state() -> Cluster {
    support::cluster(&NODES.map(|node| (node, cards(node, 3))))
}

#[test]
fn threads_see_one_step_after_the_other() {
    for round in 0..3 {
        let shared = Mutex::new(Shared { cluster: new_state(), steps: Vec::new() });
        let worker = |thread: u64| {
            let mut numbers = Numbers(round * THREADS + thread);
            let mut answers = Vec::with_capacity(STEPS_PER_THREAD);
            for _ in 0..STEPS_PER_THREAD {
                let step = any_step(&mut numbers, thread);
                let mut shared = shared.lock().unwrap();
                let answer = run(&mut shared.cluster, &step);
                answers.push((shared.steps.len(), answer));
                shared.steps.push(step);
            }
            answers.iter().map(|(number, answer)| (*number, answer.text())).collect::<Vec<_>>()
        };
        let mut told: Vec<(usize, String)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || worker(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        told.sort_unstable();

        let Shared { cluster, steps } = shared.into_inner().unwrap();
        assert_eq!(cluster.check_invariants(), Vec::<String>::new());
        let mut again = new_state();
        for (number, (step, (_, text))) in steps.iter().zip(&told).enumerate() {
            assert_eq!(&run(&mut again, step).text(), text, "step {number}: {step:?}");
        }
        assert_eq!(state(&again), state(&cluster));
    }
}

#[test]
fn no_card_is_given_twice() {
    let cluster = Mutex::new(new_state());
    let worker = |thread: u64| {
        let mut numbers = Numbers(thread);
        for _ in 0..STEPS_PER_THREAD {
            let uid = format!("{thread}-{}", numbers.below(6));
            let mut cluster = cluster.lock().unwrap();
            if numbers.below(3) == 0 {
                cluster.release(&uid);
            } else {
                cluster.reserve(&any_pod(&mut numbers, &uid), Candidates::All);
            }
            for card in NODES.iter().flat_map(|node| cluster.node_cards(node)) {
                assert!(
                    card.used.memory_mib <= card.spec.memory_mib
                        && card.used.cores_percent <= i64::from(card.spec.cores_percent)
                        && card.used.slots <= i64::from(card.spec.slots),
                    "{card:?}"
                );
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || worker(thread));
        }
    });
    assert_eq!(cluster.into_inner().unwrap().check_invariants(), Vec::<String>::new());
}
