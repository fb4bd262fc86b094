"""Objects that a fresh cluster needs before pods can be created and their logs read."""

from __future__ import annotations

from hami_sim.controlplane.credentials import KUBELET_CLIENT
from hami_sim.controlplane.rest import ApiError, JsonObject, RestClient

CONFLICT = 409
ROOT_CA_CONFIG_MAP = "kube-root-ca.crt"
RBAC_PATH = "/apis/rbac.authorization.k8s.io/v1"


async def allow_kubelet_access(client: RestClient) -> None:
    """Lets the API server's own kubelet client read logs from kubelets that ask for authorization."""
    binding = {
        "metadata": {"name": "hami-sim:kubelet-api-admin"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:kubelet-api-admin",
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": KUBELET_CLIENT.user}],
    }
    await _create_if_absent(client, f"{RBAC_PATH}/clusterrolebindings", binding)


async def create_namespace(client: RestClient, name: str) -> None:
    """Creates a namespace unless it is there."""
    await _create_if_absent(client, "/api/v1/namespaces", {"metadata": {"name": name}})


async def create_namespace_defaults(client: RestClient, namespace: str, ca_pem: str) -> None:
    """Makes what kube-controller-manager would put into a namespace."""
    base = f"/api/v1/namespaces/{namespace}"
    await _create_if_absent(client, f"{base}/serviceaccounts", {"metadata": {"name": "default"}})
    config_map = {"metadata": {"name": ROOT_CA_CONFIG_MAP}, "data": {"ca.crt": ca_pem}}
    await _create_if_absent(client, f"{base}/configmaps", config_map)


async def wait_for_namespace_defaults(client: RestClient, namespace: str, timeout_seconds: float) -> None:
    """Waits for the `default` ServiceAccount, without which pods are refused, and the cluster's CA."""
    for path in ("serviceaccounts/default", f"configmaps/{ROOT_CA_CONFIG_MAP}"):
        await client.wait_until(f"/api/v1/namespaces/{namespace}/{path}", _exists, timeout_seconds=timeout_seconds)


def _exists(found: JsonObject | None) -> bool:
    return found is not None


async def _create_if_absent(client: RestClient, path: str, body: JsonObject) -> None:
    try:
        await client.post(path, body)
    except ApiError as error:
        if error.status != CONFLICT:
            raise
