"""Prices of the real gpuhunt package, whose catalogue a server on this machine publishes."""

from __future__ import annotations

import io
import os
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.config import CHECKOUT, Settings
from tests.forked import run_command

pytestmark = pytest.mark.slow

FIELDS = (
    "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags,cpu_arch"
)
ROWS = (
    "a3-megagpu-8g,us-east1,80.0,208,1872,8,H100,80,False,,nvidia,,x86",
    "a2-highgpu-1g,us-east1,3.6,12,85,1,A100,40,False,,nvidia,,x86",
    "a2-highgpu-1g,us-east1,1.1,12,85,1,A100,40,True,,nvidia,,x86",
    "n2-standard-2,us-east1,0.1,2,8,0,,,False,,,,x86",
)


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a log."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def published(tmp_path: Path) -> Iterator[str]:
    """The address of a catalogue of one provider, as gpuhunt publishes it."""
    folder = tmp_path / "published" / "gcp"
    (folder / "20261101").mkdir(parents=True)
    (folder / "version").write_text("20261101")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("gcp.csv", "\n".join((FIELDS, *ROWS)) + "\n")
    (folder / "20261101" / "catalog.zip").write_bytes(packed.getvalue())
    handler = partial(Quiet, directory=str(folder.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def prices(settings: Settings, *words: str, url: str = "http://127.0.0.1:9") -> subprocess.CompletedProcess[str]:
    here = {"PYTHONPATH": str(CHECKOUT), "GPUHUNT_CATALOG_URL": url, "NO_PROXY": "127.0.0.1"}
    return run_command("prices", *words, env=os.environ | settings.environment() | here)


def test_the_price_of_a_device_is_that_of_its_instance_divided(settings: Settings, published: str) -> None:
    done = prices(settings, "import", "--gpuhunt", url=published)
    assert done.returncode == 0 and "2 prices: 2 new" in done.stdout and "interruptible" in done.stdout, done
    listed = prices(settings, "list").stdout
    found = sorted(line.split()[1:3] for line in listed.splitlines() if line.endswith("gpuhunt"))
    assert found == [["a100-sxm4-40gb", "3.6"], ["h100-sxm5-80gb", "10"]]
    assert "gpuhunt" in listed and "gcp" in listed and "us-east1" in listed


def test_a_catalogue_out_of_reach_is_one_sentence(settings: Settings) -> None:
    done = prices(settings, "import", "--gpuhunt")
    assert done.returncode == 1 and "cannot be fetched" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_file_or_the_package_is_asked_for(settings: Settings) -> None:
    for words in ((), ("prices.csv", "--gpuhunt")):
        done = prices(settings, "import", *words)
        assert done.returncode == 1 and "Give a FILE, or --gpuhunt" in done.stderr
