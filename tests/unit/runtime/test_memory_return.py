import subprocess
import sys

import psutil
import pytest

from app.runtime import memory_return


@pytest.mark.skipif(memory_return._TRIM is None, reason="not the C library that can be told to")
def test_what_was_freed_under_something_in_use_goes_back() -> None:
    freed = [bytes(2000) for _ in range(50_000)]
    kept = bytes(2000)  # on top of the heap, which does not shrink below it by itself
    del freed
    before = psutil.Process().memory_info().rss
    memory_return.return_memory()
    assert before - psutil.Process().memory_info().rss > 50e6
    assert len(kept) == 2000


_BODIES = """
import psutil
from app.runtime.memory_return import share_arena

share_arena()
kept, before = [], psutil.Process().memory_info().rss
for _ in range(3):
    body = bytearray(b"x") * (20 << 20)
    kept.append(bytes(2000))  # on top of the heap, were the body there
    del body
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.skipif(memory_return._OPTION is None, reason="not the C library that can be told to")
def test_a_large_body_goes_back_when_it_is_freed() -> None:
    told = subprocess.run([sys.executable, "-c", _BODIES], check=True, capture_output=True, text=True)
    assert int(told.stdout) < 10e6
