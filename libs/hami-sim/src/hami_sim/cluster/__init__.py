"""A whole cluster on one machine: control plane, NATS, our services, simulated nodes.

What belongs here: starting, finding again, watching and ending the programs of one local cluster. What does not: how a
single simulated node works (`hami_sim.kubelet`), how the control plane is run (`hami_sim.controlplane`).
"""

from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.local_cluster import LocalCluster
from hami_sim.cluster.profile import ClusterProfile, load_profile, uniform_profile
from hami_sim.cluster.starting import start_cluster

__all__ = ["ClusterError", "ClusterProfile", "LocalCluster", "load_profile", "start_cluster", "uniform_profile"]
