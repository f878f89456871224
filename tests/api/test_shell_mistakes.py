"""Typical mistakes in a shell: each message names what was typed and the command, option or setting that mends it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.config import Settings
from tests.forked import run_command

pytestmark = pytest.mark.slow

STAGES = ("--set", "parallelism.pipeline=33")
MODEL = ("--model", "llama-3-8b", "--mode", "decode", "--batch", "1", "--sequence", "128", "--dtype", "bf16")
ON = ("--gpu", "nvidia-l4", *MODEL)
# Arguments, and words of standard error.
MISTAKES: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("predct",), ("'predct'", "Did you mean 'predict'")),
    (("predict",), ("Nothing says what to predict", "--model llama-3-8b", "--help")),
    (("predict", *MODEL), ("gpu", "set by: --gpu NAME")),
    (("predict", "--gpu", "nvidia-l5", *MODEL), ("'nvidia-l5'", "Did you mean: nvidia-l4", "`gpucast gpus list`")),
    (("predict", "--gpus", "nvidia-l4", *MODEL), ("--gpus", "--gpu")),
    (("predict", "--gpu", "nvidia-l4", "--model", "llama-3-8b"), ("missing", "set by: --sequence TOKENS")),
    (("predict", *ON[:-6], "--batch-size", "1"), ("--batch-size", "--batch")),
    (("predict", *ON, "--batch", "eight"), ("'--batch'", "integer", "'eight'")),
    (("predict", *ON, "--mode", "decod"), ("'decod'", "did you mean decode?", "--mode")),
    (("predict", *ON, "--dtype", "bf61"), ("'bf61'", "did you mean bf16?", "--dtype NAME")),
    (("predict", *ON, "--coverage", "80"), ("got 80", "send 0.8 for 80 %", "--coverage SHARE")),
    (("predict", *ON, "--set", "parallelism"), ("'parallelism' has no =", "FIELD=VALUE")),
    (("predict", *ON, "--set", "paralelism.tensor=2"), ("paralelism", "did you mean parallelism?")),
    (("predict", *ON, "--plot", "out.pdf"), ("out.pdf", ".svg or .png")),
    (("predict", "--gpu", "nvidia-l4", "network.onnx"), ("network.onnx", "No such file")),
    (("predict", "network.onnx", *ON), ("network.onnx", "--model llama-3-8b", "two workloads")),
    (("compare", *ON, "--price", "nvidia-l4"), ("'nvidia-l4' has no =", "nvidia-l4=0.8")),
    (("compare", *ON, "--by", "money"), ("'money'", "cost")),
    (("plan", *ON), ("goal", "--deadline SECONDS")),
    (("scale", *ON, "--devices", "1,2,x"), ("--devices", "'1,2,x'", "commas")),
    (("predict", *ON, *STAGES), ("parallelism.pipeline", "32")),
    (("scale", *ON, *STAGES), ("parallelism.pipeline", "32")),
    (("import", "neusightt", "."), ("'neusightt'", "did you mean neusight?")),
    (("retrain", "autoo"), ("'autoo'", "did you mean auto?")),
    (("gpus", "show", "rtx-4071"), ("'rtx-4071'", "rtx-4070", "`gpucast gpus list`")),
    (("keys", "create", "ci", "--role", "boss"), ("'boss'", "predict", "--role")),
    (("prices", "import", "prices.csv"), ("prices.csv", "No such file")),
    (("trace", "my_models"), ("my_models", "module:function")),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[f"{k}-{one[0][0]}" for k, one in enumerate(MISTAKES)])
def test_each_mistake_gets_its_mend(
    settings: Settings, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = run_command(*arguments, cwd=tmp_path, env=os.environ | settings.environment())
    assert done.returncode in {1, 2} and not done.stdout, done.stdout
    assert all(word in done.stderr for word in words) and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PORT", "abc", ("PORT", "whole number", "'abc'")),
        ("GPUCAST_RETRAIN_THREADS", "0", ("GPUCAST_RETRAIN_THREADS", "at least 1", "'0'")),
        ("GPUCAST_WORKERS", "-1", ("GPUCAST_WORKERS", "'-1'")),
        ("DATABASE_URL", "mysql://db", ("DATABASE_URL", "postgresql://user:password@host:5432/name")),
    ],
)
def test_each_wrong_setting_gets_its_mend(tmp_path: Path, name: str, value: str, words: tuple[str, ...]) -> None:
    done = run_command("predictors", env=os.environ | {"GPUCAST_DATA_DIR": str(tmp_path), name: value})
    assert done.returncode == 1 and all(word in done.stderr for word in words), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_doctor_names_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = os.environ | {"GPUCAST_DATA_DIR": str(tmp_path / "file" / "data")}
    environment.pop("DATABASE_URL", None)
    done = run_command("doctor", env=environment)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "set GPUCAST_DATA_DIR to a folder of your own" in done.stdout
