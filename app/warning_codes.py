"""Warnings of answers: a stable code beside the text, which may change. Behaviour depends on codes alone.

docs/reference/warnings.md explains every code.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Code = Literal[
    "attention_assumed",
    "concurrency_capped",
    "context_too_long",
    "dtype_assumed",
    "encoder_left_out",
    "evidence_related",
    "evidence_unknown",
    "extrapolated",
    "field_ignored",
    "figures_inferred",
    "formats_assumed",
    "formats_ignored",
    "gpu_assumed",
    "hardware_limit",
    "host_bound_products",
    "kv_cache_absent",
    "link_exceeded",
    "machine_exceeded",
    "measured_below_limit",
    "measured_counts_missing",
    "measured_implausible",
    "memory_exceeded",
    "mtp_assumed",
    "near_capacity",
    "operators_unknown",
    "parallelism_assumed",
    "phases_unknown",
    "power_capped",
    "power_unknown",
    "price_stale",
    "price_unknown",
    "recompute_assumed",
    "request_too_large",
    "requests_unfinished",
    "software_assumed",
    "software_unknown",
    "throughput_unknown",
    "unanswered",
    "unit_doubtful",
    "version_unmeasured",
]


class CodedWarning(Struct, frozen=True):
    """A warning: `code` is stable, `text` is for people and may change."""

    code: Annotated[str, Meta(description="Stable name of the warning; docs/reference/warnings.md lists them")]
    text: Annotated[str, Meta(description="For people; may change with a release")]


def warning(code: Code, text: str) -> CodedWarning:
    """Return a warning with one of the documented codes."""
    return CodedWarning(code, text)
