"""The shared words: devices, requests, allocations, codecs, life cycle, events."""
