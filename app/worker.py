"""The worker: takes retrainings from the queue, one at a time, each in a process of its own.

Heartbeats go on while a job trains; the reaper looks for jobs whose worker died; when the database goes away, worker
and job wait for it. SIGTERM lets the running job finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys

import psycopg
from procrastinate import App
from procrastinate.exceptions import ProcrastinateException

from app.bootstrap.retrain_process import AWAY, ONE_THREAD
from app.bootstrap.runtime import Runtime, open_runtime
from app.config import Settings
from app.errors import Unavailable
from app.runtime.parent_watch import follow_parent
from app.store import jobs, queue, quotes

LOG = logging.getLogger("gpucast.worker")
POLL_S = 1.0  # a notification wakes the worker at once; polling finds jobs whose notification was lost
RECONNECT_S = 1.0
# Of workers that died; those that a pause of the database kept from their heartbeat must be known after it.
FORGET_WORKERS_S = 24 * 3600.0


class TrainingProcessError(Exception):
    """The training process of a job ended without ending the job."""


def run(settings: Settings, *, with_parent: bool = False) -> None:
    """Work until SIGTERM or SIGINT; with `with_parent`, also until standard input closes."""
    with open_runtime(settings) as runtime:
        asyncio.run(_work(runtime, with_parent=with_parent))


async def _work(runtime: Runtime, *, with_parent: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if with_parent:
        follow_parent(signal.SIGTERM)
    LOG.info("worker ready")
    while not stop.is_set():
        try:
            await asyncio.to_thread(runtime.ensure_database)
            await asyncio.to_thread(runtime.database.ping)
            await _serve_queue(runtime, stop)
        except (ProcrastinateException, psycopg.Error, Unavailable) as error:
            LOG.warning("the queue is away: %s", error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RECONNECT_S)


async def _serve_queue(runtime: Runtime, stop: asyncio.Event) -> None:
    """Work on one connection to the queue until it breaks or a stop is asked for."""
    settings = runtime.settings
    app = queue.open_app(runtime.database)
    _register(app, runtime)
    async with app.open_async():
        worker = app.run_worker_async(
            queues=[queue.QUEUE],
            name="gpucast",
            concurrency=1,
            install_signal_handlers=False,
            fetch_job_polling_interval=POLL_S,
            update_heartbeat_interval=settings.heartbeat_s,
            stalled_worker_timeout=FORGET_WORKERS_S,
            shutdown_graceful_timeout=settings.stop_grace_s,
            delete_jobs="successful",
        )
        parts = [asyncio.create_task(part) for part in (worker, _reap_for_ever(runtime), _until(stop))]
        done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for part in parts:
            part.cancel()
        await asyncio.wait(parts)  # the worker lets its job finish first
        for part in done:
            part.result()


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


async def _reap_for_ever(runtime: Runtime) -> None:
    settings = runtime.settings
    reaper = queue.Reaper(stalled_after_s=settings.stalled_after_s, attempts=settings.retrain_attempts)
    while True:
        try:
            await asyncio.to_thread(_reap, runtime, reaper)
        except Unavailable as error:
            LOG.warning("the database is away: %s", error.detail)
            reaper.paused()
            with contextlib.suppress(Unavailable):
                await asyncio.to_thread(runtime.ensure_database)
        await asyncio.sleep(settings.heartbeat_s)


def _reap(runtime: Runtime, reaper: queue.Reaper) -> None:
    """Do what a worker does at each heartbeat: look for lost jobs, and remove saved answers of a certain age."""
    for reaped in reaper.reap(runtime.database):
        LOG.warning("job %d lost its worker: %s", reaped.job_id, reaped.outcome)
    if days := runtime.settings.saved_days:
        with runtime.database.begin() as connection:
            if removed := quotes.remove_old(connection, days):
                LOG.info("%d saved answers were older than %g days", removed, days)


def _register(app: App, runtime: Runtime) -> None:
    async def retrain(job_id: int) -> None:
        await _train_in_process(runtime, job_id)

    app.task(name=queue.TASK, queue=queue.QUEUE)(retrain)


async def _train_in_process(runtime: Runtime, job_id: int) -> None:
    """Run the job in a subprocess, again where it gave up waiting for the database or for space on a disk.

    What kills the subprocess is written down as the job's reason.
    """
    for _ in range(runtime.settings.retrain_attempts):
        code = await _ended(runtime, job_id)
        if code != AWAY:
            break
    if code == AWAY:
        raise TrainingProcessError(f"job {job_id}: the database is away or a disk is full")
    if code:
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        await _fail(runtime, job_id, f"The training process ended {how}.")


async def _ended(runtime: Runtime, job_id: int) -> int | None:
    """Run the subprocess to its end, and return its exit code; None if its time was up, which fails the job."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.bootstrap.retrain_process", str(job_id)),
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, **runtime.settings.environment(), **ONE_THREAD},
        start_new_session=True,  # a Ctrl-C in the terminal is this process's to handle
    )
    try:
        return await asyncio.wait_for(process.wait(), runtime.settings.retrain_timeout_s)
    except TimeoutError:
        await _kill(process)
        await _fail(runtime, job_id, f"It took more than {runtime.settings.retrain_timeout_s:.0f} s.")
        return None
    except asyncio.CancelledError:
        await _kill(process)
        raise


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _fail(runtime: Runtime, job_id: int, reason: str) -> None:
    LOG.error("job %d failed: %s", job_id, reason)

    def write() -> None:
        with runtime.database.begin() as connection:
            jobs.fail(connection, job_id, reason)

    await asyncio.to_thread(write)
