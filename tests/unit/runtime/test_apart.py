"""Processes that work on bytes of strangers: their limits, and callers who leave."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from app.errors import BadInput, Cancelled, FieldError, GpucastError, TooLarge
from app.runtime.apart import Apart, _Process
from app.runtime.cancellation import Cancellation
from tests.busy_machine import until

HERE = __name__
KEPT: list[bytes] = []  # of the process


def doubled(content: bytes, times: int) -> bytes:
    return content * times


def refused(content: bytes) -> bytes:
    raise BadInput("no", errors=[FieldError(("nodes", 3), "wrong")])


def endless(content: bytes) -> bytes:
    while True:
        content = bytes(reversed(content))


def kept(content: bytes) -> bytes:
    KEPT.append(b"1" * (600 << 20))
    return content


def gigabytes(content: bytes) -> bytes:
    return bytes(1 << 31)


def broken(content: bytes) -> bytes:
    raise KeyError(content)


@pytest.fixture
def apart() -> Iterator[Apart]:
    held = Apart()
    yield held
    held.stop()


def only_process(apart: Apart) -> _Process:
    (process,) = apart._idle
    return process


def test_a_mistake_is_no_large_file_and_costs_no_process(apart: Apart) -> None:
    with pytest.raises(GpucastError, match="failed; the log has the reason") as caught:
        apart.result(f"{HERE}:broken", {}, b"")
    assert caught.value.status == 500
    pid = only_process(apart).pid
    assert apart.result(f"{HERE}:doubled", {"times": 2}, b"1") == b"11"
    assert only_process(apart).pid == pid


def test_long_content_comes_back_and_errors_with_their_places(apart: Apart) -> None:
    content = bytes(range(256)) * 10_000
    assert apart.result(f"{HERE}:doubled", {"times": 2}, content) == content * 2
    with pytest.raises(BadInput) as caught:
        apart.result(f"{HERE}:refused", {}, b"")
    assert (caught.value.detail, caught.value.errors) == ("no", (FieldError(("nodes", 3), "wrong"),))
    with pytest.raises(TooLarge, match="bytes"):
        apart.result(f"{HERE}:gigabytes", {}, b"")


def test_each_work_has_processor_time_of_its_own_and_another_process_follows_one_that_took_too_much(
    apart: Apart,
) -> None:
    assert apart.result(f"{HERE}:doubled", {"times": 1}, b"a") == b"a"
    pid = only_process(apart).pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_CPU)
    assert 20 <= soft <= 30
    assert hard == resource.RLIM_INFINITY
    only_process(apart)._process.send_signal(signal.SIGXCPU)  # as the kernel does at the limit
    assert only_process(apart)._process.wait(5) == -signal.SIGXCPU
    assert apart.result(f"{HERE}:doubled", {"times": 1}, b"b") == b"b"


def test_a_process_that_keeps_much_memory_is_followed_by_another(apart: Apart) -> None:
    assert apart.result(f"{HERE}:kept", {}, b"a") == b"a"
    assert not apart._idle
    assert not apart._every


def test_no_thread_ends_the_process_of_another(apart: Apart) -> None:
    def ask(k: int) -> bool:
        return apart.result(f"{HERE}:doubled", {"times": 2}, b"%d" % k) == b"%d" % k * 2

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(ask, range(3_000)))
    assert len(apart._every) <= 2


def test_one_caller_leaves_a_process_to_others(apart: Apart) -> None:
    works = list[Cancellation]()

    def endless_of(caller: str) -> None:
        works.append(Cancellation.begin(caller))
        with pytest.raises(Cancelled):
            apart.result(f"{HERE}:endless", {}, b"ab")

    def seconds_of(caller: str) -> float:
        Cancellation.begin(caller)
        began = time.monotonic()
        assert apart.result(f"{HERE}:doubled", {"times": 2}, b"a") == b"aa"
        return time.monotonic() - began

    with ThreadPoolExecutor(4) as threads:
        greedy = [threads.submit(copy_context().run, endless_of, "greedy") for _ in range(3)]
        until(lambda: len(works) == 3)
        others = [threads.submit(copy_context().run, seconds_of, f"other {k}").result(15) for k in range(3)]
        for work in works:
            work.cancelled = True
        for each in greedy:
            each.result()
    assert min(others) < 1.0, others


def test_work_ends_when_its_caller_leaves(apart: Apart) -> None:
    copy_context().run(leave, apart)


def leave(apart: Apart) -> None:
    assert apart.result(f"{HERE}:doubled", {"times": 1}, b"a") == b"a"
    process, work = only_process(apart), Cancellation.begin()
    threading.Timer(0.2, lambda: setattr(work, "cancelled", True)).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        apart.result(f"{HERE}:endless", {}, b"ab")
    assert time.monotonic() - began < 5
    assert not process.lives
    assert apart._idle == []
