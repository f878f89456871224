"""Files around the code: lock files, container files, and text that no committed file may contain."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli import COMMANDS, build
from app.config import CHECKOUT

# A package index or its host, a folder of one machine, a helper's arrangement.
NOT_FOR_OTHERS = re.compile(
    r"pypi\.org|pythonhosted|index-url\s*=?\s*\S*//|find-links\s*[= ]\S*/|(?<![\w/.])/(work|opt)/\w|file:///",
    re.IGNORECASE,
)
# Files that spell out what this test looks for, and a library that can write any address.
EXEMPT = {
    "tests/unit/cli/test_checkout.py",
    "requirements/lock.py",
    "app/dashboard/web/static/swagger-ui-bundle.js",
}


def committed() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=False)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    if not names:
        pytest.skip("not a git checkout")
    return [CHECKOUT / name for name in names if name not in EXEMPT and (CHECKOUT / name).is_file()]


def test_locks_match_pyproject_and_name_no_index() -> None:
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "requirements" / "lock.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_no_committed_file_names_an_index_or_a_machine() -> None:
    found = {}
    for path in committed():
        match = NOT_FOR_OTHERS.search(path.read_bytes().decode("utf-8", "replace"))
        if match:
            found[str(path.relative_to(CHECKOUT))] = match.group(0)
    assert not found


def test_an_installation_that_fails_says_what_to_set(tmp_path: Path) -> None:
    """With an installer that has no network, and that tells whether it trusts the system's certificates."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, tmp_path)
    shutil.copytree(CHECKOUT / "requirements", tmp_path / "requirements")
    installer = tmp_path / ".venv" / "bin" / "uv"
    installer.parent.mkdir(parents=True)
    installer.write_text('#!/bin/sh\necho "system certificates: $UV_SYSTEM_CERTS" >&2\nexit 2\n')
    installer.chmod(0o755)
    done = subprocess.run(["make", "install"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "system certificates: 1" in done.stderr
    told = next(line for line in done.stderr.splitlines() if line.startswith("gpucast: "))
    assert all(word in told for word in ("HTTPS_PROXY", "SSL_CERT_FILE", "PIP_CERT", "UV_FIND_LINKS")), told


def test_compose_migrates_once_and_keeps_its_data() -> None:
    compose: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())
    services = compose["services"]
    assert set(services) == {"postgres", "migrate", "api", "worker", "scorecard"}
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("api", "worker", "scorecard"):
        assert services[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
        assert services[name]["environment"]["DATABASE_URL"].startswith("postgresql://")
    for service in services.values():
        for volume in service["volumes"]:
            assert volume.split(":")[0] in compose["volumes"] or volume.endswith(":/measured:ro")
    nightly = services["scorecard"]
    assert nightly["profiles"] == ["scorecard"] and "gpucast evaluate scorecard --keep" in nightly["command"][-1]
    asked = [services[name]["command"][1] for name in ("migrate", "worker")]
    assert set(asked) <= {name for name, _, _ in COMMANDS}


def test_compose_has_no_password_and_says_how_to_make_one() -> None:
    text = (CHECKOUT / "docker-compose.yml").read_text()
    services: dict[str, Any] = yaml.safe_load(text)["services"]
    asked = re.findall(r"\$\{POSTGRES_PASSWORD[^}]*\}", text)
    assert len(asked) == 1 and asked[0].startswith("${POSTGRES_PASSWORD:?must be set in the file .env; openssl")
    given = [
        one["environment"].get("PGPASSWORD", one["environment"].get("POSTGRES_PASSWORD")) for one in services.values()
    ]
    assert given == asked * len(services)
    for name in ("migrate", "api", "worker"):
        assert ":" not in services[name]["environment"]["DATABASE_URL"].partition("@")[0].removeprefix("postgresql://")
    assert ".env" in (CHECKOUT / ".gitignore").read_text().split("\n"), "the password is never committed"


def test_compose_limits_every_container_and_takes_its_rights() -> None:
    services: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())["services"]
    for name, service in services.items():
        limits = service["deploy"]["resources"]["limits"]
        assert float(limits["cpus"]) > 0 and re.fullmatch(r"\d+g", limits["memory"]), name
    for name in ("migrate", "api", "worker", "scorecard"):
        assert services[name]["read_only"] is True and services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
    assert services["postgres"]["healthcheck"]["test"][0] == "CMD-SHELL"
    assert "healthcheck" not in services["api"], "the image's own"


def test_the_image_copies_existing_files_and_runs_unprivileged() -> None:
    text = (CHECKOUT / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    ignored = (CHECKOUT / ".dockerignore").read_text().split("\n")
    for name in copied:
        assert (CHECKOUT / name).exists(), name
        assert f"!{name}" in ignored, f".dockerignore keeps {name} from the builder"
    final = text.split("FROM ")[-1]
    assert re.search(r"^USER (?!root)", final, re.MULTILINE) and "HEALTHCHECK" in final and "/healthz" in final


def test_every_command_is_listed_in_help() -> None:
    shown = CliRunner().invoke(build(None), ["--help"])
    assert shown.exit_code == 0
    for name, _, _ in COMMANDS:
        assert re.search(rf"\b{name}\b", shown.output)


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_every_command_has_help(name: str) -> None:
    shown = CliRunner().invoke(build(name), [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Usage" in shown.output
