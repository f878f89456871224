"""The worker: takes retrainings from the queue, one at a time, each in a process of its own.

Heartbeats go on while a job trains; the reaper looks for jobs whose worker died; when the database goes away
the worker waits for it. SIGTERM lets the running job finish.
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

from app.bootstrap.runtime import Runtime, open_runtime
from app.config import Settings
from app.errors import Unavailable
from app.runtime.parent_watch import follow_parent
from app.services.learning.retrain_process import DATABASE_AWAY, ONE_THREAD
from app.store import jobs, queue

LOG = logging.getLogger("gpucast.worker")
POLL_S = 1.0  # a notification wakes the worker at once; polling finds jobs whose notification was lost
RECONNECT_S = 1.0


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
    app = queue.open_app(runtime.database.url)
    _register(app, runtime)
    async with app.open_async():
        worker = app.run_worker_async(
            queues=[queue.QUEUE],
            name="gpucast",
            concurrency=1,
            install_signal_handlers=False,
            fetch_job_polling_interval=POLL_S,
            update_heartbeat_interval=settings.heartbeat_s,
            stalled_worker_timeout=settings.stalled_after_s,
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
    while True:
        with contextlib.suppress(Unavailable):  # the worker itself says when the database is away
            await asyncio.to_thread(_reap, runtime)
        await asyncio.sleep(runtime.settings.heartbeat_s)


def _reap(runtime: Runtime) -> None:
    settings = runtime.settings
    with runtime.database.begin() as connection:
        attempts = settings.retrain_attempts
        for reaped in queue.reap(connection, stalled_after_s=settings.stalled_after_s, attempts=attempts):
            LOG.warning("job %d lost its worker: %s", reaped.job_id, reaped.outcome)


def _register(app: App, runtime: Runtime) -> None:
    async def retrain(job_id: int) -> None:
        await _train_in_process(runtime, job_id)

    app.task(name=queue.TASK, queue=queue.QUEUE)(retrain)


async def _train_in_process(runtime: Runtime, job_id: int) -> None:
    """Run the job in a subprocess; what kills that one is written down as the job's reason."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.services.learning.retrain_process", str(job_id)),
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, **runtime.settings.environment(), **ONE_THREAD},
        start_new_session=True,  # a Ctrl-C in the terminal is this process's to handle
    )
    try:
        code = await asyncio.wait_for(process.wait(), runtime.settings.retrain_timeout_s)
    except TimeoutError:
        await _kill(process)
        await _fail(runtime, job_id, f"It took more than {runtime.settings.retrain_timeout_s:.0f} s.")
        return
    except asyncio.CancelledError:
        await _kill(process)
        raise
    if code == DATABASE_AWAY:
        raise TrainingProcessError(f"job {job_id}: the database went away")
    if code != 0:
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        await _fail(runtime, job_id, f"The training process ended {how}.")


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
