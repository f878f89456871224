"""A kernel measured on one GPU, asked for another: python example.py [URL [KEY]]."""

from __future__ import annotations

import sys

from gpucast_client import Gpucast, KernelWorkload, PredictRequest


def main(url: str = "http://127.0.0.1:8000", key: str | None = None) -> None:
    """Print the answer for an RTX 4070, and where it was kept."""
    workload: KernelWorkload = {
        "kind": "kernel",
        "name": "matmul_tiled",
        "flops": 2147483648,
        "bytes": 12582912,
        "threads_per_block": 256,
        "blocks": 4096,
        "registers_per_thread": 32,
        "shared_memory_per_block": 2048,
        "working_set_bytes": 12582912,
        "access_pattern": "coalesced",
        "dtype": "fp32",
        "measured": [{"gpu": "titan-v", "latency_ms": 0.91}],
    }
    request: PredictRequest = {"gpu": "rtx-4070", "workload": workload, "save": True}
    with Gpucast(url, key=key) as service:
        answer = service.predict(request)
        for row in service.get_prediction(answer["id"])["answer"]["predictions"]:
            print(f"{row['gpu']}: {row['latency_ms']:.3f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
