"""The parts of the service, each with what it is built from."""
