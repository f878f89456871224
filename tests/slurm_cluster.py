"""A real Slurm on this machine, in a folder of its own; empty files stand for devices."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.service import free_port

_PACKAGES = "slurmctld slurmd slurm-client munge"
# Another test process may be at it.
_APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600"
_INSTALL = f"{_APT} update && {_APT} install --no-install-recommends -y {_PACKAGES}"
_DAEMONS = ("munged", "slurmctld", "slurmd")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_START_S, _STOP_S = 60.0, 30.0

# A node of two GPU types that runs, and nodes that Slurm knows but cannot reach.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=100 Gres=gpu:a100:2,gpu:l4:1 State=UNKNOWN
NodeName=old[1-2] NodeAddr=127.0.0.1 CPUs=1 RealMemory=100 Gres=gpu:4 State=DOWN
NodeName=cpu1 NodeAddr=127.0.0.1 CPUs=1 RealMemory=100 State=DOWN
PartitionName=mixed Nodes={host} Default=YES MaxTime=2-00:00:00 State=UP
PartitionName=short Nodes={host} MaxTime=5 State=UP
PartitionName=closed Nodes={host} MaxTime=INFINITE State=DOWN
PartitionName=old Nodes=old[1-2] MaxTime=INFINITE State=UP
PartitionName=cpu Nodes=cpu1 MaxTime=60 State=UP
"""
_DEVICES = """\
NodeName={host} Name=gpu Type=a100 File={folder}/a100_[0-1]
NodeName={host} Name=gpu Type=l4 File={folder}/l4_0
"""


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of a cluster's user. Skips the test where Slurm neither is nor can be installed."""
    if os.geteuid() != 0:
        pytest.skip("a Slurm of one's own needs root")
    if not _installed() and shutil.which("apt-get"):
        subprocess.run(_INSTALL, shell=True, capture_output=True, check=False)
    if not _installed():
        pytest.skip(f"no Slurm here (Debian: apt-get install {_PACKAGES})")
    environment = os.environ | {"PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    try:
        _start(folder, environment)
        yield environment
    finally:
        _stop(folder)


def _installed() -> bool:
    return all(shutil.which(name, path=_PATH) for name in (*_DAEMONS, "sinfo", "sbatch"))


def _start(folder: Path, environment: dict[str, str]) -> None:
    host, munge = socket.gethostname().partition(".")[0], folder / "munge"
    for name in ("state", "spool"):
        (folder / name).mkdir()
    munge.mkdir(mode=0o700)
    (munge / "key").write_bytes(os.urandom(1024))
    (munge / "key").chmod(0o400)
    for device in ("a100_0", "a100_1", "l4_0"):
        (folder / device).touch()
    facts = {"host": host, "folder": folder, "cpus": os.cpu_count(), "ports": [free_port(), free_port()]}
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(**facts))
    (folder / "gres.conf").write_text(_DEVICES.format(**facts))
    files = {"key-file": "key", "socket": "socket", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={munge / name}" for option, name in files.items()]
    _run(["munged", "--force", f"--pid-file={folder / 'munged.pid'}", *options], environment)
    for daemon in _DAEMONS[1:]:
        _run([daemon, "-f", str(folder / "slurm.conf")], environment)
    _wait(folder, host, environment)


def _stop(folder: Path) -> None:
    """Return when the daemons have ended: slurmctld writes its state last, to a folder that the caller then removes."""
    ending = []
    for daemon in reversed(_DAEMONS):
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            process = psutil.Process(int((folder / f"{daemon}.pid").read_text()))
            process.terminate()
            ending.append(process)
    for process in psutil.wait_procs(ending, timeout=_STOP_S)[1]:
        process.kill()
        process.wait()


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{command[0]} does not start:\n{done.stderr[-2000:]}", pytrace=False)


def _wait(folder: Path, host: str, environment: dict[str, str]) -> None:
    """Return when the node is idle."""
    until, shown = time.monotonic() + _START_S, "nothing"
    while time.monotonic() < until:
        command = ["sinfo", "--noheader", f"--nodes={host}", "--partition=mixed", "--format=%t"]
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.strip()
        if shown == "idle":
            return
        time.sleep(0.2)
    log = (folder / "slurmctld.log").read_text()[-2000:]
    pytest.fail(f"Slurm's node is {shown} after {_START_S:g} s:\n{log}", pytrace=False)
