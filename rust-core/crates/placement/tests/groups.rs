//! Families whose cards come in groups or in modules of two, and cards that software shares.

mod support;

use placement::{Ask, CardSpec, Cluster, ContainerKind, Decision, Families, Family, PodAsk};
use support::{card, cards_of, container, node_of, reserve, text_of, VENDOR};

fn cluster(selection: &str, nodes: &[(&str, Vec<CardSpec>)]) -> Cluster {
    let family = Family { selection: selection.into(), group_weight: 10.0, ..Family::new(VENDOR) };
    let mut cluster = Cluster::new(Families::new(vec![family]).unwrap());
    for (name, cards) in nodes {
        cluster.set_node(name, cards).unwrap();
    }
    cluster
}

/// Cards named after the node, in these groups. `-`: names none.
fn cards(node: &str, groups: &[&str]) -> Vec<CardSpec> {
    groups
        .iter()
        .enumerate()
        .map(|(number, group)| CardSpec {
            index: number as u32,
            group: (*group != "-").then(|| (*group).to_string()),
            ..card(&format!("{node}-{number}"))
        })
        .collect()
}

fn pod(uid: &str, count: i64, node_policy: &str) -> PodAsk {
    let ask = Ask::new(VENDOR, count, 100, None, 0).unwrap();
    PodAsk::new(uid, "default", uid, vec![container("main", ContainerKind::App, vec![ask])])
        .unwrap()
        .with_policies(node_policy, "spread", false)
}

fn chosen(selection: &str, groups: &[&str], count: i64) -> Vec<String> {
    let mut cluster = cluster(selection, &[("a", cards("a", groups))]);
    let decision = reserve(&mut cluster, &pod("p", count, "binpack"));
    cards_of(&decision).into_iter().map(String::from).collect()
}

#[test]
fn the_largest_group_serves_first_and_of_equal_ones_the_first() {
    assert_eq!(chosen("groups", &["0", "1", "1"], 2), ["a-2", "a-1"]);
    assert_eq!(chosen("groups", &["0", "0", "1", "1"], 2), ["a-1", "a-0"]);
    assert_eq!(chosen("groups", &["10", "10", "9", "9"], 2), ["a-3", "a-2"]);
    assert_eq!(chosen("groups", &["0", "1", "1"], 1), ["a-2"]);
    assert_eq!(chosen("groups", &["0", "1", "1", "0"], 3), ["a-3", "a-0", "a-2"]);
}

#[test]
fn cards_of_an_unreadable_group_come_last_and_the_count_holds() {
    assert_eq!(chosen("groups", &["", "", "", "0"], 2), ["a-3", "a-2"]);
    assert_eq!(chosen("groups", &["", ""], 2), ["a-1", "a-0"]);
}

#[test]
fn a_card_without_a_group_turns_groups_off() {
    assert_eq!(chosen("groups", &["0", "0", "-"], 2), ["a-2", "a-1"]);
}

#[test]
fn modules_are_given_whole() {
    assert_eq!(chosen("pairs", &["0", "0", "0", "0"], 2), ["a-1", "a-0"]);
    assert_eq!(chosen("pairs", &["0", "0", "0", "0"], 4), ["a-1", "a-0", "a-3", "a-2"]);
    assert_eq!(chosen("pairs", &["0", "0", "0", "0"], 1), ["a-3"]);
    let text = |count: i64, healthy: usize| {
        let mut inventory = cards("a", &["0"; 4]);
        for card in &mut inventory[healthy..] {
            card.healthy = false;
        }
        let mut cluster = cluster("pairs", &[("a", inventory)]);
        text_of(&reserve(&mut cluster, &pod("p", count, "binpack")), "a")
    };
    assert_eq!(text(3, 4), "4/3 AllocatedCardsInsufficientRequest");
    assert_eq!(text(2, 1), "0/2 AllocatedCardsInsufficientRequest, 3/2 CardNotHealth");
    assert_eq!(text(4, 3), "1/4 CardNotHealth, 2/4 AllocatedCardsInsufficientRequest");
}

#[test]
fn a_node_with_one_group_is_better_under_both_policies() {
    for policy in ["binpack", "spread"] {
        let mut nodes = cluster("groups", &[("a", cards("a", &["0", "1"])), ("b", cards("b", &["0", "0"]))]);
        assert_eq!(node_of(&reserve(&mut nodes, &pod("p", 2, policy))), Some("b"), "{policy}");
    }
}

fn score(decision: &Decision) -> f32 {
    decision.chosen().unwrap().1
}

#[test]
fn what_a_group_adds_is_its_share_of_the_container() {
    let of = |groups: &[&str]| {
        let mut nodes = cluster("groups", &[("a", cards("a", groups))]);
        score(&reserve(&mut nodes, &pod("p", groups.len() as i64, "binpack")))
    };
    assert!((of(&["0", "0"]) - 10.0).abs() < 1e-5);
    assert!((of(&["0", "1"]) - 5.0).abs() < 1e-5);
    assert!((of(&["0", "0", ""]) - 10.0).abs() < 1e-5);
    assert!(of(&["0", "0", "-"]).abs() < 1e-5);
}

#[test]
fn a_mode_that_the_node_does_not_offer_is_said_once() {
    let soft = |mode: &str| CardSpec { mode: mode.into(), ..card("a-0") };
    let ask = Ask::new(VENDOR, 1, 100, None, 0).unwrap().with_mode("hami-core");
    let soft_pod =
        PodAsk::new("p", "default", "p", vec![container("main", ContainerKind::App, vec![ask])]).unwrap();
    let two = |mode: &str| vec![soft(mode), CardSpec { id: "a-1".into(), ..soft(mode) }];
    let mut hard = cluster("first", &[("a", two(""))]);
    assert_eq!(text_of(&reserve(&mut hard, &soft_pod), "a"), "1/2 ModeNotFit");
    let mut offered = cluster("first", &[("a", two("hami-core"))]);
    assert_eq!(node_of(&reserve(&mut offered, &soft_pod)), Some("a"));
}

#[test]
fn a_family_names_a_selection_that_there_is() {
    let family = Family { selection: "luck".into(), ..Family::new(VENDOR) };
    let error = Families::new(vec![family]).err().unwrap().to_string();
    assert!(error.contains("luck") && error.contains("groups"), "{error}");
}
