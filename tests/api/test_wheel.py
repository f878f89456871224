"""The wheel works alone: in an environment that has its dependencies and no checkout."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from sysconfig import get_path
from zipfile import ZipFile

import httpx
import pytest

from app import __version__
from app.bootstrap.warm import main as compile_here
from app.config import CHECKOUT
from app.runtime.cache_base import writable_base
from app.runtime.code_cache import FOLDER
from tests.service import START_TIMEOUT_S, STOP_TIMEOUT_S, free_port

pytestmark = pytest.mark.slow

SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
FOLDERS = ("app", "evaluation", "gpucast", "measure", "migrations", "models_store", "seed_data")
BUILD = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
# Of all files; the artefacts alone are three quarters of it.
MOST_BYTES = 48 * 2**20
REQUEST = {
    "gpu": "nvidia-l4",
    "workload": {"kind": "model", "name": "gpt2", "mode": "inference", "batch": 1, "sequence": 512, "dtype": "bf16"},
}
PREDICTED = f"import gpucast; print(gpucast.predict({REQUEST!r})['predictions'][0]['latency_ms'], gpucast.__file__)"
# Until the first answer after /readyz; two cores may have other work.
FIRST_ANSWER_S = 3.0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves folders behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(CHECKOUT / name, copy)
    for name in FOLDERS:
        shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-c", BUILD], cwd=copy, check=True, capture_output=True)
    (built,) = (copy / "dist").iterdir()
    return built


class Installed:
    """An environment with the wheel, in a folder that is also its user's home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "environment" / "bin"
        self.env = {"PATH": f"{self.bin}:{os.defpath}", "HOME": str(folder), "LANG": "C.UTF-8"}

    def run(self, *words: str) -> str:
        """Return what a command of the environment prints."""
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel beside the packages of this environment, without the checkout, which is installed there too."""
    here = Installed(tmp_path_factory.mktemp("installed"))
    venv.create(here.bin.parent, symlinks=True)
    packages = Path(here.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # Lines of it are added to the path; what lies there is not looked into for lines of its own, as the checkout's.
    (packages / "dependencies.pth").write_text("\n".join({get_path("purelib"), get_path("platlib")}))
    pip = [sys.executable, "-m", "pip", "--python", str(here.bin / "python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--no-compile", str(wheel)], check=True, env=here.env)
    # The same code is compiled already: an image brings it along in the same way.
    if not (FOLDER / "compiled").exists():
        compile_here()
    cache = packages / "app" / "runtime" / "__pycache__"
    shutil.copytree(writable_base(), cache, ignore=shutil.ignore_patterns("*.pyc", "syntax-*"))
    return here


def test_the_wheel_holds_each_artefact_once(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_BYTES
    names = ZipFile(wheel).namelist()
    for path in (CHECKOUT / "models_store").iterdir():
        assert [name for name in names if name.endswith(path.name)].count(f"app/_data/models_store/{path.name}") == 1
        assert path.suffix != ".joblib" or sum(name.endswith(path.name) for name in names) == 1
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {
        "app",
        "evaluation",
        "gpucast",
        "measure",
    }


def test_commands_and_the_library_answer_alike(installed: Installed) -> None:
    assert installed.run("gpucast", "--version").strip() == __version__
    file = installed.folder / "request.json"
    file.write_text(json.dumps(REQUEST))
    answer = json.loads(installed.run("gpucast", "predict", "--json", str(file)))
    latency_ms, place = installed.run("python", "-c", PREDICTED).split()
    assert Path(place).is_relative_to(installed.bin.parent)
    assert float(latency_ms) == answer["predictions"][0]["latency_ms"] > 0


@pytest.fixture
def served(installed: Installed) -> Iterator[httpx.Client]:
    """The service of the wheel, once it is ready."""
    port, log = free_port(), installed.folder / "serve.log"
    with log.open("wb") as output, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        env = installed.env | {"PORT": str(port)}
        command = [str(installed.bin / "gpucast"), "serve"]
        process = subprocess.Popen(command, cwd=installed.folder, env=env, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not is_ready(client):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield client
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_TIMEOUT_S)


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_the_service_starts_and_keeps_its_data_with_the_user(installed: Installed, served: httpx.Client) -> None:
    began = time.monotonic()
    answer = served.post("/predict", json=REQUEST).raise_for_status().json()
    assert time.monotonic() - began < FIRST_ANSWER_S
    assert answer["predictions"][0]["latency_ms"] > 0
    assert "<h1" in served.get("/").raise_for_status().text
    assert (installed.folder / ".local" / "share" / "gpucast" / "postgres").is_dir()
