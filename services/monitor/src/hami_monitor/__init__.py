"""Monitor: reads region files, tells promised against used."""
