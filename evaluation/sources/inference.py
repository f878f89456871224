"""Inference: Argonne's static batches of LLMs, and torchvision's ConvNets in eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.sources.facts import config_of, facts_of, request_of, study
from evaluation.study import Case, Part, Row

STATIC, CONVNETS = "llm_inference_bench", "torchvision_convnets"


def _static_cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield a case per row: all requests arrive together, each as many tokens out as in."""
    facts = facts_of(STATIC)
    for row in rows:
        name, stack, gpu = str(row["model"]), str(row["framework"]), str(row["gpu"])
        which = f"{row['devices']} GPUs batch {row['batch_size']} length {row['input_output_length']}"
        model, config = name.partition("/")[2], config_of(facts["models"].get(name, name))
        reason = _refusal(row, facts) or ("" if config else f"{model} has no importer")
        parts = () if reason or config is None else _static_parts(row, config, facts["software"][stack])
        gpu, measured_s = facts["gpus"].get(gpu, gpu), float(row["latency_s"])
        yield Case(gpu, model, stack, which, measured_s, parts, reason, at_once=True)


def _refusal(row: Row, facts: Mapping[str, Any]) -> str:
    """Return why the run of a row is not asked; empty if it is."""
    if row["gpu"] not in facts["gpus"]:
        return f"{row['gpu']} is not a GPU of the catalogue"
    if row["framework"] not in facts["software"]:
        return f"the kernels of {row['framework']} are not modelled"
    if row["gpu"] == "Intel PVC GPU" and int(row["devices"]) == 1:
        return "the source has the same runs of Intel Max 1550 again, in a ninth to a third of the time"
    # The times of models with fewer positions than the longest run's prompt and answer are below those of one pass.
    if 2 * int(row["input_output_length"]) > facts["positions"].get(row["model"], 4096):
        return "the model has no positions for the answer, which the source's times show was not generated"
    return ""


def _static_parts(row: Row, config: Mapping[str, Any], software: str) -> tuple[Part, ...]:
    """Return the prefill of all prompts, and the steps of the other tokens at their mean context."""
    length = int(row["input_output_length"])
    both = request_of(STATIC, row, config=config, software=software, parallelism={"tensor": int(row["devices"])})
    return (
        Part(1.0, both | {"mode": "prefill", "sequence": length}),
        Part(length - 1.0, both | {"mode": "decode", "sequence": length + length // 2}),
    )


def _convnet_cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield a case per row."""
    gpus = facts_of(CONVNETS)["gpus"]
    for row in rows:
        split = int(row["devices"]) > 1
        yield Case(
            gpu=gpus[row["gpu"]],
            model=str(row["model"]),
            mode=f"{row['dtype']} {row['mode']}",
            row=f"{row['devices']} GPUs batch {row['batch']} {row['file']}",
            measured=float(row["latency_ms"]) / 1e3,
            parts=() if split else (Part(1.0, request_of(CONVNETS, row)),),
            reason="several GPUs fed by one process (DataParallel) are not modelled" if split else "",
        )


STUDIES = (study(STATIC, _static_cases), study(CONVNETS, _convnet_cases))
