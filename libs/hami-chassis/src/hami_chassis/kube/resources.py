"""The resources that are spoken of, and their paths at the API server."""

from __future__ import annotations

from urllib.parse import quote

import msgspec


class Resource(msgspec.Struct, frozen=True):
    """A kind of object: `api/v1` or `apis/<group>/<version>`, its plural name, and whether it lives in namespaces."""

    api: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of the collection or of one object. A namespaced collection without namespace is all of them."""
        parts = [self.api]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        elif self.namespaced and name:
            raise ValueError(f"an object of {self.plural} is named with its namespace")
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=":"))
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)


PODS = Resource("api/v1", "pods")
NODES = Resource("api/v1", "nodes", namespaced=False)
NAMESPACES = Resource("api/v1", "namespaces", namespaced=False)
RESOURCE_QUOTAS = Resource("api/v1", "resourcequotas")
EVENTS = Resource("api/v1", "events")
CONFIG_MAPS = Resource("api/v1", "configmaps")
SECRETS = Resource("api/v1", "secrets")
SERVICES = Resource("api/v1", "services")
SERVICE_ACCOUNTS = Resource("api/v1", "serviceaccounts")
LEASES = Resource("apis/coordination.k8s.io/v1", "leases")
