"""Node agent: discovers cards, speaks to kubelet, hands slices over."""
