"""What goes wrong with a local cluster."""


class ClusterError(Exception):
    """The cluster is not as it should be; the message says what to do, with the last log lines of what failed."""
