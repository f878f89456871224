"""Kernels that serving stacks choose among: the quicker of two."""

import numpy as np

from app.ops import OP_CODE
from app.ops.collective import CUSTOM, NCCL
from app.stacks.registry import trained_stacks
from app.steps.predict_rows import quickest_kernels
from app.tables.ops import OpTable
from app.tables.predictions import Predictions
from tests.unit.operators import operators


def test_each_gpu_has_the_quicker_of_the_stacks_own_and_the_library() -> None:
    sums = operators("all_reduce", *({"message_bytes": 1e6, "devices": 8, "implementation": k} for k in (CUSTOM, NCCL)))
    asked: list[OpTable] = []

    def predict(ops: OpTable) -> Predictions:
        """On the first GPU the stack's own takes 1 s and the library's 2 s, on the second 4 s and 3 s."""
        asked.append(ops)
        own = ops.column("implementation") == CUSTOM
        seconds = np.concatenate([np.where(own, 1.0, 2.0), np.where(own, 4.0, 3.0)])
        return Predictions(*[seconds] * len(Predictions.__dataclass_fields__))

    found = quickest_kernels(sums, 2, predict)
    assert found.latency_s.tolist() == [1.0, 2.0, 3.0, 3.0]
    assert len(asked[0]) == 3


def test_products_by_blocks_of_sglang_have_the_quicker_of_its_own_and_tensorrt_llms() -> None:
    products = operators(
        "linear",
        *({"m": 4, "n": 512, "k": 512, "stack": code} for code in range(len(trained_stacks()))),
        dtype="fp8_block",
    )

    def predict(ops: OpTable) -> Predictions:
        """vLLM's take 1 s, SGLang's 3 s, TensorRT-LLM's 2 s."""
        seconds = np.array([1.0, 3.0, 2.0])[ops.column("stack").astype(int)]
        return Predictions(*[seconds] * len(Predictions.__dataclass_fields__))

    assert quickest_kernels(products, 1, predict).latency_s.tolist() == [1.0, 2.0, 2.0]


def test_other_rows_are_predicted_once() -> None:
    rows = operators("linear", {"m": 1, "n": 2, "k": 3})
    assert rows.kind[0] == OP_CODE["linear"]
    nothing = Predictions(*[np.ones(1)] * len(Predictions.__dataclass_fields__))
    assert quickest_kernels(rows, 1, lambda ops: nothing) is nothing
