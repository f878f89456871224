"""Hostile requests beside small ones: what each gets, how long others wait, and what memory it takes.

    python -m benchmarks.hostile [--only WORD]
    python -m benchmarks.hostile --faults [--minutes 20] [--seed N]

The attacker, the watcher that sends small requests, and the server are processes of their own. How long others wait is
the processor time that the API process takes while a small request waits for it, at most the time on the clock, which
is also that of whatever else runs on the machine. A line per case begins with whether it passes, the processor time of
the server, and how long others wait. It fails, and this exits 1, if a small request waits over 100 ms or is not
answered, the API process grows by over 1 GiB, work goes on for over 1 s after its caller left, or anybody gets a 500.

With --faults: kills, pauses, a full disk, a slow network and the like, in an order that the seed draws, beside callers
that upload; exits 1 if what they were told is stored is not stored once, or anybody got a 500.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.networks.builtin import find_config
from app.wire.llm_d_form import STATES_EXAMPLE
from app.wire.prediction_form import PREDICT_EXAMPLE
from app.wire.serving_form import SERVING_EXAMPLE
from benchmarks.hostile_files import FILES
from benchmarks.hostile_run import JSON, Hostile, Seen, print_case, print_header, see, status
from benchmarks.http_route import BOUNDED, ask, server
from tests.faults import run
from tests.onnx_bytes import function, model, node, of_domain

CSV = "text/csv"
PARQUET, ARROW = "application/vnd.apache.parquet", "application/vnd.apache.arrow.stream"
LARGE = pa.large_string()
FORM, FORM_HEAD = (
    "multipart/form-data; boundary=x",
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n',
)
GPU = "nvidia-l4"
BATCH, MEASURED = f"/predict/batch?gpu={GPU}", "/measurements?dry_run=true"


def operators(n: int, **more: Any) -> bytes:
    """Distinct products."""
    rows = [{"op": "linear", "m": 1 + k, "n": 3840, "k": 1280, "dtype": "fp16"} for k in range(n)]
    return json.dumps({"workload": {"kind": "operators", "operators": rows}, **more}).encode()


def unknown_names(n: int) -> bytes:
    """An object of unknown names."""
    return b"{" + b",".join(b'"k%d":1' % k for k in range(n)) + b"}"


def columns(n: int) -> bytes:
    """A valid batch in JSON columns."""
    figures = np.random.default_rng(1).integers(1, 9999, (3, n)).tolist()
    return json.dumps({"op": "linear", "dtype": "fp16", **dict(zip("mnk", figures, strict=True))}).encode()


def parquet(table: dict[str, Any], **options: Any) -> bytes:
    """A compressed file."""
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink, compression="zstd", store_schema=False, **options)
    return sink.getvalue()


def arrow(table: dict[str, Any]) -> bytes:
    """A compressed stream."""
    sink, whole = io.BytesIO(), pa.table(table)
    with pa.ipc.new_stream(sink, whole.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(whole)
    return sink.getvalue()


def one_word(rows: int, length: int) -> pa.Array:
    """One text in every row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), ["x" * length])


def kernel_rows(n: int) -> Iterator[dict[str, Any]]:
    """Measured kernels."""
    kernel = {key: value for key, value in PREDICT_EXAMPLE["workload"].items() if key != "measured"}
    for k in range(n):
        yield {"gpu": "titan-v", "workload": kernel, "latency_ms": 1 + k / n, "source": "x"}


def graph(n: int, outputs: int = 1) -> bytes:
    """A network of distinct element-wise operators."""
    shapes = [[{"shape": [1 + k, 8]}] * outputs for k in range(n)]
    nodes = [{"name": f"n{k}", "op": "relu", "inputs": ["x"], "outputs": shape} for k, shape in enumerate(shapes)]
    return json.dumps(
        {"name": "g", "dtype": "fp32", "inputs": [{"name": "x", "shape": [1, 8]}], "nodes": nodes}
    ).encode()


def doubtful_rows(n: int) -> bytes:
    """Measured operators that took a thousand seconds."""
    workload = {"kind": "operator", "op": "linear", "m": 1, "n": 1, "k": 1}
    row = json.dumps({"gpu": "titan-v", "workload": workload, "latency_ms": 1e6, "source": "x"}).encode()
    return b"[" + b",".join([row] * n) + b"]"


def doubtful_served(n: int) -> bytes:
    """Served measurements of one deployment that took a thousand times as long as they should."""
    times = {"ttft_ms": 5e5, "tpot_ms": 5e4}
    rows = [
        {
            "gpu": "h100-sxm5-80gb",
            "workload": SERVING_EXAMPLE["workload"] | {"load": {"concurrency": 1 + k % 512}, "input_tokens": 512 + k},
            "latency_ms": 5e7,
            "serving": times,
            "source": "x",
        }
        for k in range(n)
    ]
    return json.dumps(rows).encode()


def prices(n: int, usd: float) -> bytes:
    """Prices of one GPU."""
    day = datetime.now(UTC).date().isoformat()
    rows = [
        {"gpu": GPU, "usd_per_hour": usd + k / 1e6, "provider": f"p{k}", "source": "x", "date": day} for k in range(n)
    ]
    return json.dumps(rows).encode()


def inline(network: bytes) -> bytes:
    """A prediction of a network in the request itself."""
    return b'{"gpu": "%b", "workload": {"kind": "graph", "graph": %b}}' % (GPU.encode(), network)


def csv_rows(n: int) -> bytes:
    """A table of short cells."""
    return b"gpu,op,dtype,m,n,k,latency_ms,source\n" + b"titan-v,linear,fp16,1,1,1,1,x\n" * n


def million_rows() -> bytes:
    """Measured operators that take a few bytes each."""
    texts = {"gpu": "titan-v", "op": "linear", "dtype": "fp16", "source": "x"}
    figures = {"m": 1, "n": 1, "k": 1, "latency_ms": 1.0}
    return parquet({name: pa.array([value] * 1_000_000) for name, value in (texts | figures).items()})


def million_kernels() -> bytes:
    """Measured kernels that take a few bytes each, and kilobytes as objects."""
    texts = {"gpu": "titan-v", "name": "x", "source": "x"}
    figures = {"flops": 1, "bytes": 1, "threads_per_block": 32, "blocks": 1, "latency_ms": 1.0}
    return parquet({name: pa.array([value] * 1_000_000) for name, value in (texts | figures).items()})


def compare() -> bytes:
    """Every split of a network on every GPU."""
    network = {"kind": "model", "name": "densenet201", "mode": "training", "batch": 4096, "dtype": "fp32"}
    return json.dumps({"workload": network, "search_parallelism": True, "max_devices": 64}).encode()


def served(**load: Any) -> dict[str, Any]:
    """A served model of many splits."""
    lengths = {"input_tokens": 8192, "output_tokens": 1024, "length_spread": 0.5}
    return {"kind": "serving", "name": "deepseek-v3", "dtype": "fp8", **lengths, "load": load}


def served_compare(**load: Any) -> bytes:
    """Every split of a served model on every GPU."""
    return json.dumps({"workload": served(**load), "search_parallelism": True, "max_devices": 64}).encode()


def served_plan(**more: Any) -> bytes:
    """Every split of a served model in every format on every GPU, with limits that each engine comes close to."""
    formats = {"dtypes": ["fp8", "bf16", "fp16", "int8"], "kv_dtypes": ["fp8", "bf16", "fp16"]}
    goals = {"tpot_ms": 50.0, "ttft_ms": 5000.0, "e2e_ms": 60_000.0}
    return json.dumps({"workload": served(rate_per_s=100.0), **formats, **goals, "max_devices": 64, **more}).encode()


def trained_plan() -> bytes:
    """Every split of a large model's training on every GPU."""
    about = {"mode": "training", "batch": 4096, "sequence": 8192, "dtype": "bf16"}
    network = {"kind": "model", "name": "llama-3.1-70b", **about}
    return json.dumps({"workload": network, "steps": 1e6, "deadline_s": 1e7, "max_devices": 64}).encode()


def split_graph(nodes: int) -> bytes:
    """Every split of a network in the request itself on every GPU."""
    workload = {"kind": "graph", "graph": json.loads(graph(nodes)), "mode": "training"}
    return json.dumps({"workload": workload, "search_parallelism": True, "max_devices": 64}).encode()


def onnx_functions(deep: int) -> bytes:
    """A small ONNX file whose functions call one another: 8 nodes of each, 8 to the power of `deep` in the end."""
    calls = [
        function(f"F{k}", ["a"], ["b"], [of_domain("own", node(f"F{k + 1}", ["a"], [name])) for name in "cdefghib"])
        for k in range(deep)
    ]
    last = function(f"F{deep}", ["a"], ["b"], [node("Relu", ["a"], ["b"])])
    first = of_domain("own", node("F0", ["x"], ["y"]))
    return model([first], {"x": [8]}, functions=[*calls, last])


def patterns(kind: str, number: int, **fields: Any) -> bytes:
    """A network whose configuration lists patterns of many alternatives and wildcards."""
    listed = [f"re:({k}{'|a' * 20})1{'*q' * 60}" for k in range(number)]
    quantized = {"quant_method": "fp8", "modules_to_not_convert": listed}
    config = {**find_config("llama-3-8b"), "quantization_config": quantized}  # type: ignore[dict-item]
    return json.dumps({"gpu": GPU, "workload": {"kind": kind, "config": config, **fields}}).encode()


def unread(value: bytes) -> bytes:
    """A model with a field that is none."""
    return b'{"gpu": "nvidia-l4", "workload": {"kind": "model", "name": "gpt2", "x": [' + value + b"]}}"


def engine_states() -> bytes:
    """As many states of engines as may be sent at once."""
    (state,) = STATES_EXAMPLE["requests"]
    return json.dumps({"requests": [{**state, "num_request_running": 1 + k % 500} for k in range(1000)]}).encode()


ONNX = "application/x-onnx"
SAVED = json.dumps(SERVING_EXAMPLE | {"save": True}).encode()
FIRST = Hostile("the first saved prediction", "/predict", JSON, lambda: SAVED)
PAGE = (
    "/serving?name=deepseek-v3&dtype=fp8&input_tokens=8192&output_tokens=1024&load=rate_per_s&level=100"
    "&gpu=all&search_parallelism=true&max_devices=64"
)
PREFILL = {"mode": "prefill", "batch": 1, "sequence": 128}
ATTACKS = (
    Hostile("patterns with alternatives", "/predict", JSON, lambda: patterns("model", 90, **PREFILL), 4),
    Hostile("20,000 patterns with alternatives", "/predict", JSON, lambda: patterns("model", 20_000, **PREFILL)),
    Hostile("refused 4 MB of texts", "/predict", JSON, lambda: unread(b'"",' * 1_390_000 + b'""')),
    Hostile("refused 4 MB of commas", "/predict", JSON, lambda: unread(b"," * 4_180_000)),
    Hostile("refused 4 MB of spaces", "/predict", JSON, lambda: unread(b" " * 4_180_000 + b"1")),
    Hostile("refused 4 MB of Infinity", "/predict", JSON, lambda: unread(b"Infinity," * 460_000 + b"1")),
    Hostile(
        "every split of a served model, 100 requests/s", "/compare", JSON, lambda: served_compare(rate_per_s=100.0)
    ),
    Hostile(
        "every split of a served model, 65,536 in flight", "/compare", JSON, lambda: served_compare(concurrency=65536)
    ),
    Hostile("every split and format of a served model", "/plan", JSON, served_plan),
    Hostile("every split and format, power capped", "/plan", JSON, lambda: served_plan(power_cap_w=400.0)),
    Hostile("every split of a trained model", "/plan", JSON, trained_plan),
    Hostile("every split of 2,000 nodes", "/compare", JSON, lambda: split_graph(2_000)),
    Hostile("every split of 12,000 nodes", "/compare", JSON, lambda: split_graph(12_000)),
    Hostile("every split of a served model", PAGE, "", lambda: b""),
    Hostile("16 times 1,000 states of engines", "/llm-d/1/predict/bulk", JSON, engine_states, 16),
    Hostile("functions that call one another", "/graphs", ONNX, lambda: onnx_functions(5)),
    Hostile("functions that call one another without end", "/graphs", ONNX, lambda: onnx_functions(12)),
    Hostile("8 times functions that call one another", "/graphs", ONNX, lambda: onnx_functions(5), 8),
    Hostile("32 times the description of the routes", "/openapi.json", "", lambda: b"", 32),
    Hostile("10,000 operators, detail, all GPUs", "/predict", JSON, lambda: operators(10_000, gpus="all", detail=True)),
    Hostile(
        "2,000 operators, detail, 10 GPUs", "/predict", JSON, lambda: operators(2000, gpus=[GPU] * 10, detail=True)
    ),
    Hostile("10,000 operators, all GPUs", "/predict", JSON, lambda: operators(10_000, gpus="all")),
    Hostile("every split of a network", "/compare", JSON, compare),
    Hostile("4 million unknown names", "/predict", JSON, lambda: unknown_names(4_000_000)),
    Hostile("300,000 unknown names", "/predict", JSON, lambda: unknown_names(300_000)),
    Hostile("4 million unknown names", BATCH, JSON, lambda: unknown_names(4_000_000)),
    Hostile("4 million unknown names", MEASURED, JSON, lambda: unknown_names(4_000_000)),
    Hostile("4 million unknown names", "/graphs", JSON, lambda: unknown_names(4_000_000)),
    Hostile("15 million empty rows", MEASURED, JSON, lambda: b"[" + b"{}," * 14_999_999 + b"{}]"),
    Hostile("1 million empty rows", MEASURED, JSON, lambda: b"[" + b"{}," * 999_999 + b"{}]"),
    Hostile("1 million numbers", MEASURED, JSON, lambda: b"[" + b"0," * 999_999 + b"0]"),
    Hostile("150,000 kernels", MEASURED, JSON, lambda: json.dumps([*kernel_rows(150_000)]).encode()),
    Hostile("430,000 doubtful operators", MEASURED, JSON, lambda: doubtful_rows(430_000)),
    Hostile("20,000 doubtful served loads", MEASURED, JSON, lambda: doubtful_served(20_000)),
    Hostile("10,000 prices", "/prices", JSON, lambda: prices(10_000, 0.5)),
    Hostile("10,000 prices of next to nothing", "/prices", JSON, lambda: prices(10_000, 1e-9)),
    Hostile("200,000 doubtful operators", MEASURED, JSON, lambda: doubtful_rows(200_000)),
    Hostile("1 million rows in JSON", BATCH, JSON, lambda: columns(1_000_000)),
    Hostile("100,000 nodes", "/graphs", JSON, lambda: graph(100_000)),
    Hostile("500 nodes of 1,000 tensors", "/graphs", JSON, lambda: graph(500, 1_000)),
    Hostile("700 nodes of 1,000 tensors", "/graphs", JSON, lambda: graph(700, 1_000)),
    Hostile("2,600 nodes of 1,000 tensors", "/graphs", JSON, lambda: graph(2_600, 1_000).replace(b", 8]", b"]")),
    Hostile("30,000 nodes", "/predict", JSON, lambda: inline(graph(30_000))),
    Hostile("2 million rows in CSV", MEASURED, CSV, lambda: csv_rows(2_000_000)),
    Hostile("60 MB of commas in CSV", MEASURED, CSV, lambda: b"gpu,op\n" + b"," * 60_000_000),
    Hostile("dictionary of 100 kB in Parquet", BATCH, PARQUET, lambda: parquet({"op": one_word(1_000_000, 100_000)})),
    Hostile("dictionary of 100 kB in Parquet", MEASURED, PARQUET, lambda: parquet({"gpu": one_word(30_000, 100_000)})),
    Hostile("text of 500 MB in Parquet", BATCH, PARQUET, lambda: parquet({"op": pa.array(["x" * 500_000_000])})),
    Hostile("text of 1.5 GB in Arrow", BATCH, ARROW, lambda: arrow({"op": pa.array(["x" * 1_500_000_000], LARGE)})),
    Hostile("250,000 columns in Parquet", MEASURED, PARQUET, lambda: parquet({f"c{k}": [1] for k in range(250_000)})),
    Hostile("form of 60 MB", "/graphs", FORM, lambda: FORM_HEAD + bytes(60_000_000) + b"\r\n--x--\r\n"),
    Hostile("8 times 500 nodes of 1,000 tensors", "/graphs", JSON, lambda: graph(500, 1_000), 8),
    Hostile("8 times a million rows in Parquet", MEASURED, PARQUET, million_rows, 8),
    Hostile("8 times a million kernels in Parquet", MEASURED, PARQUET, million_kernels, 8),
    Hostile("dictionary of 100 kB in Arrow", BATCH, ARROW, lambda: arrow({"op": one_word(1_000_000, 100_000)})),
)


def main() -> None:
    """Print a line per request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="requests whose name or path has this word")
    parser.add_argument("--faults", action="store_true", help="faults beside uploads, in place of requests")
    parser.add_argument(
        "--minutes", type=float, default=20.0, metavar="MINUTES", help="time of the faults (default: 20)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the order of faults (default: 1)")
    options = parser.parse_args()
    if options.faults:
        outcome = run(seed=options.seed, seconds=60.0 * options.minutes)
        print(outcome)
        sys.exit(not outcome.holds)
    chosen = [attack for attack in (*ATTACKS, *FILES) if options.only in attack.name + attack.path]
    if chosen:
        print_header("request", "path", "sent", "status", "answered", "memory", "goes on")
    good = list[bool]()
    with tempfile.TemporaryDirectory() as folder:
        for attack in chosen:
            with server("app.main:create_app", "--factory", *BOUNDED, GPUCAST_DATA_DIR=folder) as port:
                ask(port)
                if attack.path.startswith("/llm-d/"):
                    status(port, FIRST, SAVED)
                seen = see(port, attack)
            good.append(_print(attack, seen))
    from benchmarks import hostile_rows  # noqa: PLC0415 - which imports this
    from benchmarks.hostile_callers import see_all  # noqa: PLC0415 - which imports this

    good += [*see_all(options.only), *hostile_rows.see_all(options.only)]
    print(f"\n{sum(good)} of {len(good)} cases reach the goals.")
    sys.exit(not (good and all(good)))


def _print(attack: Hostile, seen: Seen) -> bool:
    figures = (
        f"`{attack.path.partition('?')[0]}`",
        f"{seen.sent / 1e3:,.0f} kB",
        f"{seen.status}",
        f"{seen.seconds:.2f} s",
        f"{seen.beside.grown / 2**20:.0f} MiB",
        "" if attack.leaves_s is None else f"{seen.ends_s:.1f} s",
    )
    return print_case(attack.name, seen.is_good, seen.computed_s, seen.beside.longest_ms, *figures)


if __name__ == "__main__":
    main()
