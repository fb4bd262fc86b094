"""A kubelet's stand-in for simulated nodes.

What belongs here: the device plugin, PodResources and CDI contracts from kubelet's and the runtime's side, and pods as
local processes. What does not: any knowledge of what a device plugin's answers mean.
"""

from hami_sim.kubelet.settings import DriverSettings, KubeletSettings
from hami_sim.kubelet.stand_in import KubeletStandIn, end_containers

__all__ = ["DriverSettings", "KubeletSettings", "KubeletStandIn", "end_containers"]
