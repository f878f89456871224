"""What the parts of the project make of an operator that test_new_operator.py adds to a copy of the tree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from app.api.openapi import _document
from app.bands.conformal import Intervals
from app.config import CHECKOUT, Settings
from app.dashboard.forms import example
from app.engine.catalogue import load_seed_specs
from app.engine.engine import Engine, Served, untrained
from app.engine.shipped import shipped_version
from app.engine.snapshot import Snapshot
from app.main import create_app
from app.networks.fuse_pass import fused as fuse
from app.networks.importers.json_graph import lower
from app.networks.run import Run
from app.ops import OPS
from app.ops.reference import fields_table
from app.predictors.auto.operators.models.features import own_dims
from app.predictors.auto.predictor import Auto
from app.services.dispatch import predict_workload
from app.services.measurements.measurement_plan import design
from app.services.operators.predict_operators import read_operators
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.wire.graph_form import check_graph
from app.wire.predict_body import read_request
from measure.device import Device
from measure.operators_suite import Tensors, rows

GPUS = ["nvidia-l4", "h100-sxm5-80gb"]


def main() -> None:
    """Print what each part of the project makes of the operator."""
    checks = (predicted, compared, trained_network, fused, documented, measured, planned)
    print(json.dumps({check.__name__: check() for check in checks}))


def _reply(workload: dict[str, object], predictor: str = "auto") -> dict[str, object]:
    specs = [spec for spec in load_seed_specs() if spec.id in GPUS]
    ships = shipped_version("auto", CHECKOUT / "models_store")
    assert ships is not None
    payload = ships.payload()
    auto = Served(Auto.from_state(payload["state"]), Intervals.from_state(payload["intervals"]), "shipped")
    served = untrained() | {("auto", "*"): auto}
    snapshot = Snapshot.of(Engine(Catalog(specs), GpuTable.from_specs(specs), served))
    question = {"workload": workload, "gpus": GPUS, "predictor": predictor}
    answer = predict_workload(snapshot, read_request(msgspec.json.encode(question)), max_rows=1000)
    return msgspec.to_builtins(answer)


def _node(name: str, op: str, source: str) -> dict[str, object]:
    return {"name": name, "op": op, "inputs": [source], "outputs": [{"shape": ["batch", 4096]}]}


def _graph(op: str) -> dict[str, object]:
    nodes = [_node("y", "linear", "x"), _node("z", op, "y"), _node("u", "relu", "z"), _node("v", "linear", "u")]
    return {"inputs": [{"name": "x", "shape": ["batch", 4096]}], "nodes": nodes}


def predicted() -> object:
    """Latency and interval of a row, with shipped artefacts that know nothing of it."""
    row = {"op": "limit_rows", "b": 65536, "h": 4096, "edges": 4, "dtype": "fp32"}
    return _reply({"kind": "operators", "operators": [row]})


def compared() -> object:
    """An operator of the artefacts is answered with their interval still."""
    return _reply({"kind": "operators", "operators": [{"op": "linear", **dict.fromkeys("mnk", 4096), "dtype": "bf16"}]})


def trained_network() -> object:
    """A graph with it in training: time, memory, breakdown."""
    return _reply({"kind": "graph", "graph": _graph("limit_rows"), "mode": "training", "batch": 64})


def fused() -> object:
    """Names of the rows of the graph once it is fused."""
    return list(fuse(lower(check_graph(_graph("limit_rows")), Run(batch=4), {})).names)


def documented() -> object:
    """Whether OpenAPI, the page's form and the nomenclature have it."""
    schemas = _document(create_app(Settings(data_dir=Path("data"))))["components"]["schemas"]
    words = set(re.findall(r"\w+", fields_table(OPS[1:])))
    return [sorted(schemas["LimitRowsOperator"]["properties"]), example("operators", "limit_rows"), "edges" in words]


def measured() -> object:
    """Rows of it that the measuring suite draws, and the shape of what one computes."""
    described = {
        **{"name": "a CPU", "compute_capability": "9.0", "sm_count": 1, "boost_clock_hz": 2e9},
        **{"memory_bytes": 16e9, "memory_bandwidth_bytes_per_s": 1e11},
    }
    cpu = Device("cpu", "a CPU", ("fp32",), 16e9, 1, "pytorch-2", "pytorch-2", described)
    suite = OPS[-1].suite
    assert suite is not None
    made = suite.build(Tensors.of(cpu, "fp32"), {"b": 3, "h": 5})
    return [sum(row["op"] == "limit_rows" for row in rows(cpu)), list(made.forward().shape)]


def planned() -> object:
    """How many shapes a measurement plan draws from, and the columns that learned models see."""
    return [len(read_operators(design("limit_rows", "fp32", 48)).table), list(own_dims(len(OPS) - 1))]


if __name__ == "__main__":
    main()
