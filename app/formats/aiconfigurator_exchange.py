"""Meaning of aiconfigurator's tables around experts that are dealt over many devices, and of quantising kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from app.formats.aiconfigurator_tables import Figures, Table, values_of
from app.formats.table_columns import text_column
from app.ops.expert_all_to_all import USUAL_SMS
from app.tables.arrays import Bools, Floats

# DeepEP's tests run on whole machines of eight GPUs; more machines are another operator (over the network).
_DEVICES = 8.0
# Share of a stack's sizes that need a difference between dynamic and static quantisation; negative ones are left out.
_MEASURED = 0.5
_BALANCED = {"uniform": "balanced"}
_EPLB = "_eplb"
_MODES = {"ll": "low_latency"}
_MOE_MODES = {
    "moe_context": "normal",
    "moe_generation": "low_latency",
    "wideep_moe": "normal",
    "wideep_moe_eplb": "normal",
}


def _one_machine(table: pa.Table) -> Bools:
    """Return the rows of one machine, bool [n]."""
    machines: Bools = values_of(table, "node_num") == 1.0
    return machines


def _exchange_fields(table: pa.Table) -> Figures:
    """Return the devices and the SMs that send, DeepEP's usual ones where all do."""
    sms = values_of(table, "dispatch_sms")
    return {"devices": np.full(table.num_rows, _DEVICES), "sms": np.where(np.isnan(sms), USUAL_SMS, sms)}


def _exchange(op: str, time: str, dtype: str) -> Table:
    return Table(
        op,
        {"tokens": "num_token", "hidden": "hidden_size", "top_k": "num_topk", "experts": "num_experts"},
        {"mode": ("op_name", _MODES)},
        _exchange_fields,
        ("node_num", "dispatch_sms"),
        known={"exchanges over several machines": _one_machine},
        dtype="",
        constant_dtype=dtype,
        time=time,
        unit_s=1e-6,
        unused=("table", "combine_sms", {"dispatch_us": "combine_us", "combine_us": "dispatch_us"}[time]),
    )


def _without_eplb(word: str) -> str:
    """Return a distribution's name without the mark of a balancer."""
    plain = word.removesuffix(_EPLB)
    return _BALANCED.get(plain, plain)


def _balancer(word: str) -> str:
    """Return which balancer a distribution's name says."""
    return "eplb" if word.endswith(_EPLB) else "none"


def _slots(table: pa.Table) -> Figures:
    """Return the slots, NaN where the table names none."""
    return {"slots": values_of(table, "num_slots")}


def _whole_experts(table: pa.Table) -> Bools:
    """Return the rows whose experts are on one device each, bool [n]."""
    whole: Bools = values_of(table, "moe_tp_size") == 1.0
    return whole


def _is(op_name: str) -> Callable[[pa.Table], Bools]:
    def rows(table: pa.Table) -> Bools:
        words = text_column(table, "op_name")
        return np.array([word == op_name for word in words.words])[words.codes]

    return rows


def _cases(table: pa.Table) -> Floats:
    """Return what tells quantisations apart but their scales: GPU, stack and version, m and k, float64 [5, n]."""
    columns = [text_column(table, name).codes.astype(np.float64) for name in ("gpu", "framework", "framework_version")]
    return np.stack([*columns, values_of(table, "m"), values_of(table, "k")])


def _static_ms(table: pa.Table) -> Floats:
    """Return the time of the same quantisation with a known scale, float64 [n]; NaN where it was not measured."""
    static = _is("scale_matrix")(table)
    _, case = np.unique(_cases(table), axis=1, return_inverse=True)
    times = np.full(case.max(initial=-1) + 1, np.nan)
    times[case.ravel()[static]] = values_of(table, "latency_ms")[static]
    found: Floats = times[case.ravel()]
    return found


def _added_ms(table: pa.Table) -> Floats:
    """Return what a row's time leaves out: `compute_scale` is the time beyond that of a known scale."""
    return np.where(_is("compute_scale")(table), _static_ms(table), 0.0)


def _of_own_kernels(table: pa.Table) -> Bools:
    """Return the rows of kernels that a stack runs, bool [n].

    SGLang's static quantisation was measured as a chain of PyTorch's operators, which its dynamic kernel beats, so that
    the difference was cut off at zero, and left out: neither is known.
    """
    dynamic = _is("compute_scale")(table)
    _, stack = np.unique(_cases(table)[:3], axis=1, return_inverse=True)
    share = np.bincount(stack.ravel(), dynamic) / np.maximum(np.bincount(stack.ravel(), ~dynamic), 1.0)
    known: Bools = (share[stack.ravel()] >= _MEASURED) & (~dynamic | np.isfinite(_static_ms(table)))
    return known


EXCHANGE: dict[str, tuple[Table, ...]] = {
    "expert_all_to_all.parquet": (
        _exchange("expert_dispatch", "dispatch_us", "fp8"),
        _exchange("expert_combine", "combine_us", "bf16"),
    ),
    "moe_wide_expert_parallel.parquet": (
        Table(
            "moe_wide",
            {
                "tokens": "num_tokens",
                "hidden": "hidden_size",
                "intermediate": "inter_size",
                "experts": "num_experts",
                "top_k": "top_k",
                "expert_parallel": "moe_ep_size",
            },
            {
                "mode": ("op_name", _MOE_MODES),
                "distribution": ("distribution", _without_eplb),
                "balancer": ("distribution", _balancer),
            },
            _slots,
            ("num_slots", "moe_tp_size"),
            known={"experts that devices share": _whole_experts},
            dtype="moe_dtype",
            floors=("framework", "op_name", "kernel_source"),
            sizes=("num_tokens",),
            unused=("table", "moe_kernel", "dp_num_tokens", "rank0_num_tokens", "simulation_mode"),
        ),
    ),
    "quantize.parquet": (
        Table(
            "quantize",
            {"b": "m", "h": "k"},
            {"scale": ("op_name", {"compute_scale": "dynamic", "scale_matrix": "static"})},
            dtype="quant_dtype",
            known={"quantisations that no kernel of the stack does": _of_own_kernels},
            added_ms=_added_ms,
            unused=("table",),
        ),
    ),
}
