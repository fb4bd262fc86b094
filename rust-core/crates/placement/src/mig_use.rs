//! Which memory slices of a card that is cut into instances are taken, and by how many pods.

use std::sync::Arc;

use crate::ask::ContainerKind;
use crate::mig::{MigInstance, MigLayout, SliceMask, MIG_SLICES};

/// What one pod holds of one card, as far as instances go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldSlices {
    pub(crate) mask: SliceMask,
    /// Some share names an instance.
    pub(crate) placed: bool,
    /// Some share names none, so on a card that is cut into instances nobody knows where it lies.
    pub(crate) unplaced: bool,
}

impl HeldSlices {
    pub(crate) fn add(&mut self, instance: Option<&Arc<MigInstance>>) {
        match instance {
            Some(instance) => {
                self.mask |= instance.placement.mask();
                self.placed = true;
            }
            None => self.unplaced = true,
        }
    }

    /// No instance is named.
    pub(crate) fn is_plain(self) -> bool {
        !self.placed
    }
}

/// A card that is cut into instances: what it offers, and how many pods hold each of its memory slices. More than one
/// only where other writers contradict each other.
#[derive(Clone, Debug)]
pub(crate) struct SliceUse {
    pub(crate) layout: Arc<MigLayout>,
    mask: SliceMask,
    pods: [u32; MIG_SLICES as usize],
}

impl SliceUse {
    pub(crate) fn new(layout: Arc<MigLayout>) -> Self {
        Self { layout, mask: 0, pods: [0; MIG_SLICES as usize] }
    }

    /// The slices that are taken.
    pub(crate) fn mask(&self) -> SliceMask {
        self.mask
    }

    /// How many pods hold each slice.
    pub(crate) fn pods(&self) -> &[u32; MIG_SLICES as usize] {
        &self.pods
    }

    pub(crate) fn shift(&mut self, mask: SliceMask, adds: bool) {
        let mut left = mask;
        while left != 0 {
            let slice = left.trailing_zeros() as usize;
            left &= left - 1;
            let pods = &mut self.pods[slice];
            *pods = if adds { *pods + 1 } else { *pods - 1 };
            if *pods == 0 {
                self.mask &= !(1 << slice);
            } else {
                self.mask |= 1 << slice;
            }
        }
    }
}

/// The slices of one card that the pod being placed takes, by the time when it needs them.
///
/// One-shot init containers hold theirs one after the other beside the sidecars declared before; the app containers
/// theirs beside all sidecars. So an app container may lie where an init container lay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PodSlices {
    sidecars: SliceMask,
    apps: SliceMask,
    /// Of the one-shot init container `newest_init`.
    init: SliceMask,
    newest_init: u16,
}

impl PodSlices {
    /// What a container finds taken by its own pod.
    pub(crate) fn seen_by(&self, container: u16, kind: ContainerKind) -> SliceMask {
        match kind {
            ContainerKind::Init if container == self.newest_init => self.sidecars | self.init,
            ContainerKind::Init | ContainerKind::Sidecar => self.sidecars,
            ContainerKind::App => self.sidecars | self.apps,
        }
    }

    pub(crate) fn take(&mut self, container: u16, kind: ContainerKind, mask: SliceMask) {
        match kind {
            ContainerKind::Init => {
                if container != self.newest_init {
                    self.newest_init = container;
                    self.init = 0;
                }
                self.init |= mask;
            }
            ContainerKind::Sidecar => self.sidecars |= mask,
            ContainerKind::App => self.apps |= mask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ContainerKind::{App, Init, Sidecar};

    #[test]
    fn containers_see_those_that_run_beside_them() {
        let mut pod = PodSlices::default();
        pod.take(0, Init, 0b1);
        assert_eq!(pod.seen_by(0, Init), 0b1);
        assert_eq!(pod.seen_by(1, Sidecar), 0);
        pod.take(1, Sidecar, 0b10);
        assert_eq!(pod.seen_by(2, Init), 0b10);
        pod.take(2, Init, 0b1);
        assert_eq!(pod.seen_by(3, App), 0b10);
        pod.take(3, App, 0b1);
        assert_eq!(pod.seen_by(4, App), 0b11);
    }

    #[test]
    fn slices_that_two_pods_claim_are_free_when_both_are_gone() {
        let mut card = SliceUse::new(Arc::new(MigLayout::new(&[])));
        card.shift(0b110, true);
        card.shift(0b011, true);
        assert_eq!(card.mask(), 0b111);
        card.shift(0b110, false);
        assert_eq!(card.mask(), 0b011);
        card.shift(0b011, false);
        assert_eq!((card.mask(), card.pods), (0, [0; MIG_SLICES as usize]));
    }
}
