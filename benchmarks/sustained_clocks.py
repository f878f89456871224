"""Clock, power, temperature and rate of a GPU in 60 s of each kind of work, from a cold card and from a warm one.

    python -m benchmarks.sustained_clocks --out FILE.parquet

It needs PyTorch with CUDA, `nvidia-ml-py` and `pyarrow`, and takes nine minutes. Products are 8192 x 8192 x 8192 on
random data, the memory-bound work is a sum of two arrays of 1 GB. A cold run follows a minute of rest, a warm one the
cold run of the same work at once. A row is a second: rate (FLOP/s, or bytes read and written per second), the SM clock
(Hz), power (W), temperature (degrees Celsius) and the driver's throttle reason.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from app.measure.sensors import Sensors

SIDE, ELEMENTS = 8192, 1 << 28
Work = tuple[Callable[[], object], float]


def main() -> None:
    """Run every work, cold then warm, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Parquet file to write")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a cold run (default: 60)")
    parser.add_argument("--warm-seconds", type=float, default=15.0, help="length of a warm run (default: 15)")
    parser.add_argument("--rest", type=float, default=60.0, help="seconds of rest before a cold run (default: 60)")
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS), help="kinds of work (default: all)")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.work:
        work = WORKS[name]()
        time.sleep(options.rest)
        for start, seconds in (("cold", options.seconds), ("warm", options.warm_seconds)):
            found = [{"work": name, "start": start, **row} for row in _seconds(work, seconds)]
            rows += found
            last = found[-1]
            print(f"{name:<7}{start:<5}{last['rate_per_s'] / 1e12:9.2f} T/s  {last}", flush=True)
            pq.write_table(pa.Table.from_pylist(rows), options.out)
        del work
        torch.cuda.empty_cache()


def _seconds(work: Work, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the sensors' readings of each second of work."""
    run, amount = work
    sensors, began = Sensors(is_cuda=True), time.monotonic()
    while (at := time.monotonic()) - began < seconds:
        sensors.start()
        count = 0
        while time.monotonic() - at < 1.0:
            for _ in range(4):
                run()
            torch.cuda.synchronize()
            count += 4
        rate = count * amount / (time.monotonic() - at)
        for _ in range(4):  # the clock is read at work
            run()
        yield {"second": time.monotonic() - began, "rate_per_s": rate, **sensors.read(), **sensors.heat()}
        torch.cuda.synchronize()


def _sum() -> Work:
    first, second, total = (torch.rand(ELEMENTS, device="cuda") for _ in range(3))
    return lambda: torch.add(first, second, out=total), 3.0 * 4.0 * ELEMENTS


def _fp32() -> Work:
    return _product(torch.float32)


def _bf16() -> Work:
    return _product(torch.bfloat16)


def _product(dtype: torch.dtype) -> Work:
    first, second = (torch.randn(SIDE, SIDE, dtype=dtype, device="cuda") for _ in range(2))
    result = torch.empty_like(first)
    return lambda: torch.mm(first, second, out=result), 2.0 * SIDE**3


def _fp8() -> Work:
    first, second = (torch.randn(SIDE, SIDE, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.ones((), device="cuda")
    multiply = torch._scaled_mm
    return lambda: multiply(first, second.t(), scale, scale, out_dtype=torch.bfloat16), 2.0 * SIDE**3


WORKS = {"memory": _sum, "fp32": _fp32, "bf16": _bf16, "fp8": _fp8}

if __name__ == "__main__":
    main()
