"""First answers of the pages on localhost: `python -m benchmarks.pages`.

Milliseconds from a request to the first part of a page, which says the answer, to its last, and of the service's
processor time until the first: of the first visit, some seconds after a start, and the median of later visits, each
with a question of its own. The goal is of the first part.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil

from app.config import Settings
from tests.service import Service

GOAL_MS, VISITS = 300.0, 7
_SETTLED_S = 10.0  # for which a service that has just started shows its pages to nobody
_SERVED = "name=llama-3.1-70b&dtype=fp8&level=10&input_tokens="
# What a visitor opens first, and the start of the address of another question, which ends in a number of tokens.
PAGES = {
    "plan": ("/plan", f"/plan?{_SERVED}"),
    "compare": ("/", "/?name=llama-3-8b&mode=prefill&batch=2&dtype=bf16&sequence="),
    "one GPU": ("/detail", "/detail?name=llama-3-8b&mode=prefill&batch=2&dtype=bf16&sequence="),
    "scaling": ("/scaling", "/scaling?name=llama-3-8b&mode=prefill&batch=2&dtype=bf16&sequence="),
    "serving": ("/serving", f"/serving?{_SERVED}"),
    "accuracy": ("/accuracy", "/accuracy?visit="),
    "measurements": ("/measured", "/measured?source=visit"),
    "GPUs": ("/catalogue", "/catalogue?q="),
    "API": ("/docs", "/docs?visit="),
}


def visited(client: httpx.Client, processes: Sequence[psutil.Process], address: str) -> tuple[float, float, float]:
    """Return milliseconds to the first part of a page, to its last, and of processors until the first."""
    began, used, first, busy = time.perf_counter(), busy_s(processes), 0.0, 0.0
    with client.stream("GET", address) as answer:
        answer.raise_for_status()
        for _ in answer.iter_raw():
            first = first or time.perf_counter() - began
            busy = busy or busy_s(processes) - used
    return 1e3 * first, 1e3 * (time.perf_counter() - began), 1e3 * busy


def busy_s(processes: Sequence[psutil.Process]) -> float:
    """Return the processor seconds of processes so far."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def main() -> None:
    """Print each page's times; exit 1 if one misses the goal."""
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        with Service(settings, Path(folder, "log"), fresh=True) as service:
            assert service.process is not None
            top = psutil.Process(service.process.pid)
            processes = [one for one in (top, *top.children(recursive=True)) if one.name() != "postgres"]
            time.sleep(_SETTLED_S)
            for name, (start, question) in PAGES.items():
                opened = visited(service.client, processes, start)
                later = [visited(service.client, processes, f"{question}{1000 + k}") for k in range(VISITS)]
                first, last, busy = (statistics.median(times) for times in zip(*later, strict=True))
                missed |= max(first, opened[0]) > GOAL_MS
                print(
                    f"{name:<14}first visit {opened[0]:6.0f} ms (processor {opened[2]:5.0f}), all {opened[1]:6.0f} ms;"
                    f" later {first:6.0f} ms (processor {busy:5.0f}), all {last:6.0f} ms   goal {GOAL_MS:.0f} ms",
                    flush=True,
                )
    print(f"load average {os.getloadavg()[0]:.2f}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
