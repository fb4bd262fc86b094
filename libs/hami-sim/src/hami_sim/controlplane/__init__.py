"""The real control plane on one machine: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

`ControlPlane` starts and ends it; everything it needs lies in one state directory (`layout`), so that several run
side by side. What the programs are told (`arguments`, `scheduler_config`, `kubeconfig`) is built by pure functions.
"""

from hami_sim.controlplane.cluster import ControlPlane
from hami_sim.controlplane.layout import StateLayout
from hami_sim.controlplane.record import ControlPlaneError
from hami_sim.controlplane.rest import ApiError, RestClient
from hami_sim.controlplane.settings import ControlPlaneSettings

__all__ = ["ApiError", "ControlPlane", "ControlPlaneError", "ControlPlaneSettings", "RestClient", "StateLayout"]
