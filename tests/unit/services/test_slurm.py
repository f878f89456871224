"""Slurm's partitions, times and names of GPUs."""

from __future__ import annotations

from math import inf

import pytest

from app.engine.catalogue import load_seed_specs
from app.engine.gpu_types import gpu_of_type
from app.errors import BadInput
from app.services.scheduling.slurm import Partition, parse_partitions, slurm_time
from app.tables.catalog import Catalog

LINES = """\
debug* up 30:00 2 gpu:l4:1
batch up 2-00:00:00 4 gpu:a100:4(S:0-1)
long up infinite 1 gpu:a100:8,gpu:h100:2
odd up infinite 1 gpu:k9000:8
cpu up infinite 12 (null)
"""
NAMES = {"a100": "a100-sxm4-80gb", "h100": "h100-sxm5-80gb", "l4": "nvidia-l4"}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog(load_seed_specs())


def test_partitions(catalog: Catalog) -> None:
    found = parse_partitions(LINES.splitlines(), NAMES, catalog)
    odd, cpu = found.without
    assert odd.startswith("Left out of odd: ") and cpu == "Left out of cpu: it has no GPUs."
    assert found.known == [
        Partition("debug", 1800.0, "l4", "nvidia-l4", 1, 2),
        Partition("batch", 2 * 86_400.0, "a100", "a100-sxm4-80gb", 4, 4),
        Partition("long", inf, "a100", "a100-sxm4-80gb", 8, 1),
        Partition("long", inf, "h100", "h100-sxm5-80gb", 2, 1),
    ]


@pytest.mark.parametrize(
    ("words", "seconds"), [("90", 5400), ("90:30", 5430), ("1:02:03", 3723), ("1-2", 93_600), ("1-02:03", 93_780)]
)
def test_times(catalog: Catalog, words: str, seconds: float) -> None:
    (found,) = parse_partitions([f"p up {words} 1 gpu:l4:1"], NAMES, catalog).known
    assert found.most_s == seconds


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        ("gpu:l4", [("l4", 1)]),
        ("gpu:l4:no_consume:2", [("l4", 2)]),
        ("gpu:l4:2(S:0),gpu:nvidia_a100-sxm4-80gb:8(S:0-1)", [("l4", 2), ("nvidia_a100-sxm4-80gb", 8)]),
        ("mps:l4:100,gpu:l4:2(IDX:0-1),shard:l4:8", [("l4", 2)]),
        ("gpu:4(S:0-1)", [("", 4)]),
    ],
)
def test_generic_resources(catalog: Catalog, resources: str, found: list[tuple[str, int]]) -> None:
    known = parse_partitions([f"p up 10 1 {resources}"], {"gpu": "a100-sxm4-80gb"}, catalog).known
    assert [(item.word, item.count) for item in known] == found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("p up 10", "expected a name"),
        ("p up 10 gpu:l4:1 1", "expected a name"),
        ("p up soon 1 gpu:l4:1", "not a time"),
        ("p up 10 1 gpu:k9000:1", "Left out of p: .*k9000.* --name k9000=GPU"),
        ("p up 10 1 gpu:a100_3g.20gb:1", "Left out of p: .*slice"),
        ("p up 10 1 gpu:4(S:0-1)", "Left out of p: .*gpu:TYPE:COUNT.* --name gpu=GPU"),
        ("p up 10 1 (null)", "Left out of p: it has no GPUs.$"),
        ("p drain 10 1 gpu:l4:1", "Left out of p: the partition is drain"),
    ],
)
def test_unreadable_lines_are_rejected(catalog: Catalog, line: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        parse_partitions([line], {}, catalog)


def test_unknown_partitions_are_omitted_and_reported(catalog: Catalog) -> None:
    lines = [
        "old up 10 1 gpu:k9000:2",
        "mixed up 10 1 gpu:k9000:2,gpu:l4:4(S:0,2-3)",
        "plain up 10 1 gpu:8,gpu:l4:1",
        "old up 20 1 gpu:k9000:8",
    ]
    found = parse_partitions(lines, NAMES, catalog)
    assert [(item.name, item.count) for item in found.known] == [("mixed", 4), ("plain", 1)]
    unknown, untyped = found.without
    assert unknown.startswith("Left out of old, mixed: ") and "Name it with --name k9000=GPU" in unknown
    assert untyped.startswith("Left out of plain: ")


@pytest.mark.parametrize(
    ("word", "gpu", "others"),
    [
        ("a100", "a100-sxm4-40gb", "a100-sxm4-80gb"),
        ("A100_80GB", "a100-sxm4-80gb", "a100-pcie-80gb"),
        ("tesla_a100-40g", "a100-sxm4-40gb", "a100-pcie-40gb"),
        ("h100", "h100-sxm5-80gb", "h100-nvl-94gb"),
        ("v100", "tesla-v100-sxm2-16gb", "tesla-v100-sxm2-32gb"),
        ("v100-32gb", "tesla-v100-sxm2-32gb", "tesla-v100-pcie-32gb"),
        ("p100", "tesla-p100-pcie-16gb", "tesla-p100-sxm2-16gb"),
        ("v100-sxm2-32gb", "tesla-v100-sxm2-32gb", None),
        ("nvidia_h100_80gb_hbm3", "h100-sxm5-80gb", None),
        ("geforce_rtx_3090", "rtx-3090", None),
        ("rtx2080ti", "rtx-2080-ti", None),
        ("l40s", "l40s", None),
        ("mi250", "amd-instinct-mi250", None),
    ],
)
def test_usual_names_of_types(catalog: Catalog, word: str, gpu: str, others: str | None) -> None:
    """Of a family the usual product is planned, and the note names the others."""
    found = gpu_of_type(word, {}, catalog)
    assert found.gpu == gpu
    assert (others in found.note and f"--name {word}=GPU" in found.note) if others else not found.note


def test_a_name_of_no_gpu_is_rejected(catalog: Catalog) -> None:
    with pytest.raises(BadInput, match="--name l4=k9000"):
        parse_partitions(LINES.splitlines(), NAMES | {"l4": "k9000"}, catalog)


def test_times_are_rounded_up_to_a_minute() -> None:
    assert [slurm_time(s) for s in (1, 60, 3601, 90_000)] == ["0-00:01:00", "0-00:01:00", "0-01:01:00", "1-01:00:00"]
