"""Collectives between nodes against their limits, and against the time within a node."""

from __future__ import annotations

import numpy as np
import pytest

from app.networks.build import table_of
from app.ops import MIXED_FIELDS, OPS
from app.steps.predict_rows import least_over_nodes, over_nodes, within_nodes
from app.tables.ops import DTYPE_CODE, OpTable

LINK, NETWORK, ADAPTER = 300e9, 25e9, 0.9 * 25e9
RINGS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
ALL = (*RINGS, "all_to_all", "send_recv")


def _table(op: str, message: float, devices: float, nodes: float, **more: float) -> OpTable:
    dtype = np.array([DTYPE_CODE["bf16"]])
    return table_of(op, dtype, MIXED_FIELDS, message_bytes=message, devices=devices, nodes=nodes, **more)


def _sent(ops: OpTable) -> float:
    """Bytes over each link of one machine's devices."""
    link_bytes = OPS[int(ops.kind[0])].link_bytes
    assert link_bytes is not None
    return float(link_bytes(ops)[0])


def _time(op: str, message: float, devices: float, nodes: float, link: float = LINK) -> float:
    """Over nodes whose own links are as the limit has them, 10 us for a launch."""
    ops = _table(op, message, devices, nodes)
    within = 10e-6 + _sent(within_nodes(ops)) / link
    return float(over_nodes(ops, np.array([[within]]), NETWORK).seconds[0, 0])


@pytest.mark.parametrize(("op", "rounds"), RINGS.items())
def test_large_messages_use_the_bandwidth_of_all_adapters(op: str, rounds: float) -> None:
    size, n = 8e9, 32.0
    assert _time(op, size, n, 4) == pytest.approx(rounds * size * (n - 1) / n / (8 * ADAPTER), rel=0.01)
    assert _time(op, size, 4, 4) == pytest.approx(rounds * size * 3 / 4 / ADAPTER, rel=0.01)


@pytest.mark.parametrize(("op", "rounds"), RINGS.items())
def test_slower_links_within_nodes_bound_the_time(op: str, rounds: float) -> None:
    """Eight cards that share a slot's bandwidth are no quicker as two machines than as one."""
    size, link = 1e9, 2e9
    alone = rounds * size * 7 / 8 / link
    assert _time(op, size, 16, 2, link) == pytest.approx(alone * (15 / 16) / (7 / 8), rel=0.01)
    assert _time("all_to_all", size, 16, 2, link) == pytest.approx(size * 7 / 16 / link, rel=0.01)


def test_the_part_within_a_node_moves_its_bytes_over_its_links() -> None:
    for op, rounds in RINGS.items():
        part = within_nodes(_table(op, 8e6, 16, 2))
        assert [part.column(name)[0] for name in ("devices", "nodes")] == [8.0, 1.0]
        assert _sent(part) == pytest.approx(rounds * 8e6 * 15 / 16)
    assert _sent(within_nodes(_table("all_to_all", 8e6, 16, 2))) == pytest.approx(8e6 * 7 / 16)


def test_another_machine_gets_a_token_once() -> None:
    """Eight copies over four machines: each has one with a chance of 1 - (3/4)^8, and three of four are others."""
    size, near = 8e9, np.zeros((1, 1))
    all_copies, once = (
        float(over_nodes(_table("all_to_all", size, 32, 4, copies=copies), near, NETWORK).seconds[0, 0])
        for copies in (1, 8)
    )
    assert all_copies == pytest.approx(size * 3 / 4 / ADAPTER, rel=0.01)
    assert once == pytest.approx(size / 8 * 4 * (1 - 0.75**8) * 3 / 4 / ADAPTER, rel=0.01)


def test_a_token_reaches_no_more_machines_than_its_groups_are_on() -> None:
    size, near = 8e9, np.zeros((1, 1))
    table = _table("all_to_all", size, 64, 8, copies=8, reach=4)
    seconds = float(over_nodes(table, near, NETWORK).seconds[0, 0])
    assert seconds == pytest.approx(size / 8 * 4 * (1 - 0.75**8) * 7 / 8 / ADAPTER, rel=0.01)


@pytest.mark.parametrize("op", [*ALL, "exchange by expert"])
def test_no_time_is_under_that_of_the_bytes_that_leave_a_machine(op: str) -> None:
    """The limit counts what the time counts: a token that eight experts of a machine take is sent to it once."""
    copies = {"copies": 8.0} if op == "exchange by expert" else {}
    ops = _table("all_to_all" if copies else op, 1e9, 64, 8, **copies)
    seconds = over_nodes(ops, np.array([[1e-3]]), NETWORK).seconds[0, 0]
    (least,) = least_over_nodes(ops, NETWORK)
    assert 0.0 < least < seconds
    if op in ("all_to_all", "exchange by expert"):
        assert seconds == pytest.approx(least / 0.9, rel=0.05)


def test_devices_without_a_link_use_the_adapter() -> None:
    ops = _table("all_reduce", 8e9, 16, 2)
    unlinked = over_nodes(ops, np.array([[np.nan]]), NETWORK).seconds[0, 0]
    assert unlinked == pytest.approx(2 * 8e9 * 15 / 16 / ADAPTER, rel=0.01)


def test_small_all_reduces_use_the_tree_algorithm() -> None:
    ring_hops = 2 * 64 * 5e-6
    assert _time("all_reduce", 8.0, 512, 64) < 0.5 * ring_hops


@pytest.mark.parametrize("op", ALL)
def test_more_bytes_and_more_nodes_take_longer(op: str) -> None:
    times = [_time(op, size, 16, 2) for size in (1e3, 1e6, 1e9)]
    assert times == sorted(times) and times[0] > 0
    if op != "send_recv":
        # As many devices each, on more nodes.
        assert _time(op, 1e9, 32, 4) >= times[-1]
