"""Whole numbers out of Kubernetes quantities, as counts of devices are."""

import math

from hami_model import quantity


def device_count(text: str | int) -> int:
    """The value rounded up, as kubelet reads it. Raises hami_model's error for what is no quantity."""
    return math.ceil(quantity.parse(str(text)))
