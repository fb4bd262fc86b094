//! `topology-aware`: cards are chosen by the scores between them.

mod support;

use placement::{CardScores, CardSpec, Cluster, HostAmount, MigPlacement, MigProfile, Note, WorkloadShape};
use support::{ask, card, cards, cards_of, charge, container, node_of, pod, reserve, VENDOR};

/// Both directions of each pair.
fn symmetric(pairs: &[(&str, &str, i64)]) -> Vec<CardScores> {
    let both = pairs.iter().flat_map(|(card, peer, score)| [(card, peer, score), (peer, card, score)]);
    both.map(|(card, peer, score)| ((*card).to_string(), vec![((*peer).to_string(), *score)])).fold(
        Vec::new(),
        |mut scores: Vec<CardScores>, (card, peers)| {
            match scores.iter_mut().find(|(known, _)| *known == card) {
                Some((_, known)) => known.extend(peers),
                None => scores.push((card, peers)),
            }
            scores
        },
    )
}

fn node_with(specs: &[CardSpec], scores: &[CardScores]) -> Cluster {
    let mut cluster = support::empty_cluster();
    cluster.set_node_with_pair_scores("a", specs, scores).unwrap();
    cluster
}

fn notes(decision: &placement::Decision) -> Vec<Note> {
    decision.notes().iter().collect()
}

/// Cards a to f; a–f and c–f score 100, all other pairs 1.
fn six() -> (Vec<CardSpec>, Vec<CardScores>) {
    let ids = ["a", "b", "c", "d", "e", "f"];
    let pairs: Vec<_> = ids
        .iter()
        .enumerate()
        .flat_map(|(place, first)| ids[place + 1..].iter().map(move |second| (*first, *second)))
        .map(|(first, second)| {
            (first, second, if second == "f" && (first == "a" || first == "c") { 100 } else { 1 })
        })
        .collect();
    (ids.iter().map(|id| card(id)).collect(), symmetric(&pairs))
}

#[test]
fn several_cards_are_those_best_connected_with_each_other() {
    let (cards, scores) = six();
    let mut cluster = node_with(&cards, &scores);
    let three = pod("p", vec![ask(3, 1, 0)]).with_policies("binpack", "topology-aware", false);
    let decision = reserve(&mut cluster, &three);
    assert_eq!(cards_of(&decision), ["f", "c", "a"]);
    assert_eq!(notes(&decision), []);
}

#[test]
fn one_card_is_the_one_connected_worst() {
    let (cards, scores) = six();
    let mut cluster = node_with(&cards, &scores);
    for (word, expected) in
        [("topology-aware", "e"), ("spread, topology-aware", "e"), ("spread", "f"), ("topology", "f")]
    {
        let one = pod("p", vec![ask(1, 1, 0)]).with_policies("binpack", word, false);
        assert_eq!(cards_of(&reserve(&mut cluster, &one)), [expected], "{word}");
    }
}

#[test]
fn cards_that_do_not_pass_are_no_part_of_the_choice() {
    let (mut cards, scores) = six();
    cards[5].healthy = false;
    let mut cluster = node_with(&cards, &scores);
    charge(&mut cluster, "other", "a", "e", 9_999, 0);
    let two = pod("p", vec![ask(2, 2, 0)]).with_policies("binpack", "topology-aware", false);
    assert_eq!(cards_of(&reserve(&mut cluster, &two)), ["d", "c"]);
}

#[test]
fn a_pair_is_read_from_the_card_seen_first() {
    let one_way = |card: &str, peer: &str, score| (card.to_string(), vec![(peer.to_string(), score)]);
    // Seen: a-2, a-1, a-0.
    let scores = [one_way("a-0", "a-1", 500), one_way("a-2", "a-0", 7)];
    let mut cluster = node_with(&cards("a", 3), &scores);
    let two = pod("p", vec![ask(2, 1, 0)]).with_policies("binpack", "topology-aware", false);
    let decision = reserve(&mut cluster, &two);
    assert_eq!(cards_of(&decision), ["a-2", "a-0"]);
    assert_eq!(notes(&decision), [Note::PairScoresMissing]);
    // One card: its own scores to the others are summed up.
    let one = pod("p", vec![ask(1, 1, 0)]).with_policies("binpack", "topology-aware", false);
    assert_eq!(cards_of(&reserve(&mut cluster, &one)), ["a-1"]);
}

#[test]
fn without_scores_the_preferred_cards_are_taken_and_the_decision_says_so() {
    let mut cluster = node_with(&cards("a", 4), &[]);
    let two = pod("p", vec![ask(2, 1, 0)]).with_policies("binpack", "topology-aware", false);
    let decision = reserve(&mut cluster, &two);
    assert_eq!(cards_of(&decision), ["a-3", "a-2"]);
    assert_eq!(notes(&decision), [Note::PairScoresMissing]);
    let verdicts = cluster.explain(&two, placement::Candidates::All, placement::Detail::default()).nodes;
    assert_eq!(verdicts[0].notes.iter().collect::<Vec<_>>(), [Note::PairScoresMissing]);
    // Where there is nothing to choose nothing is missing.
    let all = pod("p", vec![ask(4, 1, 0)]).with_policies("binpack", "topology-aware", false);
    assert_eq!(notes(&reserve(&mut cluster, &all)), []);
    let plain = pod("p", vec![ask(2, 1, 0)]);
    assert_eq!(notes(&reserve(&mut cluster, &plain)), []);
}

#[test]
fn negative_scores_count() {
    let scores = symmetric(&[("a-0", "a-1", -1), ("a-0", "a-2", -5), ("a-1", "a-2", -3)]);
    let mut cluster = node_with(&cards("a", 3), &scores);
    let two = pod("p", vec![ask(2, 1, 0)]).with_policies("binpack", "topology-aware", false);
    assert_eq!(cards_of(&reserve(&mut cluster, &two)), ["a-1", "a-0"]);
}

#[test]
fn scores_change_without_the_cards_and_go_when_they_are_not_given_again() {
    let specs = cards("a", 3);
    let scores = symmetric(&[("a-0", "a-1", 9), ("a-0", "a-2", 1), ("a-1", "a-2", 1)]);
    let mut cluster = node_with(&specs, &scores);
    let two = pod("p", vec![ask(2, 1, 0)]).with_policies("binpack", "topology-aware", false);
    assert_eq!(cards_of(&reserve(&mut cluster, &two)), ["a-1", "a-0"]);
    let other = symmetric(&[("a-0", "a-1", 1), ("a-0", "a-2", 9), ("a-1", "a-2", 1)]);
    cluster.set_node_with_pair_scores("a", &specs, &other).unwrap();
    assert_eq!(cards_of(&reserve(&mut cluster, &two)), ["a-2", "a-0"]);
    assert_eq!(cluster.node_pair_scores("a")[0].1, [("a-1".to_string(), 1), ("a-2".to_string(), 9)]);
    cluster.set_node("a", &specs).unwrap();
    assert_eq!(cards_of(&reserve(&mut cluster, &two)), ["a-2", "a-1"]);
    assert_eq!(cluster.node_pair_scores("a"), []);
}

#[test]
fn under_fgd_new_scores_count_at_once() {
    let least_connected = |node: &str, number: usize| {
        let id = |card: usize| format!("{node}-{card}");
        let score = |card: usize, peer: usize| if card == number || peer == number { 1 } else { 100 };
        let row = |card: usize| {
            let peers = (0..3).filter(|peer| *peer != card);
            (id(card), peers.map(|peer| (id(peer), score(card, peer))).collect())
        };
        (0..3).map(row).collect::<Vec<CardScores>>()
    };
    let half = pod("p", vec![ask(1, 5000, 40)]).with_policies("fgd", "topology-aware", false);
    let mut cluster = support::cluster(&[("a", cards("a", 3)), ("b", cards("b", 3))]);
    for (node, used) in [("a", "a-0"), ("b", "b-0")] {
        charge(&mut cluster, node, node, used, 4000, 40);
        cluster.set_node_with_pair_scores(node, &cards(node, 3), &least_connected(node, 0)).unwrap();
    }
    let expects =
        |memory_mib| WorkloadShape::new(1, Some(ask(1, memory_mib, 0)), None, HostAmount::default()).unwrap();
    cluster.set_workload(Some(vec![expects(5000), expects(10000)]));
    assert_eq!(node_of(&cluster.what_if(&half, placement::Candidates::All)), Some("a"));
    // On a the pod would now break into a free card; on b it still goes to the used one.
    cluster.set_node_with_pair_scores("a", &cards("a", 3), &least_connected("a", 1)).unwrap();
    assert_eq!(node_of(&cluster.what_if(&half, placement::Candidates::All)), Some("b"));
}

/// Five cards: a-0 and a-1 on NUMA node 0, a-2 to a-4 on NUMA node 1, which is seen first.
fn two_numa_nodes() -> Vec<CardSpec> {
    let mut specs = cards("a", 5);
    for spec in &mut specs[2..] {
        spec.numa = 1;
    }
    specs
}

#[test]
fn with_numa_binding_cards_of_one_numa_node_are_chosen() {
    let scores = symmetric(&[("a-2", "a-3", 9), ("a-0", "a-4", 99)]);
    let cases = [
        // The group seen last that is large enough serves.
        (2, vec!["a-1", "a-0"]),
        // Here that is not the group seen last.
        (3, vec!["a-4", "a-3", "a-2"]),
    ];
    for (count, expected) in cases {
        let mut cluster = node_with(&two_numa_nodes(), &scores);
        let bound = pod("p", vec![ask(count, 1, 0)]).with_policies("binpack", "topology-aware", true);
        assert_eq!(cards_of(&reserve(&mut cluster, &bound)), expected, "{count}");
    }
    let mut cluster = node_with(&two_numa_nodes(), &scores);
    charge(&mut cluster, "other", "a", "a-0", 10_000, 0);
    let two = pod("p", vec![ask(2, 1, 0)]).with_policies("binpack", "topology-aware", true);
    assert_eq!(cards_of(&reserve(&mut cluster, &two)), ["a-3", "a-2"]);
    let four = pod("p", vec![ask(4, 1, 0)]).with_policies("binpack", "topology-aware", true);
    assert_eq!(node_of(&reserve(&mut cluster, &four)), None);
}

#[test]
fn several_shares_come_from_different_mig_cards_where_there_are_enough() {
    // PLC-07
    let starts = (0..7).map(|start| MigPlacement::new(start, 1).unwrap()).collect();
    let profile = MigProfile::new("1g.5gb", 4864, 15, 1, starts).unwrap();
    let specs: Vec<CardSpec> = cards("a", 8)
        .into_iter()
        .map(|card| CardSpec {
            mode: "mig".into(),
            slots: 7,
            memory_mib: 40_960,
            mig_profiles: vec![profile.clone()],
            ..card
        })
        .collect();
    let scores = symmetric(&[("a-0", "a-1", 100), ("a-2", "a-3", 90)]);
    for (count, expected) in [
        (2, vec!["a-1", "a-0"]),
        (4, vec!["a-3", "a-2", "a-1", "a-0"]),
        (8, vec!["a-7", "a-6", "a-5", "a-4", "a-3", "a-2", "a-1", "a-0"]),
        (10, vec!["a-1", "a-1", "a-1", "a-1", "a-1", "a-0", "a-0", "a-0", "a-0", "a-0"]),
    ] {
        let mut cluster = node_with(&specs, &scores);
        let pod = pod("p", vec![ask(count, 4_000, 0)]).with_policies("binpack", "topology-aware", false);
        let decision = reserve(&mut cluster, &pod);
        assert_eq!(cards_of(&decision), expected, "{count}");
        assert_eq!(notes(&decision), [Note::PairScoresMissing][..usize::from(count != 8)], "{count}");
    }
}

#[test]
fn each_container_has_its_own_choice() {
    let (cards, scores) = six();
    let mut cluster = node_with(&cards, &scores);
    let containers = vec![
        container("first", placement::ContainerKind::App, vec![ask(3, 9_000, 0)]),
        container("second", placement::ContainerKind::App, vec![ask(2, 9_000, 0)]),
    ];
    let pod = placement::PodAsk::new("p", "default", "p", containers).unwrap().with_policies(
        "binpack",
        "topology-aware",
        false,
    );
    assert_eq!(cards_of(&reserve(&mut cluster, &pod)), ["f", "c", "a", "e", "d"]);
}

#[test]
fn a_quota_ends_the_collecting_as_soon_as_it_is_used_up() {
    let (cards, scores) = six();
    let mut cluster = node_with(&cards, &scores);
    // Room for three shares: the cards seen first are f, e, d.
    cluster.set_quota("default", VENDOR, Some(3_000), None);
    let one = pod("p", vec![ask(1, 1_000, 0)]).with_policies("binpack", "topology-aware", false);
    assert_eq!(cards_of(&reserve(&mut cluster, &one)), ["f"]);
    let four = pod("p", vec![ask(4, 1_000, 0)]).with_policies("binpack", "topology-aware", false);
    let decision = reserve(&mut cluster, &four);
    assert_eq!(
        support::text_of(&decision, "a"),
        "3/6 AllocatedCardsInsufficientRequest, 3/6 ResourceQuotaNotFit"
    );
}
