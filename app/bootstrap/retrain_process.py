"""Run one retraining in a process of its own: `python -m app.bootstrap.retrain_process JOB_ID`.

The process has low priority, ends with its worker, and reports through its exit code whether the job is over.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys

from app.config import Settings
from app.errors import Unavailable
from app.runtime import logs
from app.runtime.parent_watch import follow_parent

NICENESS = 10
AWAY = 75  # the database, or space on a disk; EX_TEMPFAIL of sysexits.h
# Multi-threaded linear algebra would take cores from serving, whatever the niceness.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")


def main() -> int:
    """Run the job whose id is the only argument, with settings from the environment."""
    follow_parent(signal.SIGKILL)
    os.nice(NICENESS)
    settings = Settings.from_env()
    # RLIMIT_DATA limits private memory. An address-space limit would not work: NumPy and Numba reserve more than they
    # use.
    resource.setrlimit(resource.RLIMIT_DATA, (settings.retrain_memory_bytes, settings.retrain_memory_bytes))
    logs.configure(settings)
    # Heavy imports after the process has stepped back.
    from joblib import parallel_config  # noqa: PLC0415

    from app.bootstrap.assemble import installed_engine  # noqa: PLC0415
    from app.services.learning.retrain import run_job  # noqa: PLC0415

    try:
        with parallel_config("threading", n_jobs=settings.retrain_threads):
            run_job(settings, settings.database_url or "", int(sys.argv[1]), installed_engine)
    except Unavailable as error:
        logging.getLogger(__name__).warning("%s", error.detail)
        return AWAY
    return 0


if __name__ == "__main__":
    sys.exit(main())
