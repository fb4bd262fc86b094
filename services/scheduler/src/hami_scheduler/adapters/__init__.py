"""One file per outside thing: API server, bus, extender HTTP, leader election."""
