"""Admission webhook: routes, completes and checks pods that ask for a slice."""
