"""One module per thing outside: NVML, kubelet, files of the host, the API server, the bus."""
