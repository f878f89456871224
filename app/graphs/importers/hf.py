"""Importer of Hugging Face's `config.json`: `model_type` selects the family that reads it.

The family reads the configuration into an Architecture (app.graphs.transformers.architecture), which
app.graphs.transformers.lowering lowers; a new model type needs a short function and a name here. The head follows the
first entry of `architectures`; by default decoders have a language-model head, encoders that of their family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

from app.graphs.formats import Formats
from app.graphs.importers.diffusers import CLASS_NAME, is_diffusion
from app.graphs.importers.families.bert import bert, deberta_v2, distilbert, electra, mpnet, nomic_bert, roberta
from app.graphs.importers.families.clip import clip, siglip
from app.graphs.importers.families.config_fields import CONFIG, Fields, shown
from app.graphs.importers.families.decoders import DECODERS, dense_decoder
from app.graphs.importers.families.deepseek import deepseek_v2, deepseek_v3, glm_lite, latent_dense, longcat_flash
from app.graphs.importers.families.ernie import ernie4_5, ernie4_5_moe
from app.graphs.importers.families.falcon import dbrx, falcon, mpt
from app.graphs.importers.families.gemma import gemma, gemma2, gemma3, gemma3n, gemma4
from app.graphs.importers.families.glm import glm4_moe
from app.graphs.importers.families.gpt import gpt2, gpt_bigcode, opt
from app.graphs.importers.families.gpt_oss import gpt_oss
from app.graphs.importers.families.kimi import kimi_linear
from app.graphs.importers.families.llama import hunyuan, llama, ministral, mistral, qwen, qwen2, qwen3, seed_oss
from app.graphs.importers.families.llama4 import llama4
from app.graphs.importers.families.mamba import bamba, falcon_h1, granite_hybrid, mamba2, nemotron_h
from app.graphs.importers.families.mimo import mimo_v2
from app.graphs.importers.families.minimax import minimax_m2
from app.graphs.importers.families.mixtures import hunyuan_moe, mixtral, qwen2_moe, qwen3_moe
from app.graphs.importers.families.mllama import mllama_text
from app.graphs.importers.families.modernbert import modernbert
from app.graphs.importers.families.multimodal import WRAPPERS, multimodal
from app.graphs.importers.families.nemotron_nas import nemotron_nas
from app.graphs.importers.families.olmo import olmo2, olmo3
from app.graphs.importers.families.phi import phi, phi3, phi4mm
from app.graphs.importers.families.quantization import read_formats
from app.graphs.importers.families.qwen_hybrid import qwen3_5, qwen3_next
from app.graphs.importers.families.routed import MIXTURES, routed_decoder
from app.graphs.importers.families.seq2seq import PAIRS, encoder_decoder, whisper
from app.graphs.importers.families.short_mixers import jamba, lfm2, lfm2_moe, mamba
from app.graphs.importers.families.sparse import deepseek_v4, deepseek_v32, minimax_m3
from app.graphs.importers.families.step import step3, step3p7
from app.graphs.importers.families.t5 import switch_transformers, t5
from app.graphs.importers.families.vit import dinov2, vit
from app.graphs.refusal import refuse
from app.graphs.run import Run
from app.graphs.transformers import splitting
from app.graphs.transformers.architecture import Architecture
from app.graphs.transformers.lowering import write
from app.tables.workload import Workload

_FAMILIES: Mapping[str, Callable[[Fields], Architecture]] = {
    "bamba": bamba,
    "bert": bert,
    "deepseek_v2": deepseek_v2,
    "deepseek_ref": deepseek_v4,
    "deepseek_v3": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "deepseek_v4": deepseek_v4,
    "ernie4_5": ernie4_5,
    "ernie4_5_moe": ernie4_5_moe,
    "falcon_h1": falcon_h1,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gemma3n_text": gemma3n,
    "gemma4_text": gemma4,
    "glm4_moe": glm4_moe,
    "glm_moe_dsa": deepseek_v32,
    "gpt2": gpt2,
    "gpt_oss": gpt_oss,
    "granitemoehybrid": granite_hybrid,
    "hunyuan_v1_dense": hunyuan,
    "kimi_k2": deepseek_v3,
    "kimi_linear": kimi_linear,
    "llama": llama,
    "llama4_text": llama4,
    "mamba2": mamba2,
    "mimo": qwen2,
    "mimo_v2_flash": mimo_v2,
    "minimax_m2": minimax_m2,
    "minimax_m3": minimax_m3,
    "ministral": ministral,
    "ministral3": mistral,
    "mistral": mistral,
    "mixtral": mixtral,
    "modernbert": modernbert,
    "nemotron-nas": nemotron_nas,
    "nemotron_h": nemotron_h,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "opt": opt,
    "phi": phi,
    "phi3": phi3,
    "qwen2": qwen2,
    "qwen2_moe": qwen2_moe,
    "qwen3": qwen3,
    "qwen3_5_moe_text": qwen3_next,
    "qwen3_5_text": qwen3_5,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_next,
    "qwen3_vl_moe_text": qwen3_moe,
    "qwen3_vl_text": qwen3,
    "roberta": roberta,
    "seed_oss": seed_oss,
    "step3p7": step3p7,
    "switch_transformers": switch_transformers,
    "t5": t5,
    "vit": vit,
    "dbrx": dbrx,
    "falcon": falcon,
    "mpt": mpt,
    "hunyuan_v1_moe": hunyuan_moe,
    "minicpm3": latent_dense,
    "youtu": latent_dense,
    "glm4_moe_lite": glm_lite,
    "step3p5": step3p7,
    "glm4v_moe_text": glm4_moe,
    "mllama_text_model": mllama_text,
    "qwen2_5_omni_text": qwen2,
    "qwen2_5_vl_text": qwen2,
    "qwen2_vl_text": qwen2,
    "qwen3_omni_moe_text": qwen3_moe,
    "step3_text": step3,
    "camembert": roberta,
    "distilbert": distilbert,
    "electra": electra,
    "clip": clip,
    "whisper": whisper,
    "mt5": t5,
    "umt5": t5,
    "dinov2": dinov2,
    "gpt_bigcode": gpt_bigcode,
    "qwen": qwen,
    "longcat_flash": longcat_flash,
    "phi4mm": phi4mm,
    "nomic_bert": nomic_bert,
    "mamba": mamba,
    "falcon_mamba": mamba,
    "jamba": jamba,
    "lfm2": lfm2,
    "lfm2_moe": lfm2_moe,
    "deberta-v2": deberta_v2,
    "siglip": siglip,
    "mpnet": mpnet,
    "xlm-roberta": roberta,
    **dict.fromkeys(DECODERS, dense_decoder),
    **dict.fromkeys(MIXTURES, routed_decoder),
    **dict.fromkeys(PAIRS, encoder_decoder),
}
KNOWN_MODEL_TYPES = tuple(sorted((*_FAMILIES, *WRAPPERS)))
# Named where nothing resembles an unknown model type.
_USUAL = ("llama", "qwen3", "mistral", "mixtral", "deepseek_v3", "gemma3", "gpt2", "bert", "t5", "vit")


def lower(config: Mapping[str, Any], run: Run) -> Workload:
    """Return one device's rows of the network of `config`; raises BadInput with the name of an invalid field."""
    architecture = read(config)
    splitting.check(architecture, run)
    return write(architecture, run)


def formats_of(config: Mapping[str, Any]) -> Formats | None:
    """Return the formats of `quantization_config`; None without one. Raises BadInput for unknown ones."""
    return read_formats(config, read(config))


def read(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture of a configuration; raises BadInput with the name of an invalid field."""
    if not isinstance(config, Mapping):
        refuse(CONFIG, "must be an object: a Hugging Face config.json")
    if is_diffusion(config):
        refuse((*CONFIG, CLASS_NAME), "is a diffusion transformer, which generates no tokens")
    given = config.get("model_type")
    if isinstance(given, str) and given in WRAPPERS:
        return multimodal(Fields(config, given), _FAMILIES)
    family = _FAMILIES.get(given) if isinstance(given, str) else None
    if family is None:
        _refuse_type(config, given)
    return family(Fields(config, str(given)))


def _refuse_type(config: Mapping[str, Any], given: object) -> NoReturn:
    """Raise BadInput for a model type that is not known, with those that resemble it and what to send instead."""
    problem = "is missing" if given is None else f"{shown(given)} is not known"
    similar = get_close_matches(given.lower(), KNOWN_MODEL_TYPES, n=6) if isinstance(given, str) else []
    known = f"similar: {', '.join(similar)}" if similar else f"usual: {', '.join(_USUAL)}"
    instead = "Send its text_config alone, or" if "text_config" in config else "Send"
    refuse(
        (*CONFIG, "model_type"),
        f"{problem}; {known} ({len(KNOWN_MODEL_TYPES)} are read: docs/reference/models.md). {instead} a known model "
        "type of the same layers, or any other network as a graph or an ONNX file (POST /graphs, kind graph)",
    )
