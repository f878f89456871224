"""Occupancy against numbers worked out by hand from the CUDA programming guide's limits."""

import numpy as np
import pytest

from app.predictors.launches import LIMITS, paper_occupancy, resident_blocks
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from tests.unit.kernels import TURING, VOLTA, index, kernels

GPUS = GpuTable.from_specs([TURING, VOLTA])


def launch(threads: float, registers: float, shared: float) -> OpTable:
    return kernels(
        [{"threads_per_block": threads, "registers_per_thread": registers, "shared_memory_per_block": shared}]
    )


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "gpu", "blocks", "limit"),
    [
        (256, 7, 0, 0, 4, "threads"),  # 1024 / 256
        (256, 7, 0, 1, 8, "threads"),  # 2048 / 256
        (32, 16, 0, 0, 16, "blocks"),
        (250, 16, 0, 0, 4, "threads"),  # 250 threads occupy 8 warps
        (256, 64, 0, 1, 4, "registers"),  # 65536 / (64 x 256)
        (256, 33, 0, 1, 6, "registers"),  # 33 x 32 = 1056 rounds to 1280 a warp, 10240 a block
        (128, 16, 9000, 0, 7, "shared_memory"),  # 9000 rounds to 9216; 65536 / 9216 = 7.1
        (2048, 16, 0, 1, 0, "threads"),
        (1024, 206, 4096, 1, 0, "registers"),  # shared_bank_conflict of the paper never launched
        (32, 256, 0, 1, 0, "registers"),  # 255 is the most a thread can have
        (32, 16, 65537, 1, 0, "shared_memory"),  # fits the SM, not a block
        (256, np.nan, np.nan, 1, 8, "threads"),
    ],
)
def test_resident_blocks(threads: float, registers: float, shared: float, gpu: int, blocks: float, limit: str) -> None:
    found = resident_blocks(launch(threads, registers, shared), GPUS, index(0), index(gpu))
    assert found.blocks.tolist() == [blocks]
    assert LIMITS[found.limit[0]] == limit


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "gpu", "occupancy"),
    [
        (256, 7, 0, 0, 1.0),
        (256, 33, 0, 1, 7 / 8),  # floor(65536 / 8448) = 7: the paper rounds nothing up
        (128, 16, 9000, 0, 7 * 4 / 32),
        (1024, 206, 4096, 1, 1.0),  # the register limit is zero, so ignored; threads allow 2 blocks
        (32, 0, 0, 0, 0.5),  # 16 blocks of one warp, of 32
        (256, np.nan, np.nan, 0, 1.0),
    ],
)
def test_occupancy_of_the_papers_kernels(
    threads: float, registers: float, shared: float, gpu: int, occupancy: float
) -> None:
    assert paper_occupancy(launch(threads, registers, shared).dims, 0, GPUS.values, gpu) == occupancy
