"""The order in which a list's pods arrive."""

from __future__ import annotations

from random import Random

from hami_sim.trace.files import Trace, TracePod


def arrivals(trace: Trace, seed: int, most_load_percent: int) -> list[TracePod]:
    """All pods of the list in an order shuffled by the seed, then pods drawn from the list at random.

    Ends with the pod by which the requests reach `most_load_percent` of all cards.
    """
    draw = Random(seed)  # noqa: S311 # a repeatable order, no secret
    pods = list(trace.pods)
    draw.shuffle(pods)
    enough = trace.capacity_gpu_milli * most_load_percent
    asked = 0
    for number, pod in enumerate(pods):
        asked += pod.total_gpu_milli * 100
        if asked >= enough:
            return pods[: number + 1]
    while asked < enough:
        pod = draw.choice(trace.pods)
        pods.append(pod)
        asked += pod.total_gpu_milli * 100
    return pods
