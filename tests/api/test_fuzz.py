"""The OpenAPI document, fuzzed against the running service: no 500, and every answer as documented."""

from __future__ import annotations

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import positive_data_acceptance

from app.config import Settings
from app.main import create_app

pytestmark = pytest.mark.filterwarnings("ignore")

EXAMPLES_PER_OPERATION = 25
# `positive_data_acceptance` is left out: a schema cannot say that a GPU's figures must agree with one another.

schema = schemathesis.openapi.from_dict(create_app(Settings()).openapi())


@schema.parametrize()
@settings(max_examples=EXAMPLES_PER_OPERATION, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_it(case: Case, server: httpx.Client) -> None:
    case.call_and_validate(base_url=str(server.base_url), excluded_checks=[positive_data_acceptance])
