"""Objects of the repository that a local cluster takes over as they are: our namespace, accounts and roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hami_sim.cluster.errors import ClusterError
from hami_sim.controlplane import RestClient

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_COLLECTIONS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
    "Role": f"{_RBAC}/namespaces/{{namespace}}/roles",
    "RoleBinding": f"{_RBAC}/namespaces/{{namespace}}/rolebindings",
    "MutatingWebhookConfiguration": f"{_ADMISSION}/mutatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": f"{_ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{_ADMISSION}/validatingadmissionpolicybindings",
}
IDENTITIES = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
"""Kinds that say who the services are and what they may do; workloads are local processes here."""
FIELD_MANAGER = "hami-sim"

KubernetesObject = dict[str, Any]


def identities(folder: Path) -> list[KubernetesObject]:
    """Every account and role below a folder of manifests. Raises ClusterError."""
    documents: list[KubernetesObject] = []
    for file in sorted(folder.rglob("*.yaml")):
        try:
            found = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ClusterError(f"{file}: {' '.join(str(error).split())}") from error
        documents += [document for document in found if isinstance(document, dict)]
    chosen = [document for document in documents if document.get("kind") in IDENTITIES]
    if not chosen:
        raise ClusterError(f"{folder} holds no ServiceAccounts and roles: run from a checkout of the repository")
    return sorted(chosen, key=lambda document: IDENTITIES.index(document["kind"]))


def object_path(document: KubernetesObject) -> str:
    """Path of the object at the API server."""
    metadata = document["metadata"]
    return f"{_COLLECTIONS[document['kind']].format(namespace=metadata.get('namespace', 'default'))}/{metadata['name']}"


async def apply_objects(client: RestClient, documents: list[KubernetesObject]) -> None:
    """Applies them one after the other. Raises ApiError."""
    for document in documents:
        await client.apply(object_path(document), document, field_manager=FIELD_MANAGER)
