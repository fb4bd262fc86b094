"""Labels the scheduler's pods with their role, so that a Service finds the leader."""

from __future__ import annotations

from collections.abc import Callable

from hami_chassis.errors import Transient
from hami_chassis.kube import Conflict, KubeClient, NotFound
from hami_chassis.kube.objects import MetadataOnly, ObjectMeta
from hami_chassis.kube.resources import PODS
from hami_model import keys

from hami_scheduler.adapters.chores import ChoreList
from hami_scheduler.config import ElectionSettings


class Roles:
    def __init__(
        self, client: KubeClient, settings: ElectionSettings, chores: ChoreList, *, is_leading: Callable[[], bool]
    ) -> None:
        self._client = client
        self._settings = settings
        self._chores = chores
        self._is_leading = is_leading

    def term_changed(self, in_charge: bool) -> None:
        """Labels the pods when this process leads. Nothing where it does not know its own pod."""
        if in_charge and self._settings.pod_name and self._settings.pod_namespace:
            # Without it no call reaches the leader.
            self._chores.add("role", self._settings.pod_name, self._label, lasting=True)

    async def _label(self) -> None:
        """Each pod in the version that was listed while this process led: after a halt of it, another one's labels
        stand."""
        namespace = self._settings.pod_namespace
        found = await self._client.list_all(
            PODS, into=MetadataOnly, namespace=namespace, label_selector=self._settings.pod_selector
        )
        pods = {item.metadata.name: item.metadata for item in found.items}
        pods.setdefault(self._settings.pod_name, ObjectMeta(name=self._settings.pod_name))
        # Ours last: a Service never selects two.
        for name in sorted(pods, key=lambda each: each == self._settings.pod_name):
            if not self._is_leading():
                return
            role = keys.ROLE_LEADER if name == self._settings.pod_name else keys.ROLE_FOLLOWER
            if pods[name].labels.get(keys.ROLE_LABEL) != role:
                await self._write(pods[name], role)

    async def _write(self, pod: ObjectMeta, role: str) -> None:
        metadata: dict[str, object] = {"labels": {keys.ROLE_LABEL: role}}
        if pod.resource_version:
            metadata["resourceVersion"] = pod.resource_version
        try:
            await self._client.patch(
                PODS, pod.name, {"metadata": metadata}, namespace=self._settings.pod_namespace, into=MetadataOnly
            )
        except NotFound:
            return  # it ended since it was listed: no Service selects it any more
        except Conflict as error:
            raise Transient(f"pod {pod.name} changed since it was listed: {error}") from error
