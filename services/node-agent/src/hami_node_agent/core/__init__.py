"""What the node-agent decides: values in, values out. No await, no clock, no environment, no files."""
