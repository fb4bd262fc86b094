"""Finds or builds the programs of a real control plane: etcd, kube-apiserver, kube-controller-manager,
kube-scheduler, kubectl and, where there is one, kubelet.

Asked in this order, for etcd and for the Kubernetes programs each: `$KUBEBUILDER_ASSETS`, `PATH`, our cache, a Go
build from the modules pinned in `tools/kubernetes` of the repository. The Kubernetes programs always come from one
place, since versions must match. The official release is not among the places: a download is only safe with a
SHA-256 that was checked when it was written down, and none has been yet.
"""

from hami_sim.binaries.errors import BinariesUnavailableError
from hami_sim.binaries.locate import Binaries, find_binaries, obtain_binaries

__all__ = ["Binaries", "BinariesUnavailableError", "find_binaries", "obtain_binaries"]
