"""The embedded PostgreSQL: kill -9, concurrent starts, long and private folders."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from app.config import CHECKOUT
from app.store.postgres import PING_TIMEOUT_S, EmbeddedPostgres, account_for, binary, run_as, started_beside
from tests.busy_machine import PATIENCE_S, until
from tests.worker_process import eventually

pytestmark = pytest.mark.slow

COUNT_UP = """
import sys, psycopg
from pathlib import Path
from app.store.postgres import EmbeddedPostgres
with EmbeddedPostgres(Path(sys.argv[1])) as server:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(1)")
        connection.execute("CREATE TABLE IF NOT EXISTS t (k INT)")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("SELECT pg_advisory_unlock(1)")
    print("in", flush=True)
    sys.stdin.readline()
"""


def postmaster(root: Path) -> int:
    return int((root / "data" / "postmaster.pid").read_text().split("\n", 1)[0])


def running(root: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["name", "status"]):
        try:
            if process.info["name"].startswith("postgres") and Path(process.cwd()) == root / "data":
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def test_no_acknowledged_row_is_lost_by_kill_9(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE t (k INT)")
        for k in range(3):
            with psycopg.connect(server.url) as connection:
                connection.execute("INSERT INTO t VALUES (%s)", (k,))
            os.kill(postmaster(tmp_path), signal.SIGKILL)
            server.ensure_running()
            with psycopg.connect(server.url) as connection:
                assert connection.execute("SELECT count(*) FROM t").fetchone() == (k + 1,)
    assert not running(tmp_path), "the last one to leave stops the server"


def test_four_processes_start_at_once_and_the_last_one_stops_it(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COUNT_UP, str(tmp_path)],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "in\n"
    for k, process in enumerate(processes):
        assert running(tmp_path), f"{k} of 4 left, and the server with them"
        process.communicate("leave\n", timeout=PATIENCE_S)
        assert process.returncode == 0
    assert not running(tmp_path)
    with EmbeddedPostgres(tmp_path) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (4,)


def test_a_server_left_by_kill_9_is_stopped_by_the_next_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COUNT_UP, str(tmp_path)],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "in\n"
    process.kill()
    process.wait()
    assert running(tmp_path)
    with EmbeddedPostgres(tmp_path):
        pass
    assert not running(tmp_path)


def test_a_server_that_answers_too_late_is_stopped_by_its_last_user(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path):
        server = psutil.Process(int((tmp_path / "data" / "postmaster.pid").read_text().split()[0]))
        server.suspend()
        late = threading.Timer(PING_TIMEOUT_S + 1.0, server.resume)
        late.start()
    late.join()
    assert not running(tmp_path)


def test_a_pid_file_of_another_process_does_not_prevent_a_start(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path):
        lines = (tmp_path / "data" / "postmaster.pid").read_text().split("\n")
    (tmp_path / "data" / "postmaster.pid").write_text("\n".join([str(os.getpid()), *lines[1:]]))
    with EmbeddedPostgres(tmp_path) as server:
        with EmbeddedPostgres(tmp_path) as joined:
            psycopg.connect(joined.url).close()
        psycopg.connect(server.url).close()


def test_a_server_started_beside_is_joined_and_stops_with_the_block(tmp_path: Path) -> None:
    with started_beside(EmbeddedPostgres(tmp_path)):
        with EmbeddedPostgres(tmp_path) as joined:
            psycopg.connect(joined.url).close()
        until(lambda: running(tmp_path))  # a busy machine's thread may come to its start after the join
    assert not running(tmp_path)


def test_a_server_started_beside_may_stop_before_the_block_ends(tmp_path: Path) -> None:
    with started_beside(EmbeddedPostgres(tmp_path)) as leave:
        with EmbeddedPostgres(tmp_path):
            pass
        leave()
        eventually(lambda: None if running(tmp_path) else True)
    assert not running(tmp_path)


def test_whoever_joins_a_server_that_cannot_start_learns_why(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with started_beside(EmbeddedPostgres(file)), pytest.raises(FileExistsError), EmbeddedPostgres(file):
        pass


def test_an_interrupted_first_start_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("18\n")
    (tmp_path / "initialising").touch()
    with EmbeddedPostgres(tmp_path) as server:
        psycopg.connect(server.url).close()


@pytest.mark.parametrize("name", ['it\'s a "$HOME" of 100 % ünï', "x" * 120])
def test_long_and_unusual_folder_names_work(tmp_path: Path, name: str) -> None:
    with EmbeddedPostgres(tmp_path / name) as server:
        psycopg.connect(server.url).close()


def test_a_socket_folder_among_temporary_files_is_removed_with_the_last_user(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 120)
    with EmbeddedPostgres(root) as server:
        folder = Path(conninfo_to_dict(server.url)["host"])
        assert folder.parent == Path(tempfile.gettempdir())
        with EmbeddedPostgres(root):
            pass
        assert folder.exists()
    assert not folder.exists()
    with EmbeddedPostgres(root) as server:
        psycopg.connect(server.url).close()


def test_only_its_owner_reaches_the_socket(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path) as server:
        assert (tmp_path / "socket").stat().st_mode & 0o777 == 0o700
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")
def test_root_may_use_a_private_checkout(tmp_path: Path) -> None:
    """An account that may enter neither the checkout nor the data folder still runs PostgreSQL in them."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    installation = binary("initdb").parents[1]
    package = installation.parent
    program = closed / package.name / installation.name / "bin" / "initdb"
    shutil.copytree(installation, program.parents[1], copy_function=link_or_copy)
    libraries = package.with_suffix(".libs")
    if libraries.exists():
        shutil.copytree(libraries, closed / libraries.name, copy_function=link_or_copy)
    account = account_for(closed / "data")
    account.empty(closed / "data")
    run_as(account, program, "-D", "data", "-A", "trust", folder=closed)
    assert (closed / "data" / "PG_VERSION").stat().st_uid == account.uid != 0
    assert closed.stat().st_mode & 0o777 == 0o700, "no folder is opened for it"


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
