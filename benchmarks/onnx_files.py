"""How many tensors of ONNX files have the right shape: our reader against the `onnx` package's, judged by ONNX Runtime.

    python -m benchmarks.onnx_files FOLDER          (pip install onnx onnxruntime)

Every file is read in processes of its own: by our reader to a priced graph, by the package (shape inference with data
propagation; then with its reference evaluator folding constants, until nothing changes), and by ONNX Runtime, which
runs the network and so knows the shapes. A tensor that a reader gives no shape counts as not right. Seconds are without
imports, MiB are what the reading adds to the process.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import inliner, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_shapes

from app.networks.importers.json_graph import lower
from app.networks.importers.onnx.stripped_file import stripped
from app.networks.importers.onnx.walk import Walk
from app.networks.importers.tensors import free_dims
from app.networks.run import Run
from app.wire.graph_form import check_graph

Shapes = dict[str, list[int]]
SIZES = {"batch": 1, "batch_size": 1, "N": 16_000, "sequence": 512, "x.2": 48, "input.1": 512, "state.1": 1}
BATCHES = re.compile(r"batch|^unk_|Dimension\.0$", re.IGNORECASE)
OTHERWISE, SAMPLE_RATE = 320, 16_000
MOST_FOLDED = 100_000  # elements
ROUNDS = 10
READERS = ("gpucast", "onnx", "onnx, folded")


def main() -> None:
    """Print a row per file, and the sums."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--reader", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.reader:
        print(json.dumps(_reading(given.folder, given.reader)))
        return
    files = sorted(given.folder.rglob("*.onnx"))
    counts, read, seconds = dict.fromkeys(READERS, 0), dict.fromkeys(READERS, 0), dict.fromkeys(READERS, 0.0)
    tensors = 0
    print(f"{'file':<46}{'tensors':>8}" + "".join(f"{name:>14}{'s':>7}{'MiB':>5}" for name in READERS))
    for file in files:
        truth = _process(file, "runtime").get("shapes", {})
        tensors += len(truth)
        cells = []
        for name in READERS:
            found = _process(file, name)
            right = sum(found.get("shapes", {}).get(key) == shape for key, shape in truth.items())
            counts[name] += right
            read[name] += right == len(truth)
            seconds[name] += found.get("seconds", 0.0)
            cells.append(f"{right:>14}{found.get('seconds', 0):>7.3f}{found.get('mib', 0):>5}")
        print(f"{str(file.relative_to(given.folder))[-45:]:<46}{len(truth):>8}" + "".join(cells), flush=True)
    for name in READERS:
        whole = f"{read[name]} of {len(files)} files whole, {counts[name]:,} of {tensors:,} tensors right"
        print(f"{name:<14}{whole}, {seconds[name]:.1f} s")


def _process(file: Path, reader: str) -> dict[str, Any]:
    """Return what a process of its own reads; empty if it fails."""
    command = [sys.executable, "-m", "benchmarks.onnx_files", str(file), "--reader", reader]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return dict(json.loads(done.stdout.splitlines()[-1])) if done.returncode == 0 else {}


def _reading(file: Path, reader: str) -> dict[str, Any]:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    shapes = {"gpucast": _by_us, "onnx": _inferred, "onnx, folded": _folded, "runtime": _by_runtime}[reader](file)
    seconds = time.perf_counter() - began
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"shapes": shapes, "seconds": round(seconds, 4), "mib": added // 1024}


def _size(name: str, axis: int, tensor: str) -> int:
    """Return the size of a free dimension."""
    name = name if name not in ("", "?") else "batch" if axis == 0 else f"{tensor}.{axis}"
    return SIZES.get(name, 1 if BATCHES.search(name) else OTHERWISE)


def _by_us(file: Path) -> Shapes:
    plain = stripped(file.read_bytes())
    walk = Walk(plain, {name: _size(name, 0, "") for name in free_dims([each["shape"] for each in plain["inputs"]])})
    lower(check_graph(walk.graph()), Run(), {})
    return {name: list(shape) for name, shape in walk.shapes().items()}


def _bound(file: Path) -> Any:
    """Return a model of the package with its functions inlined and the inputs' dimensions bound."""
    model = onnx.load(file)
    model = inliner.inline_local_functions(model) if model.functions else model
    weights = {each.name for each in model.graph.initializer}
    for tensor in model.graph.input:
        for axis, dim in enumerate(tensor.type.tensor_type.shape.dim):
            if tensor.name not in weights and dim.dim_value <= 0:
                dim.dim_value = _size(dim.dim_param, axis, tensor.name)
    del model.graph.value_info[:]
    for tensor in model.graph.output:
        tensor.type.tensor_type.ClearField("shape")
    return model


def _shapes_of(model: Any) -> Shapes:
    graph = infer_shapes(model, data_prop=True).graph
    kinds = [(each.name, each.type.tensor_type) for each in (*graph.value_info, *graph.output, *graph.input)]
    whole = (
        (name, [dim.dim_value for dim in kind.shape.dim])
        for name, kind in kinds
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim)
    )
    return dict(whole)


def _inferred(file: Path) -> Shapes:
    return _shapes_of(_bound(file))


def _folded(file: Path) -> Shapes:
    model, known = _bound(file), Shapes()
    held = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer if _small(each.dims)}
    for _ in range(ROUNDS):
        known |= _shapes_of(model)
        fresh: dict[str, Any] = {}
        for node in list(model.graph.node):
            found = _evaluated(node, held, known)
            if found:
                fresh |= found
                model.graph.node.remove(node)
        if not fresh:
            break
        held |= {name: value for name, value in fresh.items() if _small(value.shape)}
        known |= {name: list(value.shape) for name, value in fresh.items()}
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in fresh.items())
    return known


def _evaluated(node: Any, held: Mapping[str, Any], known: Shapes) -> dict[str, Any]:
    """Return the outputs of a node of known inputs, by the package's evaluator; empty for any other."""
    given = {name: held[name] for name in node.input if name in held}
    if node.op_type == "Shape" and node.input[0] in known:
        given = {node.input[0]: np.broadcast_to(np.float32(0), known[node.input[0]])}
    if len(given) < len({name for name in node.input if name}) or node.op_type.startswith(("Random", "If", "Loop")):
        return {}
    try:
        results = ReferenceEvaluator(node).run(None, given)
    except Exception:  # what it cannot run stays in the graph
        return {}
    return {name: np.asarray(value) for name, value in zip(node.output, results, strict=False)}


def _small(shape: Any) -> bool:
    return bool(np.prod(list(shape), dtype=np.float64) <= MOST_FOLDED)


def _by_runtime(file: Path) -> Shapes:
    model = _bound(file)
    written = {tensor.name for tensor in model.graph.output}
    for name in (name for node in model.graph.node for name in node.output if name and name not in written):
        model.graph.output.add().name = name
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings)
    numbers = np.random.default_rng(0)
    kinds = {"float": np.float32, "float16": np.float16, "int64": np.int64, "int32": np.int32}
    given = {
        each.name: np.asarray(numbers.random(each.shape) * 100).astype(kinds[each.type[7:-1]])
        for each in session.get_inputs()
    }
    # Lengths of signals and sample rates are checked by the networks that take them.
    given |= {
        name: np.full_like(value, SAMPLE_RATE) for name, value in given.items() if name in ("sr", "waveforms_lens")
    }
    names = [each.name for each in session.get_outputs()]
    found = zip(names, session.run(names, given), strict=True)
    return {name: list(np.shape(value)) for name, value in found if value is not None}


if __name__ == "__main__":
    main()
