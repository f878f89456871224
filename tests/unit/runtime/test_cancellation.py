"""Work that ends with its caller, and work that others share."""

import pytest

from app.errors import Cancelled
from app.runtime.cancellation import Cancellation, check_cancelled, shared


def test_work_that_others_share_goes_on_when_its_caller_leaves() -> None:
    Cancellation.begin().cancelled = True
    with pytest.raises(Cancelled):
        check_cancelled()
    shared(check_cancelled)
    with pytest.raises(Cancelled):
        check_cancelled()
    Cancellation.begin()
