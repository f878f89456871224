"""Transformers lowered against NeuSight's graphs: operators per family and FLOPs of every model.

The graphs hold one layer of a model (of switchxl4: all), so configurations are cut to one. They were traced with other
heads than BERT's configuration names (a classifier in inference, pre-training in training), which are set here too.
"""

import json
import math
import os
from ast import literal_eval
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.networks.importers.hf import lower
from app.networks.run import Parallelism, Run
from app.ops import OPS, kinds_of, work_of
from app.tables.workload import Workload

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data")) / "neusight"
GRAPHS = DATA / "operator_graphs.parquet"
KEY = ("model", "mode", "batch", "option")

pytestmark = pytest.mark.skipif(not GRAPHS.is_file(), reason=f"no data in {DATA}")


def traced() -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """The graphs of whole models on one device, or one of four tensor-parallel ones, by KEY."""
    graphs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    if GRAPHS.is_file():
        for row in pq.read_table(GRAPHS, columns=[*KEY, "seqlen", "op", "forward_ops"]).to_pylist():
            if row["option"] in ("", "tp4"):
                graphs.setdefault(tuple(row[name] for name in KEY), []).append(row)
    return graphs


TRACED = traced()


def family(name: str) -> str:
    """Theirs or ours, without what they tell apart wrongly: a bmm called Linear, tanh called relu."""
    kind = name.removeprefix("VEC").removesuffix("u").removesuffix("_scalar").removesuffix("_strided").lower()
    if kind in ("linear", "bmm"):
        return "product"
    return "activation" if kind in ("rel", "relu", "gel", "gelu", "tanh") else kind.replace("layer_norm", "ln")


def theirs(graph: list[dict[str, Any]], tokens: int) -> tuple[Counter[str], float]:
    """Operators by family, but for bookkeeping (up to a figure per token), and FLOPs of products."""
    counts: Counter[str] = Counter()
    flops = 0.0
    for row in graph:
        for name, sizes in literal_eval(row["forward_ops"]):
            if name == "MEM":
                counts["copy"] += row["op"] in ("contiguous", "where", "dropout")
            elif name == "ALLREDUCE":
                counts["all_reduce"] += 1
            elif math.prod(sizes) > tokens or family(name) == "product":
                counts[family(name)] += 1
                flops += 2.0 * math.prod(sizes) if family(name) == "product" else 0.0
    return counts, flops


# What PyTorch launches beside the traced calls: operands of matmul made contiguous, OPT's maximum, experts' indexing.
BESIDE = {f"attention.{part}_copy" for part in ("query", "key", "value")} | {"attention.floor"}
INDEXING = {"experts.take", "experts.put"}


def ours(workload: Workload, tokens: int, beside: set[str]) -> tuple[Counter[str], float]:
    counts: Counter[str] = Counter()
    work = work_of(workload.ops, kinds_of(workload.ops))
    flops = 0.0
    figures = zip(workload.ops.kind, workload.names, workload.output_bytes, workload.runs, work.flops, strict=True)
    for kind, name, written, runs, each in figures:
        small = written <= 4.0 * tokens and family(OPS[kind].name) != "product"
        if not small and name not in beside and OPS[kind].name not in ("embedding", "memory"):
            counts["copy" if name == "dropout" else family(OPS[kind].name)] += round(runs)
            flops += each * runs if family(OPS[kind].name) == "product" else 0.0
    return counts, flops


@pytest.mark.parametrize("key", TRACED, ids=lambda key: " ".join(map(str, key)))
def test_operators_and_flops(key: tuple[str, str, int, str]) -> None:
    model, mode, batch, option = key
    graph = TRACED[key]
    config = json.loads((DATA / "model_configs" / f"{model}.json").read_text())
    if model == "bert_large":
        config["architectures"] = ["BertForSequenceClassification" if mode == "inf" else "BertForPreTraining"]
    if model == "opt_13":
        config["attention_dropout"] = 0.1  # the trace has the call, which at 0 launches nothing
    if model != "switchxl4":
        config |= dict.fromkeys(("n_layer", "num_hidden_layers") & config.keys(), 1)
    run = Run(
        mode="training" if mode == "train" else "inference",
        batch=batch,
        sequence=graph[0]["seqlen"],
        parallelism=Parallelism(tensor=4 if option else 1),
    )
    tokens = batch * run.sequence
    beside = {"attention.floor"} if model == "opt_13" else BESIDE  # OPT's own copies are calls
    found, flops = ours(lower(config, run), tokens, beside | INDEXING)
    wanted, wanted_flops = theirs(graph, tokens)
    assert flops == pytest.approx(wanted_flops, rel=0.02 if option else 1e-12)
    assert found.keys() == wanted.keys()
    for kind, count in wanted.items():
        # 2 %, or the few that switchxl4's trace has of its router's loss
        assert found[kind] == pytest.approx(count, rel=0.02, abs=3 if model == "switchxl4" else 0), kind
