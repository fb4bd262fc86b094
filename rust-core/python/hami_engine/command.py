"""`hami-engine`: replays snapshots of the engine's state."""

import signal
import sys

from . import run_command


def main() -> int:
    """The command. All of it is compiled, so signals do what they do to any program."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    return run_command(sys.argv[1:])
