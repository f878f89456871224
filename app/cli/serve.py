"""`gpucast serve` and `gpucast worker`: the whole service until Ctrl-C, or a worker beside API processes elsewhere."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from app.coefficients import Coefficients
from app.config import Settings
from app.errors import Unavailable

if TYPE_CHECKING:
    from app.bootstrap.runtime import Runtime

LOG = logging.getLogger("gpucast")
WATCH_S = 0.5
RESTART_S = 2.0  # least time between restarts of a failing worker


def serve() -> None:
    """Start database (unless DATABASE_URL is set), API and worker; Ctrl-C stops all of them."""
    from app.bootstrap.runtime import open_runtime
    from app.runtime import logs
    from app.runtime.service_file import announced
    from app.runtime.start_checks import folder_problem, port_problem

    settings = Settings.from_env()
    if problem := port_problem(settings) or (
        folder_problem(settings.data_dir) if settings.database_url is None else ""
    ):
        raise Unavailable(problem)
    logs.configure(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    with open_runtime(settings) as runtime, _worker_running(settings, runtime) as leaving, announced(settings):
        threading.Thread(target=_end_soon, daemon=True).start()
        _serve(runtime.settings, leaving)


def worker(
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Take retrainings from the queue until SIGTERM or Ctrl-C; the running one is finished first."""
    from app.runtime import logs
    from app.worker import run

    settings = Settings.from_env()
    logs.configure(settings)
    run(settings, with_parent=with_parent)


def _leave(number: int, frame: FrameType | None) -> None:
    """Raise SystemExit to unwind every `with`, and ignore further signals."""
    for again in (signal.SIGTERM, signal.SIGINT):
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(0)


def _end_soon() -> None:
    """End the process once its main thread has ended, though others still work for callers that nobody answers."""
    threading.main_thread().join()
    time.sleep(Coefficients("service").number("left_threads_s"))
    os._exit(0)


def _serve(settings: Settings, leaving: threading.Event) -> None:
    """Serve requests until a signal, in this process or in several that it supervises; the signal sets `leaving`."""
    from uvicorn import Config
    from uvicorn.config import LOGGING_CONFIG, STARTUP_FAILURE

    from app.api.server import Server, Supervisor

    os.environ.update(settings.environment())  # from which `create_app` builds its settings
    address = f"http://{settings.host}:{settings.port}"
    print(f"gpucast starts on {address}, documentation at /docs, Ctrl-C stops it", flush=True)
    config = Config(
        "app.main:create_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        log_level=settings.log_level,
        log_config=None if settings.log_format == "json" else LOGGING_CONFIG,
        access_log=False,
        loop="uvloop",
        http="app.api.http_protocol:BoundedHttp",
        timeout_graceful_shutdown=int(settings.stop_grace_s),
    )
    if settings.workers > 1:
        Supervisor(config, leaving).run()
        return
    config.load_app()
    server = Server(config, leaving)
    server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)


@contextmanager
def _worker_running(settings: Settings, runtime: Runtime) -> Iterator[threading.Event]:
    """Run a worker process and the embedded database, and restart them if they die, until the event is set."""
    leaving = threading.Event()
    watcher = threading.Thread(target=_watch, args=(settings, runtime, leaving), name="watcher")
    watcher.start()
    try:
        yield leaving
    finally:
        leaving.set()
        watcher.join()


def _watch(settings: Settings, runtime: Runtime, leaving: threading.Event) -> None:
    worker = _start_worker(settings)
    started = time.monotonic()
    while not leaving.wait(WATCH_S):
        try:
            runtime.ensure_database()
        except Unavailable as error:
            LOG.error("%s", error.detail)
        if worker.poll() is not None and time.monotonic() - started > RESTART_S:
            LOG.error("the worker ended with code %s; starting another", worker.returncode)
            worker = _start_worker(settings)
            started = time.monotonic()
    _stop_worker(worker, settings.stop_grace_s)


def _start_worker(settings: Settings) -> subprocess.Popen[bytes]:
    """Start a worker that ends with this process, which holds the other end of its standard input."""
    return subprocess.Popen(
        [sys.executable, "-m", "app.cli", "worker", "--with-parent"],
        stdin=subprocess.PIPE,
        env={**os.environ, **settings.environment()},
        start_new_session=True,  # only this process handles Ctrl-C
    )


def _stop_worker(worker: subprocess.Popen[bytes], grace_s: float) -> None:
    """Let the running job finish; after the grace period the next start resumes it."""
    worker.terminate()
    try:
        worker.wait(grace_s + 5)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
