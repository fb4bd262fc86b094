"""One file for each outside thing: the API server's reviews, its objects, the bus."""
