"""POST /predict, kinds model and graph, as in the HTTP contract."""

from __future__ import annotations

import math
import re
import shlex
from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient

from app.config import CHECKOUT
from app.networks.builtin import find_config
from app.networks.convnets import CONVNETS
from app.predictors import OPERATOR_PREDICTORS
from app.services.models.resolve_networks import network_names
from app.services.models.whole_networks import NETWORKS_ONLY
from app.wire.graph_form import GRAPH_EXAMPLE
from app.wire.network_form import GPT2_LARGE, MODEL_EXAMPLE
from tests.unit.transformers import config

Body = dict[str, Any]
SMALL = GPT2_LARGE | {"n_embd": 768, "n_head": 12, "n_layer": 12}
MODEL: Body = {"kind": "model", "config": SMALL, "batch": 4, "sequence": 256, "dtype": "fp32"}
CONVNET: Body = {"kind": "model", "name": "resnet50", "batch": 8, "image_size": 224, "dtype": "fp32"}
GRAPH: Body = {"kind": "graph", "graph": GRAPH_EXAMPLE, "batch": 32}
IMAGE = {"shape": ["batch", 64, 56, 56]}
CONVOLUTIONS: Body = {
    "kind": "graph",
    "graph": {
        "inputs": [{"name": "image", **IMAGE}],
        "nodes": [
            {"name": "conv", "op": "conv2d", "inputs": ["image"], "outputs": [IMAGE], "parameters": 36864}
            | {"attributes": {"kernel_size": 3, "padding": 1}},
            {"name": "norm", "op": "batch_norm", "inputs": ["conv"], "outputs": [IMAGE], "parameters": 128},
        ],
    },
}


def ask(client: TestClient, workload: Body, **more: Any) -> Body:
    target = {} if "gpus" in more else {"gpu": "nvidia-l4"}
    answer = client.post("/predict", json={"workload": workload, **target, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["predictions"][0])


def split(workload: Body, **sizes: Any) -> Body:
    return workload | {"parallelism": sizes}


def test_the_contracts_example_and_every_field(client: TestClient) -> None:
    answer = client.post("/predict", json=MODEL_EXAMPLE)
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["predictions"]
    fields = (
        "gpu latency_ms interval_ms bound predictor support memory breakdown warnings warning_codes devices phases_ms"
    )
    assert list(found) == [*fields.split(), "throughput_per_s", "largest_batch"]
    assert found["interval_ms"]["low"] <= found["latency_ms"] <= found["interval_ms"]["high"]
    # 36 layers of four linears, and the head.
    assert next(part["operators"] for part in found["breakdown"] if part["group"] == "linear") == 36 * 4 + 1
    assert sum(part["share"] for part in found["breakdown"]) == pytest.approx(1)
    assert sum(part["latency_ms"] for part in found["breakdown"]) == pytest.approx(found["latency_ms"])
    assert found["phases_ms"]["forward"] == pytest.approx(found["latency_ms"])
    assert found["phases_ms"]["backward"] == found["phases_ms"]["update"] == 0
    assert found["throughput_per_s"] == pytest.approx(4 / (found["latency_ms"] / 1e3))
    assert found["memory"]["fits"] is True
    # 774,030,080 parameters of GPT-2 Large, as published, in FP32.
    assert found["memory"]["breakdown"]["weights_bytes"] == pytest.approx(4 * 774_030_080, rel=1e-3)
    assert found["memory"]["required_bytes"] == pytest.approx(sum(found["memory"]["breakdown"].values()))


def test_the_limit_of_a_transformer_by_hand(client: TestClient) -> None:
    """The roofline of linears is FLOPs over the peak: 2 x tokens x weights of the linears."""
    rows = ask(client, MODEL, predictor="roofline", detail=True)["operators"]
    linear = sum(row["flops"] for row in rows if row["op"] == "linear")
    width, tokens, vocabulary = 768, 4 * 256, 50257
    assert linear == pytest.approx(2 * tokens * (12 * 12 * width**2 + width * vocabulary))


def test_phases_of_training_add_up(client: TestClient) -> None:
    found = ask(client, MODEL | {"mode": "training"})
    phases = found["phases_ms"]
    assert sum(phases.values()) == pytest.approx(found["latency_ms"])
    assert 1.3 * phases["forward"] < phases["backward"] < 3 * phases["forward"]
    assert phases["update"] > 0
    assert phases["communication"] == 0
    bare = ask(client, MODEL | {"mode": "training", "optimizer": "none"})
    assert bare["phases_ms"]["update"] == 0
    assert bare["latency_ms"] < found["latency_ms"]
    assert bare["memory"]["breakdown"]["optimizer_bytes"] == 0


def test_training_says_which_attention_it_is_assumed_to_run(client: TestClient) -> None:
    def warned(**more: Any) -> list[str]:
        found = ask(client, MODEL | {"mode": "training"} | more)
        return [warning for warning in found["warnings"] if "no attention is given" in warning]

    assert "eager" in warned()[0]
    assert "FlashAttention 2" in warned(dtype="bf16")[0]
    assert "FlashAttention 1" in warned(dtype="fp16", software="pytorch-2.1")[0]
    assert "eager" in warned(dtype="fp16", software="pytorch-1.13")[0]
    assert "FlashAttention 2" in warned(dtype="fp8", software="megatron-core-0.14")[0]
    assert not warned(dtype="bf16", attention="flash")


def test_attention_on_hopper_is_as_quick_as_the_kernels_of_that_pytorch(client: TestClient) -> None:
    long = MODEL | {"batch": 64, "sequence": 1024, "dtype": "bf16", "attention": "flash"}
    second, cudnn, newer = (
        ask(client, long | {"software": f"pytorch-{version}"}, gpu="h100-sxm5-80gb")["latency_ms"]
        for version in ("2.10", "2.11", "2.13")
    )
    assert cudnn == newer < second


def test_adapters_and_split_sequences_are_predicted(client: TestClient) -> None:
    training = {
        "kind": "model",
        "name": "llama-3-8b",
        "mode": "training",
        "dtype": "mxfp8",
        "batch": 8,
        "sequence": 2048,
        "recompute": "none",
    }
    whole = ask(client, training, gpu="b200")
    lora = ask(client, training | {"trainable": {"lora": {"rank": 16}}}, gpu="b200")
    assert lora["latency_ms"] < whole["latency_ms"]
    states, frozen = (
        sum(each["memory"]["parts"][part] for part in ("gradients", "optimizer_states")) for each in (whole, lora)
    )
    assert frozen < 0.01 * states < lora["memory"]["required_bytes"] < whole["memory"]["required_bytes"] - states
    sizes = {"tensor": 2, "sequence": True, "tensor_overlap": True, "context": 2, "pipeline": 2, "virtual_pipeline": 4}
    found = ask(client, training | {"parallelism": sizes | {"microbatches": 4}}, gpu="b200")
    assert found["devices"] == 8
    assert found["latency_ms"] < whole["latency_ms"]


def test_epochs_round_up(client: TestClient) -> None:
    found = ask(client, MODEL | {"mode": "training", "dataset_size": 1001})
    assert found["epoch_ms"] == pytest.approx(251 * found["latency_ms"])


def test_data_parallel_devices_share_the_batch_and_communicate(client: TestClient) -> None:
    alone = ask(client, MODEL | {"mode": "training"}, gpu="a100-sxm4-40gb")
    shared = ask(client, split(MODEL | {"mode": "training", "batch": 16}, data=4), gpu="a100-sxm4-40gb")
    assert shared["devices"] == 4
    assert shared["memory"]["breakdown"]["weights_bytes"] == alone["memory"]["breakdown"]["weights_bytes"]
    assert alone["latency_ms"] < shared["latency_ms"] < 2 * alone["latency_ms"]
    assert shared["phases_ms"]["communication"] >= 0
    assert alone["throughput_per_s"] < shared["throughput_per_s"] <= 4 * alone["throughput_per_s"]


@pytest.mark.parametrize("sizes", [{"tensor": 4}, {"pipeline": 4, "microbatches": 4}, {"data": 2, "tensor": 2}])
def test_split_networks_take_less_time_and_memory_per_device(client: TestClient, sizes: Body) -> None:
    alone = ask(client, MODEL | {"mode": "training"}, gpu="h100-sxm5-80gb")
    found = ask(client, split(MODEL | {"mode": "training"}, **sizes), gpu="h100-sxm5-80gb")
    assert found["devices"] == 4
    assert found["memory"]["required_bytes"] < alone["memory"]["required_bytes"]
    if "pipeline" not in sizes:
        assert found["phases_ms"]["communication"] > 0
        assert found["phases_ms"]["forward"] < alone["phases_ms"]["forward"]


@pytest.mark.parametrize("workload", [MODEL, CONVNET, GRAPH])
@pytest.mark.parametrize("predictor", [predictor.name for predictor in OPERATOR_PREDICTORS])
def test_every_predictor_of_operators_answers_for_networks(client: TestClient, workload: Body, predictor: str) -> None:
    body = {"gpu": "nvidia-l4", "workload": workload, "predictor": predictor}
    answer = client.post("/predict", json=body)
    if answer.status_code == 409:
        assert answer.json()["type"] == "urn:gpucast:problem:not-trained"
        return
    if predictor in NETWORKS_ONLY and workload is not CONVNET:
        assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, ["predictor"])
        return
    (found,) = answer.json()["predictions"]
    assert 0 < found["interval_ms"]["low"] <= found["latency_ms"] <= found["interval_ms"]["high"] < 1e6
    assert found["predictor"]["name"] in (predictor, "roofline")
    if predictor in NETWORKS_ONLY:
        return  # its hardware limit is of one row: less what fusion and Winograd's algorithm could save
    assert found["latency_ms"] >= 0.999 * ask(client, workload, predictor="roofline")["latency_ms"]


@pytest.mark.parametrize("predictor", ["auto", "convmeter", "convmeter_ols"])
def test_shipped_predictors_predict_a_convnet(client: TestClient, predictor: str) -> None:
    workload = CONVNET | {"batch": 64, "mode": "inference", "dtype": "fp16"}
    found = ask(client, workload, predictor=predictor, gpu="rtx-4090")
    assert found["predictor"]["name"] == predictor
    assert found["predictor"]["version"].startswith("shipped-")
    assert 1.0 < found["latency_ms"] < 100.0


def test_a_slower_network_between_nodes_takes_longer(client: TestClient) -> None:
    sizes = {"data": 4, "nodes": 2}
    one, fast, slow = (
        ask(client, split(MODEL | {"mode": "training"}, **more))["phases_ms"]["communication"]
        for more in ({"data": 4}, sizes, sizes | {"network_bytes_per_s": 1e8})
    )
    assert 0 < one < slow and 0 < fast < slow


def test_a_convnet(client: TestClient) -> None:
    found = ask(client, CONVNET | {"mode": "training"})
    # 25,557,032 parameters of ResNet-50, as published.
    assert found["memory"]["breakdown"]["weights_bytes"] == pytest.approx(4 * 25_557_032)
    assert found["breakdown"][0]["group"] == "conv2d"
    assert ask(client, CONVNET | {"image_size": 112})["latency_ms"] < ask(client, CONVNET)["latency_ms"]


def test_a_denoiser_of_videos(client: TestClient) -> None:
    wan = {"kind": "model", "name": "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "dtype": "bf16", "image_size": 480}
    image, video, wide = (
        ask(client, wan | extra, gpu="h100-sxm5-80gb")
        for extra in ({}, {"frames": 17}, {"frames": 17, "image_width": 832})
    )
    assert image["latency_ms"] < video["latency_ms"] < wide["latency_ms"]
    # 1,418,996,800 parameters, as PyTorch counts them.
    assert video["memory"]["breakdown"]["weights_bytes"] == pytest.approx(2 * 1_418_996_800)
    longer = ask(client, wan | {"frames": 17, "sequence": 2048}, gpu="h100-sxm5-80gb")
    assert longer["latency_ms"] > video["latency_ms"]


@pytest.mark.parametrize("name", network_names())
def test_every_built_in_network_by_name(client: TestClient, name: str) -> None:
    workload: Body = {"kind": "model", "name": name, "batch": 2}
    if name not in CONVNETS and not name.startswith(("vit", "dinov2")):
        workload |= {"sequence": 64, "dtype": "bf16"}
    for mode in ("inference", "training"):
        found = ask(client, workload | {"mode": mode}, gpu="h100-sxm5-80gb")
        assert found["latency_ms"] > 0
        assert not any("not known" in words for words in found["warnings"])


@pytest.mark.parametrize(
    ("extra", "dtype"),
    [
        ({}, "bf16"),
        ({"torch_dtype": "bfloat16"}, "bf16"),
        ({"torch_dtype": "float32"}, "bf16"),
        ({"dtype": "float16"}, "fp16"),
        ({"text_config": {**SMALL, "torch_dtype": "float16"}, "model_type": "gpt2"}, "fp16"),
    ],
)
def test_the_published_format_is_the_default(client: TestClient, extra: Body, dtype: str) -> None:
    workload = {**MODEL, "dtype": None, "mode": "inference", "config": SMALL | extra}
    found = ask(client, workload, gpu="h100-sxm5-80gb")
    assert any(f"no dtype is given: {dtype} is assumed" in one for one in found["warnings"])
    assert found["latency_ms"] == ask(client, workload | {"dtype": dtype}, gpu="h100-sxm5-80gb")["latency_ms"]


def test_training_without_a_format_is_mixed_precision(client: TestClient) -> None:
    for workload in (MODEL, CONVNET, MODEL | {"config": SMALL | {"torch_dtype": "float16"}}):
        training = {**workload, "mode": "training", "dtype": None}
        found, mixed = ask(client, training), ask(client, training | {"dtype": "bf16"})
        assert any("mixed precision, bf16" in one for one in found["warnings"])
        assert found["latency_ms"] == mixed["latency_ms"] and found["memory"] == mixed["memory"]
        weights, states = (found["memory"]["breakdown"][f"{part}_bytes"] for part in ("weights", "optimizer"))
        assert states == pytest.approx(6 * weights, rel=1e-2)  # master weights and two moments in FP32


@pytest.mark.parametrize("gpu", ["tesla-t4", "tesla-v100-sxm2-32gb", "titan-v"])
def test_a_gpu_without_bf16_runs_fp16_where_nobody_asked(client: TestClient, gpu: str) -> None:
    for workload in (MODEL, MODEL | {"mode": "training"}, MODEL | {"mode": "decode"}, CONVNET):
        plain = {**workload, "dtype": None}
        found, half = ask(client, plain, gpu=gpu, detail=True), ask(client, plain | {"dtype": "fp16"}, gpu=gpu)
        assert found["latency_ms"] == pytest.approx(half["latency_ms"])
        assert "bf16" not in {row["dtype"] for row in found["operators"]}
        (note,) = [one["text"] for one in found["warning_codes"] if "in place of" in one["text"]]
        assert note == f"{gpu} lacks the format: fp16 in place of bf16"
        asked = client.post("/predict", json={"gpu": gpu, "workload": plain | {"dtype": "bf16"}})
        assert asked.status_code == 422 and "does not compute in bf16" in asked.text
    together = client.post("/predict", json={"gpus": [gpu, "nvidia-l4"], "workload": {**MODEL, "dtype": None}}).json()
    own, other = together["predictions"]
    assert own["latency_ms"] == pytest.approx(ask(client, {**MODEL, "dtype": "fp16"}, gpu=gpu)["latency_ms"])
    assert other["latency_ms"] == pytest.approx(ask(client, {**MODEL, "dtype": "bf16"})["latency_ms"])


DECODE: Body = {"kind": "model", "mode": "decode", "batch": 8, "sequence": 512}


@pytest.mark.parametrize(
    ("gpu", "name", "instead"),
    [
        ("a100-sxm4-80gb", "deepseek-v3", "fp8_wo in place of fp8_block"),
        ("a100-sxm4-80gb", "qwen3-8b-fp8", "fp8_wo in place of fp8_block"),
        ("h100-sxm5-80gb", "qwen3-8b-nvfp4", "int4_wo in place of nvfp4"),
        ("tesla-t4", "qwen3-8b-awq", "fp16 in place of bf16"),
    ],
)
def test_what_a_gpu_cannot_multiply_it_reads_in_few_bits(client: TestClient, gpu: str, name: str, instead: str) -> None:
    found = ask(client, DECODE | {"name": name}, gpu=gpu)
    assert any(instead in one for one in found["warnings"])
    for dtype in ("fp8", "nvfp4", "mxfp4", "mxfp6"):  # of a model without these
        asked = client.post("/predict", json={"gpu": gpu, "workload": DECODE | {"name": "qwen3-4b", "dtype": dtype}})
        assert asked.status_code == (200 if gpu.startswith("h100") and dtype in ("fp8", "mxfp6") else 422)


def test_fp8_of_a_model_that_is_published_by_blocks_is_by_blocks(client: TestClient) -> None:
    workload = DECODE | {"name": "deepseek-v3", "software": "vllm", "parallelism": {"tensor": 8}}
    by_name, published = (ask(client, workload | more, gpu="h200-sxm-141gb") for more in ({"dtype": "fp8"}, {}))
    assert by_name["latency_ms"] == published["latency_ms"]
    assert any("published in fp8" in one and "linear fp8_block" in one for one in by_name["warnings"])
    assert published["memory"]["fits"] is True
    assert ask(client, workload | {"name": "qwen3-8b", "dtype": "fp8"}, gpu="h200-sxm-141gb")["latency_ms"] > 0


def test_fp8_of_a_mixture_whose_maker_publishes_it_by_blocks_is_by_blocks(client: TestClient) -> None:
    workload = DECODE | {"software": "vllm", "parallelism": {"tensor": 8}}
    names = {"qwen3-235b-a22b": "fp8", "Qwen/Qwen3-235B-A22B-FP8": None}
    plain, published = (
        ask(client, workload | {"name": name, "dtype": dtype}, gpu="h200-sxm-141gb") for name, dtype in names.items()
    )
    assert plain["latency_ms"] == published["latency_ms"]
    assert any("experts fp8_block" in one for one in plain["warnings"])


def test_a_format_that_a_model_is_published_in_leaves_other_parts_as_they_are(client: TestClient) -> None:
    layers = [f"model.layers.{k}.self_attn*" for k in range(36)]
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head", *layers]}
    plain = {**(find_config("qwen3-8b") or {})}
    mixed = plain | {"quantization_config": quantised}
    times = [
        ask(client, DECODE | more, gpu="b200")["latency_ms"]
        for more in ({"config": mixed}, {"config": mixed, "dtype": "nvfp4"}, {"config": plain, "dtype": "nvfp4"})
    ]
    assert times[0] == times[1] > 1.01 * times[2]


def test_a_decode_step_is_as_quick_as_its_weights_have_few_bits(client: TestClient) -> None:
    formats = ("bf16", "q8_0", "int8_wo", "fp8_wo", "q6_k", "Q4_K_M", "int4_wo")
    times = [ask(client, DECODE | {"name": "llama-3.1-8b", "dtype": dtype})["latency_ms"] for dtype in formats]
    assert times == sorted(times, reverse=True) and times[0] > 2.5 * times[-1]
    at_once = DECODE | {"name": "llama-3.1-8b", "mode": "prefill", "batch": 4, "sequence": 2048}
    dense, narrow = (ask(client, at_once | {"dtype": dtype})["latency_ms"] for dtype in ("bf16", "int4_wo"))
    assert narrow > 0.8 * dense  # products are in 16 bits


def test_six_bits_are_as_quick_as_four_on_cdna_4_and_as_eight_elsewhere(client: TestClient) -> None:
    prefill = DECODE | {"name": "llama-3.1-8b", "mode": "prefill", "sequence": 4096}
    limits = {}
    for gpu in ("amd-instinct-mi355x", "b200"):
        for dtype in ("mxfp4", "mxfp6", "fp8"):
            rows = ask(client, prefill | {"dtype": dtype}, gpu=gpu, predictor="roofline", detail=True)["operators"]
            limits[gpu, dtype] = sum(row["latency_ms"] for row in rows if row["dtype"] == dtype)
    assert limits["amd-instinct-mi355x", "mxfp6"] == pytest.approx(limits["amd-instinct-mi355x", "mxfp4"], rel=0.02)
    assert limits["b200", "mxfp6"] == pytest.approx(limits["b200", "fp8"], rel=0.02)


def test_adapters_are_trained_beside_weights_in_four_bits(client: TestClient) -> None:
    """QLoRA: 8B on 24 GB, each pass of a frozen layer widens its weights first."""
    adapted = {"kind": "model", "mode": "training", "sequence": 1024, "trainable": {"lora": {"rank": 16}}}
    narrow, plain = (ask(client, adapted | {"name": f"llama-3.1-8b{end}"}, gpu="rtx-4090") for end in ("-bnb-4bit", ""))
    assert narrow["memory"]["fits"] is True
    weights = [one["memory"]["breakdown"]["weights_bytes"] for one in (narrow, plain)]
    assert weights[0] < 0.45 * weights[1]
    assert narrow["phases_ms"]["backward"] > plain["phases_ms"]["backward"]
    whole = adapted | {"name": "llama-3.1-8b", "trainable": "all", "dtype": "int4_wo"}
    refused = client.post("/predict", json={"gpu": "rtx-4090", "workload": whole})
    assert refused.status_code == 422 and "not trained" in refused.text


def test_encoders_run_fused_attention_unless_eager_is_asked_for(client: TestClient) -> None:
    encoder = {"kind": "model", "name": "bge-m3", "sequence": 512, "batch": 32}
    found, fused, eager = (
        ask(client, encoder | more, detail=True) for more in ({}, {"attention": "fused"}, {"attention": "eager"})
    )
    assert (
        found["latency_ms"] == pytest.approx(fused["latency_ms"], rel=0.01)
        and eager["latency_ms"] > 1.5 * found["latency_ms"]
    )
    assert "softmax" not in {row["op"] for row in found["operators"]}
    wide = ask(client, encoder | {"dtype": "fp32"})
    assert not any("CUDA graphs" in one for one in wide["warnings"])  # eager attention, launched by the host


def test_the_vision_encoder_is_said_to_be_left_out(client: TestClient) -> None:
    found = ask(client, DECODE | {"name": "gemma-3-27b", "mode": "prefill", "dtype": "int4_wo"}, gpu="h100-sxm5-80gb")
    (note,) = [one["text"] for one in found["warning_codes"] if one["code"] == "encoder_left_out"]
    assert "its time is not in" in note
    text = ask(client, DECODE | {"name": "qwen3-8b"}, gpu="h100-sxm5-80gb")
    assert "encoder_left_out" not in [one["code"] for one in text["warning_codes"]]


def test_what_is_measured_without_a_format_is_stored_with_the_one_that_ran(client: TestClient) -> None:
    workload = {**MODEL, "batch": 3, "dtype": None, "mode": "training"}
    for gpu, dtype in (("nvidia-l4", "bf16"), ("titan-v", "fp16")):
        before = ask(client, workload, gpu=gpu)["latency_ms"]
        row = {"gpu": gpu, "software": "pytorch-2.1", "source": "of the default", "workload": workload}
        assert client.post("/measurements", json=[row | {"latency_ms": 1.2 * before}]).json()["inserted"] == 1
        (stored,) = client.get(f"/measurements?source=of the default&gpu={gpu}").json()["items"]
        assert stored["workload"]["dtype"] == dtype
        assert ask(client, workload, gpu=gpu)["latency_ms"] == pytest.approx(1.2 * before)
    assert client.delete("/measurements?source=of the default").status_code == 200  # they would teach other steps


def test_llama_fits_an_l4_as_published(client: TestClient) -> None:
    prefill = {"kind": "model", "name": "llama-3.1-8b", "mode": "prefill", "sequence": 1024}
    assert ask(client, prefill)["memory"]["fits"] is True


def test_a_quantised_configuration_has_its_formats_unless_a_dtype_is_given(client: TestClient) -> None:
    fp8 = {"quantization_config": {"quant_method": "fp8"}}
    plain, ignored, read = (
        ask(client, MODEL | {"mode": "inference", "config": SMALL | extra} | dtype, gpu="h100-sxm5-80gb")
        for extra, dtype in (({}, {"dtype": "bf16"}), (fp8, {"dtype": "bf16"}), (fp8, {"dtype": None}))
    )
    assert ignored["latency_ms"] == plain["latency_ms"]
    assert any("quantization_config is ignored" in words for words in ignored["warnings"])
    assert any("linear fp8" in words for words in read["warnings"])
    assert read["memory"]["breakdown"]["weights_bytes"] < plain["memory"]["breakdown"]["weights_bytes"]
    assert not any("quantization_config" in words for words in plain["warnings"])


def test_a_context_that_the_model_has_no_positions_for_is_warned_of(client: TestClient) -> None:
    model = config("llama-2-7b", max_position_embeddings=512)
    decode = {"kind": "model", "config": model, "mode": "decode", "dtype": "bf16"}
    for sequence, warned in ((512, False), (513, True)):
        found = ask(client, decode | {"sequence": sequence}, gpu="h100-sxm5-80gb")
        assert any("max_position_embeddings, 512" in words for words in found["warnings"]) is warned


def test_block_scaled_products_wait_for_the_host(client: TestClient) -> None:
    model = {"kind": "model", "name": "gpt2", "mode": "inference", "batch": 1, "sequence": 128}
    for dtype, software, warned in (
        ("fp8_block", None, True),
        ("fp8_block", "pytorch-2.6", False),
        ("fp8", None, False),
    ):
        body = {"gpu": "h100-sxm5-80gb", "workload": model | {"dtype": dtype, "software": software}}
        words = client.post("/predict", json=body).json()["predictions"][0]["warnings"]
        assert any("in fp8_block were measured with what the host does" in one for one in words) == warned


def test_a_graph_and_its_unknown_operators(client: TestClient) -> None:
    found = ask(client, GRAPH, detail=True)
    assert [row["op"] for row in found["operators"]] == ["linear", "relu", "linear", "softmax"]
    odd = {"name": "odd", "op": "quantum_sort", "inputs": ["p"], "outputs": [{"shape": ["batch", 10]}]}
    graph = GRAPH_EXAMPLE | {"nodes": [*GRAPH_EXAMPLE["nodes"], odd]}
    words = ask(client, GRAPH | {"graph": graph})["warnings"]
    assert any("quantum_sort (1)" in line for line in words)


def test_a_stored_graph_by_its_id(client: TestClient) -> None:
    graph_id = client.post("/graphs", json=GRAPH_EXAMPLE).raise_for_status().json()["graph_id"]
    stored = ask(client, {"kind": "graph", "graph_id": graph_id, "batch": 32})
    assert stored == ask(client, GRAPH)
    assert ask(client, GRAPH | {"dtype": "fp16"})["memory"]["required_bytes"] < stored["memory"]["required_bytes"]
    answer = client.post("/predict", json={"gpu": "nvidia-l4", "workload": {"kind": "graph", "graph_id": "0" * 64}})
    assert answer.status_code == 404


def test_detail_adds_up_to_the_device_time(client: TestClient) -> None:
    found = ask(client, MODEL | {"mode": "training", "dtype": "bf16", "software": "a-stack"}, detail=True)
    rows = found["operators"]
    assert {row["phase"] for row in rows} == {"forward", "backward", "update"}
    assert len(rows) < 150
    assert sum(row["latency_ms"] for row in rows) == pytest.approx(found["latency_ms"], rel=1e-6)
    for row in rows:
        assert row["limit_ms"] <= row["low_ms"] <= row["latency_ms"] <= row["high_ms"]


def test_the_host_launches_eager_operators(client: TestClient) -> None:
    tiny = MODEL | {"batch": 1, "sequence": 8}
    eager, graphed = (ask(client, tiny | {"software": name}) for name in ("pytorch-2.1", "vllm-0.24"))
    assert eager["latency_ms"] > 1.2 * graphed["latency_ms"]
    assert eager["bound"] == "launch"
    assert any(part["group"] == "waiting" for part in eager["breakdown"])


def test_a_busy_device_hides_a_slow_host(client: TestClient) -> None:
    network = {"kind": "model", "name": "gpt2", "sequence": 16, "dtype": "fp32"}
    for batch, slow in ((1, True), (256, False)):
        found = ask(client, network | {"batch": batch}, detail=True)
        launches = sum(row["count"] for row in found["operators"])
        wide = found["interval_ms"]["high"] / found["latency_ms"]
        assert (wide > 2.3) == slow, "a host may be 2.7 times as slow, which shows where it launches"
        assert not slow or found["interval_ms"]["high"] > launches * 30e-3
        graphed = ask(client, network | {"batch": batch, "software": "vllm-0.24"})
        assert graphed["interval_ms"]["high"] < 3 * graphed["latency_ms"]
    narrow = ask(client, network | {"batch": 1}, coverage=0.2)
    assert narrow["interval_ms"]["high"] < 2 * narrow["latency_ms"]


def test_prefill_decode_and_serving_figures(client: TestClient) -> None:
    served = MODEL | {"dtype": "bf16", "output_tokens": 64}
    found = ask(client, served, gpu="h100-sxm5-80gb")["serving"]
    prefill = ask(client, MODEL | {"dtype": "bf16", "mode": "prefill"}, gpu="h100-sxm5-80gb")
    assert found["ttft_ms"] == pytest.approx(prefill["latency_ms"])
    first, last = (
        ask(client, MODEL | {"dtype": "bf16", "mode": "decode", "sequence": context}, gpu="h100-sxm5-80gb")
        for context in (257, 319)
    )
    assert 0.99 * first["latency_ms"] <= found["tpot_ms"] <= 1.01 * last["latency_ms"]
    assert found["request_ms"] == pytest.approx(found["ttft_ms"] + 63 * found["tpot_ms"])
    assert found["tokens_per_s"] == pytest.approx(4 * 64 / (found["request_ms"] / 1e3))
    assert set(found["definitions"]) == set(found) - {"definitions"}
    assert first["throughput_per_s"] == pytest.approx(4 / (first["latency_ms"] / 1e3))
    assert first["memory"]["breakdown"]["kv_cache_bytes"] > 0


def test_steps_of_old_engines_wait_for_their_host(client: TestClient) -> None:
    decode = MODEL | {"mode": "decode", "batch": 64, "dtype": "fp16"}
    names = ("vllm-0.5.0", "vllm-0.11.0", "vllm-0.19.0", "vllm")
    first, second, later, unsaid = (ask(client, decode | {"software": name}) for name in names)
    assert first["latency_ms"] - later["latency_ms"] == pytest.approx(0.6 + 64 * 0.09)
    assert second["latency_ms"] - later["latency_ms"] == pytest.approx(0.4 + 64 * 0.029)
    assert later["latency_ms"] == unsaid["latency_ms"]
    assert first["breakdown"][0]["group"] == "waiting"
    assert sum(first["phases_ms"].values()) == pytest.approx(first["latency_ms"])
    eight = ask(client, decode | {"software": "vllm-0.5.0", "parallelism": {"data": 8}})
    assert eight["breakdown"][0]["latency_ms"] == pytest.approx(0.6 + 8 * 0.09, rel=0.2)


def test_torch_optim_moves_each_number_several_times(client: TestClient) -> None:
    """21 numbers of 4 bytes for AdamW (28.9 ms for OPT-1.3B in FP32 on our H200, of which 9 would be one kernel's)."""
    step = MODEL | {"mode": "training", "dtype": "fp32"}
    for optimizer, times in (("sgd", 1.0), ("adam", 76 / 28), ("adamw", 84 / 28)):
        softwares = ("megatron-0.12", "pytorch-2.11")
        fused, by_torch = (
            ask(client, step | {"optimizer": optimizer, "software": software})["phases_ms"]["update"]
            for software in softwares
        )
        assert by_torch == pytest.approx(times * fused, rel=0.1)


@pytest.mark.parametrize("workload", [CONVNET, CONVOLUTIONS])
def test_channels_last_need_no_conversion_on_hopper(client: TestClient, workload: Body) -> None:
    asked = workload | {"dtype": "bf16", "batch": 256, "mode": "training"}
    formats = ("channels_first", "channels_last")
    first, last = (ask(client, asked | {"memory_format": each}, gpus=["h100-sxm5-80gb"]) for each in formats)
    assert ask(client, asked, gpus=["h100-sxm5-80gb"])["latency_ms"] == first["latency_ms"]
    # Without copies of every image, and with batch norms over all SMs
    assert last["latency_ms"] < 0.8 * first["latency_ms"]
    assert last["memory"] == first["memory"]


def test_the_host_of_eager_software_says_how_long_launches_take(client: TestClient) -> None:
    small = CONVNET | {"batch": 1}
    answers = {host: ask(client, small | {"host": host}) for host in ("desktop", "datacenter", "old")} | {
        None: ask(client, small)
    }
    times = [answers[host]["latency_ms"] for host in ("desktop", None, "datacenter", "old")]
    assert times == sorted(times) and times[-1] > 2 * times[0]
    assert answers["datacenter"]["interval_ms"]["high"] < answers[None]["interval_ms"]["high"]
    graphs = ask(client, small | {"host": "old", "software": "vllm-0.24", "dtype": "fp16"})
    whole = ask(client, small | {"host": "old"}, predictor="convmeter")
    for unused in (graphs, whole):
        assert any("host is ignored" in each for each in unused["warnings"])


@pytest.mark.parametrize("predictor", ["auto", "convmeter"])
def test_a_step_waits_for_the_copy_of_its_images(client: TestClient, predictor: str) -> None:
    sources = ("none", "pageable", "pinned")
    there, pageable, pinned = (ask(client, CONVNET | {"input_copy": source}, predictor=predictor) for source in sources)
    image_ms = 3 * 224**2 * 4 / 31.5e9 * 1e3  # over PCIe 4, in FP32
    assert pageable["latency_ms"] - there["latency_ms"] == pytest.approx(8 * image_ms / 0.4)
    assert pinned["latency_ms"] - there["latency_ms"] == pytest.approx(8 * image_ms / 0.7)
    assert pageable["phases_ms"]["forward"] == pytest.approx(pageable["latency_ms"])
    assert sum(part["latency_ms"] for part in pageable["breakdown"]) == pytest.approx(pageable["latency_ms"])
    assert pageable["interval_ms"]["high"] > there["interval_ms"]["high"] + 8 * image_ms / 0.4


def test_copies_are_shared_by_devices_and_tokens_are_small(client: TestClient) -> None:
    def copy_ms(workload: Body) -> float:
        there, copied = (ask(client, workload | {"input_copy": source}) for source in ("none", "pageable"))
        return float(copied["latency_ms"] - there["latency_ms"])

    assert copy_ms(split(CONVNET, data=2)) == pytest.approx(copy_ms(CONVNET) / 2)
    assert copy_ms(CONVNET | {"dtype": "fp16"}) == pytest.approx(copy_ms(CONVNET) / 2)
    assert copy_ms(MODEL) == pytest.approx(4 * 256 * 8 / (0.4 * 31.5e9) * 1e3)


def test_networks_that_do_not_fit_are_predicted_with_a_configuration_that_does(client: TestClient) -> None:
    asked = MODEL | {"config": GPT2_LARGE, "mode": "training", "batch": 16, "sequence": 1024}
    found = ask(client, asked)
    assert found["memory"]["fits"] is False
    assert any("does not fit" in words for words in found["warnings"])
    assert found["suggestions"]
    for suggestion in found["suggestions"]:
        changed = ask(client, asked | suggestion["change"])
        assert changed["memory"]["fits"] is True
        assert changed["memory"]["required_bytes"] == pytest.approx(suggestion["required_bytes"], rel=1e-6)


@pytest.mark.parametrize("more", [{"mode": "training", "recompute": "none"}, {"mode": "decode", "dtype": "bf16"}, {}])
def test_the_largest_batch_fits_and_one_more_does_not(client: TestClient, more: Body) -> None:
    most = ask(client, MODEL | more)["largest_batch"]
    assert most > 0
    assert ask(client, MODEL | more | {"batch": most})["memory"]["fits"] is True
    assert ask(client, MODEL | more | {"batch": most + 1})["memory"]["fits"] is False


def test_several_gpus_all_gpus_and_gpus_without_the_dtype(client: TestClient) -> None:
    body = {"workload": MODEL | {"dtype": "bf16"}, "gpus": "all"}
    answer = client.post("/predict", json=body).json()
    told = {one["gpu"] for one in answer["predictions"]}, {one["gpu"] for one in answer["skipped"]}
    assert "h100-sxm5-80gb" in told[0] and "titan-x-pascal" not in told[0]
    assert told[1] and not told[0] & told[1]
    two = client.post("/predict", json={"workload": MODEL, "gpus": ["titan-v", "NVIDIA L4"]}).json()["predictions"]
    assert [one["gpu"] for one in two] == ["titan-v", "nvidia-l4"]
    assert two[1] == ask(client, MODEL)


def test_whole_numbers_may_be_written_as_floats(client: TestClient) -> None:
    assert ask(client, MODEL | {"batch": 4.0, "sequence": 256.0}) == ask(client, MODEL)


def test_a_network_takes_the_sum_of_its_operators_if_nothing_waits(client: TestClient) -> None:
    """The same linear by itself, as often as the network has it."""
    rows = ask(client, MODEL | {"software": "vllm-0.24"}, detail=True)["operators"]
    row = next(row for row in rows if row["op"] == "linear" and row["count"] == 12)
    width = 768
    shapes = {(4 * width, width), (width, width), (width, 4 * width), (3 * width, width)}
    times = []
    for n, k in shapes:
        linear = {"op": "linear", "m": 1024, "n": n, "k": k, "dtype": "fp32", "software": "vllm-0.24", "count": 12}
        times.append(ask(client, {"kind": "operators", "operators": [linear]})["latency_ms"])
    assert any(math.isclose(row["latency_ms"], time, rel_tol=1e-9) for time in times)


@pytest.mark.parametrize(
    ("workload", "others"),
    [
        (MODEL | {"mode": "training", "optimizer": "adamw"}, [{"optimizer": "sgd"}]),
        (CONVNET | {"batch": 3}, [{"memory_format": "channels_last"}]),
        (CONVNET | {"batch": 5, "memory_format": "channels_last"}, [{"memory_format": "channels_first"}]),
    ],
)
def test_a_measured_network_is_predicted_by_its_measurement(
    client: TestClient, workload: Body, others: list[Body]
) -> None:
    before = ask(client, workload)
    row = {"gpu": "nvidia-l4", "software": "pytorch-2.1", "source": "mine", "workload": workload}
    times = [1.3 * before["latency_ms"], 1.5 * before["latency_ms"], 1.4 * before["latency_ms"]]
    sent = client.post("/measurements", json=[row | {"latency_ms": ms} for ms in times])
    assert sent.json()["inserted"] == 3, sent.text
    found = ask(client, workload)
    assert found["latency_ms"] == pytest.approx(times[2])
    assert found["support"] == "measured"
    assert found["interval_ms"]["low"] < found["latency_ms"] < found["interval_ms"]["high"]
    assert sum(found["phases_ms"].values()) == pytest.approx(found["latency_ms"])
    assert found["throughput_per_s"] == pytest.approx(before["throughput_per_s"] / 1.4)
    named = ask(client, workload | {"software": "pytorch-2.1"})  # what was measured says so beside the network
    assert (named["support"], named["latency_ms"]) == ("measured", found["latency_ms"])
    for other in ({"software": "vllm-0.24"}, {"dtype": "fp16"}, {"batch": 1}, *others):
        assert ask(client, workload | other)["support"] != "measured"
    assert ask(client, workload, gpu="tesla-t4")["support"] != "measured"
    assert ask(client, workload, predictor="roofline")["support"] != "measured"
    inline = client.get("/gpus/nvidia-l4").json() | {"id": "my-l4", "name": "mine", "aliases": []}
    assert ask(client, workload, gpu=inline)["support"] != "measured"


def test_the_examples_of_the_documentation(client: TestClient) -> None:
    text = (CHECKOUT / "docs" / "reference" / "models.md").read_text("utf-8")
    commands = re.findall(r"```bash\n(curl .*?)\n```", text, re.DOTALL)
    assert len(commands) >= 4
    for command in commands:
        words = shlex.split(command)
        body = orjson.loads(words[words.index("-d") + 1])
        answer = client.post("/predict", json=body)
        assert answer.status_code == 200, (command, answer.text)


def test_training_says_what_its_stack_was_assumed_to_do_and_every_part_of_the_memory(client: TestClient) -> None:
    body = {"kind": "model", "name": "llama-3-8b", "mode": "training", "batch": 16, "sequence": 1024}
    body |= {"software": "torchtitan", "compiled": True, "parallelism": {"data": 8}}
    found = ask(client, body)
    assert {"recompute_assumed", "parallelism_assumed"} < {told["code"] for told in found["warning_codes"]}
    assert sum(found["memory"]["parts"].values()) == pytest.approx(found["memory"]["required_bytes"])
    named = body | {"recompute": "selective_op", "parallelism": {"data": 8, "zero": 3}}
    assert ask(client, named)["latency_ms"] == found["latency_ms"]
    assert ask(client, named | {"recompute": "selective"})["memory"] == found["memory"]
    assert "parts" not in ask(client, MODEL)["memory"]


def test_training_that_is_short_of_memory_recomputes_the_least_that_fits(client: TestClient) -> None:
    """90 GiB as it is, 61 but for some operators, 40 with whole layers again (on 48, 80 and 141 GB)."""
    body = {"kind": "model", "name": "llama-3-8b", "mode": "training", "batch": 24, "sequence": 4096, "compiled": True}
    body |= {"software": "pytorch-2.6", "parallelism": {"data": 8, "zero": 3}}
    least = {"l40s": "full", "h100-sxm5-80gb": "selective_op", "h200-sxm-141gb": "none"}
    rows = client.post("/predict", json={"gpus": [*least], "workload": body}).json()["predictions"]
    assert [row["gpu"] for row in rows] == [*least]
    for row, recompute in zip(rows, least.values(), strict=True):
        given = ask(client, body | {"recompute": recompute}, gpu=row["gpu"])
        assert given["memory"] == row["memory"] and row["memory"]["fits"]
        assert (given["latency_ms"], given["largest_batch"]) == (row["latency_ms"], row["largest_batch"])
        notes = [each["text"] for each in row["warning_codes"] if each["code"] == "recompute_assumed"]
        assert len(notes) == (recompute != "none") and all(recompute in text for text in notes)
    unfit = ask(client, body | {"recompute": "none"}, gpu="h100-sxm5-80gb")
    assert not unfit["memory"]["fits"]
    assert {"recompute": True} in [each["change"] for each in unfit["suggestions"]]
    assert not ask(client, body | {"batch": 240}, gpu="h100-sxm5-80gb")["memory"]["fits"]


def test_modules_are_recomputed_by_name(client: TestClient) -> None:
    body = {"kind": "model", "name": "llama-3-8b", "mode": "training", "batch": 8, "sequence": 4096}
    body |= {"software": "megatron-bridge-26.02", "parallelism": {"data": 8}, "recompute": "none"}
    plain = ask(client, body, gpu="h200-sxm-141gb")
    modules = {"recompute": "selective", "recompute_modules": ["mlp", "layernorm"]}
    again = ask(client, body | modules, gpu="h200-sxm-141gb")
    assert again["memory"]["parts"]["activations"] < 0.5 * plain["memory"]["parts"]["activations"]
    assert again["latency_ms"] > 1.1 * plain["latency_ms"]
    for wrong in ({"recompute": "full", "mode": "training"}, {"mode": "inference"}):
        request = {"gpu": "b200", "workload": body | {"recompute": None, "recompute_modules": ["mlp"]} | wrong}
        answer = client.post("/predict", json=request)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["loc"] == ["workload", "recompute_modules"]


def test_goodput_follows_young_and_daly(client: TestClient) -> None:
    """8 devices of 800 hours each, a checkpoint of a minute: sqrt(2 x 60 x 360,000) s between checkpoints (Young)."""
    rates = {"mtbf_hours_per_device": 800.0, "checkpoint_s": 60.0}
    body = MODEL | {"mode": "training", "batch": 8, "parallelism": {"data": 8}, "dataset_size": 800}
    found = ask(client, body | {"failures": rates})
    goodput = found["goodput"]
    young = math.sqrt(2 * 60 * 360_000)
    assert goodput["mtbf_s"] == pytest.approx(360_000)
    assert goodput["best_checkpoint_interval_s"] == pytest.approx(young, rel=0.01)
    assert goodput["expected_over_ideal"] == pytest.approx(1 + 60 / young + young / 720_000, rel=1e-3)
    assert goodput["share"] * goodput["expected_over_ideal"] == pytest.approx(1.0)
    assert goodput["expected_epoch_ms"] == pytest.approx(found["epoch_ms"] * goodput["expected_over_ideal"])
    for interval in (0.5 * young, 2.0 * young):
        worse = ask(client, body | {"failures": rates | {"checkpoint_interval_s": interval}})["goodput"]
        assert worse["checkpoint_interval_s"] == interval
        assert worse["expected_over_ideal"] > goodput["expected_over_ideal"]
    assert "goodput" not in ask(client, body)


def test_qlora_keeps_a_quarter_of_the_frozen_weights(client: TestClient) -> None:
    body = {"kind": "model", "name": "llama-3-8b", "mode": "training", "sequence": 1024, "software": "transformers"}
    plain, few = (ask(client, body | {"lora": {"rank": 16}} | more) for more in ({}, {"quantization": "nf4"}))
    embedded = 2 * 2 * 128256 * 4096
    wide, narrow = (answer["memory"]["parts"]["parameters"] - embedded for answer in (plain, few))
    assert narrow == pytest.approx(wide / 4, rel=0.1)
    assert few["latency_ms"] > plain["latency_ms"]
    assert ask(client, body | {"trainable": {"lora": {"rank": 16}}})["latency_ms"] == plain["latency_ms"]
