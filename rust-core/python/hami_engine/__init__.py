"""The placement engine: cluster state, fit, score and reasons."""
