"""A sequence of faults, drawn by a seed, under load: what callers were told is stored is stored once, without a 500."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import psutil
import psycopg

from app.config import Settings
from app.store.postgres import EmbeddedPostgres
from tests.busy_machine import until
from tests.database_proxy import DatabaseProxy
from tests.learning import workload
from tests.server_processes import hanging, set_read_only, signal_server
from tests.service import Service
from tests.small_disk import fill, make_room, small_disk
from tests.wrong_clock import WrongClock

# What a fault may make of a request: a refusal that says so, and no answer at all where a process was killed or paused.
REFUSALS = {"429", "503", "504", "507"}
UPLOADERS, MOST_ROWS = 4, 8
DISK_MIB, TABLESPACE = 128, "small"
READS = ("/readyz", "/gpus", "/measurements?limit=1", "/metrics", "/jobs")
KERNEL = workload("matmul", 1024)
_LOG_TAIL = 20_000


@dataclass
class Installation:
    """The service with its database, the network between them, the disk of its measurements, and its clock."""

    service: Service
    database: EmbeddedPostgres
    root: Path
    proxy: DatabaseProxy
    disk: Path
    clock: WrongClock

    def processes(self) -> list[psutil.Process]:
        """Every process of the service but the first."""
        assert self.service.process is not None
        return list(psutil.Process(self.service.process.pid).children(recursive=True))

    def signal(self, number: int) -> None:
        """Signal all processes of the service at once."""
        assert self.service.process is not None
        os.killpg(self.service.process.pid, number)

    def sql(self, statement: str) -> list[Any]:
        """Return the rows of a statement, past the proxy."""
        with psycopg.connect(self.database.url, autocommit=True) as connection:
            answer = connection.execute(statement.encode())
            return answer.fetchall() if answer.description else []


@contextmanager
def installed(*, quick: bool) -> Iterator[Installation]:
    """Yield a service that runs, whose measurements lie on a small disk. Only root mounts one.

    `quick`: it has one API process, which starts at once, and the right clock.
    """
    with ExitStack() as held:
        folder = Path(held.enter_context(TemporaryDirectory(prefix="gpucast-faults-")))
        folder.chmod(0o755)  # PostgreSQL's account passes it
        root, own = folder / "postgres", folder / "own"
        own.mkdir()
        database = held.enter_context(EmbeddedPostgres(root))
        place = urlsplit(database.url)
        socket = parse_qs(place.query)["host"][0] + "/.s.PGSQL.5432"
        proxy, clock = held.enter_context(DatabaseProxy(socket)), WrongClock(own)
        settings = Settings(
            database_url=f"postgresql://{place.username}@127.0.0.1:{proxy.port}/postgres?sslmode=disable",
            data_dir=own,
            seed_measurements_dir=own / "none",
            doubtful_factor=0.0,
            workers=1 if quick else 2,
        )
        service = held.enter_context(
            Service(settings, own / "log", {} if quick else clock.environment, fresh=not quick)
        )
        disk = held.enter_context(small_disk(folder / "disk", mebibytes=DISK_MIB))
        owner = (root / "data").stat()
        os.chown(disk, owner.st_uid, owner.st_gid)
        running = Installation(service, database, root, proxy, disk, clock)
        running.sql(f"CREATE TABLESPACE {TABLESPACE} LOCATION '{disk}'")
        running.sql(f"ALTER TABLE measurements SET TABLESPACE {TABLESPACE}")
        yield running
        running.sql("ALTER TABLE measurements SET TABLESPACE pg_default")


Fault = Callable[[Installation, random.Random], None]


def _lasting(draw: random.Random) -> None:
    time.sleep(draw.uniform(0.3, 2.0))


def kill_service(running: Installation, draw: random.Random) -> None:
    """Kill every process of the service, and start it again."""
    running.signal(signal.SIGKILL)
    assert running.service.process is not None
    running.service.process.wait(30)
    running.service.start()


def kill_one_process(running: Installation, draw: random.Random) -> None:
    """Kill a process of the service: an API process, the worker, or one of theirs."""
    with suppress(psutil.NoSuchProcess, IndexError):
        draw.choice(running.processes()).kill()


def pause_service(running: Installation, draw: random.Random) -> None:
    """Stop all processes of the service, and let them go on."""
    running.signal(signal.SIGSTOP)
    _lasting(draw)
    running.signal(signal.SIGCONT)


def kill_backend(running: Installation, draw: random.Random) -> None:
    """Kill a process of PostgreSQL that serves a connection: it restarts all of them."""
    pids = running.sql("SELECT pid FROM pg_stat_activity WHERE application_name <> '' OR query <> ''")
    with suppress(ProcessLookupError):
        os.kill(draw.choice(pids)[0], signal.SIGKILL)


def kill_database(running: Installation, draw: random.Random) -> None:
    """Kill PostgreSQL, and start it again."""
    signal_server(running.root, signal.SIGKILL)
    _lasting(draw)
    running.database.ensure_running()


def pause_database(running: Installation, draw: random.Random) -> None:
    """Stop PostgreSQL, and let it go on."""
    with hanging(running.root):
        _lasting(draw)


def read_only(running: Installation, draw: random.Random) -> None:
    """Make the database read-only, as after a failover."""
    set_read_only(running.database, True)
    _lasting(draw)
    set_read_only(running.database, False)


def full_disk(running: Installation, draw: random.Random) -> None:
    """Fill the disk of the measurements, and make room."""
    fill(running.disk)
    _lasting(draw)
    make_room(running.disk)


def slow_network(running: Installation, draw: random.Random) -> None:
    """Delay all that goes between service and database."""
    running.proxy.delay_s = draw.uniform(0.01, 0.3)
    _lasting(draw)
    running.proxy.delay_s = 0.0


def cut_network(running: Installation, draw: random.Random) -> None:
    """Cut the service off from its database."""
    running.proxy.cut()
    _lasting(draw)
    running.proxy.is_cut = False


def jump_of_clock(running: Installation, draw: random.Random) -> None:
    """Set the clock of the service back or ahead by up to a year."""
    running.clock.jump(draw.uniform(-1.0, 1.0) * 3.15e7)
    _lasting(draw)
    running.clock.jump(0.0)


FAULTS: tuple[Fault, ...] = (
    *(kill_service, kill_one_process, pause_service, kill_backend, kill_database, pause_database),
    *(read_only, full_disk, slow_network, cut_network, jump_of_clock),
)


@dataclass
class Load:
    """Callers beside the faults; an upload is sent until it is acknowledged, the same each time, or all are given up.

    acknowledged  rows of each upload by its source
    repeated      times that an upload was sent again
    """

    url: str
    seed: int
    over: threading.Event = field(default_factory=threading.Event)
    given_up: threading.Event = field(default_factory=threading.Event)
    statuses: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _send(self, client: httpx.Client, method: str, path: str, body: Any = None) -> httpx.Response | None:
        try:
            answer = client.request(method, path, json=body)
            status = str(answer.status_code)
        except httpx.HTTPError as error:
            answer, status = None, type(error).__name__
        with self._lock:
            self.statuses[status] += 1
            if answer is not None and not answer.is_success and status not in REFUSALS:
                self.wrong.append(f"{method} {path}: {status} {answer.text[:300]}")
        return answer

    def has(self, uploads: int) -> bool:
        """Return whether so many uploads are acknowledged, or something is wrong."""
        return len(self.acknowledged) >= uploads or bool(self.wrong)

    def upload(self, name: int) -> None:
        """Upload until it is over."""
        draw = random.Random(f"{self.seed} {name}")
        with httpx.Client(base_url=self.url, timeout=20.0) as client:
            for number in count():
                if self.over.is_set():
                    return
                source, rows = f"caller {name}, upload {number}", draw.randint(1, MOST_ROWS)
                about = {"gpu": "rtx-4070", "software": "cuda", "source": source, "workload": KERNEL}
                body = [about | {"latency_ms": 1.0 + k / 100} for k in range(rows)]
                while (answer := self._send(client, "POST", "/measurements", body)) is None or not answer.is_success:
                    self.repeated += 1
                    if self.given_up.wait(0.1):
                        self.wrong.append(f"{source} was never acknowledged")
                        return
                report = answer.json()
                if report["inserted"] + report["unchanged"] != rows:
                    self.wrong.append(f"{source}: {report} of {rows} rows")
                self.acknowledged[source] = rows
                self.over.wait(0.2)

    def read(self) -> None:
        """Predict and read until it is over."""
        with httpx.Client(base_url=self.url, timeout=20.0) as client:
            for k in count():
                if self.over.is_set():
                    return
                self._send(client, "POST", "/predict", {"gpu": "rtx-4070", "workload": KERNEL})
                self._send(client, "GET", READS[k % len(READS)])
                self.over.wait(0.05)


@dataclass(frozen=True)
class Outcome:
    """What a sequence of faults led to; `wrong` lists what must not be, `stored` has rows by source."""

    faults: Counter[str]
    statuses: Counter[str]
    acknowledged: Mapping[str, int]
    stored: Mapping[str, int]
    repeated: int
    wrong: list[str]

    @property
    def holds(self) -> bool:
        """Whether what was acknowledged is stored, once, and nothing is wrong."""
        return self.stored == self.acknowledged and not self.wrong

    def __str__(self) -> str:
        rows, stored = sum(self.acknowledged.values()), sum(self.stored.values())
        uploads = f"{len(self.acknowledged)} uploads acknowledged, of {rows} rows; {self.repeated} sent again"
        lines = (f"faults: {dict(self.faults)}", f"answers: {dict(self.statuses)}", f"{uploads}; {stored} rows stored")
        return "\n".join([*lines, *self.wrong])


def _goes_on(running: Installation, load: Load, fault: str) -> None:
    """Wait for an upload of each caller; an error shows the end of the service's log."""
    try:
        until(partial(load.has, len(load.acknowledged) + UPLOADERS))
    except AssertionError as error:
        log = running.service.log.read_text()[-_LOG_TAIL:]
        raise AssertionError(f"no uploads after {fault}; the service's log ends:\n{log}") from error


def run(*, seed: int, seconds: float, quick: bool = False, report: Callable[[str], object] = print) -> Outcome:
    """Return what comes of faults for so many seconds: each kind once in a random order, again and again."""
    draw, faults = random.Random(seed), Counter[str]()
    kinds = [fault for fault in FAULTS if not (quick and fault is jump_of_clock)]
    with installed(quick=quick) as running, ThreadPoolExecutor(UPLOADERS + 1) as threads:
        load = Load(str(running.service.client.base_url), seed)
        callers: list[Future[None]] = [threads.submit(load.upload, name) for name in range(UPLOADERS)]
        callers.append(threads.submit(load.read))
        began = time.monotonic()
        try:
            while time.monotonic() - began < seconds:
                for fault in draw.sample(kinds, len(kinds)):
                    if time.monotonic() - began >= seconds:
                        break
                    fault(running, draw)
                    _goes_on(running, load, fault.__name__)
                    faults[fault.__name__] += 1
                    report(f"{time.monotonic() - began:6.1f} s {fault.__name__}: {len(load.acknowledged)} uploads")
        finally:
            load.over.set()
            wait(callers, timeout=120)
            load.given_up.set()
        for caller in callers:
            caller.result()
        rows = running.sql("SELECT source, count(*) FROM measurements GROUP BY source")
        return Outcome(faults, load.statuses, load.acknowledged, dict(rows), load.repeated, load.wrong)
