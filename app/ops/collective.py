"""Collectives of `devices` devices on `nodes` nodes: `message_bytes` S is the whole buffer of one device.

As nccl-tests counts: all_reduce sums S; all_gather ends, reduce_scatter begins with S; all_to_all exchanges S;
send_recv passes S on. A ring over n devices moves 2 S (n - 1) / n over each device's link for all_reduce, S (n - 1) /
n for the next three, S for the last (Patarasuk and Yuan 2009; NeuSight's distributed forecasting rests on the same
rings). A switch that adds up itself (NVLink SHARP) takes an all_reduce with S. Each device also reads and writes S.

A ring passes n - 1 messages one after another, all_reduce twice as many. all_to_all, and kernels that read all peers'
buffers themselves (vLLM's), wait for none; still each further peer costs them a part of a hop, AT_ONCE. The part S / n
that stays on its device is copied there beside what is sent, by the same SMs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.coefficients import Coefficients
from app.ops.base import COMMON, MOST_BYTES, Dim, Op
from app.ops.figures import Broken, Passing, Pattern, Work
from app.ops.gradient import step
from app.ops.prior import Prior
from app.tables.arrays import Floats
from app.tables.ops import OpTable

_FITTED = Coefficients("operators")

IMPLEMENTATIONS = ("nccl", "oneccl", "custom")
NCCL, CUSTOM = 0.0, 2.0
# Part of a hop that a further peer costs where messages do not wait for one another: of A100, H100, B200 and L40S.
AT_ONCE = _FITTED.number("peers_at_once")


def work(table: OpTable) -> Work:
    """Memory traffic of one device."""
    message = table.column("message_bytes")
    return Work(0.0 * message, 2.0 * message, 2.0 * message)


def _ring(rounds: float) -> Callable[[OpTable], Floats]:
    def link_bytes(table: OpTable) -> Floats:
        devices = table.column("devices")
        return rounds * table.column("message_bytes") * (devices - 1.0) / devices

    return link_bytes


def _passed_on(table: OpTable) -> Floats:
    return table.column("message_bytes") * (table.column("devices") > 1)


def _passing(rounds: float) -> Callable[[OpTable], Passing]:
    def passing(table: OpTable) -> Passing:
        devices = table.column("devices")
        each = np.where(table.column("implementation") == CUSTOM, AT_ONCE, rounds)
        return Passing(each * (devices - 1.0), table.column("message_bytes") / devices, devices)

    return passing


def _passing_on(table: OpTable) -> Passing:
    return Passing(np.ones(len(table)), np.zeros(len(table)), table.column("devices"))


def check(table: OpTable) -> list[Broken]:
    """Nodes hold equally many devices, which are some of those among which they are."""
    devices = table.column("devices")
    return [
        Broken("nodes must divide devices", devices % table.column("nodes") != 0, "nodes"),
        Broken("spread must be at least devices", table.column("spread") < devices, "spread"),
    ]


_DIMS = (
    Dim("message_bytes", "bytes of one device's whole buffer", most=MOST_BYTES),
    # Four cards may be wired unlike two, so one says little of the other.
    Dim("devices", "devices that take part", most=1e6, stretch=12.0),
    Dim("nodes", "machines that hold them", default=1.0, most=1e6),
    Dim(
        "spread",
        "neighbouring devices among which they are, as every second of eight; absent: as many as take part",
        default=np.nan,
        most=1e6,
        feature="unseen",  # it says which link a collective takes (app.predictors.links), not how it fares there
    ),
    Dim("implementation", "library", default=0.0, choices=IMPLEMENTATIONS, feature="code"),
    *COMMON,
)
_PASSED = ("message_bytes", "devices", "nodes", "spread", "implementation")
# Of each: how its messages pass, the bytes over a link, and the collective that its backward is (Megatron-LM, Shoeybi
# et al. 2019).
COLLECTIVE_OPS = tuple(
    Op(
        name,
        "collective",
        _DIMS,
        work,
        check=check,
        default_dtype="bf16",
        prior=Prior.of("collective"),
        link_bytes=link_bytes,
        passing=passing,
        pattern=pattern,
        configuration=("devices", "message_bytes"),
        few_configurations=True,
        backward=(step(back, *_PASSED),),
        example={"message_bytes": 100_000_000, "devices": 4},
    )
    for name, pattern, link_bytes, passing, back in (
        ("all_reduce", Pattern("ring", 2), _ring(2.0), _passing(2.0), "all_reduce"),
        ("all_gather", Pattern("ring", 1), _ring(1.0), _passing(1.0), "reduce_scatter"),
        ("reduce_scatter", Pattern("ring", 1), _ring(1.0), _passing(1.0), "all_gather"),
        ("all_to_all", Pattern("exchange"), _ring(1.0), _passing(AT_ONCE), "all_to_all"),
        ("send_recv", Pattern("send"), _passed_on, _passing_on, "send_recv"),
    )
)
