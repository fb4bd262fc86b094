"""An imitation of the API server for fast tests: real sockets, real JSON, versions, watches, and faults on demand.

The contract suite in `tests/contract` runs the same expectations against this and against a real kube-apiserver.
"""

from hami_sim.fake_kube.faults import Hold, Request
from hami_sim.fake_kube.server import FakeKube

__all__ = ["FakeKube", "Hold", "Request"]
