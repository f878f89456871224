"""Slices of a GPU (NVIDIA's Multi-Instance GPU), by its profiles: `h100-sxm5-80gb:3g.40gb`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import msgspec

from app.config import SEED_DATA
from app.tables.gpus import GpuSpec

_INFERRED = ("sm_count", "l2_bytes", "l2_bandwidth_bytes_per_s", "memory_bytes", "memory_bandwidth_bytes_per_s")


class Profiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What slices get, by the number that their names begin with.

    shares  of the memory, its bandwidth and the L2
    sms     SMs, by chip
    gpus    id of a GPU -> its chip, and its profiles
    """

    source: str
    shares: Mapping[str, float]
    sms: Mapping[str, Mapping[str, int]]
    gpus: Mapping[str, tuple[str, str]]


@cache
def profiles() -> Profiles:
    """Return all profiles."""
    return msgspec.json.decode((SEED_DATA / "mig_profiles.json").read_bytes(), type=Profiles)


def slices_of(gpu: str) -> list[str]:
    """Return the names of a GPU's slices; none if it cannot be divided."""
    _, names = profiles().gpus.get(gpu, ("", ""))
    return [f"{gpu}:{name}" for name in names.split()]


def slice_of(spec: GpuSpec, profile: str) -> GpuSpec | None:
    """Return a slice of a GPU as a device of its own, None if it has no such profile.

    It has no link: slices do not reach one another, nor other GPUs, but through the host. Its board power is its part
    of the SMs' share.
    """
    name = f"{spec.id}:{profile.lower()}"
    if name not in slices_of(spec.id):
        return None
    known, number = profiles(), profile[0]
    share, sms = known.shares[number], known.sms[known.gpus[spec.id][0]][number]
    part = sms / spec.sm_count
    return replace(
        spec,
        id=name,
        name=f"{spec.name} MIG {profile.lower()}",
        sm_count=sms,
        memory_bytes=share * spec.memory_bytes,
        memory_bandwidth_bytes_per_s=share * spec.memory_bandwidth_bytes_per_s,
        l2_bytes=share * spec.l2_bytes,
        l2_bandwidth_bytes_per_s=share * spec.l2_bandwidth_bytes_per_s,
        peak_flops={pipe: part * peak for pipe, peak in spec.peak_flops.items()},
        board_power_w=None if spec.board_power_w is None else part * spec.board_power_w,
        link_type=None,
        link_bandwidth_bytes_per_s=None,
        link_domain_gpus=None,
        sustained_compute_flops=None,
        sustained_bandwidth_bytes_per_s=None,
        triad_bandwidth_bytes_per_s=None,
        aliases=(),
        source=known.source,
        note=f"A slice of {spec.id} by its share of SMs, memory and L2.",
        provenance={**spec.provenance, **dict.fromkeys(_INFERRED, "inferred")},
    )
