"""The curated catalogue: complete, consistent, with every name that the data sets use."""

from __future__ import annotations

import dataclasses
import math

import pytest

from app.engine.catalogue import load_seed_specs
from app.errors import NotFound
from app.tables.catalog import Catalog
from app.tables.complete import spec_to_dict
from app.tables.gpus import MOST_IN_A_MACHINE, PIPES, SPEC_COLUMNS, GpuSpec, GpuTable
from tests.busy_machine import cpu_s

SPECS = load_seed_specs()
CATALOG = Catalog(SPECS)

# Every name by which the issue, the data sets or the papers call a GPU.
NAMES = {
    "titanv": "titan-v",
    "2080ti": "rtx-2080-ti",
    "4070": "rtx-4070",
    "titanx": "gtx-titan-x",
    "NVIDIA TITAN V": "titan-v",
    "NVIDIA GeForce RTX 2080 Ti": "rtx-2080-ti",
    "NVIDIA GeForce RTX 4070": "rtx-4070",
    "NVIDIA GeForce GTX TITAN X": "gtx-titan-x",
    "a100_sxm": "a100-sxm4-80gb",
    "l40s": "l40s",
    "h100_sxm": "h100-sxm5-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "NVIDIA B300": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "rtx_pro_6000_server": "rtx-pro-6000-server",
    "b60": "arc-pro-b60",
    "rtx3090": "rtx-3090",
    "rtx4090": "rtx-4090",
    "rtx5090": "rtx-5090",
    "pro6000maxq": "rtx-pro-6000-max-q",
    "i9_10940x": "i9-10940x",
    "i7_12700h": "i7-12700h",
    "Tesla P4": "tesla-p4",
    "Tesla P100-PCIE-16GB": "tesla-p100-pcie-16gb",
    "Tesla T4": "tesla-t4",
    "Tesla V100-PCIE-32GB": "tesla-v100-pcie-32gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb",
    "NVIDIA L4": "nvidia-l4",
    "AMD Instinct MI100": "amd-instinct-mi100",
    "AMD Instinct MI210": "amd-instinct-mi210",
    "AMD Instinct MI250": "amd-instinct-mi250",
    "RTX 3060M": "rtx-3060-mobile",
    "RTX5070": "rtx-5070",
    "Intel Xeon Gold 5318Y": "xeon-gold-5318y",
    "AMD EPYC 7402": "epyc-7402",
    "A30": "a30",
    "A10": "a10",
    "A40": "a40",
    "A6000": "rtx-a6000",
    "RTX 3080": "rtx-3080",
    "RTX 6000 Ada": "rtx-6000-ada",
    "H100 PCIe": "h100-pcie-80gb",
    "H200": "h200-sxm-141gb",
    "H20": "h20",
    "GH200": "gh200-96gb",
    "B200": "b200",
    "MI300X": "amd-instinct-mi300x",
    "MI325X": "amd-instinct-mi325x",
    "MI355X": "amd-instinct-mi355x",
}


@pytest.mark.parametrize(("name", "gpu"), NAMES.items())
def test_every_name_of_the_data_sets_is_known(name: str, gpu: str) -> None:
    assert CATALOG.resolve(name).id == gpu


def test_no_two_gpus_share_a_name() -> None:
    assert len(SPECS) >= 45
    assert [clash for spec in SPECS for clash in CATALOG.taken(spec)] == []
    for spec in SPECS:
        names = (spec.id, spec.name, *spec.aliases)
        assert len(names) == len(set(names)), spec.id


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_every_row_is_complete_and_consistent(spec: GpuSpec) -> None:
    assert spec.source
    assert spec.launch_year
    assert spec.board_power_w or spec.kind == "cpu"  # a core of a processor has none of its own
    lanes_peak = spec.sm_count * spec.fp32_lanes_per_sm * 2 * spec.boost_clock_hz
    assert spec.peak_flops["fp32"] == pytest.approx(lanes_peak, rel=0.02)
    assert spec.l2_bandwidth_bytes_per_s > spec.memory_bandwidth_bytes_per_s
    for field in (*SPEC_COLUMNS, *(f"peak_flops.{pipe}" for pipe in spec.peak_flops)):
        if field.startswith("peak_flops") or getattr(spec, field) is not None:
            assert spec.provenance[field] in ("datasheet", "measured", "inferred")
    assert all(math.isfinite(rate) and rate > 0 for rate in spec.peak_flops.values())
    assert set(spec.peak_flops) <= set(PIPES)
    assert spec.sustained_compute_flops is None, "calibration is a measurement, not a figure of the catalogue"


def test_link_domains_of_bridges_and_racks() -> None:
    """Any other link joins as many as a machine has. A bridge leaves the slot, which is slower."""
    joined = {spec.id: spec.link_domain_gpus for spec in SPECS if spec.link_domain_gpus}
    bridges = {"h100-nvl-94gb": 2, "h200-nvl-141gb": 4, "amd-instinct-mi100": 4, "amd-instinct-mi210": 4}
    pods = {"tpu-v4": 4096, "tpu-v5e": 256, "tpu-v5p": 8960, "tpu-v6e": 256, "tpu-v7": 9216}
    assert joined == {**bridges, "intel-max-1100": 4, "gb200": 72, "gb300": 72, **pods}
    for spec in SPECS:
        bridged = "bridge" in (spec.link_type or "")
        assert (
            bridged
            == (0 < joined.get(spec.id, 0) <= MOST_IN_A_MACHINE)
            == (spec.slot_bandwidth_bytes_per_s is not None)
        )
        if spec.slot_bandwidth_bytes_per_s:
            assert spec.link_bandwidth_bytes_per_s and spec.slot_bandwidth_bytes_per_s < spec.link_bandwidth_bytes_per_s
            assert spec.provenance["slot_bandwidth_bytes_per_s"] == "datasheet" and "over PCIe" in spec.note


# Dense rates as the vendors' data sheets print them, OP/s.
DATASHEET = [
    ("a100-sxm4-80gb", "bf16_tensor", 312e12),
    ("h100-sxm5-80gb", "fp8_tensor", 1979e12),
    ("nvidia-l4", "fp16_tensor", 121e12),
    ("l40s", "fp8_tensor", 733e12),
    ("tesla-t4", "int8_tensor", 130e12),
    ("rtx-2080-ti", "fp16_tensor", 53.8e12),
    ("rtx-3090", "fp16_tensor", 71e12),
    ("rtx-4090", "bf16_tensor", 165.2e12),
    ("rtx-5090", "fp4_tensor", 1676e12),
    ("b200", "fp4_tensor", 9e15),
    ("amd-instinct-mi300x", "fp16_tensor", 1307.4e12),
    ("amd-instinct-mi210", "fp32_tensor", 45.3e12),
    ("arc-pro-b60", "int8_tensor", 197e12),
    ("Data Center GPU Max 1550", "bf16_tensor", 839e12),
    ("Data Center GPU Max 1550", "fp64", 52.4e12),
]


@pytest.mark.parametrize(("gpu", "pipe", "rate"), DATASHEET)
def test_tensor_rates_are_the_dense_ones_with_fp32_accumulation(gpu: str, pipe: str, rate: float) -> None:
    assert CATALOG.resolve(gpu).peak_flops[pipe] == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("gpu", ["h200", "h200_nvl", "h100_nvl", "gh200", "NVIDIA GH200 144G HBM3e", "h20"])
def test_hopper_with_six_memory_stacks_has_the_full_l2(gpu: str) -> None:
    assert CATALOG.resolve(gpu).l2_bytes == 60 * 2**20
    assert CATALOG.resolve("h100_sxm").l2_bytes == CATALOG.resolve("h100_pcie").l2_bytes == 50 * 2**20


def test_boards_of_one_chip_have_their_own_board_power() -> None:
    assert CATALOG.resolve("b300").board_power_w == 1100
    assert CATALOG.resolve("gb300").board_power_w == 1400


def test_gpus_lack_the_pipes_that_they_do_not_have() -> None:
    assert "bf16_tensor" not in CATALOG.resolve("titan-v").peak_flops
    assert "fp16" not in CATALOG.resolve("gtx-titan-x").peak_flops
    assert "fp8_tensor" not in CATALOG.resolve("a100-pcie-40gb").peak_flops
    assert "fp4_tensor" not in CATALOG.resolve("h100_sxm").peak_flops
    assert "tf32_tensor" not in CATALOG.resolve("mi355x").peak_flops


def test_names_ignore_case_spacing_and_vendor() -> None:
    for name in ("TITAN-V", "titan v", "Nvidia Titan_V", "titanv"):
        assert CATALOG.resolve(name).id == "titan-v"


@pytest.mark.parametrize("name", ["", " ", "rtx 4071", "x" * 5000, "\x00", "\ud800", "nvidia", "a100"])
def test_an_unknown_name_is_rejected_with_close_ones(name: str) -> None:
    with pytest.raises(NotFound) as caught:
        CATALOG.resolve(name)
    assert len(caught.value.near) <= 5
    if name == "rtx 4071":
        assert caught.value.near[0] == "rtx-4070"


def test_a_thousand_unknown_names_are_answered_within_a_second_or_two() -> None:
    """As many as an upload's errors list."""

    def refuse() -> None:
        for number in range(1000):
            with pytest.raises(NotFound):
                CATALOG.resolve(f"unknown GPU {number}")

    assert cpu_s(refuse) < 2.0


@pytest.mark.parametrize("family", ["V100", "A100", "nvidia h100", "rtx 6000"])
def test_the_name_of_a_family_lists_its_members_first(family: str) -> None:
    bare = family.casefold().removeprefix("nvidia ").replace(" ", "-")
    members = {spec.id for spec in CATALOG.specs if bare in spec.id}
    with pytest.raises(NotFound) as caught:
        CATALOG.resolve(family)
    assert members <= set(caught.value.near[: len(members)])


def test_taken_names_are_reported() -> None:
    from dataclasses import replace

    twin = replace(CATALOG.resolve("titan-v"), id="my-card", name="My card", aliases=("2080 TI",))
    assert [clash.loc for clash in CATALOG.taken(twin)] == [("aliases", 0)]


def test_the_whole_catalogue_fits_one_table() -> None:
    table = GpuTable.from_specs(SPECS)
    assert len(table) == len(SPECS)
    assert (table.column("peak_fp32_flops") > 0).all()
    assert {"id", "peak_flops", "provenance"} <= set(spec_to_dict(SPECS[0]))


def test_a_name_with_a_colon_is_its_own_before_a_slice() -> None:
    own = dataclasses.replace(CATALOG.resolve("l4"), id="l4:half", name="L4 half", aliases=())
    catalog = Catalog([*SPECS, own], families={"H100": "h100-sxm5-80gb"})
    assert catalog.find("l4:half") == own
    assert catalog.find("H100:3g.40gb") is None
    taken = catalog.most_rented("H100:3g.40gb")
    assert taken is not None and taken.id == "h100-sxm5-80gb:3g.40gb"
