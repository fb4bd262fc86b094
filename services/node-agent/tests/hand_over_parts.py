"""Parts of a hand-over with the settings that an agent has by default."""

from __future__ import annotations

from typing import Any

from hami_model.device_config import VendorSettings
from hami_node_agent.adapters.enforcing import Enforcing
from hami_node_agent.adapters.showing import Showing
from hami_node_agent.core.backends import EnforcementPolicy
from hami_node_agent.core.device_lists import DeviceRules
from hami_node_agent.core.grant import HostLayout, LimitPolicy
from hami_node_agent.ports import InventoryView, Outcomes


def default_parts(
    layout: HostLayout, settings: VendorSettings, *, inventory: InventoryView, outcomes: Outcomes
) -> dict[str, Any]:
    """Arguments of LateBinding."""
    return {
        "enforcing": Enforcing(
            EnforcementPolicy(), layout, LimitPolicy(), settings, inventory=inventory, outcomes=outcomes
        ),
        "showing": Showing("auto", frozenset({"nvidia"}), DeviceRules(), inventory=inventory, mig_driver=None),
    }
