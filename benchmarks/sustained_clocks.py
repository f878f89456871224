"""Clock, power, temperature and rate of a GPU in 60 s of each kind of work, from a cold card and from a warm one.

    python -m benchmarks.sustained_clocks --out FILE.parquet
    python -m benchmarks.sustained_clocks --read seed_data/clocks/h200.parquet

The second one prints a file. Measuring needs PyTorch with CUDA, `nvidia-ml-py` and `pyarrow`, and takes nine minutes.
Products are 8192 x 8192 x 8192 on random data, the memory-bound work is a sum of two arrays of 1 GB. A cold run follows
a minute of rest, a warm one the cold run of the same work at once. A row is a second: rate (FLOP/s, or bytes read and
written per second), the SM clock (Hz), power (W), temperature (degrees Celsius) and the driver's throttle reason.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from measure.device import Sensors

SIDE, ELEMENTS = 8192, 1 << 28
EARLY = 2  # seconds after which rates are also printed
COLUMNS = ("work", "start", "second", "rate_per_s", "clock_hz", "power_w", "temperature_c", "throttle_reason")
TERA, MEGA = 1e12, 1e6
Row = Mapping[str, Any]
Work = tuple[Callable[[], object], float]


def main() -> None:
    """Run every work, cold then warm, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    file = parser.add_mutually_exclusive_group(required=True)
    file.add_argument("--out", type=Path, help="Parquet file to write")
    file.add_argument("--read", type=Path, help="Parquet file to print, without measuring")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a cold run (default: 60)")
    parser.add_argument("--warm-seconds", type=float, default=15.0, help="length of a warm run (default: 15)")
    parser.add_argument("--rest", type=float, default=60.0, help="seconds of rest before a cold run (default: 60)")
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS), help="kinds of work (default: all)")
    options = parser.parse_args()
    if options.read is not None:
        _show(pq.read_table(options.read).to_pylist())
        return
    rows: list[Row] = []
    for name in options.work:
        work = WORKS[name]()
        time.sleep(options.rest)
        for start, seconds in (("cold", options.seconds), ("warm", options.warm_seconds)):
            found = [{"work": name, "start": start, **row} for row in _seconds(work, seconds)]
            _show(found)
            rows += found
            pq.write_table(pa.table({column: [row.get(column) for row in rows] for column in COLUMNS}), options.out)
        del work
        torch.cuda.empty_cache()


def _show(rows: Sequence[Row]) -> None:
    """Print a line of each run: its second second's rate, and all of its last one."""
    for (work, start), run in groupby(rows, lambda row: (row["work"], row["start"])):
        seconds = list(run)
        early, last = seconds[:EARLY][-1], seconds[-1]
        print(
            f"{work:<7}{start:<5}{early['rate_per_s'] / TERA:9.2f} T/s after {early['second']:.0f} s, "
            f"{last['rate_per_s'] / TERA:.2f} after {last['second']:.0f}: {_at(last)}",
            flush=True,
        )


def _at(row: Row) -> str:
    """Return clock, power, temperature and throttle reason, as far as the driver tells them."""
    clock = row.get("clock_hz")
    told = {
        "MHz": None if clock is None else clock / MEGA,
        "W": row.get("power_w"),
        "degrees": row.get("temperature_c"),
    }
    figures = [f"{value:,.0f} {unit}" for unit, value in told.items() if value is not None]
    return ", ".join([*figures, row.get("throttle_reason") or "not throttled"])


def _seconds(work: Work, seconds: float) -> Iterator[Row]:
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
        yield {"second": time.monotonic() - began, "rate_per_s": rate, **sensors.read()}
        torch.cuda.synchronize()


def _sum() -> Work:
    first, second, total = (torch.rand(ELEMENTS, device="cuda") for _ in range(3))
    return lambda: torch.add(first, second, out=total), 3.0 * 4.0 * ELEMENTS


def _product(dtype: torch.dtype) -> Work:
    first, second = (torch.randn(SIDE, SIDE, dtype=dtype, device="cuda") for _ in range(2))
    result = torch.empty_like(first)
    return lambda: torch.mm(first, second, out=result), 2.0 * SIDE**3


def _fp8() -> Work:
    first, second = (torch.randn(SIDE, SIDE, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.ones((), device="cuda")
    multiply = torch._scaled_mm
    return lambda: multiply(first, second.t(), scale, scale, out_dtype=torch.bfloat16), 2.0 * SIDE**3


WORKS: Mapping[str, Callable[[], Work]] = {
    "memory": _sum,
    "fp32": partial(_product, torch.float32),
    "bf16": partial(_product, torch.bfloat16),
    "fp8": _fp8,
}

if __name__ == "__main__":
    main()
