"""A whole cluster on one machine: control plane, simulated nodes, workloads."""
