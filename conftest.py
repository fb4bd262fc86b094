"""Makes the fixtures of real servers known to every test; none starts before a test asks for it."""

pytest_plugins = ["hami_sim.testing"]
