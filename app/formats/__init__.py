"""Measurement formats, third-party and our own: files to rows in the API's terms. Registered in FORMS."""

from __future__ import annotations

# Metadata key of Parquet files in our own form: specification of the measured device in JSON, as POST /gpus takes it.
DEVICE = b"gpucast.device"
# Name -> module of this package, whose IMPORTERS are loaded on demand, and one line of help.
FORMS = {
    "cuda-kernels": ("cuda_kernels", "the cross-GPU kernels paper's CSV files, or a folder in their form"),
    "neusight": ("operator_tables", "NeuSight's operators, operators_fp32.parquet; convolutions without drift"),
    "aiconfigurator": ("aiconfigurator", "aiconfigurator's operators of serving stacks: its checkout, or gemm.parquet"),
    "llmservingsim": ("operator_tables", "LLMServingSim's operators of vLLM, llmservingsim_ops_*.parquet"),
    "aiter": ("operator_tables", "tuned products and experts of AMD's AITER, gemm.parquet and moe.parquet"),
    "timm": ("operator_tables", "timm's step times of ConvNets, vision_models.parquet"),
    "nsys": ("profilers", "Nsight Systems, CSV files of `nsys stats` or a folder of them"),
    "ncu": ("profilers", "Nsight Compute, CSV files of `ncu --csv` or a folder of them"),
    "serving": (
        "serving.files",
        "results of `vllm bench serve`, SGLang's bench_serving, genai-perf, aiperf, guidellm, inference-perf,"
        " InferenceX and `gpucast measure --serving`, JSON files",
    ),
    "measurements": ("own", "gpucast's own form, a .json, .csv or .parquet file or a folder of them"),
}
