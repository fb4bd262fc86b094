//! What must hold for random clusters, pods and histories.

mod support;

use std::collections::BTreeMap;

use placement::{Amount, Candidates, Detail};
use proptest::collection::vec;
use proptest::prelude::*;
use support::empty_cluster;
use support::random::{
    any_bound, any_nodes, any_pod, any_step, build, charge_all, run, seen, told, Step, NODES,
};
use support::VENDOR;

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
                // Cores of profiles are rounded up, so their sum says little; `mig.rs` looks at their places.
                let is_cut = card.spec.mode == "mig";
                prop_assert!(is_cut || card.used.cores_percent <= i64::from(card.spec.cores_percent), "{:?}", card);
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
    fn candidates_count_once_in_whatever_order_they_are_named(
        nodes in any_nodes(),
        running in vec((0..8u8).prop_flat_map(any_bound), 0..8),
        names in vec(prop::sample::select(vec!["a", "b", "c", "d", "x", ""]), 0..9),
        pod in any_pod(9),
    ) {
        let mut cluster = build(&nodes);
        charge_all(&running, &mut cluster);
        let mut each_once = names.clone();
        each_once.sort_unstable();
        each_once.dedup();
        let expected = told(&cluster.what_if(&pod, Candidates::Named(&each_once)));
        prop_assert_eq!(told(&cluster.what_if(&pod, Candidates::Named(&names))), expected);
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
        let mut verdicts = cluster.explain(&pod, Candidates::Named(&NODES), Detail::default()).nodes;
        verdicts.sort_by(|left, right| left.node.cmp(&right.node));
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
