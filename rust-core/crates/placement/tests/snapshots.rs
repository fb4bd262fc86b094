//! A snapshot carries the whole state, whatever happened to it, and any bytes are read or refused.

mod support;

use placement::snapshot::{self, Answer, Operation, Question, Recording, Snapshot, SnapshotError};
use placement::{BookingState, Candidates, Cluster, PodAsk};
use proptest::collection::vec;
use proptest::prelude::*;
use support::random::{any_pod, any_step, run, seen, told, NODES};
use support::{ask, card, charge, cluster, empty_cluster, pod, VENDOR};

fn again(cluster: &Cluster) -> Cluster {
    let read = snapshot::read(&cluster.snapshot().write()).unwrap();
    Cluster::from_snapshot(&read).unwrap()
}

fn what_if(pod: PodAsk, candidates: Option<&[&str]>, answer: Option<Answer>) -> Operation {
    let candidates = candidates.map(|names| names.iter().map(|name| (*name).to_string()).collect());
    Operation::WhatIf(Question { pod, candidates, answer })
}

/// Two nodes, three pods, a quota.
fn scene() -> Cluster {
    let mut cluster = cluster(&[("a", support::cards("a", 2)), ("b", vec![card("b-0")])]);
    charge(&mut cluster, "one", "a", "a-0", 4000, 30);
    charge(&mut cluster, "two", "gone", "gone-0", 1000, 0);
    cluster.reserve(&pod("three", vec![ask(1, 500, 10)]), Candidates::Named(&["b"]));
    cluster.set_quota("default", VENDOR, Some(20_000), None);
    cluster
}

#[test]
fn a_snapshot_is_readable_and_the_same_for_the_same_state() {
    let text = String::from_utf8(scene().snapshot().write()).unwrap();
    let expected = r#"{
  "format": "hami-engine-snapshot",
  "version": 1,
  "families": [
    {"word": "NVIDIA","#;
    assert!(text.starts_with(expected), "{text}");
    for line in [
        r#"    {"name": "a", "cards": ["#,
        r#"    {"uid": "three", "namespace": "default", "node": "b", "state": "reserved", "init_done": false, "shares": ["#,
        r#"      {"container": 0, "kind": "app", "card_id": "a-0", "vendor": "NVIDIA", "memory_mib": 4000, "cores_percent": 30}"#,
        r#"    {"namespace": "default", "vendor": "NVIDIA", "memory_mib": 20000, "cores_percent": null}"#,
        r#"  "operations": []"#,
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line} is not in\n{text}");
    }
    let mut longer = scene();
    longer.reserve(&pod("four", vec![ask(1, 1, 0)]), Candidates::All);
    longer.release("four");
    assert_eq!(longer.snapshot().write(), text.as_bytes());
}

#[test]
fn states_of_bookings_come_back() {
    let cluster = again(&scene());
    let state = |uid| cluster.booking(uid).map(|booking| booking.state);
    assert_eq!(state("one"), Some(BookingState::Bound));
    assert_eq!(state("three"), Some(BookingState::Reserved));
    assert_eq!(cluster.booking("two").unwrap().node, "gone");
    assert_eq!(cluster.check_invariants(), Vec::<String>::new());
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let text = String::from_utf8(scene().snapshot().write()).unwrap();
    let change = |from: &str, to: &str| {
        assert!(text.contains(from));
        let changed = snapshot::read(text.replacen(from, to, 1).as_bytes());
        changed.and_then(|read| Cluster::from_snapshot(&read).map(|_| ())).unwrap_err().to_string()
    };
    for (from, to, said) in [
        (
            r#""slots": 10"#,
            r#""slots": "ten""#,
            "nodes[0].cards[0].slots: invalid type: string \"ten\", expected i32",
        ),
        (r#""slots": 10"#, r#""shares": 10"#, "nodes[0].cards[0].shares: unknown field `shares`"),
        (r#", "healthy": true"#, "", "nodes[0].cards[0]: missing field `healthy`"),
        (r#""memory_mib": 4000"#, r#""memory_mib": -1"#, "bookings[0]: memory_mib is -1"),
        (r#""uid": "three""#, r#""uid": "one""#, "bookings[1]: \"one\" comes twice"),
        (r#""name": "b""#, r#""name": "a""#, "nodes[1]: \"a\" comes twice"),
        (r#""id": "a-1""#, r#""id": "a-0""#, "nodes[0]: node a lists card a-0 twice"),
        (r#""version": 1"#, r#""version": 2"#, "the file has version 2"),
        ("hami-engine-snapshot", "something", "format is \"something\""),
        ("{", "", "line 2, column 10: invalid type: string \"format\", expected a snapshot"),
    ] {
        let message = change(from, to);
        assert!(message.contains(said), "{message} does not say {said}");
    }
    assert!(matches!(snapshot::read(b"").unwrap_err(), SnapshotError::Unreadable { line: 1, .. }));
    let twice = text.replacen("\"quotas\": [", "\"quotas\": [{\"namespace\": \"default\", \"vendor\": \"NVIDIA\", \"memory_mib\": 1, \"cores_percent\": 2},", 1);
    let message =
        Cluster::from_snapshot(&snapshot::read(twice.as_bytes()).unwrap()).err().unwrap().to_string();
    assert!(message.contains("quotas[1]: \"NVIDIA in default\" comes twice"), "{message}");
}

#[test]
fn a_pod_that_no_constructor_makes_is_refused() {
    let mut asked = scene().snapshot();
    asked.push(what_if(pod("new", vec![ask(1, 500, 10), ask(1, 1, 1)]), None, None));
    let text = String::from_utf8(asked.write()).unwrap();
    for (from, to) in [
        (r#""memory_percent": null"#, r#""memory_percent": 101"#),
        (
            r#""kind": "app", "asks": [{"vendor": "NVIDIA", "count": 1, "memory_mib": 1,"#,
            r#""kind": "init", "asks": [{"vendor": "NVIDIA", "count": 1, "memory_mib": 1,"#,
        ),
        (r#""weights": {"slots": 1"#, r#""weights": {"slots": -1"#),
    ] {
        assert!(text.contains(from), "{from}\n{text}");
        let error = snapshot::read(text.replacen(from, to, 1).as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with("operations[0]: "), "{error}");
    }
    assert_eq!(snapshot::read(text.as_bytes()).unwrap(), asked);
}

#[test]
fn names_are_replaced_everywhere_and_decisions_stay() {
    let mut before = scene().snapshot();
    let constraint = placement::CardConstraint::new(None, None, None, Some(vec!["a-1".into()]), None);
    let asked = pod("secret-uid", vec![ask(1, 6500, 10)]).with_constraint(VENDOR, constraint);
    let answer = Answer::of(&scene().what_if(&asked, Candidates::Named(&["b", "a", "unknown-node"])));
    before.push(what_if(asked, Some(&["b", "a", "unknown-node"]), Some(answer)));
    before.push(Operation::RemoveNode { name: "unknown-node".into() });
    before.push(Operation::SetCardHealth { node: "a".into(), card_id: "a-0".into(), healthy: false });
    before.push(Operation::Release { uid: "secret-uid".into() });
    let after = before.clone().anonymised();
    let text = String::from_utf8(after.write()).unwrap();
    for name in ["secret", "\"a\"", "\"b\"", "a-0", "a-1", "gone", "unknown", "default", "\"one\"", "\"c0\""]
    {
        assert!(!text.contains(name), "{name} is in\n{text}");
    }
    assert!(text.contains("\"node-0\"") && text.contains("NVIDIA A100-SXM4-40GB"), "{text}");
    replay(&after);
    assert_eq!(after.clone().anonymised(), after);
}

/// Every recorded answer is given again.
fn replay(snapshot: &Snapshot) -> Cluster {
    let mut cluster = Cluster::from_snapshot(snapshot).unwrap();
    for operation in &snapshot.operations {
        let given = cluster.perform(operation).unwrap();
        let recorded = operation.question().and_then(|question| question.answer.clone());
        if let (Some(given), Some(recorded)) = (given, recorded) {
            assert!(recorded.agrees_with(&given), "{recorded:?} {given:?}");
        }
    }
    assert_eq!(cluster.check_invariants(), Vec::<String>::new());
    cluster
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_restored_state_decides_as_the_one_it_was_made_of(
        steps in vec(any_step(), 0..25),
        pods in vec((6..10u8).prop_flat_map(any_pod), 1..5),
    ) {
        let mut cluster = empty_cluster();
        for step in &steps {
            run(&mut cluster, step);
        }
        let written = cluster.snapshot().write();
        let mut restored = again(&cluster);
        prop_assert_eq!(restored.check_invariants(), Vec::<String>::new());
        prop_assert_eq!(seen(&restored), seen(&cluster));
        prop_assert_eq!(String::from_utf8(restored.snapshot().write()), String::from_utf8(written));
        let mut asked = cluster.snapshot();
        for pod in &pods {
            let candidates = Candidates::Named(&NODES);
            let decision = cluster.reserve(pod, candidates);
            prop_assert_eq!(told(&decision), told(&restored.reserve(pod, candidates)));
            let candidates = Some(NODES.iter().map(|name| (*name).to_string()).collect());
            let answer = Some(Answer::of(&decision));
            asked.push(Operation::Reserve(Question { pod: pod.clone(), candidates, answer }));
        }
        let read = snapshot::read(&asked.write()).unwrap();
        prop_assert_eq!(&read, &asked);
        replay(&read);
        replay(&read.anonymised());
    }

    #[test]
    fn a_recording_ends_where_the_cluster_is(
        before in vec(any_step(), 0..10),
        pods in vec((0..8u8).prop_flat_map(any_pod), 0..20),
        most in 1..8usize,
    ) {
        let mut cluster = empty_cluster();
        for step in &before {
            run(&mut cluster, step);
        }
        let mut recording = Recording::begin(&cluster, most);
        for pod in &pods {
            let candidates = vec!["d".to_string(), "a".into(), "b".into(), "unknown".into()];
            let mut question = Question { pod: pod.clone(), candidates: Some(candidates), answer: None };
            let decision = question.with_candidates(|pod, candidates| cluster.reserve(pod, candidates));
            question.answer = Some(Answer::of(&decision));
            recording.add(Operation::Reserve(question), &cluster);
        }
        let recorded = recording.snapshot();
        prop_assert_eq!(recorded.operations.len(), pods.len().min(most));
        let replayed = replay(&snapshot::read(&recorded.write()).unwrap());
        prop_assert_eq!(replayed.snapshot(), cluster.snapshot());
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        steps in vec(any_step(), 0..10),
        pod in any_pod(9),
        cuts in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), "[\\[\\]{}\",:0-9a-z-]{0,4}"), 1..4),
    ) {
        let mut cluster = empty_cluster();
        for step in &steps {
            run(&mut cluster, step);
        }
        let mut asked = cluster.snapshot();
        asked.push(what_if(pod, None, None));
        let mut bytes = asked.write();
        for (from, to, text) in cuts {
            let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
            let to = if to % 3 == 0 { from.max(to) } else { (from + to % 5).min(bytes.len()) };
            bytes.splice(from..to.max(from), text.into_bytes());
        }
        if let Ok(read) = snapshot::read(&bytes) {
            if let Ok(mut cluster) = Cluster::from_snapshot(&read) {
                for operation in &read.operations {
                    let _ = cluster.perform(operation);
                }
                prop_assert_eq!(cluster.check_invariants(), Vec::<String>::new());
            }
        }
    }
}
