"""The process that decodes files of strangers."""

from __future__ import annotations

import io
import resource
import signal

import pyarrow as pa
import pyarrow.parquet as pq

from app.wire.table_files import PARQUET, TableProcess


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"m": [1, 2, 3]}), file)
    return file.getvalue()


def test_each_file_has_processor_time_of_its_own_and_another_process_follows_one_that_took_too_much() -> None:
    process = TableProcess()
    try:
        assert process.read_table(parquet(), PARQUET, 10).num_rows == 3
        started = process._process
        assert started is not None
        soft, hard = resource.prlimit(started.pid, resource.RLIMIT_CPU)
        assert 20 <= soft <= 30
        assert hard == resource.RLIM_INFINITY
        started.send_signal(signal.SIGXCPU)  # as the kernel does at the limit
        assert started.wait(5) == -signal.SIGXCPU
        assert process.read_table(parquet(), PARQUET, 10).num_rows == 3
    finally:
        process.stop()
