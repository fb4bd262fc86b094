"""Annotation keys, labels and values shared with HAMi, and those that are ours. Each is declared here and nowhere else.

Keys of one vendor stand in that vendor's descriptor (`hami_model.vendors`).
"""

from __future__ import annotations

from typing import Final

# Pod, written by the scheduler.
ASSIGNED_NODE: Final = "hami.io/vgpu-node"
"""Annotation and label."""
ASSIGNED_TIME: Final = "hami.io/vgpu-time"
"""Unix seconds, decimal."""
BIND_TIME: Final = "hami.io/bind-time"
"""Unix seconds, decimal."""
BIND_PHASE: Final = "hami.io/bind-phase"
BIND_PHASE_ALLOCATING: Final = "allocating"
BIND_PHASE_SUCCESS: Final = "success"
BIND_PHASE_FAILED: Final = "failed"
ALLOCATION_ID: Final = "hami.io/allocation-id"
"""Ours: names the reservation that became this pod's allocation."""
WAKE: Final = "hami.io/retry-at"
"""Ours: touched on a pending pod when capacity grew, so that kube-scheduler tries it again."""

# Pod, written by the user.
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
CARD_POLICY: Final = "hami.io/gpu-scheduler-policy"
SCORING_WEIGHTS: Final = "hami.io/device-scoring-weights"

# Node.
NODE_LOCK: Final = "hami.io/mutex.lock"
CARD_CORDON: Final = "hami.io/device-cordon"

# Selection of objects.
WEBHOOK_LABEL: Final = "hami.io/webhook"
WEBHOOK_IGNORE: Final = "ignore"
ROLE_LABEL: Final = "hami.io/scheduler-role"
ROLE_LEADER: Final = "leader"
ROLE_FOLLOWER: Final = "follower"

LABEL_VALUE_MAX: Final = 63
"""Longest label value Kubernetes takes; a longer node name is not written as a label."""
