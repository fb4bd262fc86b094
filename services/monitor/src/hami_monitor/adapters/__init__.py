"""One module per outside thing."""
