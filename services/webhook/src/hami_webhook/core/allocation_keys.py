"""Keys on a pod that are the system's to write: an allocation that a user could write would be taken for true."""

from __future__ import annotations

from hami_model import keys
from hami_model.device_config import DeviceConfig


def owned_annotations(config: DeviceConfig) -> tuple[str, ...]:
    """Annotations that only scheduler and node-agent write, in a fixed order."""
    vendor_keys = (key for settings in config.vendors for key in settings.vendor.pod_keys)
    return tuple(
        dict.fromkeys(
            (
                keys.ASSIGNED_NODE,
                keys.ASSIGNED_TIME,
                keys.BIND_TIME,
                keys.BIND_PHASE,
                keys.ALLOCATION_ID,
                keys.WAKE,
                *vendor_keys,
            )
        )
    )


OWNED_LABELS = (keys.ASSIGNED_NODE,)
"""Labels that only the scheduler writes."""
