"""Completion of a partial GPU description, and invalid descriptions."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.catalogue import load_seed_specs
from app.errors import BadInput
from app.tables.complete import complete, revise, spec_from_dict, spec_to_dict
from app.tables.gpu_fields import FIELDS
from app.tables.gpus import GpuSpec

MINIMAL: dict[str, Any] = {
    "name": "My Card 4070",
    "compute_capability": "8.9",
    "sm_count": 46,
    "boost_clock_hz": 2.475e9,
    "memory_bytes": 12 * 2**30,
    "memory_bandwidth_bytes_per_s": 504e9,
}


def _refused(partial: Any, where: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], str]:
    with pytest.raises(BadInput) as caught:
        complete(partial, where=where)
    assert caught.value.errors
    return {error.loc: error.msg for error in caught.value.errors}


def test_six_figures_describe_a_gpu() -> None:
    spec = complete(MINIMAL)
    assert spec.id == "my-card-4070"
    # CUDA C++ Programming Guide, compute capability 8.9.
    assert (spec.max_threads_per_sm, spec.max_blocks_per_sm, spec.shared_memory_per_sm_bytes) == (1536, 24, 102400)
    assert spec.peak_flops["fp32"] == pytest.approx(46 * 128 * 2 * 2.475e9)
    assert spec.l2_bandwidth_bytes_per_s == pytest.approx(46 * 64 * 2.475e9)
    assert spec.provenance["sm_count"] == "datasheet"
    assert spec.provenance["max_threads_per_sm"] == spec.provenance["peak_flops.fp8_tensor"] == "inferred"


def test_an_inferred_cache_is_no_slower_than_its_memory() -> None:
    slow = {"boost_clock_hz": 2e8, "sm_count": 1}
    assert complete({**MINIMAL, **slow}).l2_bandwidth_bytes_per_s == MINIMAL["memory_bandwidth_bytes_per_s"]
    raised = revise(complete({**MINIMAL, **slow}), {"memory_bandwidth_bytes_per_s": 6e11})
    assert raised.l2_bandwidth_bytes_per_s == 6e11


def test_a_cache_registered_slower_than_its_memory_is_read_as_fast() -> None:
    stored = spec_to_dict(complete(MINIMAL)) | {"l2_bandwidth_bytes_per_s": 2e9}
    assert spec_from_dict(stored).l2_bandwidth_bytes_per_s == MINIMAL["memory_bandwidth_bytes_per_s"]


def test_a_card_without_a_link_uses_its_slot() -> None:
    old, stated = {**MINIMAL, "compute_capability": "6.1"}, {**MINIMAL, "link_bandwidth_bytes_per_s": 300e9}
    links = [complete(partial).link_bandwidth_bytes_per_s for partial in (MINIMAL, old, stated)]
    assert links == [31.5e9, 15.75e9, 300e9]
    assert complete(MINIMAL).provenance["link_bandwidth_bytes_per_s"] == "inferred"
    assert revise(complete(MINIMAL), {"compute_capability": "6.1"}).link_bandwidth_bytes_per_s == 15.75e9


def test_cards_beyond_the_link_domain_use_the_slot() -> None:
    bridge = {**MINIMAL, "link_bandwidth_bytes_per_s": 300e9, "link_domain_gpus": 2}
    found = complete(bridge)
    assert (found.link_domain_gpus, found.slot_bandwidth_bytes_per_s) == (2, 31.5e9)
    assert (found.provenance["link_domain_gpus"], found.provenance["slot_bandwidth_bytes_per_s"]) == (
        "datasheet",
        "inferred",
    )
    assert complete({**bridge, "compute_capability": "6.1"}).slot_bandwidth_bytes_per_s == 15.75e9
    assert complete({**bridge, "slot_bandwidth_bytes_per_s": 63e9}).slot_bandwidth_bytes_per_s == 63e9
    assert complete({**bridge, "link_bandwidth_bytes_per_s": 10e9}).slot_bandwidth_bytes_per_s == 10e9
    assert complete({**bridge, "link_domain_gpus": 72}).slot_bandwidth_bytes_per_s is None  # a rack's
    assert complete(MINIMAL).link_domain_gpus is complete(MINIMAL).slot_bandwidth_bytes_per_s is None
    without = revise(found, {"link_domain_gpus": None})
    assert without.link_domain_gpus is without.slot_bandwidth_bytes_per_s is None
    assert revise(found, {"compute_capability": "6.1"}).slot_bandwidth_bytes_per_s == 15.75e9


def test_specifications_stored_before_link_domains_are_read() -> None:
    stored = spec_to_dict(complete(MINIMAL))
    del stored["link_domain_gpus"], stored["slot_bandwidth_bytes_per_s"]
    assert spec_from_dict(json.loads(json.dumps(stored))) == complete(MINIMAL)


def test_geforce_tensor_rates_are_halved() -> None:
    full, halved = (complete({**MINIMAL, "name": name}).peak_flops for name in ("RTX 4500 Ada", "GeForce RTX 4070"))
    assert full["fp16_tensor"] == 2 * halved["fp16_tensor"]
    assert full["int8_tensor"] == halved["int8_tensor"]


def test_hopper_tensor_rates_use_the_clock_of_its_datasheets() -> None:
    """The SXM and the PCIe card: 1,830 and 1,620 MHz, not 1,980 and 1,755; lanes and FP64 at these."""
    for sms, clock_hz, quoted in ((132, 1.98e9, 989.4e12), (114, 1.755e9, 756e12)):
        hopper = {**MINIMAL, "compute_capability": "9.0", "sm_count": sms, "boost_clock_hz": clock_hz}
        peaks = complete(hopper).peak_flops
        assert peaks["bf16_tensor"] == pytest.approx(quoted, rel=0.003)
        assert peaks["fp64_tensor"] == pytest.approx(peaks["fp32"])


@pytest.mark.parametrize("spec", load_seed_specs(), ids=lambda spec: spec.id)
def test_a_shown_specification_is_accepted(spec: GpuSpec) -> None:
    shown = json.loads(json.dumps(spec_to_dict(spec)))
    assert complete(shown) == spec
    assert spec_from_dict(shown) == spec
    assert revise(spec, {}) == spec


def test_a_null_peak_keeps_the_pipe_absent() -> None:
    spec = complete({**MINIMAL, "peak_flops": {"fp8_tensor": None}})
    assert "fp8_tensor" not in spec.peak_flops
    assert "fp16_tensor" in spec.peak_flops
    assert complete(spec_to_dict(spec)) == spec
    assert "fp8_tensor" not in revise(spec, {"boost_clock_hz": 2.0e9}).peak_flops


BAD = [
    ({"sm_count": -1}, ("sm_count",), "whole number between"),
    ({"sm_count": 46.5}, ("sm_count",), "not whole"),
    ({"sm_count": "46"}, ("sm_count",), "not a number"),
    ({"sm_count": True}, ("sm_count",), "not a number"),
    ({"sm_count": 10**400}, ("sm_count",), "out of range"),
    ({"boost_clock_hz": math.nan}, ("boost_clock_hz",), "out of range"),
    ({"boost_clock_hz": math.inf}, ("boost_clock_hz",), "out of range"),
    ({"boost_clock_hz": 2475}, ("boost_clock_hz",), "Hz"),
    ({"memory_bandwidth_bytes_per_s": 504}, ("memory_bandwidth_bytes_per_s",), "bytes per second"),
    ({"memory_bandwith_bytes_per_s": 5e11}, ("memory_bandwith_bytes_per_s",), "did you mean memory_bandwidth_bytes"),
    ({"name": ""}, ("name",), "missing"),
    ({"name": "a\x00b"}, ("name",), "control"),
    ({"name": "a\x9b2Jb"}, ("name",), "control"),
    ({"aliases": ["a\u202eb"]}, ("aliases", 0), "control"),
    ({"name": "日本"}, ("id",), "send an id"),
    ({"id": "Not An Id"}, ("id",), "hyphens"),
    ({"kind": "tpu"}, ("kind",), "gpu or cpu"),
    ({"kind": ["gpu"]}, ("kind",), "gpu or cpu"),
    ({"compute_capability": 8.9}, ("compute_capability",), "text"),
    ({"architecture": "Hopper"}, ("compute_capability",), "agreement"),
    ({"aliases": "4070"}, ("aliases",), "list"),
    ({"aliases": [7]}, ("aliases", 0), "not text"),
    ({"peak_flops": 3}, ("peak_flops",), "object"),
    ({"peak_flops": {"fp32": 1e15}}, ("peak_flops", "fp32"), "does not agree"),
    ({"peak_flops": {"fp32": None}}, ("peak_flops", "fp32"), "every device"),
    ({"peak_flops": {"fp31": 1e12}}, ("peak_flops", "fp31"), "the pipes are"),
    ({"peak_flops": {"fp16_tensor": -1}}, ("peak_flops", "fp16_tensor"), "out of range"),
    ({"provenance": {"sm_count": "guess"}}, ("provenance", "sm_count"), "datasheet, measured, inferred"),
    ({"provenance": {"sm_count": []}}, ("provenance", "sm_count"), "datasheet, measured, inferred"),
    ({"provenance": {"colour": "datasheet"}}, ("provenance", "colour"), "not a field"),
    *(
        ({"link_bandwidth_bytes_per_s": 3e11, "link_domain_gpus": wrong}, ("link_domain_gpus",), says)
        for wrong, says in (
            (0, "2 and 1e+06"),
            (1, "2 and 1e+06"),
            (-2, "out of range"),
            (2.5, "not whole"),
            (1e300, "out of range"),
            (10**400, "out of range"),
            (math.nan, "out of range"),
            ("2", "not a number"),
            (True, "not a number"),
        )
    ),
    ({"link_domain_gpus": 2}, ("link_bandwidth_bytes_per_s",), "missing"),
    (
        {"link_bandwidth_bytes_per_s": 1e10, "link_domain_gpus": 2, "slot_bandwidth_bytes_per_s": 2e10},
        ("slot_bandwidth_bytes_per_s",),
        "above link_bandwidth_bytes_per_s",
    ),
    ({"base_clock_hz": 3e9}, ("base_clock_hz",), "above boost_clock_hz"),
    ({"l2_bytes": 1e9, "memory_bytes": 1e8}, ("l2_bytes",), "above memory_bytes"),
    ({"shared_memory_per_block_bytes": 2e5}, ("shared_memory_per_block_bytes",), "above"),
    ({"max_threads_per_block": 2048}, ("max_threads_per_block",), "above"),
    # One noisy probe once registered an L2 of 2 GB/s, under which no true measurement was possible.
    ({"l2_bandwidth_bytes_per_s": 2e9}, ("memory_bandwidth_bytes_per_s",), "above l2_bandwidth_bytes_per_s = 2e+09"),
    ({"triad_bandwidth_bytes_per_s": 6e11}, ("triad_bandwidth_bytes_per_s",), "above memory_bandwidth_bytes_per_s"),
    ({"sustained_bandwidth_bytes_per_s": 6e11}, ("sustained_bandwidth_bytes_per_s",), "above memory_bandwidth"),
    ({"sustained_compute_flops": 4e13}, ("sustained_compute_flops",), "above peak_flops.fp32"),
]


@pytest.mark.parametrize(("change", "loc", "says"), BAD, ids=[str(case[1]) + case[2] for case in BAD])
def test_bad_fields_are_named(change: dict[str, Any], loc: tuple[str | int, ...], says: str) -> None:
    errors = _refused({**MINIMAL, **change}, where=("gpu",))
    assert says in errors["gpu", *loc]


def test_missing_fields_are_named_all_at_once() -> None:
    errors = _refused({})
    assert {loc[0] for loc in errors} == {
        "name",
        "sm_count",
        "boost_clock_hz",
        "memory_bytes",
        "memory_bandwidth_bytes_per_s",
        "architecture",
    }


@pytest.mark.parametrize("partial", [None, [], "titan-v", 3])
def test_descriptions_that_are_no_object_are_rejected(partial: Any) -> None:
    _refused(partial)


def test_a_name_of_several_architectures_needs_the_capability() -> None:
    partial = {key: value for key, value in MINIMAL.items() if key != "compute_capability"}
    assert '"8.0", "8.6", "8.7"' in _refused({**partial, "architecture": "Ampere"})["architecture",]


def test_unknown_architectures_need_lanes_and_are_noted() -> None:
    partial = {key: value for key, value in MINIMAL.items() if key != "compute_capability"} | {"architecture": "Rubin"}
    assert "send the lanes" in _refused(partial)["fp32_lanes_per_sm",]
    spec = complete({**partial, "peak_flops": {"fp32": 29.1e12, "fp16_tensor": 5e15}})
    assert spec.fp32_lanes_per_sm == 128
    assert "assumed" in spec.note
    assert complete(spec_to_dict(spec)) == spec


def test_a_measured_or_explained_peak_may_differ() -> None:
    measured = {"peak_flops": {"fp32": 25e12}, "provenance": {"peak_flops.fp32": "measured"}}
    assert complete({**MINIMAL, **measured}).peak_flops["fp32"] == 25e12
    assert complete({**MINIMAL, "peak_flops": {"fp32": 25e12}, "note": "Capped."}).peak_flops["fp32"] == 25e12
    assert ("peak_flops", "fp32") in _refused({**MINIMAL, "peak_flops": {"fp32": 1e15}, "note": "Trust me."})


def test_peaks_follow_a_changed_clock() -> None:
    h20 = next(spec for spec in load_seed_specs() if spec.id == "h20")
    slower = revise(revise(h20, {"boost_clock_hz": h20.boost_clock_hz / 2}), {"note": "Halved."})
    assert slower.peak_flops["fp16_tensor"] == pytest.approx(h20.peak_flops["fp16_tensor"] / 2)
    assert slower.provenance["peak_flops.fp16_tensor"] == "inferred"
    assert slower.l2_bandwidth_bytes_per_s == pytest.approx(h20.l2_bandwidth_bytes_per_s / 2)
    assert slower.aliases == h20.aliases


@pytest.mark.parametrize("spec", load_seed_specs(), ids=lambda spec: spec.id)
def test_a_gpu_without_memory_type_has_the_same_architecture_key(spec: GpuSpec) -> None:
    """Otherwise no sibling answers for it: all products of a chip with stacked memory have stacked memory."""
    told = {key: value for key, value in spec_to_dict(spec).items() if key not in ("memory_type", "provenance")}
    bare = complete(told)
    assert bare.architecture_key == spec.architecture_key
    assert bare.provenance.get("memory_type") == ("inferred" if "HBM" in (bare.memory_type or "") else None)


def test_spellings_of_stacked_memory_are_known() -> None:
    assert complete({**MINIMAL, "memory_type": "hbm3e"}).memory_type == "HBM3e"
    moved = revise(complete(MINIMAL), {"compute_capability": "9.0"})
    assert (moved.memory_type, revise(moved, {"compute_capability": "8.9"}).memory_type) == ("HBM", None)


def test_a_changed_architecture_is_inferred_again() -> None:
    spec = revise(complete(MINIMAL), {"compute_capability": "9.0"})
    assert (spec.architecture, spec.max_threads_per_sm) == ("Hopper", 2048)
    assert spec.peak_flops["fp64"] == pytest.approx(46 * 128 * 2.475e9)


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just({}),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), _JUNK, max_size=4))
def test_random_descriptions_are_rejected_or_completed(junk: dict[str, Any]) -> None:
    for attempt in (lambda: complete({**MINIMAL, **junk}), lambda: revise(complete(MINIMAL), junk)):
        try:
            spec = attempt()
        except BadInput as error:
            assert error.errors
        else:
            json.dumps(spec_to_dict(spec), allow_nan=False)
