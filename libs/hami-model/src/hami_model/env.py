"""Every environment variable that our programs and the C library share; the header of its names derives from here.

The docstring under a name is its documentation, also in the header.
"""

from __future__ import annotations

from typing import Final

# Read by the library in a container.
MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
"""Memory limit of every card that has none of its own: a number with k, m, g (1024) or of bytes. 0 or absent: none."""
MEMORY_LIMIT_OF: Final = "CUDA_DEVICE_MEMORY_LIMIT_"
"""Followed by a card's index: its memory limit. The node-agent writes `<MiB>m`."""
CORES_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
"""Percent of the compute of every card that has no limit of its own. 0 or absent: 100."""
CORES_LIMIT_OF: Final = "CUDA_DEVICE_SM_LIMIT_"
"""Followed by a card's index: its percent of compute."""
REGION_FILE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
"""Path of the container's shared region, made by its first process."""
TASK_PRIORITY: Final = "CUDA_TASK_PRIORITY"
"""Priority of the container, 0 the most urgent; 1 where absent. From the priority resource, by the webhook."""
CORE_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
"""`force` always limits compute, `disable` never, anything else as the monitor switches it in the region."""
OOM_KILLER: Final = "ACTIVE_OOM_KILLER"
"""`true`/`1` or `false`/`0`; true where absent."""
KERNEL_INTERVAL: Final = "RECORD_KERNEL_INTERVAL"
"""Seconds between two records of the last launch in the region; 1 where absent."""
VISIBLE_ORDINALS: Final = "CUDA_VISIBLE_DEVICES"
"""CUDA's own: which cards the process sees, in which order."""
LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
"""0 and 1 errors, 2 warnings (where absent), 3 information, 4 everything."""
REDIRECT: Final = "CUDA_REDIRECT"
"""Library in which hooked names are looked up."""
HANDOFF: Final = "HAMI_HANDOFF"
"""Ours: how far the hand-off of a late-binding container is. `pending` means that no limit is known: fail closed."""

# Values.
HANDOFF_PENDING: Final = "pending"
"""Written by Allocate, before anyone knows which pod it is for."""
HANDOFF_DONE: Final = "done"
"""Written by PreStartContainer together with cards and limits."""
CORE_POLICY_FORCE: Final = "force"
CORE_POLICY_DISABLE: Final = "disable"

# Read by others than the library.
OVERSUBSCRIBE: Final = "CUDA_OVERSUBSCRIBE"
"""`true` where more memory is promised than a card has."""
DISABLE_CONTROL: Final = "CUDA_DISABLE_CONTROL"
"""A true value in the pod's own specification keeps the library out of the container; the library itself ignores it."""
VISIBLE_CARDS: Final = "NVIDIA_VISIBLE_DEVICES"
"""Cards that NVIDIA's container runtime shows to the container."""
VISIBLE_CARDS_VOID: Final = "void"
"""Value with which that runtime leaves the container alone."""
VISIBLE_CARDS_NONE: Final = "none"
"""Value with which that runtime shows driver files but no card."""

# Read by the simulated driver.
SIM_DRIVER: Final = "HAMI_SIM_DRIVER"
"""Path of the description of the simulated cards (JSON)."""
SIM_STATE: Final = "HAMI_SIM_STATE"
"""Directory in which the processes of a simulated node share the state of its cards."""
SIM_VISIBLE_CARDS: Final = "HAMI_SIM_VISIBLE_DEVICES"
"""Cards that a process sees, as a container runtime would have it: ids or indexes, or `void`."""


def memory_limit_of(index: int) -> str:
    """Name of the variable with the memory limit of the card at an index."""
    return f"{MEMORY_LIMIT_OF}{index}"


def cores_limit_of(index: int) -> str:
    """Name of the variable with the compute limit of the card at an index."""
    return f"{CORES_LIMIT_OF}{index}"
