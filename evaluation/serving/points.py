"""Measured deployments of language models in closed loops (serving_points): InferenceX's, and others'."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from app.errors import NotFound
from evaluation.sources.facts import facts_of

POINTS, CONFIGS = "serving_points/points.parquet", "model_configs"
_COLUMNS = {"stack": "backend", "attention_data": "attention_dp", "version": "backend_version"}
_WHOLE = ("devices", "expert_parallel", "attention_data", "input_tokens", "output_tokens", "concurrency")
# A short prompt and a short answer, for which InferenceX's scripts let prompts wait for one another.
_SHORT = (1024, 1024)


class Point(NamedTuple):
    """A measured deployment at one load, with the model's configuration; times are means over requests.

    version     of the stack; None if it is not given
    inferencex  whether it is InferenceX's: lengths are uniform in 0.8 to 1 of those given
    """

    model: str
    gpu: str
    precision: str
    stack: str
    devices: int
    expert_parallel: int
    attention_data: int
    input_tokens: int
    output_tokens: int
    concurrency: int
    tpot_ms: float
    ttft_ms: float
    version: str | None
    inferencex: bool
    config: Mapping[str, Any]

    @property
    def deployment(self) -> str:
        """Return what is held out together: model, GPU, format, stack and parallelism."""
        split = f"{self.devices}|{self.expert_parallel}|{self.attention_data}"
        return f"{self.model}|{self.gpu}|{self.precision}|{self.stack}|{split}"

    @property
    def mean_length(self) -> float:
        """Return the mean share of the lengths given."""
        return 0.9 if self.inferencex else 1.0

    @property
    def kv_dtype(self) -> str | None:
        """Return the number format of the KV cache, which the source does not say.

        InferenceX asks vLLM and TensorRT-LLM for FP8 beside narrow weights, SGLang for none.
        """
        return "fp8" if self.precision != "bf16" and self.stack != "sglang" else None

    @property
    def dtype(self) -> str:
        """Return the number format of the linear layers, or of the experts where theirs is another."""
        if self.model == "gptoss":
            return "w4a8_mxfp4_mxfp8" if self.gpu.startswith("b") else "w4a16_mxfp4"
        if self.model == "dsr1" and self.precision == "fp8":
            return "fp8_block"
        return {"fp4": "nvfp4"}.get(self.precision, self.precision)

    @property
    def user_dtype(self) -> str | None:
        """Return the number format that a user gives; None where the configuration has the published one."""
        if self.precision == "fp4":
            return None if self.model == "gptoss" else "nvfp4"
        return None if "quantization_config" in self.config else self.precision

    @property
    def settings(self) -> dict[str, float]:
        """Return fields of a workload of kind `serving` that InferenceX's launch scripts (benchmarks/*.sh) set.

        Empty where the engine ran with its stack's defaults.
        """
        settings = {
            ("llama70b", "trtllm"): _llama_trtllm,
            ("gptoss", "trtllm"): _gptoss_trtllm,
            ("dsr1", "trtllm"): _deepseek_trtllm,
            ("dsr1", "sglang"): _deepseek_sglang,
        }.get((self.model, self.stack))
        return {} if settings is None or not self.inferencex else settings(self)


def read_points(folder: Path) -> list[Point]:
    """Return the measured points of the models whose configuration is known. Raises NotFound without the file."""
    path = folder / POINTS
    if not path.is_file():
        raise NotFound(f"No {POINTS} in {folder}.")
    names = facts_of("served_loads")["points"].items()
    configs = {
        model: json.loads((folder / CONFIGS / f"{name}_config.json").read_text("utf-8")) for model, name in names
    }
    rows = pq.read_table(path).to_pylist()
    return [point_of(row, configs[row["model"]]) for row in rows if row["model"] in configs]


def point_of(row: Mapping[str, Any], config: Mapping[str, Any]) -> Point:
    """Return the point of a row of the file, whose columns have the names of the fields but for _COLUMNS."""
    columns = {field: row[_COLUMNS.get(field, field)] for field in Point._fields if field != "config"}
    whole = {field: int(columns[field]) for field in _WHOLE}
    return Point(**columns | whole | {"precision": row["precision"] or "bf16", "config": config})


def _llama_trtllm(point: Point) -> dict[str, float]:
    """70b_*_trt_*.sh: --max_num_tokens 16384, batch_wait_max_tokens_ratio 0.9, batch_wait_timeout_iters 20."""
    waits = (point.input_tokens, point.output_tokens) == _SHORT and point.devices < 8
    wait = {"prefill_wait_steps": 20.0, "prefill_wait_tokens": 0.9 * 16_384}
    return {"max_batched_tokens": 16_384, **(wait if waits else {})}


def _gptoss_trtllm(point: Point) -> dict[str, float]:
    """gptoss_fp4_*_trt.sh: --max_num_tokens 20000."""
    return {"max_batched_tokens": 20_000}


def _deepseek_trtllm(point: Point) -> dict[str, float]:
    """dsr1_*_trt.sh: attention_dp_config timeout_iters 60; FP8 on B200: batch_wait_timeout_iters 40, ratio 0.8."""
    if point.attention_data > 1:
        return {"prefill_wait_steps": 60.0}
    waits = point.precision == "fp8" and point.gpu == "b200_sxm" and point.concurrency >= 64
    if not waits or (point.input_tokens, point.output_tokens) != _SHORT:
        return {}
    return {"prefill_wait_steps": 40.0, "prefill_wait_tokens": 0.8 * 8192}


def _deepseek_sglang(point: Point) -> dict[str, float]:
    """dsr1_*.sh: --chunked-prefill-size; on B200 --scheduler-recv-interval, of whose steps prompts wait half."""
    budget = 16_384 if point.precision == "fp4" else 32_768
    interval = 0.0 if point.gpu != "b200_sxm" else 30.0 if point.concurrency >= 16 else 10.0
    return {"max_batched_tokens": budget, "prefill_wait_steps": 0.5 * interval}
