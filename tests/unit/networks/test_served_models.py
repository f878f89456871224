"""Models that are served, by their official configurations: parameters, every mode, and fields that are not as usual.

`served_models.json` holds the fields of configurations that decide sizes, and the number of parameters. `source` is
`modules` where Hugging Face's modules were counted with these fields (transformers 5.18, on PyTorch's meta device), and
`card` where it is the publisher's figure, as rounded as that is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.errors import BadInput
from app.networks.importers.hf import formats_of, lower, read
from app.networks.run import Mode, Parallelism, Run
from app.networks.transformers.architecture import FeedForward
from app.ops import OPS
from app.ops.linear_attention import GDN, KDA, MAMBA2
from app.stacks.release import release_of
from app.tables.workload import Workload
from tests.unit.transformers import PUBLISHED

MODELS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("served_models.json").read_text("utf-8"))
WITHIN = 0.005
# Values that no field takes, or that few do.
CORRUPT: tuple[Any, ...] = (None, True, "12", "abc", -1, 0, 3.7, math.nan, 10**30, [], [[1]], [-1], {}, {"a": [{}]})


def tokens(config: dict[str, Any]) -> int:
    return min([read(config).stacks[-1].embedding.max_positions or 1024, 1024])


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_published_ones(name: str) -> None:
    config = MODELS[name]["config"]
    workload = lower(config, Run(sequence=8))
    held = float(workload.parameters @ workload.repeats[workload.block])
    assert held == pytest.approx(MODELS[name]["parameters"], rel=WITHIN)


@pytest.mark.parametrize("name", MODELS)
def test_every_mode_and_stack_has_the_same_parameters(name: str) -> None:
    config = MODELS[name]["config"]
    modes: tuple[Mode, ...] = ("inference", "training", "prefill", "decode")
    for mode in modes if read(config).generates else modes[:2]:
        for stack in ("pytorch", "vllm", "sglang", "trtllm"):
            run = Run(mode=mode, batch=2, sequence=tokens(config), dtype="bf16", attention="flash")
            run = replace(run, release=release_of(stack, mode))
            workload = lower(config, run)
            held = float(workload.parameters @ workload.repeats[workload.block])
            assert held == pytest.approx(MODELS[name]["parameters"], rel=WITHIN)
            assert (workload.edges[0] < workload.edges[1]).all()
            assert (workload.kv_bytes.sum() > 0) == (mode in ("prefill", "decode"))


@pytest.mark.parametrize("name", MODELS)
def test_two_devices_share_the_weights(name: str) -> None:
    config = MODELS[name]["config"]
    run = Run(sequence=8, dtype="bf16", attention="flash", parallelism=Parallelism(tensor=2))
    try:
        workload = lower(config, run)
    except BadInput as refused:
        assert "tensor" in refused.errors[0].loc
        return
    held = float(workload.parameters @ workload.repeats[workload.block])
    assert 0.49 * MODELS[name]["parameters"] < held < 0.6 * MODELS[name]["parameters"]


def spoiled(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Configurations of which one field, or one of an object within, is left out or of another value."""
    for name, value in config.items():
        if name == "model_type":
            continue
        yield {key: given for key, given in config.items() if key != name}
        yield from (config | {name: corrupt} for corrupt in CORRUPT)
        if isinstance(value, dict):
            yield from (config | {name: inner} for inner in spoiled(value))


@pytest.mark.parametrize("name", MODELS)
def test_a_field_that_is_missing_or_corrupt_is_read_or_refused_by_its_name(name: str) -> None:
    for config in spoiled(MODELS[name]["config"]):
        try:
            lower(config, Run(sequence=8))
            formats_of(config)
        except BadInput as refused:
            for error in refused.errors:
                assert error.loc[0] == "workload"
                assert error.msg


def column(workload: Workload, name: str, of: str) -> float:
    return float(workload.ops.column(of)[workload.names.index(name)])


def test_whisper_hears_1500_frames_whatever_the_text() -> None:
    """Two convolutions over 3,000 frames of 128 bands; a decoder of 100 tokens attends to the 1,500 that are left."""
    config = MODELS["whisper-large-v3"]["config"]
    run = Run(mode="decode", batch=4, sequence=100, dtype="bf16", attention="flash")
    prefill = lower(config, replace(run, mode="prefill"))
    assert column(prefill, "frames.first", "m") == 4 * 3000
    assert column(prefill, "frames.first", "k") == 3 * 128
    assert column(prefill, "cross.key", "m") == 4 * 1500
    decode = lower(config, run)
    assert not [name for name in decode.names if name.startswith("frames")]
    keys = [row for row, name in enumerate(decode.names) if name == "attention"]
    assert decode.ops.column("context_length")[keys].tolist() == [100, 1500]


def test_clip_encodes_as_many_images_as_texts() -> None:
    workload = lower(MODELS["clip-vit-large-14"]["config"], Run(batch=4, sequence=77))
    rows = [row for row, name in enumerate(workload.names) if name == "attention.output"]
    assert workload.ops.column("m")[rows].tolist() == [4 * 257, 4 * 77]
    assert [name for name in workload.names if name == "projection"] == ["projection"] * 2


def test_step_3_projects_queries_from_shared_features() -> None:
    run = Run(mode="decode", batch=4, sequence=512, dtype="bf16", attention="flash")
    workload = lower(MODELS["step-3"]["config"], run)
    assert column(workload, "attention.qkv_down", "n") == 2048 + 2 * 256
    assert column(workload, "attention.query_up", "n") == 64 * 256


def test_parts_in_parallel_have_a_norm_each_in_gpt_neox_and_one_in_gpt_j() -> None:
    for name, norms in (("gpt-neox-20b", 2), ("gpt-j-6b", 1)):
        workload = lower(MODELS[name]["config"], Run(sequence=8, attention="flash"))
        layer = [OPS[kind].name for kind, block in zip(workload.ops.kind, workload.block, strict=True) if block == 1]
        assert layer.count("layer_norm") == norms


def test_layers_of_gemma_3n_that_take_earlier_keys_keep_none() -> None:
    """Of 35 layers 20 keep keys and values, four of them of all tokens, the others of a window of 512."""
    run = Run(mode="decode", batch=2, sequence=4096, dtype="bf16", attention="flash")
    workload = lower(MODELS["gemma-3n-e4b"]["config"], run)
    kept = float(workload.kv_bytes @ workload.repeats[workload.block])
    assert kept == 2 * (4 * 4096 + 16 * 512) * 2 * 2 * 256 * 2  # sequences, tokens, keys and values, heads, bytes
    assert column(workload, "layer_inputs", "h") == 35 * 256
    assert column(workload, "laurel.down", "n") == 64


def test_short_convolutions_keep_two_tokens_and_scans_a_state_whatever_the_context() -> None:
    """LFM2: 10 of 16 layers keep 2 tokens of 2,048 BF16. Mamba: 3 tokens and 16 FP32 of each of 5,120 features."""
    attended = 6 * 2 * 1000 * 2 * 8 * 64 * 2
    for name, kept in (
        ("lfm2-1.2b", attended + 10 * 2 * 2 * 2048 * 2),
        ("mamba-2.8b", 64 * 2 * 5120 * (3 * 2 + 16 * 4)),
    ):
        run = Run(mode="decode", batch=2, sequence=1000, dtype="bf16", attention="flash")
        workload = lower(MODELS[name]["config"], run)
        assert float(workload.kv_bytes @ workload.repeats[workload.block]) == kept


def test_jamba_with_one_expert_is_dense_however_many_process_a_token() -> None:
    stack = read(MODELS["jamba-1.5-mini"]["config"] | {"num_experts": 1}).stacks[0]
    assert all(isinstance(layer.feed_forward, FeedForward) for layer, _ in stack.layers)


def test_short_convolutions_are_those_of_their_layer() -> None:
    """Each kind of layer runs kernels of its own; LFM2's convolution has no state and runs those of Qwen3-Next."""
    run = Run(mode="decode", batch=2, sequence=1000, dtype="bf16", attention="flash")
    served = {name: MODELS[name]["config"] for name in ("lfm2-1.2b", "mamba-2.8b")}
    served |= {name: PUBLISHED[name][0] for name in ("qwen3-next-80b", "kimi-linear-48b", "nemotron-3-nano")}
    rules = [column(lower(config, run), "mixer.convolution", "variant") for config in served.values()]
    assert rules == [GDN, MAMBA2, GDN, KDA, MAMBA2]


def test_deberta_compares_contents_with_distances_both_ways() -> None:
    """Twelve heads of 4 sequences of 256 tokens against 512 rows of distances, whatever the attention asked for."""
    workload = lower(MODELS["deberta-v3-base"]["config"], Run(batch=4, sequence=256, dtype="bf16", attention="flash"))
    for name in ("attention.to_position_key", "attention.to_position_query"):
        assert [column(workload, name, of) for of in "bmnk"] == [48, 256, 512, 64]
    assert "attention.softmax" in workload.names
