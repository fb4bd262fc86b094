//! Scenes to decide on, and what measures decisions. The programs are `bench_engine` and `bench_instructions`.

#![allow(clippy::missing_panics_doc, reason = "a bench that cannot build its scene has nothing to measure")]

pub mod allocations;
pub mod measure;
pub mod mig_scene;
pub mod numbers;
pub mod scene;
