"""Makes the fixtures of real servers known to every test; none starts before a test asks for it."""

import hypothesis
import pytest
from hypothesis import HealthCheck

pytest_plugins = ["hami_sim.testing"]

# Whether they pass must not depend on the machine's speed, so no deadline and no check of health that goes by time or
# by luck. The usual examples are the same in every run; those of `make test-long` are new ones each time, and many.
_STEADY = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
}
hypothesis.settings.register_profile("usual", derandomize=True, max_examples=50, **_STEADY)
hypothesis.settings.load_profile("usual")
hypothesis.settings.register_profile("long", derandomize=False, max_examples=3000, **_STEADY)
"""For `make test-long`: --hypothesis-profile=long."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """With `-q` the order's seed is not in the heading; after a failure one wants to repeat it."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        seed = getattr(config.option, "randomly_seed", None)
        terminalreporter.write_line(f"the same order again: --randomly-seed={seed}")
