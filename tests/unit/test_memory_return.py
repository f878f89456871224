import psutil
import pytest

from app.services import memory_return


@pytest.mark.skipif(memory_return._TRIM is None, reason="not the C library that can be told to")
def test_what_was_freed_under_something_in_use_goes_back() -> None:
    freed = [bytes(2000) for _ in range(50_000)]
    kept = bytes(2000)  # on top of the heap, which does not shrink below it by itself
    del freed
    before = psutil.Process().memory_info().rss
    memory_return.return_memory()
    assert before - psutil.Process().memory_info().rss > 50e6
    assert len(kept) == 2000
