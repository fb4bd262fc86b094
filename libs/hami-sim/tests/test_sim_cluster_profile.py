"""Profiles, and the cards that a node of a profile gets."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hami_sim.cluster.driver_description import card_ids, description
from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.profile import ClusterProfile, NodePlan, load_profile, node_plans, profile_of, uniform_profile
from hypothesis import given
from hypothesis import strategies as st

NVML_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def plans_of(document: dict) -> tuple[NodePlan, ...]:
    return node_plans(profile_of(document, "here"))


class TestReading:
    def test_defaults_are_two_nodes_with_four_cards(self):
        plans = node_plans(ClusterProfile())
        assert [plan.name for plan in plans] == ["sim-0", "sim-1"]
        assert [len(card_ids(plan)) for plan in plans] == [4, 4]

    def test_options_give_equal_nodes(self):
        plans = node_plans(uniform_profile(3, 8))
        assert [(plan.name, len(card_ids(plan))) for plan in plans] == [("sim-0", 8), ("sim-1", 8), ("sim-2", 8)]

    def test_no_cards_is_a_node_without_driver(self):
        (plan,) = node_plans(uniform_profile(1, 0))
        assert not plan.has_cards

    def test_groups_are_numbered_each_on_its_own_and_indexed_together(self):
        plans = plans_of({"nodes": [{"name": "big", "count": 2}, {"name": "cpu", "cards": []}]})
        assert [(plan.index, plan.name) for plan in plans] == [(0, "big-0"), (1, "big-1"), (2, "cpu-0")]

    @pytest.mark.parametrize(
        ("document", "said"),
        [
            pytest.param({"nodes": [{"nmae": "a"}]}, "nmae", id="an unknown field"),
            pytest.param({"nodes": [{"name": "A_b"}]}, "nodes[0].name", id="a name that no node may have"),
            pytest.param({"nodes": [{}, {}]}, "names of their own", id="two groups of one name"),
            pytest.param({"nodes": [{"cards": [{"count": 9}, {"count": 9}]}]}, "at most 16", id="too many cards"),
            pytest.param({"container_mode": "vm"}, "container_mode", id="a mode that there is not"),
            pytest.param({"settings": {"kubelet": {}}}, "settings", id="settings of a stranger"),
            pytest.param([], "object", id="no mapping"),
        ],
    )
    def test_what_is_wrong_is_named(self, document, said):
        with pytest.raises(ClusterError, match=re.escape(said)):
            profile_of(document, "profile x.yaml")

    def test_files_are_yaml(self, tmp_path):
        file = tmp_path / "p.yaml"
        file.write_text("schedulers: 2\nnodes:\n- cards: [{count: 1, model: Tesla T4, memory_mib: 15360}]\n")
        profile = load_profile(file)
        assert profile.schedulers == 2
        assert profile.nodes[0].cards[0].memory_mib == 15360

    @pytest.mark.parametrize("text", ["a: [", "\x00"])
    def test_unreadable_files_are_named(self, tmp_path, text):
        file = tmp_path / "p.yaml"
        file.write_text(text)
        with pytest.raises(ClusterError, match=re.escape(str(file))):
            load_profile(file)
        with pytest.raises(ClusterError, match="No such file"):
            load_profile(tmp_path / "absent.yaml")

    @given(st.binary(max_size=200))
    def test_no_bytes_make_it_fail_otherwise(self, tmp_path_factory, data):
        file = tmp_path_factory.mktemp("profile") / "p.yaml"
        file.write_bytes(data)
        with suppress(ClusterError):
            assert isinstance(load_profile(file), ClusterProfile)


class TestDescription:
    def test_ids_have_nvml_form_and_differ_between_nodes(self):
        first, second = (card_ids(plan) for plan in node_plans(uniform_profile(2, 16)))
        assert all(NVML_UUID.fullmatch(card_id) for card_id in first)
        assert len({*first, *second}) == 32

    def test_a_node_of_a_name_has_the_same_cards_in_every_cluster(self):
        assert card_ids(node_plans(uniform_profile(1, 2))[0]) == card_ids(node_plans(uniform_profile(3, 8))[0])[:2]

    def test_cards_are_described_in_order(self):
        cards = [{"count": 2}, {"model": "Tesla T4", "memory_mib": 15360, "driver": {"idle_watts": 10}}]
        (plan,) = plans_of({"nodes": [{"cards": cards}]})
        described = description(plan)["cards"]
        assert [card["uuid"] for card in described] == list(card_ids(plan))
        assert [card["memory_mib"] for card in described] == [40960, 40960, 15360]
        assert [card["numa_node"] for card in described] == [0, 0, 1]
        assert described[2]["idle_watts"] == 10
        assert len({card["pci_bus_id"] for card in described}) == 3

    def test_links_between_cards_are_handed_on(self):
        links = [{"from": 0, "to": 1, "nvlinks": 4}]
        (plan,) = plans_of({"nodes": [{"cards": [{"count": 2}], "links": links}]})
        assert description(plan)["links"] == links
