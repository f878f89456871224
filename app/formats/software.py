"""Serving stacks by the names that files and images have for their engines."""

from __future__ import annotations

ENGINES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "trtllm",
    "tensorrtllm": "trtllm",
    "tensorrt": "trtllm",
    "trtllm": "trtllm",
    "trt": "trtllm",
}


def software_of(engine_name: str | None, version: str | None = None) -> str | None:
    """Return the stack of an engine's name, with its version if known (`vllm-0.19.0`); None for another engine."""
    stack = ENGINES.get((engine_name or "").lower())
    return stack if stack is None or version is None else f"{stack}-{version}"


def engine_of_image(image: str | None) -> str | None:
    """Return the stack that the name of a container image has in it, or None."""
    return next((stack for name, stack in ENGINES.items() if name in (image or "").lower()), None)
