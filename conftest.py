"""Makes the fixtures of real servers known to every test; none starts before a test asks for it."""

import hypothesis

pytest_plugins = ["hami_sim.testing"]

# No deadline: machines are shared, and no test asserts a time.
hypothesis.settings.register_profile("usual", deadline=None)
hypothesis.settings.load_profile("usual")
hypothesis.settings.register_profile("long", max_examples=3000, deadline=None)
"""For `make test-long`: --hypothesis-profile=long."""
