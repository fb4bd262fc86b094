"""Admission of one pod: its devices, container by container, as kubelet asks for them."""

import random
from collections.abc import Callable, Collection

import msgspec
from hami_model.errors import MalformedError

from hami_sim.kubelet.devices import AlreadyHeld, Choice, DeviceBook, Reuse, Unavailable
from hami_sim.kubelet.objects import Container, Pod
from hami_sim.kubelet.ports import DevicePlugin, PluginError
from hami_sim.kubelet.quantity import device_count

UNEXPECTED_ADMISSION_ERROR = "UnexpectedAdmissionError"


class Refusal(msgspec.Struct, frozen=True):
    """The pod fails at once with this reason and message."""

    reason: str
    message: str


class Admission:
    """Gives devices to pods. Callers admit one pod after another."""

    def __init__(
        self,
        book: DeviceBook,
        find_plugin: Callable[[str], DevicePlugin | None],
        save: Callable[[], None],
        rng: random.Random,
    ) -> None:
        self._book = book
        self._find_plugin = find_plugin
        self._save = save
        self._rng = rng

    async def admit(self, pod: Pod, running: Collection[str] = ()) -> Refusal | None:
        """None when every container has its devices. Resources that no plugin ever registered are not ours.

        `running`: names of containers that run already, and have what they need whatever their plugin is at.
        """
        reuse = Reuse()
        init_names = {container.name for container in pod.spec.init_containers}
        for container in pod.in_start_order():
            for resource, quantity in container.resources.limits.items():
                if not self._book.knows(resource) or container.name in running:
                    continue
                try:
                    await self._give(pod, container, resource, device_count(quantity), reuse)
                except (PluginError, MalformedError) as error:
                    return Refusal(UNEXPECTED_ADMISSION_ERROR, f"Allocate failed due to {error}, which is unexpected")
            held = {h.resource: h.ids for h in self._book.held(pod.uid, container.name)}
            if container.name in init_names and not container.is_sidecar:
                reuse.offer(held)
            else:
                reuse.withdraw(held)
        return None

    async def _give(self, pod: Pod, container: Container, resource: str, count: int, reuse: Reuse) -> None:
        if count == 0:
            return
        choice = self._book.choose((pod.uid, container.name), resource, count, reuse.of(resource), self._rng)
        if isinstance(choice, AlreadyHeld):
            return
        if isinstance(choice, Unavailable):
            raise PluginError(choice.message)
        plugin = self._find_plugin(resource)
        if plugin is None:
            raise PluginError(f"unknown Device Plugin {resource}")
        ids = await self._fill(choice, count, plugin)
        response = await plugin.allocate(self._shuffled(ids))
        self._book.record((pod.uid, container.name), resource, self._shuffled(ids), response)
        self._save()

    async def _fill(self, choice: Choice, count: int, plugin: DevicePlugin) -> frozenset[str]:
        """Settle the missing ids: the plugin's wishes first, where they are among the candidates."""
        if choice.missing == 0:
            return choice.taken
        wishes: list[str] = []
        if plugin.prefers:
            wishes = await plugin.preferred(
                self._shuffled(choice.candidates | choice.taken), self._shuffled(choice.taken), count
            )
        wanted = [id_ for id_ in dict.fromkeys(wishes) if id_ in choice.candidates]
        others = self._shuffled(choice.candidates.difference(wanted))
        return choice.taken | frozenset([*wanted, *others][: choice.missing])

    def _shuffled(self, ids: frozenset[str]) -> list[str]:
        """Kubelet keeps ids in sets: plugins must not read anything into their order."""
        ordered = sorted(ids)
        self._rng.shuffle(ordered)
        return ordered
