"""The device checkpoint on disk: written after every Allocate, read when the stand-in starts again."""

from pathlib import Path

from kubelet_api.checkpoint import (
    Checkpoint,
    CheckpointData,
    CheckpointError,
    pod_devices_entry,
    read_checkpoint,
    write_checkpoint,
)
from kubelet_api.constants import CHECKPOINT_FILE
from kubelet_api.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse

from hami_sim.kubelet.checkpoint_sum import checkpoint_sum
from hami_sim.kubelet.devices import DeviceBook, Holding


class CheckpointFile:
    """`<device plugins folder>/kubelet_internal_checkpoint`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / CHECKPOINT_FILE

    def save(self, book: DeviceBook) -> None:
        """Replace the file as a whole."""
        data = CheckpointData(
            [
                pod_devices_entry(
                    holding.pod_uid,
                    holding.container,
                    holding.resource,
                    {node: list(ids) for node, ids in holding.ids_by_numa.items()},
                    ContainerAllocateResponse.FromString(holding.response),
                )
                for holding in book.holdings()
            ],
            {resource: list(ids) for resource, ids in book.healthy_ids().items()},
        )
        aside = self.path.with_suffix(".new")
        aside.write_bytes(write_checkpoint(Checkpoint(data, checkpoint_sum(data))))
        aside.replace(self.path)

    def load(self, book: DeviceBook) -> None:
        """Fill an empty book. Raises CheckpointError when the file is damaged; no file means nothing was held."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return
        view = read_checkpoint(raw)
        if view.unreadable:
            raise CheckpointError(f"{self.path}: entry {view.unreadable[0].index}: {view.unreadable[0].reason}")
        for resource in view.registered_devices:
            book.expect(resource)
        for entry in view.entries:
            book.expect(entry.resource_name)
            book.restore(
                Holding(
                    entry.pod_uid,
                    entry.container_name,
                    entry.resource_name,
                    {int(node): tuple(ids) for node, ids in entry.device_ids_by_numa.items()},
                    entry.allocate_response().SerializeToString(),
                )
            )
