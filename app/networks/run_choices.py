"""Choices of how a network is run, as requests name them."""

from __future__ import annotations

from typing import Literal

MODES = ("inference", "training", "prefill", "decode")
Mode = Literal["inference", "training", "prefill", "decode"]
Attention = Literal["eager", "fused", "flash"]
Optimizer = Literal["none", "sgd", "adam", "adamw"]
PipelineSchedule = Literal["gpipe", "1f1b"]
InputCopy = Literal["none", "pageable", "pinned"]
MemoryFormat = Literal["channels_first", "channels_last"]
DiffusionPart = Literal["denoiser", "text_encoders", "autoencoder"]
