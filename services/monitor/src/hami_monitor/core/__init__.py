"""What a region file says, whose it is, and what comes of it: pure functions of values."""
