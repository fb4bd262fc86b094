//! Times and allocations of repeated steps.

#![allow(clippy::disallowed_methods, reason = "benches measure time; the engine reads none")]

use std::ops::Range;
use std::time::Instant;

use placement::{Candidates, Detail};
use rustix::time::{clock_gettime, ClockId};

use crate::allocations;
use crate::numbers::shuffle;
use crate::scene::{bound, card_id, container, pod_uid, Case, Scene};

/// Steps before those that count: buffers grow to their size.
const WARM_UP: usize = 200;

/// What one step costs.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub p50_us: f64,
    pub p99_us: f64,
    /// Processor time of the thread: what holds on a busy machine too.
    pub cpu_p50_us: f64,
    pub cpu_p99_us: f64,
    /// Rounded up: 0 means that not one step allocated.
    pub allocations: u64,
}

/// Collects what the steps cost.
pub struct Meter {
    rounds: usize,
    warm_up: usize,
    seen: usize,
    nanoseconds: Vec<f64>,
    cpu_nanoseconds: Vec<f64>,
    allocated: u64,
}

impl Meter {
    /// For so many steps, and some before them that do not count.
    pub fn new(rounds: usize) -> Self {
        let warm_up = WARM_UP.min(rounds);
        Self {
            rounds,
            warm_up,
            seen: 0,
            nanoseconds: Vec::with_capacity(rounds),
            cpu_nanoseconds: Vec::with_capacity(rounds),
            allocated: 0,
        }
    }

    /// Numbers of all steps.
    pub fn rounds(&self) -> Range<usize> {
        0..self.warm_up + self.rounds
    }

    /// Runs one step.
    pub fn step<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let before = allocations::count();
        let cpu_start = thread_nanoseconds();
        let start = Instant::now();
        let result = step();
        let took = start.elapsed();
        let cpu_took = thread_nanoseconds() - cpu_start;
        let after = allocations::count();
        self.seen += 1;
        if self.seen > self.warm_up {
            self.nanoseconds.push(took.as_nanos() as f64);
            self.cpu_nanoseconds.push(cpu_took);
            self.allocated += after - before;
        }
        result
    }

    /// The sum of it.
    pub fn end(mut self) -> Measured {
        self.nanoseconds.sort_by(f64::total_cmp);
        self.cpu_nanoseconds.sort_by(f64::total_cmp);
        Measured {
            p50_us: quantile_us(&self.nanoseconds, 0.5),
            p99_us: quantile_us(&self.nanoseconds, 0.99),
            cpu_p50_us: quantile_us(&self.cpu_nanoseconds, 0.5),
            cpu_p99_us: quantile_us(&self.cpu_nanoseconds, 0.99),
            allocations: self.allocated.div_ceil(self.rounds as u64),
        }
    }
}

fn quantile_us(sorted_nanoseconds: &[f64], part: f64) -> f64 {
    sorted_nanoseconds[((sorted_nanoseconds.len() - 1) as f64 * part) as usize] / 1000.0
}

/// Processor time of this thread so far.
fn thread_nanoseconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// A list of names whose text lies in the order of the list, as a caller decodes it from a request.
#[derive(Default)]
pub struct Names {
    text: String,
    ends: Vec<usize>,
}

impl Names {
    /// The names of a scene in an order that follows from the seed.
    pub fn shuffled(names: &[String], seed: u64) -> Self {
        let mut order: Vec<usize> = (0..names.len()).collect();
        shuffle(&mut order, seed);
        let mut found = Self::default();
        for number in order {
            found.text.push_str(&names[number]);
            found.ends.push(found.text.len());
        }
        found
    }

    /// The names.
    pub fn list(&self) -> Vec<&str> {
        let mut start = 0;
        self.ends.iter().map(|end| &self.text[std::mem::replace(&mut start, *end)..*end]).collect()
    }
}

/// How candidates are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Not at all: every registered node.
    All,
    /// Every name, as in the call before.
    Same,
    /// Every name, in a new order for each call.
    Shuffled,
}

impl Listed {
    /// The word in a row.
    pub fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Same => "same-names",
            Self::Shuffled => "shuffled-names",
        }
    }
}

/// `reserve`; each pod is released again.
pub fn reserve(scene: &mut Scene, rounds: usize, listed: Listed) -> Measured {
    let Scene { cluster, asks, names, case, .. } = scene;
    let same: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut meter = Meter::new(rounds);
    for round in meter.rounds() {
        let pod = &asks[round % asks.len()];
        let shuffled = (listed == Listed::Shuffled).then(|| Names::shuffled(names, round as u64));
        let shuffled = shuffled.as_ref().map(Names::list);
        let candidates = match listed {
            Listed::All => Candidates::All,
            Listed::Same => Candidates::Named(&same),
            Listed::Shuffled => Candidates::Named(shuffled.as_deref().unwrap_or_default()),
        };
        let decision = meter.step(|| cluster.reserve(pod, candidates));
        assert_eq!(decision.chosen().is_some(), *case != Case::Nowhere, "the scene is not what it claims");
        assert!(*case != Case::Last || decision.fitting_nodes() == 1, "the scene is not what it claims");
        drop(decision);
        cluster.release(pod.uid());
    }
    meter.end()
}

/// `reserve` of a pod that fits nowhere, with the reasons of every node as kube-scheduler is told them.
pub fn reserve_with_reasons(scene: &mut Scene, rounds: usize) -> Measured {
    let Scene { cluster, asks, names, .. } = scene;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut meter = Meter::new(rounds);
    for round in meter.rounds() {
        let told = meter.step(|| {
            let decision = cluster.reserve(&asks[round % asks.len()], Candidates::Named(&names));
            let mut told = 0;
            for never in [true, false] {
                told += decision.failed_nodes(Some(never)).iter().map(|(_, text)| text.len()).sum::<usize>();
            }
            told
        });
        assert!(told > 0, "the scene is not what it claims");
    }
    meter.end()
}

/// `what_if`: the decision without a booking.
pub fn what_if(scene: &mut Scene, rounds: usize) -> Measured {
    let Scene { cluster, asks, .. } = scene;
    let mut meter = Meter::new(rounds);
    for round in meter.rounds() {
        meter.step(|| cluster.what_if(&asks[round % asks.len()], Candidates::All));
    }
    meter.end()
}

/// `explain` over every node; a hundred are told card by card.
pub fn explain(scene: &mut Scene, rounds: usize) -> Measured {
    let Scene { cluster, asks, names, .. } = scene;
    let detail = Detail { nodes: 100, ..Detail::default() };
    let mut meter = Meter::new(rounds);
    for round in meter.rounds() {
        let told = meter.step(|| cluster.explain(&asks[round % asks.len()], Candidates::All, detail));
        assert_eq!(told.candidates, names.len(), "the scene is not what it claims");
    }
    meter.end()
}

/// A copy of the whole state.
pub fn copy(scene: &mut Scene, rounds: usize) -> Measured {
    let mut meter = Meter::new(rounds);
    for _ in meter.rounds() {
        let copied = meter.step(|| scene.cluster.clone());
        assert_eq!(copied.booking_count(), scene.size.pods, "the scene is not what it claims");
    }
    meter.end()
}

/// `charge` of a pod that is bound already, and `release` of it.
pub fn charge_and_release(scene: &mut Scene, rounds: usize) -> (Measured, Measured) {
    let Scene { cluster, names, size, .. } = scene;
    let (mut charge, mut release) = (Meter::new(rounds), Meter::new(rounds));
    for round in charge.rounds() {
        let uid = pod_uid(size.pods + round);
        // Steps of a number without a common factor with common sizes: other nodes each time.
        let card = round * 7919 % size.cards();
        let node = &names[card / size.cards_per_node];
        let containers = [container(&card_id(*size, card), 100, 1)];
        charge.step(|| cluster.charge(&bound(&uid, node, &containers)));
        assert!(release.step(|| cluster.release(&uid)), "the scene is not what it claims");
    }
    (charge.end(), release.end())
}
