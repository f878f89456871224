"""Long requests are decoded in steps, between which other threads work, and mean what they mean as a whole."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from app.errors import BadInput
from app.main import COLLECT_AFTER, SWITCH_S
from app.networks.importers.json_graph import lower
from app.networks.run import Run
from app.wire.decoding import decode_long
from app.wire.graph_form import GraphRequest
from app.wire.json_text import PART_BYTES
from app.wire.predict_body import read_request
from tests.busy_machine import least

DECODER = msgspec.json.Decoder(GraphRequest)


def body(nodes: int, **fields: Any) -> bytes:
    each = [{"name": f"{k}", "op": "relu", "inputs": ["x"], "outputs": [{"shape": [1 + k]}]} for k in range(nodes)]
    graph = {"name": "g", "inputs": [{"name": "x", "shape": [1]}], "nodes": each}
    return json.dumps({"gpu": "nvidia-l4", "workload": {"kind": "graph", "graph": graph} | fields}).encode()


@pytest.fixture
def as_served() -> Iterator[None]:
    """Threads take turns, and garbage is collected, as in the service: not what was there before."""
    switch_s, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*COLLECT_AFTER)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    sys.setswitchinterval(switch_s)
    gc.set_threshold(*threshold)


def longest_step(work: Any) -> float:
    """Return the longest time that this process computed while another thread waited for a millisecond.

    As a share of the work's own, which a slower or busier machine lengthens alike.
    """
    steps, over, start = [0.0], threading.Event(), time.process_time()

    def watch() -> None:
        while not over.is_set():
            began, computed = time.perf_counter(), time.process_time()
            time.sleep(0.001)
            steps.append(min(time.perf_counter() - began, time.process_time() - computed))

    thread = threading.Thread(target=watch)
    thread.start()
    kept = work()
    over.set()
    thread.join()
    del kept
    return max(steps) / (time.process_time() - start)


@pytest.mark.usefixtures("as_served")
def test_a_long_graph_in_a_request_leaves_other_threads_time() -> None:
    text = body(150_000)
    assert least(lambda: longest_step(lambda: read_request(text)), 0.06) < 0.06


@pytest.mark.parametrize("fields", [{}, {"batch": 4, "dims": {"rows": 3}}, {"mode": "training", "sequence": 5}])
def test_a_long_request_means_what_it_means_as_a_whole(fields: dict[str, Any]) -> None:
    text = body(5_000, **fields)
    assert len(text) > PART_BYTES
    assert read_request(text) == decode_long(DECODER, text) == DECODER.decode(text)


@pytest.mark.parametrize("fields", [{"batch": 10**30}, {"batch": "many"}, {"sequenze": 5}])
def test_a_wrong_field_of_a_long_request_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        read_request(body(5_000, **fields))
    assert {error.loc[-1] for error in caught.value.errors} == fields.keys()


@pytest.mark.usefixtures("as_served")
def test_a_long_graph_is_lowered_in_steps() -> None:
    """Long lists become arrays in parts: whole, a hundred thousand nodes stopped other threads for 50 ms."""
    form = msgspec.to_builtins(read_request(body(100_000)))["workload"]["graph"]
    assert least(lambda: longest_step(lambda: lower(form, Run(dtype="fp32"))), 0.02) < 0.02
