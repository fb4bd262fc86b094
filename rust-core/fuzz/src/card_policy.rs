//! Policy words and chains of them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::{CardPolicy, NodePolicy};

fuzz_target!(|text: &str| {
    NodePolicy::parse(text);
    for numa_bind in [false, true] {
        CardPolicy::parse(text, numa_bind);
    }
    // A chain that names a word still does with another word behind it.
    for word in ["mutex", "topology-aware", "binpack"] {
        if CardPolicy::names(text, word) {
            assert!(CardPolicy::names(&format!("{text},spread"), word));
        }
    }
});
