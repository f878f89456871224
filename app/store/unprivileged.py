"""Runs PostgreSQL's programs, which refuse to run as root, under an existing unprivileged account."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
