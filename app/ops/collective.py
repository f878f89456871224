"""Collectives of `devices` devices on `nodes` nodes: `message_bytes` S is the whole buffer of one device.

As nccl-tests counts: all_reduce sums S; all_gather ends, reduce_scatter begins with S; all_to_all exchanges S;
send_recv passes S on. A ring over n devices moves 2 S (n - 1) / n over each device's link for all_reduce, S (n - 1) /
n for the next three, S for the last (Patarasuk and Yuan 2009; NeuSight's distributed forecasting rests on the same
rings). A switch that adds up itself (NVLink SHARP) takes an all_reduce with S. Each device also reads and writes S. S
of an all_to_all counts all `copies` of an element, which go to as many devices.

A ring passes n - 1 messages one after another, all_reduce twice as many. all_to_all, and kernels that read all peers'
buffers themselves (vLLM's), wait for none; still each further peer costs them a part of a hop, AT_ONCE. The part S / n
that stays on its device is copied there beside what is sent, by the same SMs.

`expert_dispatch` and `expert_combine`: the exchange of tokens around experts that are dealt over devices (DeepEP).
Dispatch sends each of a device's `tokens` to the devices of its `top_k` experts; combine sends the experts' outputs
back and adds them up. `mode`: normal sends a token once to each device that holds any of its experts, and runs on `sms`
SMs beside other kernels (prefill); low_latency sends a copy per expert, on all SMs (decode).

With d devices and random experts a token reaches D = d (1 - (1 - 1/d)^top_k) devices, or top_k experts, in C copies of
which (d - 1) / d leave their device. Bytes over the link of each device = tokens hidden C (d - 1) / d, in the format of
the row, with a scale of FP32 per 128 elements of FP8; memory: tokens in and C copies out, or the reverse. FLOPs of
combine = 2 tokens hidden C. github.com/deepseek-ai/DeepEP, tests/test_intranode.py and test_low_latency.py.

The few SMs of normal bound it: each takes some clocks per token, per copy and per byte (app.ops.figures says how such
constants were set).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.coefficients import Coefficients
from app.ops.base import COMMON, MOST_BYTES, Dim, Op, choice, forward_only
from app.ops.figures import Broken, Passing, Pattern, Prior, Ratio, Rereads, Work
from app.ops.gradient import step
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OpTable

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
    return Passing(np.ones(table.kind.size), np.zeros(table.kind.size), table.column("devices"))


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
# An exchange's alone.
_COPIES = Dim(
    "copies",
    "devices to which an element is sent, as a token to its experts: another machine gets it once (DeepEP, HybridEP)",
    default=1.0,
    most=1e6,
    feature="unseen",  # no measured exchange sends an element twice
)
_REACH = Dim(
    "reach",
    "machines among which the copies of an element go, as routers that choose groups of experts first bound them "
    "(DeepSeek-V3: 4 groups of 8); absent: all",
    default=np.nan,
    whole=False,
    most=1e6,
    feature="unseen",
)
# Of each: how its messages pass, the bytes over a link, and the collective that its backward is (Megatron-LM, Shoeybi
# et al. 2019).
COLLECTIVE_OPS = tuple(
    Op(
        name,
        "collective",
        (*_DIMS, *own),
        work,
        check=check,
        default_dtype="bf16",
        prior=Prior.of("collective"),
        link_bytes=link_bytes,
        passing=passing,
        pattern=pattern,
        configuration=("devices", "message_bytes"),
        few_configurations=True,
        backward=(step(back, *_PASSED, *(dim.name for dim in own)),),
        example={"message_bytes": 100_000_000, "devices": 4},
    )
    for name, pattern, link_bytes, passing, back, own in (
        ("all_reduce", Pattern("ring", 2), _ring(2.0), _passing(2.0), "all_reduce", ()),
        ("all_gather", Pattern("ring", 1), _ring(1.0), _passing(1.0), "reduce_scatter", ()),
        ("reduce_scatter", Pattern("ring", 1), _ring(1.0), _passing(1.0), "all_gather", ()),
        ("all_to_all", Pattern("exchange"), _ring(1.0), _passing(AT_ONCE), "all_to_all", (_COPIES, _REACH)),
        ("send_recv", Pattern("send"), _passed_on, _passing_on, "send_recv", ()),
    )
)


MODES = ("normal", "low_latency")
NORMAL, LOW_LATENCY = (float(code) for code in range(len(MODES)))
# SMs that DeepEP's normal kernels take by default (deep_ep.Buffer.num_sms).
USUAL_SMS = 20.0
# Clocks of an SM per token, per copy and per byte of the copies, of an H100's dispatch; and the SMs of an H100, in
# relation to which `sms` are counted.
_TOKEN_CLOCKS, _COPY_CLOCKS, _BYTE_CLOCKS = _FITTED.each(
    "exchange_token_clocks", "exchange_copy_clocks", "exchange_byte_clocks"
)
_ALL_SMS = 132.0
# Kernels of normal that wait for one another: counts first, then tokens.
_LAUNCHES = _FITTED.number("exchange_launches")
_SCALES = 4.0 / 128.0
_SCALED = (DTYPE_CODE["fp8"], DTYPE_CODE["fp8_block"])


def _bytes(table: OpTable) -> Floats:
    """Bytes of one copy of all tokens, [n]."""
    size = DTYPE_BYTES[table.dtype] + np.where(np.isin(table.dtype, _SCALED), _SCALES, 0.0)
    moved: Floats = table.column("tokens") * table.column("hidden") * size
    return moved


def _copies(table: OpTable) -> Floats:
    """Copies of a token that are sent, its own device's included, [n]."""
    devices, chosen = table.column("devices"), table.column("top_k")
    reached = devices * (1.0 - (1.0 - 1.0 / devices) ** chosen)
    copies: Floats = np.where(table.column("mode") == LOW_LATENCY, chosen, reached)
    return copies


def _work(additions: float) -> Callable[[OpTable], Work]:
    def work(table: OpTable) -> Work:
        """Tokens and their copies, in and out of one device's memory."""
        copies = _copies(table)
        moved = _bytes(table) * (1.0 + copies)
        return Work(additions * table.column("tokens") * table.column("hidden") * copies, moved, moved)

    return work


def link_bytes(table: OpTable) -> Floats:
    """Bytes that leave a device, [n]."""
    devices = table.column("devices")
    sent: Floats = _bytes(table) * _copies(table) * (devices - 1.0) / devices
    return sent


def passing(table: OpTable) -> Passing:
    """One hop: no message waits for another."""
    ones = np.ones(table.kind.size)
    return Passing(ones, 0.0 * ones, table.column("devices"))


def rereads(table: OpTable) -> Rereads:
    """Nothing is read again, but the SMs of mode normal take clocks; in low_latency all SMs share them."""
    copies = _copies(table)
    clocks = table.column("tokens") * (_TOKEN_CLOCKS + _COPY_CLOCKS * copies) + _BYTE_CLOCKS * copies * _bytes(table)
    sms = np.where(table.column("mode") == NORMAL, table.column("sms"), _ALL_SMS)
    return Rereads.of_clocks(clocks * _ALL_SMS / sms)


def launches(table: OpTable) -> Floats:
    """Kernels that wait for one another, [n]."""
    count: Floats = np.where(table.column("mode") == NORMAL, _LAUNCHES, 1.0)
    return count


def check_exchange(table: OpTable) -> list[Broken]:
    """Rules between experts and devices."""
    experts = table.column("experts")
    return [
        Broken("top_k exceeds experts", table.column("top_k") > experts, "top_k"),
        Broken("devices must divide experts", experts % table.column("devices") != 0, "devices"),
        forward_only(table),
    ]


_EXCHANGE_DIMS = (
    Dim("tokens", "tokens of one device"),
    Dim("hidden", "features of a token"),
    Dim("top_k", "experts per token"),
    Dim("experts", "experts of the whole layer"),
    Dim("devices", "devices of one machine over which the experts are dealt", least=2.0, most=1e6),
    Dim("sms", "SMs that send, of mode normal", default=USUAL_SMS, most=1e4),
    choice(
        "mode",
        "normal: a copy of a token per device, beside other kernels (prefill); low_latency: one per expert (decode)",
        MODES,
        NORMAL,
    ),
    *COMMON,
)
EXPERT_ALL_TO_ALL_OPS = tuple(
    Op(
        name,
        "expert_exchange",
        _EXCHANGE_DIMS,
        _work(additions),
        check=check_exchange,
        dtypes=("bf16", "fp16", "fp8", "fp8_block"),
        # Memory and link as of other collectives; the floor is DeepEP's with one token.
        prior=Prior.of("expert_exchange"),
        launches=launches,
        rereads=rereads,
        link_bytes=link_bytes,
        passing=passing,
        ratios=(Ratio(("tokens",)), Ratio(("tokens", "hidden")), Ratio(("tokens", "hidden", "top_k"), ("sms",))),
        configuration=("hidden", "top_k", "experts"),
        few_configurations=True,
        backward=(),
        example={"tokens": 128, "hidden": 7168, "top_k": 8, "experts": 256, "devices": 8},
    )
    for name, additions in (("expert_dispatch", 0.0), ("expert_combine", 2.0))
)
