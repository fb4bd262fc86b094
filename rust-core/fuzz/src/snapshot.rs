//! Any bytes are a snapshot or refused; what is read is written and read again as the same, and can be run.

#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::{snapshot, Cluster};

fuzz_target!(|bytes: &[u8]| {
    let Ok(read) = snapshot::read(bytes) else { return };
    let again = snapshot::read(&read.write()).expect("what was written can be read");
    assert_eq!(read, again);
    let Ok(mut cluster) = Cluster::from_snapshot(&read) else { return };
    assert_eq!(cluster.check_invariants(), Vec::<String>::new());
    for operation in &read.operations {
        let _refused = cluster.perform(operation);
        assert_eq!(cluster.check_invariants(), Vec::<String>::new());
    }
});
