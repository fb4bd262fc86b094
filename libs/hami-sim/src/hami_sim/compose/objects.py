"""Makes the objects that the services need, and their kubeconfigs. Returns when pods can be created."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hami_sim.cluster.objects import apply_objects, identities
from hami_sim.cluster.registration import registration_objects
from hami_sim.cluster.roles import wait_until_roles_count
from hami_sim.compose import places
from hami_sim.controlplane import RestClient, bootstrap
from hami_sim.controlplane.credentials import Credentials
from hami_sim.controlplane.layout import StateLayout
from hami_sim.controlplane.rest import tls_context

READY_SECONDS = 600.0
TOKEN_SECONDS = 30 * 24 * 3600


async def make_objects() -> None:
    """Raises ApiError, ClusterError."""
    layout = StateLayout(places.CLUSTER)
    credentials = Credentials(layout, places.APISERVER_URL)
    tls = tls_context(layout.cluster_ca, credentials.admin)
    async with RestClient(places.APISERVER_URL, tls) as client:
        await bootstrap.allow_kubelet_access(client)
        for namespace in ("default", places.NAMESPACE):
            await bootstrap.create_namespace(client, namespace)
            await bootstrap.wait_for_namespace_defaults(client, namespace, READY_SECONDS)
        accounts_and_roles = identities(places.OBJECTS)
        await apply_objects(client, accounts_and_roles)
        await wait_until_roles_count(client, accounts_and_roles)
        for account, path in _kubeconfigs(layout).items():
            token = await _token(client, account)
            user = f"system:serviceaccount:{places.NAMESPACE}:{account}"
            credentials.write_token_kubeconfig(path, user, token, places.NAMESPACE)
        registration = await registration_objects(
            url=places.WEBHOOK_URL, ca=layout.cluster_ca.certificate, namespace=places.NAMESPACE
        )
        await apply_objects(client, registration)


def _kubeconfigs(layout: StateLayout) -> dict[str, Path]:
    return {
        "hami-scheduler": places.kubeconfig(places.SCHEDULER),
        "hami-webhook": places.kubeconfig(places.WEBHOOK),
        "hami-node-agent": layout.component_kubeconfig("hami-node-agent"),
        "hami-monitor": layout.component_kubeconfig("hami-monitor"),
    }


async def _token(client: RestClient, account: str) -> str:
    path = f"/api/v1/namespaces/{places.NAMESPACE}/serviceaccounts/{account}/token"
    answer = await client.post(path, {"spec": {"expirationSeconds": TOKEN_SECONDS}})
    token: str = answer["status"]["token"]
    return token


if __name__ == "__main__":
    asyncio.run(make_objects())
