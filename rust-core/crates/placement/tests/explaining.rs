//! Explanations: what is said of each card, and the smallest change, which is tried as its reader would try it.

mod support;

use placement::{
    AskField, BoundShare, Candidates, CardConstraint, CardSpec, Change, Cluster, ContainerKind, Detail,
    Explanation, FaultyCard, PodAsk, Reason, Shift,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::random::{any_bound, any_nodes, any_pod, charge_all, NODES};
use support::{
    ask, ask_percent, card, cards, charge, charge_containers, cluster, only_models, pod, pod_of, VENDOR,
};

fn explain(cluster: &mut Cluster, pod: &PodAsk) -> Explanation {
    cluster.explain(pod, Candidates::All, Detail::default())
}

fn best(cluster: &mut Cluster, pod: &PodAsk) -> Option<Change> {
    let told = explain(cluster, pod);
    check_claims(cluster, pod, &told).unwrap();
    told.change.map(|found| found.change)
}

/// Whether the pod fits on the node after the change, and on which cards.
fn after(cluster: &Cluster, node: &str, pod: &PodAsk, change: &Change) -> Option<Vec<String>> {
    let mut copy = cluster.clone();
    let asked = change.apply(&mut copy, node, pod);
    let decision = copy.what_if(&asked, Candidates::Named(&[node]));
    decision.chosen()?;
    let mut cards: Vec<String> = Vec::new();
    for share in decision.shares() {
        if !cards.iter().any(|known| **known == *share.card_id) {
            cards.push(share.card_id.to_string());
        }
    }
    Some(cards)
}

/// Every change that is told of suffices, gives the cards it names, and with one unit less does not suffice.
fn check_claims(cluster: &Cluster, pod: &PodAsk, told: &Explanation) -> Result<(), TestCaseError> {
    for verdict in &told.nodes {
        let alone = cluster.clone().what_if(pod, Candidates::Named(&[&verdict.node]));
        prop_assert_eq!(verdict.fits, alone.chosen().is_some());
        prop_assert_eq!(verdict.fits, verdict.reason.is_empty());
        for (place, found) in verdict.changes.iter().enumerate() {
            prop_assert_eq!(&found.node, &verdict.node);
            let cards = after(cluster, &found.node, pod, &found.change);
            prop_assert_eq!(cards.as_ref(), Some(&found.cards), "{:?}", found);
            for less in found.change.one_less() {
                let fits = after(cluster, &found.node, pod, &less);
                prop_assert_eq!(fits, None, "{:?} though {:?}", less, found);
            }
            let later = &verdict.changes[place + 1..];
            prop_assert!(later.iter().all(|other| found.change.cost() <= other.change.cost()));
        }
    }
    let smallest =
        told.nodes.iter().flat_map(|verdict| &verdict.changes).map(|found| found.change.cost()).min();
    prop_assert_eq!(smallest, told.change.as_ref().map(|found| found.change.cost()));
    Ok(())
}

fn lowered(container: &str, number: u16, parts: &[(AskField, i64, i64)]) -> Change {
    let part = |(field, from, to): &(AskField, i64, i64)| (*field, Shift { from: *from, to: *to });
    Change::LowerAsk {
        container_number: number,
        container: container.into(),
        vendor: VENDOR.into(),
        lowered: parts.iter().map(part).collect(),
    }
}

fn ended(uids: &[&str]) -> Change {
    Change::EndPods { uids: uids.iter().map(|uid| (*uid).to_string()).collect() }
}

#[test]
fn memory_that_is_short_is_asked_less_of_or_freed() {
    let mut cluster = cluster(&[("a", cards("a", 2)), ("b", cards("b", 1))]);
    charge(&mut cluster, "x", "a", "a-0", 2800, 0);
    charge(&mut cluster, "y", "a", "a-1", 9000, 0);
    charge(&mut cluster, "z", "b", "b-0", 9500, 0);
    let told = explain(&mut cluster, &pod("p", vec![ask(1, 8000, 0)]));
    check_claims(&cluster, &pod("p", vec![ask(1, 8000, 0)]), &told).unwrap();
    let change = told.change.unwrap();
    assert_eq!(change.change, lowered("c0", 0, &[(AskField::MemoryMib, 8000, 7200)]));
    assert_eq!((change.node.as_str(), change.cards), ("a", vec!["a-0".to_string()]));
    assert_eq!(told.nodes[0].changes[1].change, ended(&["x"]));
    assert_eq!((told.candidates, told.fitting, told.never, told.searched), (2, 0, 0, 2));
    let verdict = &told.nodes[0].cards.iter().find(|card| card.card_id == "a-0").unwrap();
    assert_eq!(verdict.reasons, [Reason::CardInsufficientMemory]);
    assert_eq!((verdict.asked, verdict.used, verdict.total), (Some(8000), Some(2800), Some(10_000)));
    let two = pod("p", vec![ask(2, 8000, 0)]);
    assert_eq!(best(&mut cluster, &two), Some(lowered("c0", 0, &[(AskField::MemoryMib, 8000, 1000)])));
}

#[test]
fn each_kind_of_change() {
    let two = || cluster(&[("a", cards("a", 2))]);
    let full = |cluster: &mut Cluster| {
        charge(cluster, "x", "a", "a-0", 9990, 10);
        charge(cluster, "y", "a", "a-1", 9995, 10);
    };
    // Of two pods that hold too much the one that holds less ends.
    let mut crowded = two();
    full(&mut crowded);
    assert_eq!(best(&mut crowded, &pod("p", vec![ask(1, 8000, 0)])), Some(ended(&["x"])));
    // Two pods that end cost more than asking for next to nothing.
    let two_cards = pod("p", vec![ask(2, 8000, 0)]);
    assert_eq!(best(&mut crowded, &two_cards), Some(lowered("c0", 0, &[(AskField::MemoryMib, 8000, 5)])));
    // Memory and cores together.
    let mut both = cluster(&[("a", cards("a", 1))]);
    charge(&mut both, "x", "a", "a-0", 4000, 40);
    assert_eq!(
        best(&mut both, &pod("p", vec![ask(1, 7000, 70)])),
        Some(lowered("c0", 0, &[(AskField::MemoryMib, 7000, 6000), (AskField::CoresPercent, 70, 60)]))
    );
    // Exclusive use of a card in use.
    assert_eq!(
        best(&mut both, &pod("p", vec![ask(1, 1000, 100)])),
        Some(lowered("c0", 0, &[(AskField::CoresPercent, 100, 60)]))
    );
    // A share of the memory by percentage.
    assert_eq!(
        best(&mut both, &pod("p", vec![ask_percent(1, 61)])),
        Some(lowered("c0", 0, &[(AskField::MemoryPercent, 61, 60)]))
    );
    // Cards that are out of service.
    let faulty = |id: &str, healthy, cordoned| CardSpec { healthy, cordoned, ..card(id) };
    let mut broken = cluster(&[("a", vec![faulty("a-0", false, false), faulty("a-1", true, true)])]);
    let restored = |cards: &[(&str, bool, bool)]| {
        let card = |(id, unhealthy, cordoned): &(&str, bool, bool)| FaultyCard {
            card_id: (*id).into(),
            unhealthy: *unhealthy,
            cordoned: *cordoned,
        };
        Some(Change::RestoreCards { cards: cards.iter().map(card).collect() })
    };
    assert_eq!(best(&mut broken, &pod("p", vec![ask(1, 1000, 0)])), restored(&[("a-0", true, false)]));
    assert_eq!(
        best(&mut broken, &pod("p", vec![ask(2, 1000, 0)])),
        restored(&[("a-0", true, false), ("a-1", false, true)])
    );
    // Quota.
    let mut limited = two();
    limited.set_quota("default", VENDOR, Some(1200), Some(15));
    charge(&mut limited, "x", "a", "a-0", 500, 5);
    let raise = |memory: Option<(i64, i64)>, cores: Option<(i64, i64)>| {
        let shift = |shift: Option<(i64, i64)>| shift.map(|(from, to)| Shift { from, to });
        Change::RaiseQuota {
            namespace: "default".into(),
            vendor: VENDOR.into(),
            memory_mib: shift(memory),
            cores_percent: shift(cores),
        }
    };
    let kinds = |cluster: &mut Cluster, pod: &PodAsk| {
        let told = explain(cluster, pod);
        check_claims(cluster, pod, &told).unwrap();
        told.nodes[0].changes.iter().map(|found| found.change.clone()).collect::<Vec<_>>()
    };
    let changes = kinds(&mut limited, &pod("p", vec![ask(1, 800, 20)]));
    assert!(changes.contains(&raise(Some((1200, 1300)), Some((15, 25)))), "{changes:?}");
    let changes = kinds(&mut limited, &pod("p", vec![ask(2, 400, 2)]));
    assert!(changes.contains(&raise(Some((1200, 1300)), None)), "{changes:?}");
    assert!(changes.contains(&ended(&["x"])), "{changes:?}");
}

#[test]
fn pods_with_several_containers() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    charge(&mut cluster, "x", "a", "a-0", 3000, 0);
    // Init containers compete with what runs later; only the sidecar and the app are too large together.
    let pod = pod_of(
        "p",
        &[(ContainerKind::Init, 6000), (ContainerKind::Sidecar, 2000), (ContainerKind::App, 6000)],
    );
    assert_eq!(best(&mut cluster, &pod), Some(lowered("c2", 2, &[(AskField::MemoryMib, 6000, 5000)])));
}

#[test]
fn rules_bind_what_is_proposed() {
    let mut cluster = cluster(&[("a", cards("a", 3))]);
    charge(&mut cluster, "x", "a", "a-0", 100, 0);
    charge(&mut cluster, "y", "a", "a-1", 100, 0);
    charge(&mut cluster, "z", "a", "a-2", 100, 0);
    let mutex = pod("p", vec![ask(2, 1000, 0)]).with_policies("binpack", "mutex", false);
    // Halving the count would leave one card in use still; of pods that hold the same the first by UID.
    let told = explain(&mut cluster, &mutex);
    check_claims(&cluster, &mutex, &told).unwrap();
    assert_eq!(told.change.unwrap().change, ended(&["x", "y"]));
    let rules = CardConstraint::new(None, None, Some(vec!["a-2".into()]), None, None);
    let named = pod("p", vec![ask(1, 9950, 0)]).with_constraint(VENDOR, rules);
    let told = explain(&mut cluster, &named);
    check_claims(&cluster, &named, &told).unwrap();
    assert_eq!(told.change.unwrap().cards, ["a-2"]);
    let other = pod("p", vec![ask(1, 1000, 0)]).with_constraint(VENDOR, only_models(&["h100"]));
    let told = explain(&mut cluster, &other);
    assert_eq!((told.change, told.never), (None, 1));
    assert_eq!((told.ceilings[0].field, told.ceilings[0].largest), (AskField::Count, 0));
}

#[test]
fn numa_bound_pods_count_cards_of_one_numa_node() {
    let mut specs = cards("a", 4);
    for (number, spec) in specs.iter_mut().enumerate() {
        spec.numa = number as i32 / 2;
    }
    let mut cluster = cluster(&[("a", specs)]);
    charge(&mut cluster, "x", "a", "a-0", 9000, 0);
    charge(&mut cluster, "y", "a", "a-3", 9500, 0);
    let bound = pod("p", vec![ask(2, 1200, 0)]).with_policies("binpack", "spread", true);
    assert_eq!(best(&mut cluster, &bound), Some(lowered("c0", 0, &[(AskField::MemoryMib, 1200, 1000)])));
}

#[test]
fn a_pod_that_blocks_a_card_is_named() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    let share = BoundShare::new("a-0", VENDOR, 100, 0).unwrap();
    charge_containers(&mut cluster, "x", "a", &[(ContainerKind::App, vec![share])], false);
    cluster.charge(&placement::BoundPod {
        uid: "malformed",
        namespace: "default",
        node: "a",
        containers: &[],
        init_done: false,
        blocked_cards: &["a-0".to_string()],
        claims: &[],
    });
    assert_eq!(best(&mut cluster, &pod("p", vec![ask(1, 1000, 0)])), Some(ended(&["malformed"])));
}

#[test]
fn never_says_what_the_largest_card_has() {
    let mut cluster = cluster(&[("a", cards("a", 2)), ("b", cards("b", 1))]);
    let told = explain(&mut cluster, &pod("p", vec![ask(3, 40_960, 100)]));
    let beyond: Vec<_> =
        told.ceilings.iter().map(|found| (found.field, found.asked, found.largest)).collect();
    assert_eq!(beyond, [(AskField::Count, 3, 2), (AskField::MemoryMib, 40_960, 10_000)]);
    assert_eq!((told.never, told.change), (2, None));
    let told = explain(&mut cluster, &pod("p", vec![ask(1, 40_960, 100)]));
    assert_eq!(told.change.unwrap().change, lowered("c0", 0, &[(AskField::MemoryMib, 40_960, 10_000)]));
}

#[test]
fn a_large_explanation_is_bounded_and_says_so() {
    let nodes: Vec<(String, Vec<CardSpec>)> =
        (0..50).map(|number| (format!("n{number:02}"), cards(&format!("n{number:02}"), 1))).collect();
    let borrowed: Vec<(&str, Vec<CardSpec>)> =
        nodes.iter().map(|(name, cards)| (name.as_str(), cards.clone())).collect();
    let mut cluster = cluster(&borrowed);
    for (number, (name, _)) in nodes.iter().enumerate() {
        charge(&mut cluster, name, name, &format!("{name}-0"), 9000 - number as i64, 0);
    }
    let asked = pod("p", vec![ask(1, 2000, 0)]);
    let told = cluster.explain(&asked, Candidates::All, Detail { nodes: 5, searched: 3 });
    assert_eq!((told.nodes.len(), told.candidates, told.searched), (5, 50, 3));
    assert_eq!(told.texts.into_iter().collect::<Vec<_>>(), [("1/1 CardInsufficientMemory".to_string(), 50)]);
    // Those that miss least come first.
    let names: Vec<&str> = told.nodes.iter().map(|verdict| verdict.node.as_str()).collect();
    assert_eq!(names, ["n49", "n48", "n47", "n46", "n45"]);
    assert_eq!(told.change.unwrap().change, lowered("c0", 0, &[(AskField::MemoryMib, 2000, 1049)]));
}

#[test]
fn explanations_in_words() {
    let name = |uid: &str| format!("team/{uid}");
    let told = |cluster: &mut Cluster, pod: &PodAsk| explain(cluster, pod).sentence(&name);
    let mut crowded = cluster(&[("node-a", cards("gpu", 1))]);
    charge(&mut crowded, "x", "node-a", "gpu-0", 2800, 0);
    assert_eq!(
        told(&mut crowded, &pod("p", vec![ask(1, 8000, 0)])),
        "fits on none of 1 nodes: 8,000 MiB asked; 7,200 free on card gpu-0 of node-a; would fit on node-a (card \
         gpu-0) if container c0 asked NVIDIA for at most 7,200 MiB of each card (asks 8,000), or when pod team/x ends"
    );
    assert_eq!(
        told(&mut crowded, &pod("p", vec![ask(2, 40_960, 0)])),
        "fits on none of 1 nodes: container c0 asks for 2 NVIDIA cards; no node has more than 1 that it may use; \
         container c0 asks for 40,960 MiB of each NVIDIA card; no card that it may use has more than 10,000 MiB; no \
         change of one kind was found that suffices"
    );
    assert_eq!(told(&mut crowded, &pod("p", vec![ask(1, 100, 0)])), "fits on 1 of 1 nodes");
    crowded.set_quota("default", VENDOR, Some(3000), None);
    assert_eq!(
        told(&mut crowded, &pod("p", vec![ask(1, 400, 0)])),
        "fits on none of 1 nodes: would fit on node-a (card gpu-0) if the quota of namespace default for NVIDIA \
         allowed 3,200 MiB (now 3,000), or if container c0 asked NVIDIA for at most 200 MiB of each card (asks 400)"
    );
    crowded.set_card_faults("node-a", "gpu-0", true, true);
    crowded.set_quota("default", VENDOR, None, None);
    assert_eq!(
        told(&mut crowded, &pod("p", vec![ask(1, 400, 0)])),
        "fits on none of 1 nodes: would fit on node-a (card gpu-0) if card gpu-0 were healthy and uncordoned"
    );
    assert_eq!(
        told(&mut support::empty_cluster(), &pod("p", vec![ask(1, 1, 0)])),
        "there is no node to look at"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_proposed_suffices_and_one_unit_less_does_not(
        nodes in any_nodes(),
        running in vec((0..8u8).prop_flat_map(any_bound), 0..8),
        quota in (prop::option::weighted(0.4, 0..4000i64), prop::option::weighted(0.3, 0..200i64)),
        pod in (0..9u8).prop_flat_map(any_pod),
    ) {
        let mut cluster = support::cluster(&nodes);
        charge_all(&running, &mut cluster);
        cluster.set_quota("default", VENDOR, quota.0, quota.1);
        let before: Vec<_> = NODES.iter().map(|node| cluster.node_cards(node)).collect();
        let told = explain(&mut cluster, &pod);
        prop_assert_eq!(cluster.check_invariants(), Vec::<String>::new());
        prop_assert_eq!(before, NODES.iter().map(|node| cluster.node_cards(node)).collect::<Vec<_>>());
        prop_assert_eq!(cluster.quota_limits("default", VENDOR), quota);
        check_claims(&cluster, &pod, &told)?;
        prop_assert_eq!(&told, &explain(&mut cluster, &pod));
    }
}
