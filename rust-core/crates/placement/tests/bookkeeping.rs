//! What is booked, for whom, and what changes under it.

mod support;

use placement::{
    BookingState, BoundPod, BoundShare, Candidates, CardSpec, Cluster, ContainerKind, InvalidInput,
};
use support::{
    ask, cards, cards_of, charge, charge_containers, cluster, empty_cluster, node_of, pod, pod_of, reserve,
    text_of, used, VENDOR,
};

use ContainerKind::{App, Init, Sidecar};

fn share(card_id: &str, memory: i64) -> BoundShare {
    BoundShare::new(card_id, VENDOR, memory, 10).unwrap()
}

fn memory_used(cluster: &Cluster, node: &str) -> Vec<i64> {
    used(cluster, node).iter().map(|amount| amount.memory_mib).collect()
}

#[test]
fn a_reservation_replaces_the_earlier_one_and_becomes_bound() {
    let mut cluster = cluster(&[("a", cards("a", 1)), ("b", cards("b", 1))]);
    assert_eq!(node_of(&reserve(&mut cluster, &pod("p", vec![ask(1, 9000, 0)]))), Some("a"));
    let again = cluster.reserve(&pod("p", vec![ask(1, 8000, 0)]), Candidates::Named(&["b"]));
    assert_eq!(node_of(&again), Some("b"));
    assert_eq!((memory_used(&cluster, "a"), memory_used(&cluster, "b")), (vec![0], vec![8000]));
    assert_eq!(cluster.booking("p").unwrap().state, BookingState::Reserved);
    assert!(cluster.confirm("p"));
    assert_eq!(cluster.booking("p").unwrap().state, BookingState::Bound);
    assert!(cluster.release("p") && !cluster.release("p") && !cluster.confirm("p"));
    assert_eq!(memory_used(&cluster, "b"), [0]);
}

#[test]
fn a_rejected_pod_holds_nothing() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    reserve(&mut cluster, &pod("p", vec![ask(1, 9000, 0)]));
    assert!(reserve(&mut cluster, &pod("p", vec![ask(1, 11_000, 0)])).chosen().is_none());
    assert_eq!(memory_used(&cluster, "a"), [0]);
    assert_eq!(cluster.booking("p"), None);
}

#[test]
fn what_if_leaves_the_state_as_it_is() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    reserve(&mut cluster, &pod("p", vec![ask(1, 9000, 0)]));
    assert!(cluster.what_if(&pod("p", vec![ask(1, 10_000, 0)]), Candidates::All).chosen().is_some());
    assert!(cluster.what_if(&pod("q", vec![ask(1, 10_000, 0)]), Candidates::All).chosen().is_none());
    assert_eq!(memory_used(&cluster, "a"), [9000]);
    assert_eq!(cluster.check_invariants(), Vec::<String>::new());
}

#[test]
fn what_is_held_follows_the_phases_of_a_pod() {
    // MUL-02
    let mut cluster = cluster(&[("a", cards("a", 2))]);
    let containers = [
        (Init, vec![share("a-0", 4000), share("a-1", 100)]),
        (Sidecar, vec![share("a-0", 3000)]),
        (Init, vec![share("a-0", 2000)]),
        (App, vec![share("a-0", 1000)]),
    ];
    charge_containers(&mut cluster, "p", "a", &containers, false);
    let held = cluster.booked("p");
    let numbers: Vec<_> = held
        .iter()
        .map(|(id, amount)| (*id, amount.memory_mib, amount.cores_percent, amount.slots))
        .collect();
    assert_eq!(numbers, [("a-0", 5000, 20, 2), ("a-1", 100, 10, 1)]);
    assert_eq!(cluster.quota_used("default", VENDOR), (5100, 30));
    charge_containers(&mut cluster, "p", "a", &containers, true);
    assert_eq!(memory_used(&cluster, "a"), [4000, 0]);
    assert_eq!(cluster.quota_used("default", VENDOR), (4000, 20));
    assert_eq!(cluster.check_invariants(), Vec::<String>::new());
}

#[test]
fn bookings_outlive_their_node_and_its_inventory() {
    let mut cluster = empty_cluster();
    charge(&mut cluster, "early", "a", "a-1", 3000, 10);
    assert_eq!(cluster.nodes(), Vec::<&str>::new());
    assert_eq!(cluster.quota_used("default", VENDOR), (3000, 10));
    cluster.set_node("a", &cards("a", 1)).unwrap();
    assert_eq!(memory_used(&cluster, "a"), [0]);
    // ANN-08: the card turns up later.
    cluster.set_node("a", &cards("a", 2)).unwrap();
    assert_eq!(memory_used(&cluster, "a"), [0, 3000]);
    let mut reversed = cards("a", 2);
    reversed.reverse();
    cluster.set_node("a", &reversed).unwrap();
    assert_eq!(memory_used(&cluster, "a"), [3000, 0]);
    assert!(cluster.remove_node("a") && !cluster.remove_node("a"));
    assert_eq!(cluster.pods("a").len(), 1);
    assert_eq!(
        text_of(&cluster.reserve(&pod("p", vec![ask(1, 1, 0)]), Candidates::Named(&["a"])), "a"),
        "node unregistered"
    );
    cluster.set_node("a", &cards("a", 2)).unwrap();
    assert_eq!(memory_used(&cluster, "a"), [0, 3000]);
    cluster.release("early");
    assert_eq!(memory_used(&cluster, "a"), [0, 0]);
    assert_eq!(cluster.check_invariants(), Vec::<String>::new());
}

#[test]
fn health_changes_one_card_and_the_next_inventory_decides_again() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    assert!(cluster.set_card_health("a", "a-0", false));
    assert!(!cluster.set_card_health("a", "a-9", false) && !cluster.set_card_health("b", "a-0", false));
    let one = pod("p", vec![ask(1, 1, 0)]);
    assert_eq!(text_of(&reserve(&mut cluster, &one), "a"), "1/1 CardNotHealth");
    cluster.set_node("a", &cards("a", 1)).unwrap();
    assert_eq!(node_of(&reserve(&mut cluster, &one)), Some("a"));
}

#[test]
fn blocked_cards_take_no_new_pods_but_count() {
    let mut cluster = cluster(&[("a", cards("a", 2))]);
    let readable = [(App, vec![share("a-0", 2000)])];
    let names = ["a-0".to_string(), "a-0".to_string(), "a-7".to_string()];
    for uid in ["bad-1", "bad-2"] {
        cluster.charge(&BoundPod {
            uid,
            namespace: "default",
            node: "a",
            containers: &readable,
            init_done: false,
            blocked_cards: &names,
            claims: &[],
        });
    }
    let views = cluster.node_cards("a");
    assert_eq!((views[0].blocked, views[1].blocked), (true, false));
    assert_eq!(memory_used(&cluster, "a"), [4000, 0]);
    let both = pod("p", vec![ask(2, 1, 0)]);
    let text = "1/2 AllocatedCardsInsufficientRequest, 1/2 CardBlocked";
    assert_eq!(text_of(&reserve(&mut cluster, &both), "a"), text);
    cluster.release("bad-1");
    assert_eq!(text_of(&reserve(&mut cluster, &both), "a"), text);
    charge(&mut cluster, "bad-2", "a", "a-0", 2000, 0);
    assert_eq!(node_of(&reserve(&mut cluster, &both)), Some("a"));
    assert!(!cluster.node_cards("a")[0].blocked);
}

#[test]
fn quota_counts_every_card_of_the_whole_pod() {
    let limits = [
        // QUO-05
        (Some(4095), None, false),
        (Some(4096), None, true),
        (None, Some(39), false),
        (None, Some(40), true),
        // QUO-09
        (Some(0), None, false),
        (None, None, true),
    ];
    for (memory, cores, fits) in limits {
        let mut cluster = cluster(&[("a", cards("a", 2))]);
        cluster.set_quota("default", VENDOR, memory, cores);
        let decision = reserve(&mut cluster, &pod("p", vec![ask(2, 2048, 20)]));
        assert_eq!(decision.chosen().is_some(), fits, "{memory:?} {cores:?}");
    }
}

#[test]
fn quota_counts_phases_as_the_cards_do_and_others_on_top() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    cluster.set_quota("default", VENDOR, Some(6000), None);
    charge(&mut cluster, "run", "a", "a-0", 1000, 0);
    let cases = [
        (vec![(Init, 5000), (App, 5000)], true),
        (vec![(Init, 5001), (App, 1)], false),
        (vec![(App, 2500), (App, 2500)], true),
        (vec![(App, 2500), (App, 2501)], false),
        (vec![(Init, 100), (App, 2500), (App, 2501)], false),
        (vec![(Sidecar, 2500), (App, 2501)], false),
    ];
    for (containers, fits) in cases {
        let decision = reserve(&mut cluster, &pod_of("p", &containers));
        assert_eq!(decision.chosen().is_some(), fits, "{containers:?}");
        if !fits {
            assert_eq!(text_of(&decision, "a"), "1/1 ResourceQuotaNotFit", "{containers:?}");
            assert_eq!(decision.failed_nodes(Some(true)), [], "a quota may be raised");
        }
        cluster.release("p");
        assert_eq!(cluster.quota_used("default", VENDOR), (1000, 0));
    }
    cluster.set_quota("default", VENDOR, Some(500), None);
    let one = pod("p", vec![ask(1, 1, 0)]);
    assert!(reserve(&mut cluster, &one).chosen().is_none(), "over a lowered limit nothing fits");
    cluster.set_quota("default", VENDOR, None, None);
    assert!(reserve(&mut cluster, &one).chosen().is_some());
}

#[test]
fn quota_is_checked_card_by_card_in_the_order_of_the_walk() {
    let mut cluster = cluster(&[("a", cards("a", 3))]);
    cluster.set_quota("default", VENDOR, Some(1500), None);
    charge(&mut cluster, "run", "a", "a-2", 9500, 0);
    cluster.set_quota("default", VENDOR, Some(9500 + 1500), None);
    let decision = reserve(&mut cluster, &pod("p", vec![ask(3, 1000, 0)]));
    // The fullest is visited last, when the quota is spent: quota stands before memory.
    assert_eq!(text_of(&decision, "a"), "1/3 AllocatedCardsInsufficientRequest, 2/3 ResourceQuotaNotFit");
}

#[test]
fn a_copy_goes_its_own_way() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    let mut copy = cluster.clone();
    reserve(&mut copy, &pod("p", vec![ask(1, 9000, 0)]));
    assert_eq!((memory_used(&cluster, "a"), memory_used(&copy, "a")), (vec![0], vec![9000]));
    assert_eq!(cards_of(&reserve(&mut cluster, &pod("q", vec![ask(1, 9000, 0)]))), ["a-0"]);
}

#[test]
fn an_old_decision_keeps_its_names_while_nodes_change() {
    let mut cluster = cluster(&[("a", cards("a", 1)), ("b", cards("b", 1))]);
    let decision = reserve(&mut cluster, &pod("p", vec![ask(1, 20_000, 0)]));
    cluster.remove_node("a");
    cluster.set_node("z", &cards("z", 1)).unwrap();
    let text = "1/1 CardInsufficientMemory".to_string();
    assert_eq!(decision.failed_nodes(None), [("a", text.clone()), ("b", text)]);
}

#[test]
fn an_inventory_that_contradicts_itself_changes_nothing() {
    let mut cluster = cluster(&[("a", cards("a", 1))]);
    let mut twice = cards("a", 2);
    twice[1].id = "a-0".into();
    let error = cluster.set_node("a", &twice).unwrap_err();
    assert_eq!(error, InvalidInput::CardTwice { node: "a".into(), card: "a-0".into() });
    let beyond = vec![CardSpec { memory_mib: i64::MAX, ..support::card("a-0") }];
    assert!(cluster.set_node("a", &beyond).is_err());
    assert_eq!(cluster.node_cards("a").len(), 1);
}

#[test]
fn values_outside_their_range_do_not_enter() {
    for result in [
        BoundShare::new("a", VENDOR, -1, 0).err(),
        BoundShare::new("a", VENDOR, 0, -1).err(),
        BoundShare::new("a", VENDOR, i64::MAX, 0).err(),
        placement::Ask::new(VENDOR, -1, 0, None, 0).err(),
        placement::Ask::new(VENDOR, 1, 0, Some(101), 0).err(),
        placement::Weights::new(0, 0, 0).err(),
        placement::Weights::new(1, -1, 1).err(),
    ] {
        assert!(result.is_some());
    }
    let late = placement::PodAsk::new(
        "p",
        "default",
        "p",
        vec![support::container("app", App, vec![]), support::container("late", Init, vec![])],
    );
    assert_eq!(late.unwrap_err(), InvalidInput::InitAfterApp { container: "late".into() });
}

#[test]
fn kinds_of_cards_that_are_gone_are_forgotten() {
    let mut cluster = empty_cluster();
    for generation in 0..70_000 {
        let changing = CardSpec { memory_mib: generation, ..support::card("a-0") };
        cluster.set_node("a", &[changing]).unwrap();
    }
    assert_eq!(cluster.check_invariants(), Vec::<String>::new());
}
