"""What the examples of the documentation need beside the service, and the examples that do not run here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from app.config import SEED_MEASUREMENTS, Settings
from app.store import keys
from app.store.roles import Role
from app.store.session import Database
from tests.unit.formats.test_profilers import COUNTED, MOVED, PAGES, RANGES, SAXPY, TRACE, V100, long
from tests.unit.formats.test_serving import DATA as SERVING
from tests.unit.services.test_kueue import FLAVORS, JOB
from tests.unit.services.test_opencost_prices import A100, body, node
from tests.unit.services.test_price_catalogues import BILL, VMS, table

# How an example begins, and why it does not run here. A command of a block counts alone.
NOT_RUN = {
    # installation: what the tests themselves run in
    "make serve": "the service of the tests is started in the same way, without the installation",
    "HOST=0.0.0.0 make serve": "tests/api/test_access.py starts it so, on a free port",
    "make measure": "the tests run with what it installs",
    "pip install torch": "the tests run with these packages",
    # other machines
    "docker build": "needs Docker",
    "mkdir production": "belongs to docker build",
    "cat > kustomization.yaml": "tests/unit/deploy reads the manifests",
    "kubectl": "needs a cluster; tests/unit/services/test_kueue.py has flavours as kubectl prints them",
    "chosen = json.load": "a part of a script of Kernel Tuner",
    "nvcc -ptx": "needs nvcc; tests/unit/formats/test_kernel_files.py has such files",
    "gpucast tune-plan": "needs a tuner's cache; tests/unit/formats/test_tuning_caches.py has some",
    "nsys stats": "needs a GPU; tests/unit/formats/test_profilers.py has its exports",
    "ncu --csv": "needs a GPU; tests/unit/formats/test_profilers.py has its exports",
    "curl -s 'localhost:9003": "needs OpenCost; tests/unit/services/test_opencost_prices.py has its answers",
    # rows of tables, not requests
    '{"block": "Stem"': "tests/unit/networks/test_convnets.py reads such blocks",
    '"stablelm": {': "tests/unit/networks/test_hf_lower.py reads such rows",
    # data sets of others
    "gpucast import cuda-kernels": "needs the data set; tests/unit/formats/test_cuda_kernels.py has a part",
    "gpucast import neusight": "needs the data set; tests/unit/formats/test_operator_tables.py has a part",
    # writes into the checkout
    ".venv/bin/python -m tests.frozen": "tests/frozen/test_frozen.py asks the same requests",
    # longer than a test, or more than a page can measure
    ".venv/bin/gpucast retrain auto": "takes an hour; tests/api/test_operator_learning.py retrains with less",
    "gpucast retrain forest": "needs measurements of kernels alone; tests/api/test_learning_loop.py has them",
    "curl -s localhost:8000/retrain": "needs measurements of operators; tests/api/test_operator_learning.py has them",
    "gpucast retrain serving-hosts": "needs five deployments; tests/api/test_serving_hosts.py has them",
    ".venv/bin/gpucast measure --minutes 10": "takes ten minutes; the tutorial's shorter one runs",
    "gpucast measure --serving": "needs a served model; tests/api/test_measure_serving.py has an endpoint",
    "gpucast watch": "needs a served model; tests/api/test_cli_watch.py has Prometheus's answers",
    # run elsewhere
    "import sky": "tests/api/test_skypilot.py runs it with the real SkyPilot",
    '{"mcpServers"': "tests/api/test_mcp.py starts the same server",
    # not meant to run
    "bytes -> api": "the path of a request",
    "device.driver ==": "tests/unit/services/test_dra.py checks the selector",
    "scrape_configs:": "Prometheus reads it; tests/unit/deploy checks the addresses",
}
# How a block begins, and the file that the commands after it read.
FILES = {"gpu,usd_per_hour,source": "prices.csv", "kernel,grid,flops": "work.csv"}
# How a block begins, and where it is sent.
SENT = {
    '{"gpu": {"name": "Tomorrow 1"': "/predict",
    '[{"gpu": "h100-sxm5-80gb", "software": "vllm-0.19.0"': "/measurements",
    '[{"gpu": "rtx-3090", "software": "pytorch-2.4.0"': "/measurements",
    "gpu,software,source,latency_ms": "/measurements",
    '{"name": "two layers"': "/graphs",
}
# What is written otherwise here, and why.
OTHERWISE = {
    ".venv/bin/gpucast": "gpucast",  # a fork, as a start of Python takes longer than most commands
    "--minutes 1 ": "--minutes 0.1 ",  # six seconds of measuring
    "| kubectl create -f -": "| cat",  # no cluster
}


def begins(text: str, table: dict[str, str] = NOT_RUN) -> str | None:
    """Return what a table says of a text by the text's first words."""
    return next((said for begin, said in table.items() if text.startswith(begin)), None)


def prices(folder: Path, _: Settings) -> None:
    """Write what other tools export."""
    (folder / "catalogs" / "v7" / "aws").mkdir(parents=True)
    (folder / "catalogs" / "v7" / "aws" / "vms.csv").write_bytes(VMS)
    (folder / "focus-2026-11.csv").write_bytes(table(BILL))
    (folder / "assets.json").write_bytes(body(node(528.0, 8, A100)))


def cluster(folder: Path, _: Settings) -> None:
    """Write the flavours and the job of a cluster."""
    flavors = "---".join(FLAVORS.split("---")[:2]).replace("{name: l4}", "{name: l4-spot}")
    (folder / "flavors.json").write_text(flavors)
    (folder / "job.yaml").write_text(JOB)


def measured(folder: Path, _: Settings) -> None:
    """Write a file of `gpucast measure`, and exports of NVIDIA's profilers."""
    shutil.copy(next(SEED_MEASUREMENTS.glob("*.parquet")), folder / "mine.parquet")
    (folder / "run_cuda_gpu_trace.csv").write_text(TRACE.replace(V100, "NVIDIA L4"))
    (folder / "run_nvtx_kern_sum.csv").write_text(RANGES)
    (folder / "run.csv").write_text(long((SAXPY, PAGES | COUNTED | MOVED)))


def served(folder: Path, _: Settings) -> None:
    """Write a result of `vllm bench serve`."""
    (folder / "results").mkdir()
    shutil.copy(SERVING / "vllm.json", folder / "results")


def administered(_: Path, settings: Settings) -> None:
    """Create the first key, which a start with keys prints."""
    with closing(Database(settings.database_url or "")) as database, database.begin() as connection:
        keys.create(connection, "admin", Role.ADMIN)


# What stands in a page's folder or database before its first example.
GIVEN: dict[str, Callable[[Path, Settings], None]] = {
    "docs/how-to/compare-gpus.md": prices,
    "docs/how-to/control-access.md": administered,
    "docs/how-to/import-measurements.md": measured,
    "docs/how-to/measure-a-gpu.md": measured,
    "docs/how-to/measure-serving.md": served,
    "docs/how-to/plan-and-schedule.md": cluster,
}
