"""Invalid networks are rejected with a status, the field and what to send instead, in bounded time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.wire.graph_form import GRAPH_EXAMPLE
from app.wire.network_form import GPT2_LARGE

Body = dict[str, Any]
NAN, INF = float("nan"), float("inf")
MODEL: Body = {"kind": "model", "config": GPT2_LARGE, "batch": 4, "sequence": 128}
CONVNET: Body = {"kind": "model", "name": "resnet50", "batch": 8}
GRAPH: Body = {"kind": "graph", "graph": GRAPH_EXAMPLE, "batch": 32}
LONGEST_S = 2.0


def refused(client: TestClient, workload: Any, status: int = 422, **more: Any) -> Body:
    body = {"gpu": "nvidia-l4", "workload": workload, **more}
    began = time.process_time()
    answer = client.post("/predict", content=json.dumps(body).encode())
    assert time.process_time() - began < LONGEST_S
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return dict(answer.json())


def places(told: Body) -> list[str]:
    return [".".join(str(part) for part in error["loc"]) for error in told.get("errors", [])]


@pytest.mark.parametrize("field", ["batch", "sequence", "gradient_accumulation", "dataset_size", "output_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, NAN, INF, 2**60, 10**30, 10**400, "4", True, [4]])
def test_invalid_numbers(client: TestClient, field: str, value: Any) -> None:
    assert places(refused(client, MODEL | {field: value})) == [f"workload.{field}"]


@pytest.mark.parametrize(
    "field",
    ["data", "tensor", "pipeline", "context", "virtual_pipeline", "expert", "microbatches", "nodes", "zero"],
)
@pytest.mark.parametrize("value", [-1, 1.5, NAN, 10**30, "4", None])
def test_parallel_sizes(client: TestClient, field: str, value: Any) -> None:
    if (field, value) == ("zero", None):
        pytest.skip("null is the stack's usual stage")
    assert places(refused(client, MODEL | {"parallelism": {field: value}})) == [f"workload.parallelism.{field}"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "sideways"),
        ("dtype", "fp31"),
        ("attention", "magic"),
        ("optimizer", "luck"),
        ("fused", "yes"),
        ("software", ""),
        ("unheard_of", 1),
        ("config", "gpt2"),
        ("config", []),
        ("parallelism", 4),
    ],
)
def test_invalid_choices(client: TestClient, field: str, value: Any) -> None:
    assert places(refused(client, MODEL | {field: value})) == [f"workload.{field}"]


def test_all_wrong_fields_are_named_at_once(client: TestClient) -> None:
    told = refused(client, MODEL | {"batch": 0, "dtype": "fp31", "parallelism": {"data": -1}})
    assert sorted(places(told)) == ["workload.batch", "workload.dtype", "workload.parallelism.data"]


def test_exactly_one_of_config_and_name_is_required(client: TestClient) -> None:
    assert places(refused(client, {"kind": "model", "sequence": 8})) == ["workload.config"]
    assert places(refused(client, MODEL | {"name": "resnet50"})) == ["workload.config"]


def test_unknown_names_and_types_list_the_known_ones(client: TestClient) -> None:
    told = refused(client, CONVNET | {"name": "resnet5O"})
    assert places(told) == ["workload.name"]
    assert "resnet50" in told["detail"]
    told = refused(client, MODEL | {"config": {"model_type": "hal9000"}})
    assert places(told) == ["workload.config.model_type"]
    assert "gpt2" in told["detail"]
    assert places(refused(client, MODEL | {"config": {}})) == ["workload.config.model_type"]


@pytest.mark.parametrize("value", [0, -1, 1.5, NAN, INF, 10**9, 10**400, "36", None, True, [36], {}])
def test_hostile_configurations(client: TestClient, value: Any) -> None:
    for field in ("n_layer", "n_embd", "n_head", "vocab_size"):
        if field == "vocab_size" and value == 10**9:
            continue
        (place,) = places(refused(client, MODEL | {"config": GPT2_LARGE | {field: value}}))[:1]
        assert place.startswith("workload.config")


def test_batches_and_sizes_that_do_not_divide(client: TestClient) -> None:
    training = MODEL | {"mode": "training"}
    assert places(refused(client, training | {"parallelism": {"data": 3}})) == ["workload.batch"]
    assert places(refused(client, training | {"parallelism": {"data": 2, "microbatches": 4}})) == ["workload.batch"]
    assert places(refused(client, training | {"gradient_accumulation": 3})) == ["workload.batch"]
    (place,) = places(refused(client, MODEL | {"parallelism": {"tensor": 7}}))
    assert place in ("workload.parallelism.tensor", "workload.config.n_head")
    assert places(refused(client, MODEL | {"parallelism": {"nodes": 2}})) == ["workload.parallelism.nodes"]
    assert places(refused(client, MODEL | {"parallelism": {"expert": 2}})) == ["workload.parallelism.expert"]
    assert places(refused(client, MODEL | {"parallelism": {"sequence": True}})) == ["workload.parallelism.sequence"]
    assert places(refused(client, MODEL | {"parallelism": {"pipeline": 1000}})) == ["workload.parallelism.pipeline"]


def test_interleaved_stages_and_shared_sequences_that_do_not_fit(client: TestClient) -> None:
    def split(workload: Body = MODEL, **sizes: Any) -> list[str]:
        return [place.removeprefix("workload.") for place in places(refused(client, workload | {"parallelism": sizes}))]

    assert split(virtual_pipeline=2) == ["parallelism.virtual_pipeline"]
    four = MODEL | {"batch": 4}
    assert split(four, pipeline=4, microbatches=2, virtual_pipeline=2) == ["parallelism.virtual_pipeline"]
    assert split(four, pipeline=4, microbatches=4, virtual_pipeline=10) == ["parallelism.virtual_pipeline"]  # 36 layers
    assert split(four, pipeline=2, microbatches=2, virtual_pipeline=2, schedule="gpipe") == [
        "parallelism.virtual_pipeline"
    ]
    assert split(MODEL | {"attention": "eager"}, context=2) == ["parallelism.context"]
    flash = MODEL | {"attention": "flash"}
    assert split(flash, context=7) == ["parallelism.context"]
    assert split(flash | {"mode": "decode"}, context=2) == ["parallelism.context"]
    assert split(CONVNET, context=2) == ["parallelism.context"]


def test_adapters_and_overlap_that_do_not_fit(client: TestClient) -> None:
    lora = {"lora": {"rank": 16}}
    assert places(refused(client, MODEL | {"trainable": lora})) == ["workload.trainable"]
    training = MODEL | {"mode": "training"}
    assert places(refused(client, training | {"trainable": "none"})) == ["workload.trainable"]
    for rank in (0, 1.5, "16", None, 10**30):
        told = refused(client, training | {"trainable": {"lora": {"rank": rank}}})
        assert places(told) == ["workload.trainable.lora.rank"]
    for field, value in (("lora", {"rank": 8, "modules": ["head"]}), ("quantization", "nf4"), ("recompute", "op")):
        assert places(refused(client, training | {field: value}))[0].startswith(f"workload.{field}")
    both = refused(client, training | {"lora": lora["lora"], "trainable": lora})
    assert places(both) == ["workload.lora"]
    few = training | {"lora": lora["lora"], "quantization": "nf4"}
    assert places(refused(client, few | {"dtype": "int8"})) == ["workload.quantization"]
    assert places(refused(client, CONVNET | {"mode": "training", "lora": {"rank": 8}})) == ["workload.lora"]
    told = refused(client, training | {"parallelism": {"tensor": 2, "tensor_overlap": True}})
    assert places(told) == ["workload.parallelism.tensor_overlap"]


def test_training_fields_are_rejected_in_inference(client: TestClient) -> None:
    assert places(refused(client, MODEL | {"recompute": "selective"})) == ["workload.recompute"]
    assert places(refused(client, MODEL | {"mode": "training", "recompute": "some"})) == ["workload.recompute"]
    assert places(refused(client, MODEL | {"recompute": True})) == ["workload.recompute"]
    rates = {"mtbf_hours_per_device": 50000.0, "checkpoint_s": 60.0}
    assert places(refused(client, MODEL | {"failures": rates})) == ["workload.failures"]
    told = refused(client, MODEL | {"mode": "training", "failures": rates | {"mtbf_hours_per_device": 1e-5}})
    assert places(told) == ["workload.failures"]
    told = refused(client, MODEL | {"mode": "training", "failures": rates | {"checkpoint_s": 0.0}})
    assert places(told) == ["workload.failures.checkpoint_s"]
    assert places(refused(client, MODEL | {"gradient_accumulation": 2})) == ["workload.gradient_accumulation"]
    assert places(refused(client, MODEL | {"parallelism": {"zero": 3}})) == ["workload.parallelism.zero"]
    told = refused(client, MODEL | {"mode": "training", "output_tokens": 8})
    assert places(told) == ["workload.output_tokens"]


def test_fields_of_other_networks_are_rejected(client: TestClient) -> None:
    vit = {"kind": "model", "name": "vit-b-16", "sequence": 197}
    assert places(refused(client, MODEL | {"image_size": 224})) == ["workload.image_size"]
    assert places(refused(client, MODEL | {"memory_format": "channels_last"})) == ["workload.memory_format"]
    assert places(refused(client, CONVNET | {"memory_format": "nhwc"})) == ["workload.memory_format"]
    assert places(refused(client, vit)) == ["workload.sequence"]
    block = {"kind": "model", "name": "resnet50/Bottleneck99"}
    assert places(refused(client, block)) == ["workload.name"]


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"image_size": 1000}, "image_size"),
        ({"image_width": 0}, "image_width"),
        ({"image_width": 1001}, "image_width"),
        ({"frames": 5}, "frames"),
        ({"part": "scheduler"}, "part"),
        ({"part": "autoencoder", "mode": "training"}, "part"),
        ({"part": "text_encoders", "sequence": 77}, "sequence"),
        ({"frames": 0.5}, "frames"),
        ({"mode": "decode"}, "mode"),
        ({"attention": "eager"}, "attention"),
        ({"kv_dtype": "fp8"}, "kv_dtype"),
        ({"output_tokens": 8}, "output_tokens"),
        ({"input_copy": "pinned"}, "input_copy"),
        ({"memory_format": "channels_last"}, "memory_format"),
        ({"dtype": "int4_wo"}, "dtype"),
        ({"parallelism": {"tensor": 2}}, "parallelism.tensor"),
        ({"parallelism": {"pipeline": 60}}, "parallelism.pipeline"),
        ({"name": None, "config": {"_class_name": "UNet3DConditionModel"}}, "config._class_name"),
        ({"name": None, "config": {"_class_name": "FluxTransformer2DModel"}}, "config.num_attention_heads"),
    ],
)
def test_wrong_fields_of_a_diffusion_transformer_are_named(client: TestClient, extra: Body, field: str) -> None:
    flux = {"kind": "model", "name": "flux.1-dev", "dtype": "bf16"} | extra
    given = {name: value for name, value in flux.items() if value is not None}
    assert places(refused(client, given)) == [f"workload.{field}"]


@pytest.mark.parametrize("network", [{"name": "resnet18"}, {"name": "gpt2", "sequence": 8}, {"name": "vit-b-16"}])
@pytest.mark.parametrize("field", ["image_width", "frames"])
def test_only_diffusion_transformers_have_frames(client: TestClient, network: Body, field: str) -> None:
    assert places(refused(client, {"kind": "model"} | network | {field: 64})) == [f"workload.{field}"]


def test_a_sequence_is_required_and_bounded(client: TestClient) -> None:
    bare = {name: value for name, value in MODEL.items() if name != "sequence"}
    assert places(refused(client, bare)) == ["workload.sequence"]
    (place,) = places(refused(client, MODEL | {"sequence": 5000}))  # GPT-2 knows 1,024 positions
    assert place == "workload.sequence"


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_convnets_have_no_serving_figures(client: TestClient, mode: str) -> None:
    assert places(refused(client, CONVNET | {"mode": mode})) == ["workload.mode"]


def test_tensor_parallel_convnets_are_rejected(client: TestClient) -> None:
    assert places(refused(client, CONVNET | {"parallelism": {"tensor": 2}})) == ["workload.parallelism.tensor"]
    assert places(refused(client, CONVNET | {"sequence": 8})) == ["workload.sequence"]
    assert places(refused(client, CONVNET | {"name": "alexnet", "image_size": 16})) == ["workload.image_size"]
    assert places(refused(client, CONVNET | {"output_tokens": 3})) == ["workload.output_tokens"]


@pytest.mark.parametrize("size", [[224, 224], "large", 2**40])
def test_an_invalid_image_size_is_rejected(client: TestClient, size: Any) -> None:
    vit = {"model_type": "vit", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12}
    config = vit | {"intermediate_size": 3072, "patch_size": 16, "image_size": size}
    assert places(refused(client, {"kind": "model", "config": config})) == ["workload.config.image_size"]


def test_a_dtype_that_the_gpu_lacks(client: TestClient) -> None:
    told = refused(client, MODEL | {"dtype": "bf16"}, gpu="titan-v")
    assert places(told) == ["workload.dtype"]
    # What stands beside its products of FP8 is in BF16: that alone would be news to who asked for FP8
    told = refused(client, MODEL | {"dtype": "fp8"}, gpu="titan-v")
    assert told["errors"][0]["msg"] == "titan-v does not compute in fp8 nor bf16"
    assert "titan-v" in told["detail"]


def test_graphs(client: TestClient) -> None:
    first, *others = GRAPH_EXAMPLE["nodes"]
    assert places(refused(client, {"kind": "graph"}))[0].startswith("workload.graph")
    assert places(refused(client, GRAPH | {"graph_id": "x"}))[0].startswith("workload.graph")
    assert places(refused(client, GRAPH | {"graph": {"nodes": []}})) == ["workload.graph.nodes"]
    cycle = [first | {"inputs": ["p"]}, *others]
    assert places(refused(client, GRAPH | {"graph": GRAPH_EXAMPLE | {"nodes": cycle}}))
    dangling = [first | {"inputs": ["nobody"]}, *others]
    (place,) = places(refused(client, GRAPH | {"graph": GRAPH_EXAMPLE | {"nodes": dangling}}))[:1]
    assert place == "workload.graph.nodes.0.inputs.0"
    assert places(refused(client, GRAPH | {"mode": "decode"})) == ["workload.mode"]
    assert places(refused(client, GRAPH | {"dims": {"batch": 0}})) == ["workload.dims"]


@pytest.mark.parametrize("predictor", ["forest", "efficiency", "no-such"])
def test_predictors_of_kernels_only_are_rejected(client: TestClient, predictor: str) -> None:
    for workload in (MODEL, CONVNET, GRAPH):
        assert places(refused(client, workload, predictor=predictor)) == ["predictor"]


def test_an_unknown_gpu(client: TestClient) -> None:
    assert places(refused(client, MODEL, 404, gpu="h1000")) == ["gpu"]


def test_the_largest_valid_figures_are_predicted(client: TestClient) -> None:
    sizes = {"data": 2**16, "tensor": 1, "pipeline": 1, "nodes": 2**16}
    huge = MODEL | {"batch": 2**24, "mode": "training", "parallelism": sizes, "dataset_size": 1e15}
    answer = client.post("/predict", json={"gpu": "nvidia-l4", "workload": huge})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"latency_ms": 1e-3}, [0, "latency_ms"]),
        ({"workload": MODEL | {"config": {"model_type": "hal"}}}, [0, "workload", "config", "model_type"]),
        ({"workload": MODEL | {"batch": 0}}, [0, "workload", "batch"]),
        ({"workload": MODEL | {"output_tokens": 5}}, [0, "workload", "output_tokens"]),
        ({"workload": MODEL | {"software": "vllm-0.24"}}, [0, "workload", "software"]),
        ({"workload": {"kind": "model"}}, [0, "workload", "config"]),
        ({"workload": MODEL | {"config": GPT2_LARGE | {"n_layer": 10**9}}}, [0, "workload", "config", "n_layer"]),
    ],
)
def test_invalid_measured_networks_are_rejected(client: TestClient, change: Body, place: list[Any]) -> None:
    row = {"gpu": "nvidia-l4", "software": "pytorch-2.1", "source": "mine", "latency_ms": 500.0, "workload": MODEL}
    answer = client.post("/measurements", json=[row | change])
    assert answer.status_code == 422, answer.text
    assert place in [error["loc"] for error in answer.json()["errors"]]
