//! What a pod holds of a card over its life.
//!
//! One-shot init containers run one after the other, each beside the sidecars declared before it; then the app
//! containers run beside all sidecars. A pod holds the larger of the two phases, for memory, cores and slots
//! apart: `max(each one-shot init + sidecars before it, all sidecars + apps)`.

use crate::ask::ContainerKind;
use crate::card::Amount;

/// What a pod holds of one card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodUse {
    sidecars: Amount,
    apps: Amount,
    /// Largest sum of one one-shot init container and the sidecars before it.
    init_peak: Amount,
    /// What the one-shot init container `newest_init` holds: its shares of one card are held at the same time.
    init: Amount,
    newest_init: u16,
}

impl PodUse {
    /// What a container finds taken by its own pod when it starts, its own earlier shares included.
    pub(crate) fn seen_by(&self, container: u16, kind: ContainerKind) -> Amount {
        match kind {
            ContainerKind::Init if container == self.newest_init => self.sidecars.plus(self.init),
            ContainerKind::Init | ContainerKind::Sidecar => self.sidecars,
            ContainerKind::App => self.sidecars.plus(self.apps),
        }
    }

    /// With one more share of a container, containers in their order.
    pub(crate) fn with(mut self, container: u16, kind: ContainerKind, share: Amount) -> Self {
        match kind {
            ContainerKind::Init => {
                if container != self.newest_init {
                    self.newest_init = container;
                    self.init = Amount::default();
                }
                self.init = self.init.plus(share);
                self.init_peak = self.init_peak.max(self.sidecars.plus(self.init));
            }
            ContainerKind::Sidecar => self.sidecars = self.sidecars.plus(share),
            ContainerKind::App => self.apps = self.apps.plus(share),
        }
        self
    }

    /// What counts against card and quota.
    pub(crate) fn effective(&self, init_done: bool) -> Amount {
        let running = self.sidecars.plus(self.apps);
        if init_done {
            running
        } else {
            running.max(self.init_peak)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ContainerKind::{App, Init, Sidecar};

    /// One container an entry.
    fn held(shares: &[(ContainerKind, i64)], init_done: bool) -> Amount {
        (0..)
            .zip(shares)
            .fold(PodUse::default(), |sum, (container, (kind, memory))| {
                sum.with(container, *kind, Amount::new(*memory, 0, 1))
            })
            .effective(init_done)
    }

    #[test]
    fn phases_compete_and_sidecars_add() {
        // MUL-02
        let pod = [(Init, 4000), (Sidecar, 3000), (Init, 2000), (App, 1000)];
        assert_eq!(held(&pod, false), Amount::new(5000, 0, 2));
        assert_eq!(held(&pod, true), Amount::new(4000, 0, 2));
        assert_eq!(held(&[(Sidecar, 6000), (App, 6000)], false), Amount::new(12000, 0, 2));
        assert_eq!(held(&[(Init, 5000), (App, 3000)], false), Amount::new(5000, 0, 1));
        assert_eq!(held(&[(Init, 5000)], true), Amount::default());
        assert_eq!(held(&[(App, 1), (App, 2), (App, 3)], false), Amount::new(6, 0, 3));
    }

    #[test]
    fn one_containers_shares_of_a_card_add_up() {
        let share = |memory| Amount::new(memory, 10, 1);
        let twice = PodUse::default().with(0, Init, share(3000)).with(0, Init, share(2000));
        assert_eq!(twice.effective(false), Amount::new(5000, 20, 2));
        assert_eq!(twice.seen_by(0, Init), Amount::new(5000, 20, 2));
        assert_eq!(twice.seen_by(1, Init), Amount::default());
        assert_eq!(twice.with(1, Init, share(4000)).effective(false), Amount::new(5000, 20, 2));
        assert_eq!(twice.effective(true), Amount::default());
    }
}
