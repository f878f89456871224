import subprocess
import sys

import psutil
import pytest

from app.runtime import allocator_trim


@pytest.mark.skipif(allocator_trim._TRIM is None, reason="the C library has no such call")
def test_memory_freed_below_a_live_allocation_returns_to_the_system() -> None:
    freed = [bytes(2000) for _ in range(50_000)]
    kept = bytes(2000)  # on top of the heap, which does not shrink below it by itself
    del freed
    before = psutil.Process().memory_info().rss
    allocator_trim.trim_allocator()
    assert before - psutil.Process().memory_info().rss > 50e6
    assert len(kept) == 2000


_BODIES = """
import psutil
from app.runtime.allocator_trim import share_arena

share_arena()
kept, before = [], psutil.Process().memory_info().rss
for _ in range(3):
    body = bytearray(b"x") * (20 << 20)
    kept.append(bytes(2000))  # on top of the heap, were the body there
    del body
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.skipif(allocator_trim._OPTION is None, reason="the C library has no such call")
def test_a_large_body_returns_to_the_system_when_freed() -> None:
    process = subprocess.run([sys.executable, "-c", _BODIES], check=True, capture_output=True, text=True)
    assert int(process.stdout) < 10e6
