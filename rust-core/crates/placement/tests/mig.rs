//! Cards that are cut into instances: which profiles and placements pods get, what it costs, and what blocks a card.

mod support;

use placement::{
    Ask, BoundClaim, BoundPod, BoundShare, Candidates, CardSpec, Cluster, ContainerAsk, ContainerKind,
    Decision, MigInstance, MigPlacement, MigProfile, PodAsk,
};
use proptest::prelude::*;
use std::sync::Arc;
use support::{
    ask, ask_percent, card, charge, charge_containers, cluster, container, node_of, pod, reserve, text_of,
    used, VENDOR,
};
use ContainerKind::{App, Init, Sidecar};

fn place(start: i64, size: i64) -> MigPlacement {
    MigPlacement::new(start, size).unwrap()
}

fn profile(name: &str, memory: i64, cores: i64, slices: i64, size: i64, starts: &[i64]) -> MigProfile {
    let placements = starts.iter().map(|start| place(*start, size)).collect();
    MigProfile::new(name, memory, cores, slices, placements).unwrap()
}

/// An A100 of 40 GB.
fn a100(id: &str) -> CardSpec {
    CardSpec {
        slots: 7,
        memory_mib: 40960,
        mode: "mig".into(),
        mig_profiles: vec![
            profile("1g.5gb", 4864, 15, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
            profile("2g.10gb", 9856, 29, 2, 2, &[0, 2, 4]),
            profile("3g.20gb", 19968, 43, 3, 4, &[0, 4]),
            profile("7g.40gb", 40192, 100, 7, 8, &[0]),
        ],
        ..card(id)
    }
}

fn one_card() -> Cluster {
    cluster(&[("a", vec![a100("a-0")])])
}

/// `container card profile@start memory/cores` of each share.
fn shares(decision: &Decision) -> Vec<String> {
    let text = |share: &placement::PlacedShare| {
        let place = share
            .instance
            .as_ref()
            .map_or_else(String::new, |found| format!("{}@{} ", found.profile, found.placement.start()));
        format!("{} {} {place}{}/{}", share.container, share.card_id, share.memory_mib, share.cores_percent)
    };
    decision.shares().iter().map(text).collect()
}

fn instance(profile: &str, start: i64, size: i64) -> MigInstance {
    MigInstance { profile: profile.into(), placement: place(start, size) }
}

fn share_at(card: &str, profile: &str, start: i64, size: i64) -> BoundShare {
    BoundShare::new(card, VENDOR, 4864, 15).unwrap().on_instance(instance(profile, start, size))
}

#[test]
fn one_container_gets_several_instances_of_one_card() {
    let cases: [(i64, i64, &[&str]); 3] = [
        (2, 4000, &["0 a-0 1g.5gb@6 4864/15", "0 a-0 1g.5gb@5 4864/15"]),
        (2, 4865, &["0 a-0 2g.10gb@0 9856/29", "0 a-0 2g.10gb@2 9856/29"]),
        (1, 20000, &["0 a-0 7g.40gb@0 40192/100"]),
    ];
    for (count, memory, given) in cases {
        let mut cluster = one_card();
        assert_eq!(shares(&reserve(&mut cluster, &pod("p", vec![ask(count, memory, 0)]))), given);
    }
}

#[test]
fn what_does_not_fit_says_how_many_instances_would_have() {
    let cases: [(&str, i64, i64, &str); 4] = [
        ("two wholes", 2, 20000, "1/1 AllocatedCardsInsufficientRequest, 1/1 CardMigTopologyInfeasible"),
        ("eight of seven", 8, 1000, "1/1 CardMigTopologyInfeasible, 7/1 AllocatedCardsInsufficientRequest"),
        ("above the largest", 1, 40193, "1/1 CardMigTopologyInfeasible"),
        ("above the card", 1, 40961, "1/1 CardInsufficientMemory"),
    ];
    for (name, count, memory, text) in cases {
        let decision = reserve(&mut one_card(), &pod("p", vec![ask(count, memory, 0)]));
        assert_eq!(text_of(&decision, "a"), text, "{name}");
        assert_eq!(decision.failed_nodes(Some(true)).len(), 1, "{name}: not even on the empty card");
    }
}

#[test]
fn containers_of_a_pod_share_a_card_without_overlap() {
    let mut cluster = one_card();
    let both = pod("p", vec![ask(1, 10000, 0), ask(2, 4000, 0)]);
    let decision = reserve(&mut cluster, &both);
    assert_eq!(
        shares(&decision),
        ["0 a-0 3g.20gb@4 19968/43", "1 a-0 1g.5gb@3 4864/15", "1 a-0 1g.5gb@2 4864/15"]
    );
    assert_eq!(used(&cluster, "a")[0].memory_mib, 19968 + 2 * 4864);
    assert!(cluster.release("p"));
    assert_eq!(cluster.node_cards("a")[0].instances, []);
}

#[test]
fn an_app_container_may_lie_where_an_init_container_lay_but_not_where_a_sidecar_lies() {
    let asks = |memory| vec![ask(1, memory, 0)];
    let containers = vec![
        container("init", Init, asks(40000)),
        container("sidecar", Sidecar, asks(4000)),
        container("late", Init, asks(19000)),
        container("app", App, asks(19000)),
    ];
    let mut cluster = one_card();
    let decision = reserve(&mut cluster, &PodAsk::new("p", "default", "p", containers).unwrap());
    assert_eq!(
        shares(&decision),
        [
            "0 a-0 7g.40gb@0 40192/100",
            "1 a-0 1g.5gb@6 4864/15",
            "2 a-0 3g.20gb@0 19968/43",
            "3 a-0 3g.20gb@0 19968/43"
        ]
    );
    // The first init container's instance is the whole card: nobody else fits until it is over.
    assert_eq!(
        text_of(&reserve(&mut cluster, &pod("q", vec![ask(1, 100, 0)])), "a"),
        "1/1 CardComputeUnitsExhausted"
    );
    let bound = |kind, memory, name: &str, start, size| {
        let share =
            BoundShare::new("a-0", VENDOR, memory, 0).unwrap().on_instance(instance(name, start, size));
        (kind, vec![share])
    };
    let containers = [
        bound(Init, 40192, "7g.40gb", 0, 8),
        bound(Sidecar, 4864, "1g.5gb", 6, 1),
        bound(Init, 19968, "3g.20gb", 0, 4),
        bound(App, 19968, "3g.20gb", 0, 4),
    ];
    charge_containers(&mut cluster, "p", "a", &containers, true);
    assert_eq!(cluster.node_cards("a")[0].instances, [instance("3g.20gb", 0, 4), instance("1g.5gb", 6, 1)]);
    assert_eq!(shares(&reserve(&mut cluster, &pod("q", vec![ask(1, 9000, 0)]))), ["0 a-0 2g.10gb@4 9856/29"]);
}

#[test]
fn instances_of_one_init_container_add_up() {
    let mut cluster = one_card();
    let containers =
        vec![container("init", Init, vec![ask(3, 4000, 0)]), container("app", App, vec![ask(1, 1, 0)])];
    let decision = reserve(&mut cluster, &PodAsk::new("p", "default", "p", containers).unwrap());
    assert_eq!(decision.shares().len(), 4);
    let total = used(&cluster, "a")[0];
    assert_eq!((total.memory_mib, total.slots), (3 * 4864, 3));
}

#[test]
fn quota_is_charged_and_checked_by_profile() {
    let mut cluster = one_card();
    cluster.set_quota("default", VENDOR, Some(10_000), None);
    let two = pod("p", vec![ask(2, 500, 0)]);
    assert_eq!(node_of(&reserve(&mut cluster, &two)), Some("a"));
    assert_eq!(cluster.quota_used("default", VENDOR), (2 * 4864, 30));
    let third = reserve(&mut cluster, &pod("q", vec![ask(1, 200, 0)]));
    assert_eq!(text_of(&third, "a"), "1/1 ResourceQuotaNotFit");
    cluster.release("p");
    cluster.set_quota("default", VENDOR, None, Some(29));
    let decision = reserve(&mut cluster, &two);
    assert_eq!(text_of(&decision, "a"), "1/1 AllocatedCardsInsufficientRequest, 1/1 ResourceQuotaNotFit");
}

#[test]
fn all_of_a_card_means_the_instance_that_is_the_whole_card() {
    let mut cluster = one_card();
    // Cores are what admission adds where no memory is asked.
    let whole = Ask::new(VENDOR, 1, 0, Some(100), 100).unwrap();
    let decision = reserve(&mut cluster, &pod("p", vec![whole.clone()]));
    assert_eq!(shares(&decision), ["0 a-0 7g.40gb@0 40192/100"]);
    cluster.release("p");
    charge_containers(&mut cluster, "old", "a", &[(App, vec![share_at("a-0", "1g.5gb", 6, 1)])], false);
    let decision = reserve(&mut cluster, &pod("p", vec![whole.clone()]));
    assert_eq!(text_of(&decision, "a"), "1/1 CardInsufficientMemory");

    // Half a card is no whole one.
    let halves = CardSpec { mig_profiles: a100("b-0").mig_profiles[..3].to_vec(), ..a100("b-0") };
    let mut cluster = support::cluster(&[("b", vec![halves])]);
    let decision = reserve(&mut cluster, &pod("p", vec![whole]));
    assert_eq!(text_of(&decision, "b"), "1/1 CardMigTopologyInfeasible");
    assert_eq!(decision.failed_nodes(Some(true)).len(), 1);
    // Less than any profile has is a percentage like any other.
    let decision = reserve(&mut one_card(), &pod("p", vec![ask_percent(1, 25)]));
    assert_eq!(shares(&decision), ["0 a-0 3g.20gb@4 19968/43"]);
}

#[test]
fn cores_that_were_rounded_up_take_nothing_from_shares_without_cores() {
    let mut odd = a100("a-0");
    odd.mig_profiles = vec![profile("1g.x", 4000, 40, 1, 1, &[0, 1, 2, 3])];
    let mut cluster = cluster(&[("a", vec![odd])]);
    let four = pod("p", vec![ask(1, 1, 0), ask(1, 1, 0), ask(1, 1, 0), ask(1, 1, 0)]);
    assert_eq!(reserve(&mut cluster, &four).shares().len(), 4);
}

#[test]
fn a_share_without_an_instance_blocks_its_card_and_no_other() {
    let mut cluster = cluster(&[("a", vec![a100("a-0"), a100("a-1")])]);
    charge(&mut cluster, "old", "a", "a-1", 4864, 15);
    let decision = reserve(&mut cluster, &pod("p", vec![ask(1, 1, 0)]));
    assert_eq!(shares(&decision), ["0 a-0 1g.5gb@6 4864/15"]);
    let decision = reserve(&mut cluster, &pod("q", vec![ask(7, 1, 0)]));
    assert_eq!(
        text_of(&decision, "a"),
        "1/2 CardMigTopologyInfeasible, 1/2 CardNotHealth, 6/2 AllocatedCardsInsufficientRequest"
    );
    let tally: Vec<_> = decision.tally().into_iter().map(|(code, _)| code).collect();
    assert!(tally.contains(&"CardMigReservationUnclear") && !tally.contains(&"CardNotHealth"));
    cluster.release("old");
    assert_eq!(cluster.check_invariants(), Vec::<String>::new());
    assert_eq!(node_of(&reserve(&mut cluster, &pod("q", vec![ask(7, 1, 0)]))), Some("a"));
}

#[test]
fn an_instance_on_a_card_that_is_not_cut_blocks_it_until_the_node_cuts_it() {
    let mut cluster = cluster(&[("a", vec![card("a-0")])]);
    charge_containers(&mut cluster, "old", "a", &[(App, vec![share_at("a-0", "1g.5gb", 6, 1)])], false);
    let one = pod("p", vec![ask(1, 1, 0)]);
    assert_eq!(text_of(&reserve(&mut cluster, &one), "a"), "1/1 CardNotHealth");
    cluster.set_node("a", &[a100("a-0")]).unwrap();
    assert_eq!(cluster.check_invariants(), Vec::<String>::new());
    assert_eq!(shares(&reserve(&mut cluster, &one)), ["0 a-0 1g.5gb@5 4864/15"]);
    // Plain cards and shares hold after the change back, too.
    cluster.set_node("a", &[card("a-0")]).unwrap();
    assert_eq!(text_of(&reserve(&mut cluster, &pod("q", vec![ask(1, 1, 0)])), "a"), "1/1 CardNotHealth");
}

#[test]
fn claims_are_held_and_cost_nothing() {
    let mut cluster = cluster(&[("a", vec![a100("a-0"), a100("a-1")]), ("b", vec![card("b-0")])]);
    let claim = |card_id: &str, instance: Option<MigInstance>| BoundClaim {
        card_id: card_id.into(),
        instance: instance.map(Arc::new),
    };
    let known = Some(instance("7g.40gb", 0, 8));
    for (uid, node, claims) in [
        ("held", "a", vec![claim("a-0", known), claim("unknown", Some(instance("1g.5gb", 0, 1)))]),
        ("lost", "a", vec![claim("a-1", None)]),
        ("plain", "b", vec![claim("b-0", None)]),
    ] {
        let pod = BoundPod {
            uid,
            namespace: "default",
            node,
            containers: &[],
            init_done: false,
            blocked_cards: &[],
            claims: &claims,
        };
        cluster.charge(&pod);
        assert_eq!(cluster.booked(uid), []);
    }
    let decision = reserve(&mut cluster, &pod("p", vec![ask(3, 1, 0)]));
    assert_eq!(text_of(&decision, "a"), "1/2 CardMigTopologyInfeasible, 1/2 CardNotHealth");
    assert_eq!(node_of(&reserve(&mut cluster, &pod("q", vec![ask(1, 1, 0)]))), Some("b"));
    assert_eq!(used(&cluster, "a").iter().map(|used| used.slots).sum::<i64>(), 0);
}

/// MIG-09
#[test]
fn running_instances_stay_where_they_are() {
    let mut cluster = one_card();
    // Enough slices are free for 3g, but not in one of its places.
    let running = [share_at("a-0", "1g.5gb", 1, 1), share_at("a-0", "1g.5gb", 5, 1)];
    charge_containers(&mut cluster, "old", "a", &[(App, running.to_vec())], false);
    let decision = reserve(&mut cluster, &pod("p", vec![ask(1, 19968, 0)]));
    assert_eq!(text_of(&decision, "a"), "1/1 CardMigTopologyInfeasible");
    assert_eq!(decision.failed_nodes(Some(false)).len(), 1);
    assert_eq!(shares(&reserve(&mut cluster, &pod("q", vec![ask(1, 9000, 0)]))), ["0 a-0 2g.10gb@2 9856/29"]);
}

#[test]
fn fgd_places_where_large_profiles_stay_possible() {
    let small = [pod("p", vec![ask(1, 9856, 0)]), pod("q", vec![ask(1, 4864, 0)])];
    for (policy, large_fits) in [("spread", false), ("fgd", true)] {
        let mut cluster = one_card();
        for pod in &small {
            reserve(&mut cluster, &pod.clone().with_policies("binpack", policy, false));
        }
        let large = reserve(&mut cluster, &pod("r", vec![ask(1, 19968, 0)]));
        assert_eq!(large.chosen().is_some(), large_fits, "{policy}");
    }
}

#[test]
fn numa_binding_and_mutex_hold_for_cut_cards() {
    let on = |id: &str, numa| CardSpec { numa, ..a100(id) };
    let mut cluster = cluster(&[("a", vec![on("a-0", 0), on("a-1", 1)])]);
    charge_containers(&mut cluster, "old", "a", &[(App, vec![share_at("a-1", "1g.5gb", 6, 1)])], false);
    let mutex = pod("p", vec![ask(2, 4000, 0)]).with_policies("binpack", "mutex", false);
    assert_eq!(shares(&reserve(&mut cluster, &mutex)), ["0 a-0 1g.5gb@6 4864/15", "0 a-0 1g.5gb@5 4864/15"]);
    let bound = pod("q", vec![ask(6, 4000, 0)]).with_policies("binpack", "spread", true);
    let decision = reserve(&mut cluster, &bound);
    assert!(decision.shares().iter().all(|share| &*share.card_id == "a-1"), "{:?}", shares(&decision));
    let more = pod("r", vec![ask(6, 4000, 0)]).with_policies("binpack", "spread", true);
    assert_eq!(node_of(&reserve(&mut cluster, &more)), None);
}

/// PLC-07
#[test]
fn topology_takes_distinct_cards_while_there_are_enough() {
    let cards: Vec<CardSpec> = (0..8).map(|number| a100(&format!("a-{number}"))).collect();
    let mut cluster = cluster(&[("a", cards)]);
    let given = |cluster: &mut Cluster, uid: &str, count| {
        let asked = pod(uid, vec![ask(count, 4000, 0)]).with_policies("binpack", "topology-aware", false);
        let mut ids: Vec<String> =
            reserve(cluster, &asked).shares().iter().map(|share| share.card_id.to_string()).collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        (all, ids.len())
    };
    assert_eq!(given(&mut cluster, "p", 4), (4, 4));
    assert_eq!(given(&mut cluster, "q", 20).0, 20);
    assert_eq!(given(&mut cluster, "r", 8 * 7 - 24).0, 32);
    assert_eq!(given(&mut cluster, "s", 1), (0, 0));
}

/// A pod and what kinds its containers are of.
fn any_pod(uid: usize) -> impl Strategy<Value = (Vec<ContainerKind>, PodAsk)> {
    let asks = (1..4i64, prop::sample::select(vec![1, 4864, 4865, 9856, 19968, 20000, 40192]));
    let kinds = prop::sample::select(vec![Init, Sidecar, App, App]);
    let policies = prop::sample::select(vec!["spread", "binpack", "fgd", "mutex"]);
    (prop::collection::vec((kinds, asks), 1..5), policies).prop_map(move |(mut containers, policy)| {
        containers.sort_by_key(|(kind, _)| *kind == App);
        let kinds = containers.iter().map(|(kind, _)| *kind).collect();
        let containers: Vec<ContainerAsk> = containers
            .into_iter()
            .map(|(kind, (count, memory))| container("c", kind, vec![ask(count, memory, 0)]))
            .collect();
        let pod = PodAsk::new(&format!("pod-{uid}"), "default", "p", containers).unwrap();
        (kinds, pod.with_policies("binpack", policy, false))
    })
}

/// Card, placement, container and its kind.
type Live = (String, MigPlacement, u16, ContainerKind);

fn runs_beside(left: &Live, right: &Live) -> bool {
    let (first, second) = if left.2 <= right.2 { (left, right) } else { (right, left) };
    match (first.3, second.3) {
        _ if first.2 == second.2 => true,
        (Init, _) => false,
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_two_live_placements_overlap_and_release_gives_everything_back(
        steps in prop::collection::vec((0..10usize).prop_flat_map(|uid| (Just(uid), prop::option::weighted(0.8, any_pod(uid)))), 1..40),
    ) {
        let mut cluster = cluster(&[("a", vec![a100("a-0"), a100("a-1")]), ("b", vec![a100("b-0"), card("b-1")])]);
        let mut live: Vec<Vec<Live>> = vec![Vec::new(); 10];
        for (uid, asked) in steps {
            live[uid].clear();
            let Some((kinds, asked)) = asked else {
                cluster.release(&format!("pod-{uid}"));
                continue;
            };
            let decision = reserve(&mut cluster, &asked);
            live[uid] = decision
                .shares()
                .iter()
                .filter_map(|share| {
                    let placement = share.instance.as_ref()?.placement;
                    Some((share.card_id.to_string(), placement, share.container, kinds[usize::from(share.container)]))
                })
                .collect();
            for (number, own) in live.iter().enumerate() {
                for (at, one) in own.iter().enumerate() {
                    let same_pod = own[at + 1..].iter().filter(|other| runs_beside(one, other));
                    for other in live[number + 1..].iter().flatten().chain(same_pod) {
                        let apart = one.1.start() + one.1.size() <= other.1.start()
                            || other.1.start() + other.1.size() <= one.1.start();
                        prop_assert!(one.0 != other.0 || apart, "{:?} {:?}", one, other);
                    }
                }
            }
        }
        for uid in 0..10 {
            cluster.release(&format!("pod-{uid}"));
        }
        prop_assert_eq!(cluster.check_invariants(), Vec::<String>::new());
        for card in ["a", "b"].iter().flat_map(|node| cluster.node_cards(node)) {
            prop_assert_eq!(card.instances, vec![]);
            prop_assert_eq!(card.used, placement::Amount::default());
        }
        let all = cluster.what_if(&pod("p", vec![ask(3, 40192, 0)]), Candidates::Named(&["a"]));
        prop_assert_eq!(all.chosen(), None);
        let both = cluster.what_if(&pod("p", vec![ask(2, 40192, 0)]), Candidates::Named(&["a"]));
        prop_assert_eq!(both.chosen().map(|(node, _)| node), Some("a"));
    }
}
