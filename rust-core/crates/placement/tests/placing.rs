//! Small clusters as data: where a pod goes, and what it is told where it does not fit.

mod support;

use placement::{Candidates, CardConstraint, CardSpec, ContainerKind, Detail, PodAsk, Weights};
use support::{
    ask, ask_percent, card, cards, cards_of, charge, cluster, container, node_of, only_models, pod, pod_of,
    reserve, text_of, used, VENDOR,
};

use ContainerKind::{App, Init, Sidecar};

struct Refusal {
    name: &'static str,
    cards: Vec<CardSpec>,
    /// Card, MiB and percent of the pods that run.
    running: Vec<(&'static str, i64, i64)>,
    pod: PodAsk,
    text: &'static str,
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn refusals_say_why() {
    let two = || cards("a", 2);
    let changed = |change: fn(&mut CardSpec)| {
        let mut list = two();
        for card in &mut list {
            change(card);
        }
        list
    };
    let whole = || ask(1, 1000, 100);
    let cases = [
        Refusal {
            name: "memory",
            cards: two(),
            running: vec![("a-0", 9000, 0)],
            pod: pod("p", vec![ask(1, 20_000, 0)]),
            text: "2/2 CardInsufficientMemory",
        },
        Refusal {
            name: "all of a card that says it has less than no memory",
            cards: changed(|card| card.memory_mib = -1),
            running: vec![],
            pod: pod("p", vec![ask_percent(1, 100)]),
            text: "2/2 CardInsufficientMemory",
        },
        Refusal {
            name: "some fit, too few",
            cards: two(),
            running: vec![("a-0", 9000, 0)],
            pod: pod("p", vec![ask(2, 2000, 0)]),
            text: "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory",
        },
        Refusal {
            name: "more cards than the node has",
            cards: two(),
            running: vec![],
            pod: pod("p", vec![ask(3, 1, 0)]),
            text: "NodeInsufficientDevice",
        },
        Refusal {
            name: "cores",
            cards: two(),
            running: vec![("a-0", 1, 60), ("a-1", 1, 60)],
            pod: pod("p", vec![ask(1, 1, 50)]),
            text: "2/2 CardInsufficientCore",
        },
        Refusal {
            name: "slots",
            cards: changed(|card| card.slots = 1),
            running: vec![("a-0", 1, 0), ("a-1", 1, 0)],
            pod: pod("p", vec![ask(1, 1, 0)]),
            text: "2/2 CardTimeSlicingExhausted",
        },
        Refusal {
            name: "exclusive on used cards",
            cards: two(),
            running: vec![("a-0", 1, 0), ("a-1", 1, 0)],
            pod: pod("p", vec![whole()]),
            text: "2/2 ExclusiveDeviceAllocateConflict",
        },
        Refusal {
            name: "no cores left for a share without cores",
            cards: two(),
            running: vec![("a-0", 1, 100), ("a-1", 1, 50)],
            pod: pod("p", vec![ask(2, 1, 0)]),
            text: "1/2 AllocatedCardsInsufficientRequest, 1/2 CardComputeUnitsExhausted",
        },
        Refusal {
            name: "unhealthy",
            cards: changed(|card| card.healthy = false),
            running: vec![],
            pod: pod("p", vec![ask(1, 1, 0)]),
            text: "2/2 CardNotHealth",
        },
        Refusal {
            name: "cordoned",
            cards: changed(|card| card.cordoned = true),
            running: vec![],
            pod: pod("p", vec![ask(1, 1, 0)]),
            text: "2/2 CardCordoned",
        },
        Refusal {
            name: "model",
            cards: two(),
            running: vec![],
            pod: pod("p", vec![ask(1, 1, 0)]).with_constraint(VENDOR, only_models(&["h100"])),
            text: "2/2 CardTypeMismatch",
        },
        Refusal {
            name: "an empty list of wanted models",
            cards: two(),
            running: vec![],
            pod: pod("p", vec![ask(1, 1, 0)]).with_constraint(VENDOR, only_models(&[])),
            text: "2/2 CardTypeMismatch",
        },
        Refusal {
            name: "id",
            cards: two(),
            running: vec![],
            pod: pod("p", vec![ask(2, 1, 0)]).with_constraint(
                VENDOR,
                CardConstraint::new(None, None, None, Some(vec!["a-1".into()]), None),
            ),
            text: "1/2 AllocatedCardsInsufficientRequest, 1/2 CardUuidMismatch",
        },
        Refusal {
            name: "mutex on a used card",
            cards: two(),
            running: vec![("a-0", 1, 0), ("a-1", 1, 0)],
            pod: pod("p", vec![ask(1, 1, 0)]).with_policies("binpack", "mutex", false),
            text: "2/2 ExclusiveDeviceAllocateConflict",
        },
        Refusal {
            name: "partitioned cards without profiles",
            cards: changed(|card| card.mode = "mig".into()),
            running: vec![],
            pod: pod("p", vec![ask(1, 1, 0)]),
            text: "2/2 CardMigTopologyInfeasible",
        },
        Refusal {
            name: "partitioned cards that the pod does not accept",
            cards: changed(|card| card.mode = "mig".into()),
            running: vec![],
            pod: pod("p", vec![ask(1, 1, 0)]).with_constraint(
                VENDOR,
                CardConstraint::new(None, None, None, None, Some("hami-core".into())),
            ),
            text: "2/2 CardTypeMismatch",
        },
        Refusal {
            name: "unknown vendor",
            cards: two(),
            running: vec![],
            pod: pod("p", vec![placement::Ask::new("ACME", 1, 1, None, 0).unwrap()]),
            text: "Device type not found",
        },
    ];
    for case in cases {
        let mut cluster = cluster(&[("a", case.cards)]);
        for (number, (card_id, memory, cores)) in case.running.iter().enumerate() {
            charge(&mut cluster, &format!("run-{number}"), "a", card_id, *memory, *cores);
        }
        let decision = reserve(&mut cluster, &case.pod);
        assert_eq!(text_of(&decision, "a"), case.text, "{}", case.name);
        let verdicts = cluster.explain(&case.pod, Candidates::All, Detail::default()).nodes;
        assert_eq!(verdicts[0].reason, case.text, "{}", case.name);
        assert_eq!(cluster.booked("p"), [], "{}", case.name);
    }
}

#[test]
fn cores_beyond_a_card_are_read_as_a_whole_card() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    let decision = reserve(&mut cluster, &pod("p", vec![ask(1, 1, 120)]));
    assert_eq!(decision.shares()[0].cores_percent, 100);
}

#[test]
fn percentages_round_down_and_large_cards_do_not_overflow() {
    let huge = CardSpec { memory_mib: 3_000_000_007, ..card("a-0") };
    let mut cluster = cluster(&[("a", vec![huge])]);
    let decision = reserve(&mut cluster, &pod("p", vec![ask_percent(1, 33)]));
    assert_eq!(decision.shares()[0].memory_mib, 990_000_002);
}

#[test]
fn the_fullest_or_the_emptiest_node_wins_and_names_break_ties() {
    // PLC-03
    for (policy, node) in [("binpack", "b"), ("spread", "a")] {
        let mut cluster = cluster(&[("a", cards("a", 8)), ("b", cards("b", 8))]);
        for number in 0..5 {
            charge(&mut cluster, &format!("run-{number}"), "b", &format!("b-{number}"), 10_000, 100);
        }
        let decision = reserve(&mut cluster, &pod("p", vec![ask(1, 10, 0)]).with_policies(policy, "", false));
        assert_eq!(node_of(&decision), Some(node), "{policy}");
        let mut idle = support::cluster(&[("b", cards("b", 1)), ("c", cards("c", 1)), ("a", cards("a", 1))]);
        let decision = reserve(&mut idle, &pod("p", vec![ask(1, 10, 0)]).with_policies(policy, "", false));
        assert_eq!(node_of(&decision), Some("a"), "{policy}");
        assert_eq!(decision.best().map(|(node, _)| node).collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}

#[test]
fn of_equal_cards_the_one_listed_last_is_taken_first() {
    let mut cluster = cluster(&[("a", cards("a", 3))]);
    for policy in ["binpack", "spread", "mutex", "numa", "else"] {
        let decision =
            reserve(&mut cluster, &pod("p", vec![ask(2, 10, 0)]).with_policies("binpack", policy, false));
        assert_eq!(cards_of(&decision), ["a-2", "a-1"], "{policy}");
    }
}

#[test]
fn load_comes_before_numa() {
    // PLC-01
    let mut four = cards("a", 4);
    four[2].numa = 1;
    four[3].numa = 1;
    let mut cluster = cluster(&[("a", four)]);
    charge(&mut cluster, "run", "a", "a-0", 5000, 50);
    let place = |cluster: &mut _, policy| {
        let pod = pod("p", vec![ask(1, 10, 0)]).with_policies("binpack", policy, false);
        cards_of(&reserve(cluster, &pod))[0].to_string()
    };
    assert_eq!(place(&mut cluster, "spread"), "a-3");
    assert_eq!(place(&mut cluster, "binpack"), "a-0");
}

#[test]
fn numa_binding_keeps_one_container_on_one_numa_node() {
    let mut four = cards("a", 4);
    four[2].numa = 1;
    four[3].numa = 1;
    let mut cluster = cluster(&[("a", four)]);
    let bound = |uid, count| pod(uid, vec![ask(count, 9000, 0)]).with_policies("binpack", "binpack", true);
    assert_eq!(cards_of(&reserve(&mut cluster, &bound("one", 1))), ["a-1"]);
    assert_eq!(cards_of(&reserve(&mut cluster, &bound("two", 2))), ["a-3", "a-2"]);
    let decision = reserve(&mut cluster, &bound("three", 2));
    assert_eq!(text_of(&decision, "a"), "1/4 NumaNotFit, 3/4 CardInsufficientMemory");
    cluster.release("two");
    charge(&mut cluster, "run", "a", "a-3", 9000, 0);
    let decision = reserve(&mut cluster, &bound("three", 2));
    assert_eq!(
        text_of(&decision, "a"),
        "1/4 AllocatedCardsInsufficientRequest, 1/4 NumaNotFit, 2/4 CardInsufficientMemory"
    );
}

#[test]
fn weights_change_which_card_is_fullest() {
    let mut cluster = cluster(&[("a", cards("a", 2))]);
    charge(&mut cluster, "memory", "a", "a-0", 5000, 0);
    charge(&mut cluster, "cores", "a", "a-1", 0, 40);
    for (weights, card_id) in [((0, 0, 1), "a-0"), ((0, 1, 0), "a-1"), ((1, 1, 1), "a-0")] {
        let pod = pod("p", vec![ask(1, 1, 0)])
            .with_policies("binpack", "binpack", false)
            .with_weights(Weights::new(weights.0, weights.1, weights.2).unwrap());
        assert_eq!(cards_of(&reserve(&mut cluster, &pod)), [card_id], "{weights:?}");
    }
}

#[test]
fn containers_of_a_pod_see_each_other() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    let fits = [
        (vec![(App, 6000), (App, 4000)], true),
        (vec![(App, 6000), (App, 5000)], false),
        (vec![(Init, 6000), (App, 6000)], true),
        // MUL-02
        (vec![(Sidecar, 6000), (App, 6000)], false),
        (vec![(Sidecar, 6000), (Init, 6000), (App, 1)], false),
        (vec![(Init, 6000), (Sidecar, 6000), (Init, 4000), (App, 4000)], true),
    ];
    for (containers, expected) in fits {
        let decision = reserve(&mut cluster, &pod_of("p", &containers));
        assert_eq!(decision.chosen().is_some(), expected, "{containers:?}");
    }
    let decision =
        reserve(&mut cluster, &pod_of("p", &[(Init, 4000), (Sidecar, 3000), (Init, 2000), (App, 1000)]));
    assert_eq!(cards_of(&decision), ["a-0"; 4]);
    let held = used(&cluster, "a")[0];
    assert_eq!((held.memory_mib, held.slots), (5000, 2));
}

#[test]
fn a_container_without_asks_gets_nothing() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    let containers = vec![
        container("c0", App, vec![ask_percent(1, 50)]),
        container("c1", App, vec![]),
        container("c2", App, vec![ask(1, 2000, 0)]),
    ];
    let decision = reserve(&mut cluster, &PodAsk::new("p", "default", "p", containers).unwrap());
    let shares: Vec<_> = decision.shares().iter().map(|share| (share.container, share.memory_mib)).collect();
    assert_eq!(shares, [(0, 5000), (2, 2000)]);
}

#[test]
fn exclusive_containers_of_one_pod_do_not_share_a_card() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    let decision = reserve(&mut cluster, &pod("p", vec![ask(1, 1, 0), ask(1, 1, 100)]));
    assert_eq!(text_of(&decision, "a"), "1/1 ExclusiveDeviceAllocateConflict");
}

#[test]
fn candidates_are_named_once_and_unknown_ones_are_reported() {
    let mut cluster = cluster(&[("a", cards("a", 1)), ("b", cards("b", 1))]);
    let names = ["b", "x", "b", "x", "y"];
    let decision = cluster.reserve(&pod("p", vec![ask(1, 1, 0)]), Candidates::Named(&names));
    assert_eq!(node_of(&decision), Some("b"));
    assert_eq!((decision.fitting_nodes(), decision.candidate_nodes()), (1, 3));
    let unregistered = "node unregistered".to_string();
    assert_eq!(decision.failed_nodes(None), [("x", unregistered.clone()), ("y", unregistered)]);
    assert_eq!(decision.tally(), [("NodeUnregistered", 2)]);
    assert_eq!(node_of(&cluster.reserve(&pod("p", vec![ask(1, 1, 0)]), Candidates::Named(&[]))), None);
}

#[test]
fn never_and_not_now_are_told_apart() {
    let small = CardSpec { memory_mib: 500, ..card("small-0") };
    let sick = CardSpec { healthy: false, ..card("sick-0") };
    let cordoned = CardSpec { cordoned: true, ..card("cordoned-0") };
    let mut cluster = cluster(&[
        ("small", vec![small]),
        ("sick", vec![sick]),
        ("cordoned", vec![cordoned]),
        ("full", cards("full", 1)),
        ("two", cards("two", 2)),
    ]);
    charge(&mut cluster, "run-1", "full", "full-0", 10_000, 0);
    charge(&mut cluster, "run-2", "two", "two-0", 10_000, 0);
    charge(&mut cluster, "run-3", "two", "two-1", 10_000, 0);
    let names = ["small", "sick", "cordoned", "full", "two", "gone"];
    let told = |cluster: &mut placement::Cluster, pod: &PodAsk, never| {
        let decision = cluster.reserve(pod, Candidates::Named(&names));
        assert_eq!(decision.chosen(), None);
        decision.failed_nodes(Some(never)).into_iter().map(|(node, _)| node.to_string()).collect::<Vec<_>>()
    };
    let one = pod("p", vec![ask(1, 1000, 0)]);
    assert_eq!(told(&mut cluster, &one, true), ["small"]);
    assert_eq!(told(&mut cluster, &one, false), ["cordoned", "full", "gone", "sick", "two"]);
    let bound = pod("p", vec![ask(2, 1000, 0)]).with_policies("binpack", "spread", true);
    assert_eq!(told(&mut cluster, &bound, true), ["cordoned", "full", "sick", "small"]);
    let wrong = pod("p", vec![ask(1, 1000, 0)]).with_constraint(VENDOR, only_models(&["H100"]));
    assert_eq!(told(&mut cluster, &wrong, true), ["cordoned", "full", "sick", "small", "two"]);
}
