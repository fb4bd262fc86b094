"""Labels the scheduler's pods with their role, so that a Service finds the leader."""

from __future__ import annotations

from hami_chassis.errors import Transient
from hami_chassis.kube import Conflict, KubeClient, NotFound
from hami_chassis.kube.objects import MetadataOnly
from hami_chassis.kube.resources import PODS
from hami_model import keys

from hami_scheduler.adapters.chores import ChoreList
from hami_scheduler.config import ElectionSettings


class Roles:
    def __init__(self, client: KubeClient, settings: ElectionSettings, chores: ChoreList) -> None:
        self._client = client
        self._settings = settings
        self._chores = chores

    def term_changed(self, in_charge: bool) -> None:
        """Labels the pods when this process leads. Nothing where it does not know its own pod."""
        if in_charge and self._settings.pod_name and self._settings.pod_namespace:
            # Without it no call reaches the leader.
            self._chores.add("role", self._settings.pod_name, self._label, lasting=True)

    async def _label(self) -> None:
        namespace = self._settings.pod_namespace
        found = await self._client.list_all(
            PODS, into=MetadataOnly, namespace=namespace, label_selector=self._settings.pod_selector
        )
        names = {item.metadata.name: item.metadata.labels or {} for item in found.items}
        names.setdefault(self._settings.pod_name, {})
        # Ours last: a Service never selects two.
        for name in sorted(names, key=lambda each: each == self._settings.pod_name):
            role = keys.ROLE_LEADER if name == self._settings.pod_name else keys.ROLE_FOLLOWER
            if names[name].get(keys.ROLE_LABEL) != role:
                await self._write(name, role)

    async def _write(self, name: str, role: str) -> None:
        metadata = {"metadata": {"labels": {keys.ROLE_LABEL: role}}}
        try:
            await self._client.patch(PODS, name, metadata, namespace=self._settings.pod_namespace, into=MetadataOnly)
        except NotFound:
            return  # it ended since it was listed: no Service selects it any more
        except Conflict as error:
            raise Transient(f"pod {name} changes too fast for its role to be written: {error}") from error
