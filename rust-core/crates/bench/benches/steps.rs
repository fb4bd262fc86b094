//! The core steps under criterion: `cargo bench -p bench`.

use bench::measure::Names;
use bench::scene::{bound, card_id, container, Case, Scene, Size};
use criterion::{criterion_group, criterion_main, Criterion};
use placement::Candidates;

const SIZE: Size = Size { nodes: 1_000, cards_per_node: 8, pods: 16_000 };

fn reserve(criterion: &mut Criterion) {
    for case in Case::ALL {
        let mut scene = Scene::build(SIZE, case, "binpack");
        let names: Vec<&str> = scene.names.iter().map(String::as_str).collect();
        let mut turn = scene.asks.iter().cycle();
        criterion.bench_function(&format!("reserve/{}", case.word()), |bencher| {
            bencher.iter(|| {
                let pod = turn.next().expect("a cycle has no end");
                scene.cluster.reserve(pod, Candidates::Named(&names));
                scene.cluster.release(pod.uid())
            });
        });
    }
}

fn look_up_names(criterion: &mut Criterion) {
    let mut scene = Scene::build(SIZE, Case::Fits, "binpack");
    let orders = [Names::shuffled(&scene.names, 1), Names::shuffled(&scene.names, 2)];
    let lists = orders.each_ref().map(Names::list);
    let mut turn = lists.iter().cycle();
    criterion.bench_function("what-if/shuffled-names", |bencher| {
        bencher.iter(|| {
            let names = turn.next().expect("a cycle has no end");
            scene.cluster.what_if(&scene.asks[0], Candidates::Named(names))
        });
    });
}

fn book(criterion: &mut Criterion) {
    let mut scene = Scene::build(SIZE, Case::Fits, "binpack");
    let containers = [container(&card_id(SIZE, 4_321), 100, 1)];
    let node = &scene.names[4_321 / SIZE.cards_per_node];
    criterion.bench_function("charge-and-release", |bencher| {
        bencher.iter(|| {
            scene.cluster.charge(&bound("new", node, &containers));
            scene.cluster.release("new")
        });
    });
}

fn short() -> Criterion {
    use std::time::Duration;
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! { name = steps; config = short(); targets = reserve, look_up_names, book }
criterion_main!(steps);
