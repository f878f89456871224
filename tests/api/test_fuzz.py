"""Fuzzing the running service from its OpenAPI document: no 500, and every response as documented.

    pytest -n 0 -s tests/api/test_fuzz.py [--hypothesis-seed N]

Another seed sends other requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from http.cookiejar import DefaultCookiePolicy
from itertools import count
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis import BaseSchema, Case, HookContext
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    positive_data_acceptance,
    unsupported_method,
)

from app.config import Settings
from app.main import create_app

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

EXAMPLES_PER_OPERATION = 25
# A plan over all GPUs takes seconds on a machine that does other things too.
TIMEOUT_S = 60
# POST /predict is asked every field of a workload at every bound, thousands of requests. Other routes read workloads by
# the same code: they have these operators only, and of the requests that vary only a workload one in so many.
READ_BY_ALL = ("LinearOperator", "AttentionModuleOperator", "AllReduceOperator")
SAME_READER = ("/compare", "/plan", "/gpus/{name}/plan")
ONE_IN = 25
# Fields that every operator has and that no code of an operator reads: only the first of them have these.
OF_EVERY_OPERATOR = ("count", "run_state", "software")
# `positive_data_acceptance` is left out: a schema cannot say that a GPU's figures must agree with one another.

DOCUMENT = create_app(Settings()).openapi()


def properties(path: str) -> dict[str, Any]:
    """The schemas of the fields of what is posted to a path."""
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    named = DOCUMENT["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2])
    found: dict[str, Any] = (named or schema)["properties"]
    return found


def operators_of(schemas: dict[str, Any]) -> list[dict[str, str]]:
    """References to the schemas of operators."""
    found: list[dict[str, str]] = schemas["OperatorsWorkload"]["properties"]["operators"]["items"]["anyOf"]
    return found


def with_fewer_variations(document: dict[str, Any], path: str) -> dict[str, Any]:
    """A document of one path that does not say the same of each operator: most requests would vary little else.

    Operators of the same fields are one, whose name is any of theirs.
    """
    document = deepcopy({**document, "paths": {path: document["paths"][path]}})
    schemas = document["components"]["schemas"]
    operators = operators_of(schemas)
    alike: dict[str, dict[str, Any]] = {}
    for reference in operators.copy():
        name = reference["$ref"].rpartition("/")[2]
        fields = schemas[name]["properties"]
        first = alike.setdefault(repr([(field, read) for field, read in fields.items() if field != "op"]), fields)
        if path != "/predict":
            if name not in READ_BY_ALL:
                operators.remove(reference)
        elif first is not fields:
            first["op"]["enum"] += fields["op"]["enum"]
            operators.remove(reference)
        elif len(alike) > 1:
            schemas[name]["properties"] = {name: fields[name] for name in fields if name not in OF_EVERY_OPERATOR}
    return document


# What is posted to vary another field has this one's default. Plans over all GPUs in groups of up to eight take a
# second each; the bounds of the group are asked as those of other fields are.
properties("/plan")["max_devices"]["default"] = 1


@pytest.fixture(params=DOCUMENT["paths"])
def route(request: pytest.FixtureRequest) -> BaseSchema:
    """One path, whose requests are made up when its test runs: on collection, every process would do so for all."""
    request.node._nodeid = request.node.nodeid  # which schemathesis reads, and pytest 9.2 has no more
    loaded = schemathesis.openapi.from_dict(with_fewer_variations(DOCUMENT, request.param))
    variations = count()

    def filter_case(context: HookContext, case: Case) -> bool:
        """Whether it is sent: schemathesis asks by this name before it prepares a request."""
        return not varies_same_part(case) or next(variations) % ONE_IN == 0

    loaded.hook(filter_case)
    return loaded


schema = schemathesis.pytest.from_fixture("route")


def varies_same_part(case: Case) -> bool:
    """Whether it varies what POST /predict reads alike; random and whole requests never do that alone."""
    said = "" if case.meta is None else str(getattr(case.meta.phase.data, "description", ""))
    return case.path in SAME_READER and "workload" in said


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """One connection for all requests, which keeps no cookie from one to the next; `pytest -s` shows what they got."""
    got = Counter[int]()

    def count_status(response: requests.Response, **_: Any) -> None:
        got[response.status_code] += 1

    with requests.Session() as session:
        session.trust_env = False  # a proxy would be looked up for every request
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        session.hooks["response"].append(count_status)
        yield session
    print(
        f"\n{got.total():,} answers: " + ", ".join(f"{number:,} x {status}" for status, number in sorted(got.items()))
    )


# Pages are no part of the schema: GET /plan is one beside the POST.
PAGES = [allow_header_conformance, unsupported_method]


@schema.parametrize()
@settings(max_examples=EXAMPLES_PER_OPERATION, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_fuzzed_request_gets_a_500(case: Case, server: httpx.Client, session: requests.Session) -> None:
    case.call_and_validate(
        base_url=str(server.base_url),
        session=session,
        timeout=TIMEOUT_S,
        excluded_checks=[positive_data_acceptance, *(PAGES if case.path == "/plan" else [])],
    )


# Resources that requests of a sequence make, read, change and remove.
RESOURCES = ("/gpus", "/graphs", "/jobs", "/measurements", "/predictions", "/prices", "/retrain", "/uploads")
SEQUENCES, STEPS = 30, 8


def test_no_sequence_of_requests_gets_a_500(server: httpx.Client, session: requests.Session) -> None:
    """Each request takes what the answers before it gave: ids of what exists, and of what was removed."""
    paths = {path: item for path, item in DOCUMENT["paths"].items() if path.startswith(RESOURCES)}
    machine = schemathesis.openapi.from_dict({**DOCUMENT, "paths": paths}).as_state_machine()
    sent, wrong = Counter[int](), list[str]()

    class Sequence(machine):  # type: ignore[misc,valid-type]
        def get_call_kwargs(self, case: Case) -> dict[str, Any]:
            return {"base_url": str(server.base_url), "session": session, "timeout": TIMEOUT_S}

        def validate_response(self, response: Any, case: Case, **more: Any) -> None:
            sent[response.status_code] += 1
            try:
                case.validate_response(response, excluded_checks=[positive_data_acceptance])
            except BaseException as error:
                wrong.append(f"{case.method} {case.path}: {error}")
                raise

    # What can follow an answer is the service's state, which is another where the same requests are sent again.
    with suppress(FlakyStrategyDefinition):
        Sequence.run(
            settings=settings(
                max_examples=SEQUENCES,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
        )
    assert not wrong
    assert sent[200] > SEQUENCES and sent[201] + sent[204], sent
