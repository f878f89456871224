"""Figures of kernel launches that follow from the given ones."""

import numpy as np
import pytest

from app.ops.kernel import ACCESS_CODE, COPY, LOOPS, OPERANDS, SERIAL, UNCOUNTED
from tests.unit.kernels import kernels

LAUNCH = {"flops": 1e6, "bytes": 4e5, "threads_per_block": 256, "blocks": 64, "access_pattern": 0, "n": 100}


def column(name: str, *changes: dict[str, float]) -> list[float]:
    """A figure of the launch with each of the changes."""
    found: list[float] = kernels([LAUNCH | change for change in changes]).column(name).tolist()
    return found


def test_absent_figures_follow_from_the_others() -> None:
    atomics = {"atomic_operations": 2e6}
    assert column("lane_operations", {}, {"lane_operations": 5.0}, atomics) == [1e6 + 1e5, 5.0, 2e6]
    assert column("lane_operations", {"flops": 0, "bytes": 0}, {"lane_operations": 0}) == [1.0, 1.0]
    assert column("working_set_bytes", {}, {"working_set_bytes": 0.0}) == [4e5, 0.0]
    assert np.isnan(column("stride_bytes", {})).all()


@pytest.mark.parametrize(
    ("change", "mechanism"),
    [
        ({}, UNCOUNTED),
        ({"lane_operations": 4e6}, OPERANDS),
        ({"lane_operations": 5e6}, LOOPS),
        ({"access_pattern": ACCESS_CODE["strided"]}, LOOPS),
        ({"branch_divergence": 0.5}, LOOPS),
        ({"branch_divergence": 0.0}, UNCOUNTED),
        ({"atomic_operations": 64.0, "atomic_addresses": 64.0}, UNCOUNTED),
        ({"atomic_operations": 64.0, "atomic_addresses": 1.0}, SERIAL),
        ({"atomic_operations": 0.0, "atomic_addresses": 1.0}, UNCOUNTED),
        ({"flops": 0.0, "bytes": 0.0, "lane_operations": 9.0}, SERIAL),
        ({"flops": 0.0}, COPY),
        ({"flops": 0.0, "lane_operations": 3e5}, LOOPS),
        ({"flops": 0.0, "access_pattern": ACCESS_CODE["random"]}, LOOPS),
    ],
)
def test_the_mechanism_follows_from_the_counts(change: dict[str, float], mechanism: int) -> None:
    assert column("mechanism", change) == [mechanism]


def test_equal_launches_have_equal_numbers_whatever_the_registers() -> None:
    same = column("launch", {}, {"registers_per_thread": 40}, {"rows": 0.0}, {"rows": -0.0}, {"working_set_bytes": 7.0})
    assert len(set(same)) == 1
    fields = ("flops", "bytes", "threads_per_block", "blocks", "shared_memory_per_block", "n", "rows", "cols")
    others = column("launch", *({name: 2048.0} for name in (*fields, "iterations")))
    assert len({*same, *others}) == 1 + len(others)


def test_numbers_of_launches_do_not_collide() -> None:
    sizes = column("launch", *({"n": float(n), "rows": float(rows)} for n in range(1, 101) for rows in range(1, 101)))
    assert len(set(sizes)) == 100 * 100
    assert all(number == int(number) < 2**52 for number in sizes)
