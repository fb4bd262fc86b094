//! The policy `fgd`: fragmentation by hand-computed examples, and choices against trying everything.

mod support;

use placement::{
    Ask, BoundShare, Candidates, CardConstraint, CardSpec, Cluster, ContainerKind, HostAmount, PodAsk,
    WorkloadShape,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::random::{any_nodes, any_step, build, run, told, NODES};
use support::{
    ask, ask_percent, card, cards, cards_of, charge, charge_containers, cluster, node_of, only_models, pod,
    reserve, VENDOR,
};

fn shape(weight: i64, ask: Ask) -> WorkloadShape {
    WorkloadShape::new(weight, Some(ask), None, HostAmount::default()).unwrap()
}

fn hosted(weight: i64, ask: Ask, cpu_milli: i64, memory_mib: i64) -> WorkloadShape {
    WorkloadShape::new(weight, Some(ask), None, HostAmount::new(cpu_milli, memory_mib).unwrap()).unwrap()
}

fn only_on(weight: i64, ask: Ask, models: &[&str]) -> WorkloadShape {
    WorkloadShape::new(weight, Some(ask), Some(only_models(models)), HostAmount::default()).unwrap()
}

fn fgd(uid: &str, ask: Ask) -> PodAsk {
    pod(uid, vec![ask]).with_policies("fgd", "fgd", false)
}

#[track_caller]
fn assert_fragmentation(cluster: &mut Cluster, node: &str, expected: f64) {
    let found = cluster.fragmentation(node).unwrap();
    assert!((found - expected).abs() < 1e-5, "{node}: {found}, expected {expected}");
}

/// Node `a`: one card half free, one all free.
fn half_used() -> Cluster {
    let mut cluster = cluster(&[("a", cards("a", 2))]);
    charge(&mut cluster, "other", "a", "a-0", 5000, 20);
    cluster
}

#[test]
fn what_each_shape_cannot_use() {
    // (shapes, fragmentation of node a in cards)
    let cases: [(Vec<WorkloadShape>, f64); 7] = [
        (vec![shape(1, ask(1, 5000, 50))], 0.0),
        (vec![shape(1, ask(1, 6000, 0))], 0.5),
        (vec![shape(1, ask(1, 0, 90))], 0.5),
        (vec![shape(1, ask(2, 5000, 0))], 0.0),
        // One card passes, two are asked: the whole free share is of no use.
        (vec![shape(1, ask(2, 6000, 0))], 1.5),
        // Weights 1, 1 and 2 * 2: the square root of four cards.
        (vec![shape(1, ask(1, 6000, 0)), shape(1, ask(1, 1000, 0)), shape(2, ask(4, 1000, 0))], 6.5 / 6.0),
        (vec![shape(1, ask(1, 1000, 0)), shape(3, ask_percent(1, 60))], 1.5 / 4.0),
    ];
    for (number, (shapes, expected)) in cases.into_iter().enumerate() {
        let mut cluster = half_used();
        cluster.set_workload(Some(shapes));
        let found = cluster.fragmentation("a").unwrap();
        assert!((found - expected).abs() < 1e-5, "case {number}: {found}, expected {expected}");
    }
    assert_eq!(half_used().fragmentation("nowhere"), None);
}

#[test]
fn cards_that_take_nothing_are_not_free() {
    let no_slot = CardSpec { slots: 0, ..card("b-0") };
    let sick = CardSpec { healthy: false, ..card("b-1") };
    let held_back = CardSpec { cordoned: true, ..card("b-2") };
    let mut cluster = cluster(&[("b", vec![no_slot, sick, held_back, card("b-3")])]);
    cluster.set_workload(Some(vec![shape(1, ask(2, 1000, 0))]));
    assert_fragmentation(&mut cluster, "b", 1.0);
}

#[test]
fn the_host_limits_how_much_is_of_use() {
    let mut cluster = cluster(&[("a", cards("a", 2))]);
    cluster.set_workload(Some(vec![hosted(1, ask(1, 2500, 25), 2000, 1000)]));
    assert_fragmentation(&mut cluster, "a", 0.0);
    let free = |cpu_milli, memory_mib| Some(HostAmount::new(cpu_milli, memory_mib).unwrap());
    // (free CPU, free memory, fragmentation): two cards are able; the host lasts for so many quarters.
    for (cpu_milli, memory_mib, expected) in [
        (16_000, 8000, 0.0),
        (4000, 8000, 0.75),
        (16_000, 3000, 0.625),
        (3000, 8000, 0.8125),
        (1999, 8000, 2.0),
    ] {
        assert!(cluster.set_node_host("a", free(cpu_milli, memory_mib)));
        assert_fragmentation(&mut cluster, "a", expected);
    }
    cluster.set_node_host("a", None);
    assert_fragmentation(&mut cluster, "a", 0.0);
    assert!(!cluster.set_node_host("nowhere", None));
}

#[test]
fn who_can_use_few_cards_weighs_more() {
    let old = CardSpec { model: "NVIDIA P100".into(), ..card("b-0") };
    let mut cluster = cluster(&[("a", cards("a", 3)), ("b", vec![old])]);
    cluster.set_workload(Some(vec![shape(1, ask(1, 1000, 0)), only_on(1, ask(1, 1000, 0), &["P100"])]));
    // Weights 1 and 4 of 5: one of four cards is a P100.
    assert_fragmentation(&mut cluster, "a", 3.0 * 4.0 / 5.0);
    assert_fragmentation(&mut cluster, "b", 0.0);
    let chosen = reserve(&mut cluster, &fgd("any", ask(1, 1000, 0)));
    assert_eq!(node_of(&chosen), Some("a"));
}

#[test]
fn a_shape_without_a_card_to_run_on_keeps_nothing_free() {
    let mut cluster = half_used();
    cluster.set_workload(Some(vec![shape(1, ask(1, 6000, 0)), only_on(9, ask(1, 1, 0), &["H100"])]));
    assert_fragmentation(&mut cluster, "a", 0.5);
    cluster.set_workload(Some(Vec::new()));
    assert_fragmentation(&mut cluster, "a", 0.0);
}

#[test]
fn a_share_goes_where_it_spoils_least() {
    // Shares of 60 % and 40 % are expected. A 40 % share fits beside a 60 % share and leaves nothing useless.
    let mut cluster = cluster(&[("a", cards("a", 2)), ("b", cards("b", 2))]);
    cluster.set_workload(Some(vec![shape(1, ask(1, 6000, 60)), shape(1, ask(1, 4000, 40))]));
    charge(&mut cluster, "big", "b", "b-1", 6000, 60);
    charge(&mut cluster, "small", "b", "b-0", 3000, 30);
    let chosen = reserve(&mut cluster, &fgd("one", ask(1, 4000, 40)));
    assert_eq!((node_of(&chosen), cards_of(&chosen)), (Some("b"), vec!["b-1"]));
    // Each policy alone.
    let spread = pod("two", vec![ask(1, 4000, 40)]).with_policies("fgd", "spread", false);
    assert_eq!(node_of(&cluster.what_if(&spread, Candidates::All)), Some("a"));
    cluster.release("one");
    let cards_alone = pod("two", vec![ask(1, 4000, 40)]).with_policies("binpack", "fgd", false);
    assert_eq!(cards_of(&reserve(&mut cluster, &cards_alone)), vec!["b-1"]);
}

#[test]
fn equals_are_told_apart_by_fullness_then_name_then_place() {
    let mut cluster = cluster(&[("b", cards("b", 2)), ("a", cards("a", 2))]);
    cluster.set_workload(Some(Vec::new()));
    let chosen = reserve(&mut cluster, &fgd("one", ask(1, 1000, 0)));
    assert_eq!((node_of(&chosen), cards_of(&chosen)), (Some("a"), vec!["a-1"]));
    charge(&mut cluster, "two", "b", "b-0", 9000, 0);
    let chosen = reserve(&mut cluster, &fgd("three", ask(1, 1000, 0)));
    assert_eq!((node_of(&chosen), cards_of(&chosen)), (Some("b"), vec!["b-0"]));
}

#[test]
fn without_a_given_workload_booked_pods_are_expected_again() {
    let mut cluster = half_used();
    // `other` holds 50 % memory and 20 % cores of one card: both cards take another of it.
    assert_fragmentation(&mut cluster, "a", 0.0);
    charge(&mut cluster, "more", "a", "a-0", 1000, 10);
    charge(&mut cluster, "most", "a", "a-1", 9900, 0);
    // Free: 0.4 and 0.01. Shapes: 50 % + 20 %, 10 % + 10 %, 100 %: none of 0.41, 0.01 of it, 0.41.
    assert_fragmentation(&mut cluster, "a", (0.41 + 0.01 + 0.41) * 21.0 / 63.0);
    cluster.release("most");
    cluster.release("more");
    assert_fragmentation(&mut cluster, "a", 0.0);
    cluster.set_workload(Some(vec![shape(1, ask(1, 6000, 0))]));
    assert_fragmentation(&mut cluster, "a", 0.5);
    cluster.set_workload(None);
    assert_fragmentation(&mut cluster, "a", 0.0);
}

#[test]
fn a_pod_without_cards_goes_where_its_host_share_spoils_least() {
    let mut cluster = cluster(&[("a", cards("a", 1)), ("b", cards("b", 1))]);
    cluster.set_workload(Some(vec![hosted(1, ask(1, 9000, 90), 4000, 0)]));
    let host = |cpu_milli| HostAmount::new(cpu_milli, 1000).unwrap();
    cluster.set_node_host("a", Some(host(5000)));
    cluster.set_node_host("b", Some(host(9000)));
    let small = pod("small", Vec::new()).with_policies("fgd", "fgd", false).with_host(host(2000));
    assert_eq!(node_of(&reserve(&mut cluster, &small)), Some("b"));
}

/// What one card of one node is asked for in the random tests.
fn any_shape() -> impl Strategy<Value = WorkloadShape> {
    (1..4i64, 1..3i64, 1..20i64, 0..11i64, 0..3u8, 0..5i64).prop_map(
        |(weight, count, memory, cores, model, cpu)| {
            let constraint: Option<CardConstraint> = match model {
                0 => Some(only_models(&["A100"])),
                1 => Some(only_models(&["T4"])),
                _ => None,
            };
            let host = HostAmount::new(cpu * 1000, 0).unwrap();
            WorkloadShape::new(weight, Some(ask(count, memory * 500, cores * 10)), constraint, host).unwrap()
        },
    )
}

/// One node: cards, whether they are old, cores free on the host, and what runs on the cards in eighths of memory and
/// cores.
type UsedNode = (usize, bool, Option<i64>, Vec<(i64, i64)>);

fn any_used_nodes() -> impl Strategy<Value = Vec<UsedNode>> {
    let node = (1..5usize, any::<bool>(), prop::option::of(0..12i64), vec((0..9i64, 0..9i64), 4));
    vec(node, 1..5)
}

fn build_used(nodes: Vec<UsedNode>) -> Cluster {
    let mut built = support::empty_cluster();
    for (number, (count, old, cpu, uses)) in nodes.into_iter().enumerate() {
        let name = format!("node-{number}");
        let model = if old { "NVIDIA T4" } else { "NVIDIA A100" };
        let specs: Vec<CardSpec> =
            cards(&name, count).into_iter().map(|spec| CardSpec { model: model.into(), ..spec }).collect();
        built.set_node(&name, &specs).unwrap();
        built.set_node_host(&name, cpu.map(|cpu| HostAmount::new(cpu * 1000, 1000).unwrap()));
        for (spec, (memory, cores)) in specs.iter().zip(uses) {
            if memory + cores > 0 {
                let uid = format!("on-{}", spec.id);
                charge(&mut built, &uid, &name, &spec.id, memory * 1250, cores * 12);
            }
        }
    }
    built
}

/// By how much the fragmentation of `node` grows when exactly these cards give the share.
fn growth(cluster: &Cluster, node: &str, card_ids: &[&str], memory: i64, cores: i64) -> f64 {
    let mut copy = cluster.clone();
    let before = copy.fragmentation(node).unwrap();
    let shares = card_ids.iter().map(|id| BoundShare::new(id, VENDOR, memory, cores).unwrap()).collect();
    charge_containers(&mut copy, "tried", node, &[(ContainerKind::App, shares)], false);
    copy.fragmentation(node).unwrap() - before
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_chosen_card_is_the_best_of_all(
        nodes in any_used_nodes(),
        shapes in vec(any_shape(), 1..6),
        memory in 1..20i64,
        cores in 0..9i64,
    ) {
        let (memory, cores) = (memory * 500, cores * 12);
        let mut cluster = build_used(nodes);
        cluster.set_workload(Some(shapes));
        let asked = fgd("new", ask(1, memory, cores));
        // Every card that the engine takes when it is the only one allowed.
        let mut least: Option<f64> = None;
        for node in cluster.nodes().into_iter().map(String::from).collect::<Vec<_>>() {
            for card in cluster.node_cards(&node) {
                let only = CardConstraint::new(None, None, Some(vec![card.spec.id.clone()]), None, None);
                let tried = asked.clone().with_constraint(VENDOR, only);
                if cluster.what_if(&tried, Candidates::Named(&[&node])).chosen().is_some() {
                    let growth = growth(&cluster, &node, &[&card.spec.id], memory, cores);
                    least = Some(least.map_or(growth, |least| least.min(growth)));
                }
            }
        }
        let decision = cluster.what_if(&asked, Candidates::All);
        prop_assert_eq!(decision.chosen().is_some(), least.is_some());
        if let (Some((node, _)), Some(least)) = (decision.chosen(), least) {
            let chosen = growth(&cluster, node, &cards_of(&decision), memory, cores);
            prop_assert!(chosen - least < 1e-9, "{} grows by {}, least is {}", node, chosen, least);
        }
    }

    #[test]
    fn the_chosen_node_is_the_best_for_several_cards(
        nodes in any_used_nodes(),
        shapes in vec(any_shape(), 1..6),
        memory in 1..20i64,
    ) {
        let mut cluster = build_used(nodes);
        cluster.set_workload(Some(shapes));
        let asked = fgd("new", ask(2, memory * 500, 0));
        let decision = cluster.what_if(&asked, Candidates::All);
        let growth_on = |node: &str, cluster: &mut Cluster| {
            let there = cluster.what_if(&asked, Candidates::Named(&[node]));
            there.chosen().map(|_| growth(cluster, node, &cards_of(&there), memory * 500, 0))
        };
        let names: Vec<String> = cluster.nodes().into_iter().map(String::from).collect();
        let growths: Vec<f64> = names.iter().filter_map(|node| growth_on(node, &mut cluster)).collect();
        prop_assert_eq!(decision.chosen().is_some(), !growths.is_empty());
        if let Some((node, _)) = decision.chosen() {
            let chosen = growth_on(node, &mut cluster).unwrap();
            prop_assert!(growths.iter().all(|growth| chosen - growth < 1e-9), "{} of {:?}", chosen, growths);
        }
    }

    #[test]
    fn kept_values_are_those_of_a_copy_that_keeps_none(
        nodes in any_nodes(),
        steps in vec((any_step(), any::<bool>()), 1..30),
        shapes in prop::option::of(vec(any_shape(), 1..6)),
        asked in (1..3i64, 1..8i64, 0..5i64),
    ) {
        let mut cluster = build(&nodes);
        cluster.set_workload(shapes);
        let asked = fgd("asked", ask(asked.0, asked.1 * 100, asked.2 * 10));
        for (step, with_host) in &steps {
            run(&mut cluster, step);
            if *with_host {
                cluster.set_node_host(NODES[0], Some(HostAmount::new(steps.len() as i64 * 500, 900).unwrap()));
            }
            prop_assert_eq!(cluster.check_invariants(), Vec::<String>::new());
            let mut fresh = cluster.clone();
            prop_assert_eq!(
                told(&cluster.what_if(&asked, Candidates::All)),
                told(&fresh.what_if(&asked, Candidates::All))
            );
            for node in NODES {
                prop_assert_eq!(cluster.fragmentation(node), cluster.clone().fragmentation(node));
            }
        }
    }
}
