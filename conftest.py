"""Makes the fixtures of real servers known to every test; none starts before a test asks for it."""

import hypothesis

pytest_plugins = ["hami_sim.testing"]

hypothesis.settings.register_profile("long", max_examples=3000, deadline=None)
"""For `make test-long`: --hypothesis-profile=long."""
