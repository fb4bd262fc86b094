"""What every service needs once: settings, logs, HTTP, bus, Kubernetes client, root tasks."""
