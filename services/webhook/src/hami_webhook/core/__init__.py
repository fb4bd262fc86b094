"""What is decided about a pod: values in, values out. No clock, no environment, no I/O."""
