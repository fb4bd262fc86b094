"""Kubernetes: client, typed errors, informer, leader election, Events.

Objects are read from the raw JSON into structs that the caller declares; nothing here knows more of an object than
its metadata.
"""

from hami_chassis.kube.client import KubeClient, KubeSettings, ListPage, WatchEvent
from hami_chassis.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubePermanent,
    KubeTransient,
    KubeUnknown,
    NotFound,
    Unauthorized,
)
from hami_chassis.kube.events import EventRecorder, ObjectReference
from hami_chassis.kube.informer import Informer, InformerHandler
from hami_chassis.kube.leader import LeaderElector, LeaderSettings
from hami_chassis.kube.objects import ListMeta, ObjectMeta, OwnerReference
from hami_chassis.kube.resources import Resource

__all__ = [
    "AlreadyExists",
    "Conflict",
    "EventRecorder",
    "Forbidden",
    "Gone",
    "Informer",
    "InformerHandler",
    "Invalid",
    "KubeClient",
    "KubePermanent",
    "KubeSettings",
    "KubeTransient",
    "KubeUnknown",
    "LeaderElector",
    "LeaderSettings",
    "ListMeta",
    "ListPage",
    "NotFound",
    "ObjectMeta",
    "ObjectReference",
    "OwnerReference",
    "Resource",
    "Unauthorized",
    "WatchEvent",
]
