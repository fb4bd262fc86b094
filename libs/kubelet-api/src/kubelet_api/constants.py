"""Names of kubelet's device plugin contract."""

from typing import Final

DEVICE_PLUGIN_VERSION: Final = "v1beta1"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

KUBELET_ROOT: Final = "/var/lib/kubelet"
DEVICE_PLUGINS_FOLDER: Final = "device-plugins"
POD_RESOURCES_FOLDER: Final = "pod-resources"
KUBELET_SOCKET: Final = "kubelet.sock"
CHECKPOINT_FILE: Final = "kubelet_internal_checkpoint"
