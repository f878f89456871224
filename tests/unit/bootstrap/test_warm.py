"""What a start compiles or loads: all that first requests of the frequent kinds call."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.config import CHECKOUT

pytestmark = pytest.mark.slow

# Prints the compiled functions with types that the examples call and a warm process has not loaded.
LACKING = """
import gc
import msgspec
from numba.core.dispatcher import Dispatcher
from app.bootstrap.warm import shipped_snapshot, warm
from app.services.dispatch import predict_workload
from app.wire.network_form import MODEL_EXAMPLE
from app.wire.operator_forms import OPERATOR_TABLE_EXAMPLE, OPERATORS_EXAMPLE
from app.wire.predict_body import read_request
from app.wire.prediction_form import PREDICT_EXAMPLE
from app.wire.serving_form import SERVING_EXAMPLE

def loaded():
    functions = (one for one in gc.get_objects() if isinstance(one, Dispatcher))
    return {f"{one.py_func.__module__}.{one.py_func.__name__} {types}" for one in functions for types in one.signatures}

snapshot = shipped_snapshot()
warm(snapshot)
before = loaded()
serving = SERVING_EXAMPLE["workload"]
loads = ({"concurrency": 32}, {"rate_per_s": 1.0}, {"burst": 8})
requests = [PREDICT_EXAMPLE, OPERATORS_EXAMPLE, OPERATOR_TABLE_EXAMPLE, MODEL_EXAMPLE, SERVING_EXAMPLE]
requests += [SERVING_EXAMPLE | {"workload": serving | {"load": load}} for load in loads]
requests += [MODEL_EXAMPLE | {"workload": {"kind": "model", "name": "resnet50", "mode": "training"}}]
for request in requests:
    predict_workload(snapshot, read_request(msgspec.json.encode(request)), max_rows=1_000_000)
print(len(before), sorted(loaded() - before))
"""


def test_first_requests_find_their_code_compiled() -> None:
    command = [sys.executable, "-c", LACKING]
    printed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    functions, _, lacking = printed.strip().partition(" ")
    assert lacking == "[]"
    assert int(functions) > 20
