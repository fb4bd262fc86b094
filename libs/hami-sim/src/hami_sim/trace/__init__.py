"""Replay of a trace of pods against the placement engine alone, to compare policies.

The format is that of Alibaba's cluster-trace-gpu-v2023 ("openb"). The data are not part of this project; a path is
given.
"""

from hami_sim.trace.files import Trace, TraceError, list_names, read_trace
from hami_sim.trace.replay import Policy, ReplayedSeed, parse_policy, replay_seed

__all__ = [
    "Policy",
    "ReplayedSeed",
    "Trace",
    "TraceError",
    "list_names",
    "parse_policy",
    "read_trace",
    "replay_seed",
]
