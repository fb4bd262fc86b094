"""A TCP forwarder to whoever holds a Lease: stands in for a Service that selects the leader.

`python -m hami_sim.leader_forwarder.main --config FILE`.
"""
