"""Caches of auto-tuners: Kernel Tuner's own, also one that is still being written, and T4."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.errors import BadInput, Malformed
from app.formats.tuning_caches import launch_of, read_cache

PARAMETERS = ["block_size_x", "block_size_y", "tile_size_x"]
CACHE: dict[str, Any] = {
    "device_name": "NVIDIA A100-PCIE-40GB",
    "kernel_name": "convolution_kernel",
    "problem_size": [4096, 4096],
    "tune_params_keys": PARAMETERS,
    "cache": {
        "16,4,1": {"block_size_x": 16, "block_size_y": 4, "tile_size_x": 1, "time": 2.5},
        "32,8,2": {"block_size_x": 32, "block_size_y": 8, "tile_size_x": 2, "time": 1.25},
        "1024,8,2": {"block_size_x": 1024, "block_size_y": 8, "tile_size_x": 2, "time": "CompilationFailedConfig"},
    },
}
T4 = {
    "schema_version": "1.0.0",
    "results": [
        {
            "configuration": {"block_size_x": 64},
            "invalidity": "correct",
            "measurements": [{"name": "time", "value": 500.0, "unit": "us"}],
        },
        {"configuration": {"block_size_x": 2048}, "invalidity": "compile", "measurements": []},
    ],
}


def write(folder: Path, content: Any) -> Path:
    path = folder / "cache.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_kernel_tuners_cache_is_read(tmp_path: Path) -> None:
    found = read_cache(write(tmp_path, CACHE))
    assert (found.kernel, found.device, found.problem) == ("convolution_kernel", "NVIDIA A100-PCIE-40GB", (4096, 4096))
    assert found.seconds.tolist() == [2.5e-3, 1.25e-3] and found.failed == 1
    assert found.configurations[1] == {"block_size_x": 32, "block_size_y": 8, "tile_size_x": 2}


def test_a_cache_that_is_being_written_is_read(tmp_path: Path) -> None:
    text = json.dumps(CACHE)[:-2] + ",\n"
    assert len(read_cache(write(tmp_path, text)).seconds) == 2


def test_t4_is_read(tmp_path: Path) -> None:
    found = read_cache(write(tmp_path, T4))
    assert found.seconds.tolist() == [5e-4] and found.failed == 1 and found.device is None and found.problem == ()


def test_a_configuration_is_a_launch() -> None:
    launch = launch_of({"block_size_x": 32, "block_size_y": 8, "tile_size_x": 2}, (4096, 4096))
    assert launch["threads_per_block"] == 256 and launch["blocks"] == 64 * 512


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "no tuning cache"),
        ("{}", "no tuning cache"),
        ({**CACHE, "tune_params_keys": 5}, "tune_params_keys"),
        ({**CACHE, "cache": {"1": 5}}, "lacks tuning parameters"),
        ({**CACHE, "cache": {"1": {"block_size_x": 1}}}, "lacks tuning parameters"),
        ({**CACHE, "cache": {}}, "none of its 0"),
        ({"schema_version": 1, "results": [7]}, "result 0 has no configuration"),
        ({"schema_version": 1, "results": [{"configuration": {}, "measurements": 4}]}, "none of its 1"),
    ],
)
def test_what_is_no_cache_is_refused(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_cache(write(tmp_path, content))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"cache": {"a": NaN,'])
def test_broken_json_is_malformed(tmp_path: Path, text: str) -> None:
    with pytest.raises((Malformed, BadInput)):
        read_cache(write(tmp_path, text))


def test_parameters_of_other_names_are_explained() -> None:
    with pytest.raises(BadInput, match="block_size_x"):
        launch_of({"MDIMC": 8}, (64,))
