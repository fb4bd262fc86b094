"""Pods of unequal sizes come and go while services, nodes and containers end and come back: everybody has its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from disturbing import Disturber
from hami_sim.cluster import LocalCluster
from leftovers import until_nothing_is_left
from plan import disturbances, last_on, tenants
from tenancy import Sightings, Tenancy, faults_of

PODS = int(os.environ.get("HAMI_CHAOS_PODS") or 30)
AT_A_TIME = 8
REFUSED_MEANWHILE = "UnexpectedAdmissionError"
"""Kubelet's reason for a pod that came while no plugin was there; whoever owns it makes it anew."""
NAMES = 3
NAMESPACE = "chaos"
STARTING_SECONDS = 1200
SECONDS_PER_POD = 60
"""Far more than a pod needs: a machine of CI may be ten times as slow as an idle one."""


@pytest.mark.timeout(STARTING_SECONDS + SECONDS_PER_POD * PODS)
async def test_whatever_ends_and_comes_back_each_pod_has_its_own_limits_and_nothing_is_left(
    cluster: LocalCluster, chaos_seed: int, say: Callable[[str], None], tmp_path: Path
) -> None:
    say(f"HAMI_CHAOS_SEED={chaos_seed} HAMI_CHAOS_PODS={PODS}")
    await cluster.control_plane.create_namespace(NAMESPACE)
    disturber = Disturber(cluster, say)
    sightings = Sightings(tmp_path)
    async with cluster.client() as kube:
        tenancy = Tenancy(kube, NAMESPACE, sightings, say, disturber.until_more)
        async with asyncio.TaskGroup() as both:  # pods wait for disturbances: when these fail, the test has failed
            disturbing = both.create_task(disturber.run(disturbances(chaos_seed, sorted(disturber.kinds))))
            await tenancy.run(tenants(chaos_seed, PODS, NAMES), AT_A_TIME)
            disturbing.cancel()
        await disturber.everything_back()
        await tenancy.run(tuple(last_on(node.name, number) for number, node in enumerate(cluster.plans)), AT_A_TIME)
    seen = {uid: sightings.of(uid) for uid in tenancy.made}
    assert [fault for uid, tenant in tenancy.made.items() for fault in faults_of(tenant, uid, seen[uid])] == []
    assert [end for end in tenancy.ends if REFUSED_MEANWHILE not in end] == []
    assert await until_nothing_is_left(cluster, say) == []
    starts = sum(len(sights) for found in seen.values() for sights in found.values())
    say(f"{len(tenancy.made)} pods, {starts} starts of containers, {len(disturber.done)} disturbances")
