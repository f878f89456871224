"""Files of `app` that one request visits, and how often execution moves from one to another.

A request is read from its bytes and rendered to its answer; code compiled by numba is counted where it is called.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from app.bootstrap.warm import shipped_snapshot
from app.config import CHECKOUT
from app.engine.snapshot import Snapshot
from app.services.dispatch import predict_workload
from app.wire.json_text import check_json_text
from app.wire.network_form import MODEL_EXAMPLE
from app.wire.operator_forms import OPERATORS_EXAMPLE
from app.wire.predict_body import read_request
from app.wire.prediction_form import PREDICT_EXAMPLE
from app.wire.serving_form import SERVING_EXAMPLE

APP = str(CHECKOUT / "app") + "/"


def visited(snapshot: Snapshot, body: bytes) -> list[str]:
    """Files in the order they are entered, each as often as execution comes to it from another."""
    path: list[str] = []

    def enter(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(APP) and (not path or path[-1] != file):
            path.append(file)

    sys.setprofile(enter)
    try:
        check_json_text(body)
        msgspec.json.encode(predict_workload(snapshot, read_request(body), max_rows=10_000))
    finally:
        sys.setprofile(None)
    return path


def main() -> None:
    """Count a kernel, an operator, a model and a served model, each predicted once before."""
    snapshot = shipped_snapshot()
    workload = OPERATORS_EXAMPLE["workload"]
    operator = OPERATORS_EXAMPLE | {"workload": workload | {"operators": workload["operators"][:1]}}
    examples = {"kernel": PREDICT_EXAMPLE, "operator": operator, "model": MODEL_EXAMPLE, "serving": SERVING_EXAMPLE}
    for name, example in examples.items():
        body = msgspec.json.encode(example)
        visited(snapshot, body)
        path = visited(snapshot, body)
        print(f"{name:10} {len(set(path)):3} files, {len(path) - 1:4} changes of file")
        if "--files" in sys.argv:
            print("\n".join(f"  {Path(file).relative_to(APP)}" for file in sorted(set(path))))


if __name__ == "__main__":
    main()
