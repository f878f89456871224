"""POST /graphs and the routes that read graphs, over HTTP on a real database."""

from __future__ import annotations

import copy
import json
import threading
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartParser
from starlette.requests import Request

from app.api.bodies import received
from app.config import Settings
from app.errors import BadInput, NotFound
from app.networks.run import Run
from app.services.graphs.graph_store import MEDIA_JSON, Graphs, new_row, read_graph
from app.store.session import Database
from app.tables.ops import DTYPE_CODE
from app.wire.graph_form import GRAPH_EXAMPLE
from tests import export_bytes
from tests.onnx_bytes import model, node, perceptron, tensor

pytestmark = pytest.mark.slow

ABSENT = "0" * 64


def posted(client: TestClient | httpx.Client, graph: Any, **params: Any) -> dict[str, Any]:
    answer = client.post("/graphs", json=graph, params=params)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_a_graph_is_kept_once_and_read_back(client: TestClient) -> None:
    told = posted(client, GRAPH_EXAMPLE)
    assert told["nodes"] == 4 and told["name"] == "two layers" and told["form"] == "json"
    assert told["parameters"] == 784 * 512 + 5130
    assert told["flops"] == 2 * (784 * 512 + 512 * 10) + 512 + 60
    assert told["dims"] == {"batch": 1} and told["unknown"] == {}
    assert (
        posted(client, copy.deepcopy(GRAPH_EXAMPLE) | {"inputs": GRAPH_EXAMPLE["inputs"]})["graph_id"]
        == told["graph_id"]
    )
    whole = client.get(f"/graphs/{told['graph_id']}").json()
    assert whole["graph"]["nodes"][0]["name"] == "hidden" and whole["created_at"]


def test_figures_are_for_the_given_dims(client: TestClient) -> None:
    one, eight = posted(client, GRAPH_EXAMPLE), posted(client, GRAPH_EXAMPLE, dims=["batch=8"])
    assert eight["flops"] == 8 * one["flops"] and eight["graph_id"] == one["graph_id"]


def test_tf32_of_a_node_is_what_fp32_may_be_rounded_to(client: TestClient) -> None:
    image = [8, 64, 56, 56]
    convolution = {"name": "y", "op": "conv2d", "inputs": ["x"], "outputs": [{"shape": image}], "parameters": 36864}

    def latency(run: str, gpu: str, **attributes: str) -> float:
        window = {"kernel_size": 3, "stride": 1, "padding": 1} | attributes
        graph = {"inputs": [{"name": "x", "shape": image}], "nodes": [convolution | {"attributes": window}]}
        workload = {"kind": "graph", "graph": graph, "dtype": run, "software": "pytorch"}
        answer = client.post("/predict", json={"gpu": gpu, "workload": workload})
        assert answer.status_code == 200, answer.text
        return float(answer.json()["predictions"][0]["latency_ms"])

    rounded = {"dtype": "tf32"}
    assert latency("fp32", "tesla-t4", **rounded) == latency("fp32", "tesla-t4")
    assert latency("fp32", "h100-sxm5-80gb", **rounded) < latency("fp32", "h100-sxm5-80gb")
    assert latency("fp16", "h100-sxm5-80gb", **rounded) == latency("fp16", "h100-sxm5-80gb")


def test_pages(client: TestClient) -> None:
    ids = {posted(client, GRAPH_EXAMPLE | {"name": f"graph {k}"})["graph_id"] for k in range(5)}
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = client.get("/graphs", params={"limit": 2} | after).json()
        seen += [item["graph_id"] for item in page["items"]]
        if "next" not in page:
            break
        after = {"after": page["next"]}
    assert seen == sorted(seen) and ids <= set(seen)


@pytest.mark.parametrize("window", [1, 7])
def test_sizes_are_asked_for_by_name(client: TestClient, window: int) -> None:
    convolution = node("Conv", ["x", "w"], ["y"], kernel_shape=[window, window])
    file = model([convolution], {"x": ["batch", 3, "height", "width"]}, [tensor("w", [8, 3, window, window])])
    headers = {"content-type": "application/octet-stream"}
    asked = client.post("/graphs", content=file, headers=headers)
    assert asked.status_code == 422
    (error,) = asked.json()["errors"]
    assert error["loc"] == ["dims"] and "sizes of height, width are needed" in error["msg"]
    assert "?dims=height=SIZE&dims=width=SIZE" in error["msg"]
    sizes = {"dims": ["height=224", "width=224"]}
    assert client.post("/graphs", content=file, headers=headers, params=sizes).status_code == 201


@pytest.mark.parametrize("dims", ["batch", "batch=0", "batch=-1", "=4", "batch=99999999999", "batch=1.5", "batch=²"])
def test_invalid_dims_are_rejected(client: TestClient, dims: str) -> None:
    answer = client.post("/graphs", json=GRAPH_EXAMPLE, params={"dims": dims})
    assert answer.status_code == 422 and answer.json()["errors"][0]["loc"] == ["dims", 0]


def test_errors_name_their_node(client: TestClient) -> None:
    wrong = copy.deepcopy(GRAPH_EXAMPLE)
    wrong["nodes"][2]["inputs"] = ["nobody"]
    told = client.post("/graphs", json=wrong).json()
    assert told["status"] == 422 and told["errors"][0]["loc"] == ["nodes", 2, "inputs", 0]


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"{", 400), (b"[" * 100_000, 400), (b"[]", 422), (b"{}", 422), (b'{"nodes": 3}', 422),
     (b'{"nodes": [{"name": "a\\u0000", "op": "relu", "outputs": [{"shape": [1]}]}]}', 422),
     (b'{"nodes": [{"name": "a", "op": "\\u0000", "outputs": [{"shape": [1]}]}]}', 422),
     (b'{"nodes": [{"name": "a", "op": "b", "outputs": [{"shape": ["\\u0000"]}]}]}', 422),
     (b'{"name": "\\u0000", "nodes": [{"name": "a", "op": "b", "outputs": [{"shape": [1]}]}]}', 422)],
)  # fmt: skip
def test_bodies_that_are_no_graph(client: TestClient, body: bytes, status: int) -> None:
    answer = client.post("/graphs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text


def test_other_media(client: TestClient) -> None:
    assert client.post("/graphs", content=b"a,b", headers={"content-type": "text/csv"}).status_code == 415


@pytest.mark.parametrize(("graph_id", "status"), [(ABSENT, 404), ("x", 422), ("0" * 63, 422)])
def test_unknown_ids_are_404(client: TestClient, graph_id: str, status: int) -> None:
    assert client.get(f"/graphs/{graph_id}").status_code == status


def test_over_http(server: httpx.Client) -> None:
    told = posted(server, GRAPH_EXAMPLE)
    assert server.get(f"/graphs/{told['graph_id']}").json()["graph"]["nodes"][0]["op"] == "linear"


def test_concurrent_uploads_store_a_graph_once(client: TestClient) -> None:
    graph, ids = GRAPH_EXAMPLE | {"name": "race"}, list[str]()
    threads = [threading.Thread(target=lambda: ids.append(posted(client, graph)["graph_id"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8 and len(set(ids)) == 1


def test_workloads_are_made_once_per_sizes(settings: Settings, database: Database, client: TestClient) -> None:
    graph_id = posted(client, GRAPH_EXAMPLE)["graph_id"]
    graphs = Graphs(database)
    source = graphs.source(None, graph_id)
    assert graphs.source(None, graph_id) is source
    first = graphs.workload(source, {}, Run(batch=4))
    assert graphs.workload(source, {}, Run(batch=4)) is first
    assert graphs.workload(source, {"batch": 4}, Run()).ops.column("m")[0] == 4
    inline = graphs.source(GRAPH_EXAMPLE, None)
    assert graphs.workload(inline, {}, Run(batch=4)).parameters.tolist() == first.parameters.tolist()


def test_the_error_names_the_graph(database: Database) -> None:
    graphs = Graphs(database)
    for both in ((None, None), (GRAPH_EXAMPLE, ABSENT)):
        with pytest.raises(BadInput) as caught:
            graphs.source(*both)
        assert caught.value.errors[0].loc == ("workload", "graph")
    with pytest.raises(NotFound):
        graphs.source(None, "nul\x00 and more")


@pytest.mark.parametrize("media", ["application/octet-stream", "application/x-onnx"])
def test_an_onnx_file(client: TestClient, media: str) -> None:
    answer = client.post("/graphs", content=perceptron(), headers={"content-type": media}, params={"dims": "batch=8"})
    told = answer.json()
    assert answer.status_code == 201, answer.text
    assert told["form"] == "onnx" and told["name"] == "net" and told["dims"] == {"batch": 8}
    assert told["parameters"] == 784 * 512 + 512 + 5130
    assert told["flops"] == 8 * (2 * (784 * 512 + 5120) + 512 + 60)
    whole = client.get(f"/graphs/{told['graph_id']}").json()
    assert whole["graph"]["nodes"][1]["outputs"] == [{"shape": [8, 512]}]


def test_an_onnx_file_in_a_multipart_form(client: TestClient, database: Database) -> None:
    told = client.post("/graphs", files={"file": ("net.onnx", perceptron())}).json()
    alone = client.post("/graphs", content=perceptron(), headers={"content-type": "application/onnx"}).json()
    assert told["graph_id"] == alone["graph_id"]
    graphs = Graphs(database)
    workload = graphs.workload(graphs.source(None, told["graph_id"]), {}, Run(batch=16, dtype="bf16"))
    assert workload.ops.column("m")[0] == 16
    assert set(workload.ops.dtype.tolist()) == {DTYPE_CODE["bf16"]}


def test_a_multipart_form_is_read_beside_the_event_loop(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, int] = {}

    class Recorded(MultiPartParser):
        async def parse(self) -> FormData:
            threads["form"] = threading.get_ident()
            return await super().parse()

    async def body(request: Request) -> bytes:
        threads["loop"] = threading.get_ident()
        return await received(request)

    monkeypatch.setattr("starlette.requests.MultiPartParser", Recorded)
    monkeypatch.setattr("app.api.graphs.received", body)
    answer = client.post("/graphs", files={"file": ("graph.json", json.dumps(GRAPH_EXAMPLE).encode())})
    assert answer.status_code == 201, answer.text
    assert threads["form"] != threads["loop"]


def test_graphs_in_memory_are_limited_by_their_json(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may write a thousand tensors."""
    monkeypatch.setattr("app.services.graphs.graph_store.CACHED_JSON_BYTES", 30_000)
    graphs = Graphs(database)

    def added(name: str) -> str:
        node = {"name": "n", "op": "relu", "inputs": ["x"], "outputs": [{"shape": [8]}] * 900}
        body = {"name": name, "inputs": [{"name": "x", "shape": [8]}], "nodes": [node]}
        return graphs.add(new_row(read_graph(json.dumps(body).encode(), MEDIA_JSON), {})).id

    first = added("first")
    kept = graphs.source(None, first)
    assert graphs.source(None, first) is kept
    for k in range(3):
        graphs.source(None, added(f"other {k}"))
    assert graphs.source(None, first) is not kept


def test_json_in_a_multipart_form(client: TestClient) -> None:
    answer = client.post("/graphs", files={"file": ("graph.json", json.dumps(GRAPH_EXAMPLE).encode())})
    assert answer.json()["graph_id"] == posted(client, GRAPH_EXAMPLE)["graph_id"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [(b"", 400, "no graph"), (perceptron()[:-20], 400, "truncated"), (b"\x89PNG", 400, "not an ONNX"),
     (b"PK\x03\x04..", 400, "not a zip"), (export_bytes.archive(b"{"), 400, "models/model.json"),
     (export_bytes.archive(b"{}"), 422, "graph_module"), (export_bytes.weighty({}), 422, "one program")],
)  # fmt: skip
def test_invalid_files_are_rejected(client: TestClient, body: bytes, status: int, said: str) -> None:
    answer = client.post("/graphs", content=body, headers={"content-type": "application/octet-stream"})
    assert answer.status_code == status, answer.text
    assert said in answer.json()["detail"]


@pytest.mark.parametrize("media", ["application/zip", "application/octet-stream", None])
def test_an_archive_of_torch_export(server: httpx.Client, media: str | None) -> None:
    body = export_bytes.archive(export_bytes.perceptron())
    sent: dict[str, Any] = {"files": {"file": ("net.pt2", body)}}
    if media:
        sent = {"content": body, "headers": {"content-type": media}}
    answer = server.post("/graphs", **sent)
    told = answer.json()
    assert answer.status_code == 201, answer.text
    assert told["name"] == "net" and told["nodes"] == 2 and told["unknown"] == {}
    assert told["parameters"] == 784 * 512 + 512
    workload = {"kind": "graph", "graph_id": told["graph_id"]}
    predicted = server.post("/predict", json={"gpu": "nvidia-l4", "workload": workload})
    assert predicted.json()["predictions"][0]["latency_ms"] > 0, predicted.text


def test_invalid_zip_files_are_rejected(client: TestClient) -> None:
    answer = client.post("/graphs", content=perceptron(), headers={"content-type": "application/zip"})
    assert answer.status_code == 400 and "not a zip" in answer.json()["detail"]


@pytest.mark.parametrize(
    "body", [b"", b"--b\r\n", b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b--\r\n']
)
def test_multipart_forms_without_a_file_are_rejected(client: TestClient, body: bytes) -> None:
    answer = client.post("/graphs", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code in (400, 422), answer.text


def test_a_multipart_form_without_a_boundary_is_rejected(client: TestClient) -> None:
    assert client.post("/graphs", content=b"x", headers={"content-type": "multipart/form-data"}).status_code in (
        400,
        422,
    )


def test_predictions_by_id_and_by_the_graph_itself(client: TestClient) -> None:
    graph_id = posted(client, GRAPH_EXAMPLE)["graph_id"]

    def predicted(**workload: Any) -> dict[str, Any]:
        answer = client.post("/predict", json={"gpu": "nvidia-l4", "workload": {"kind": "graph"} | workload})
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["predictions"][0])

    by_id, inline = predicted(graph_id=graph_id, batch=4096), predicted(graph=GRAPH_EXAMPLE, batch=4096)
    assert by_id["latency_ms"] == inline["latency_ms"] > 0
    bound = predicted(graph_id=graph_id, dims={"batch": 4096})
    assert bound["latency_ms"] == by_id["latency_ms"] and bound["throughput_per_s"] == by_id["throughput_per_s"]
    onnx = client.post("/graphs", content=perceptron(), headers={"content-type": "application/onnx"}).json()["graph_id"]
    assert predicted(graph_id=onnx, batch=8)["latency_ms"] > 0


def test_predictions_name_unknown_operators_and_wrong_nodes(client: TestClient) -> None:
    wrong = copy.deepcopy(GRAPH_EXAMPLE)
    wrong["nodes"][1]["op"] = "fancy"
    request = {"gpu": "nvidia-l4", "workload": {"kind": "graph", "graph": wrong}}
    assert "fancy" in json.dumps(client.post("/predict", json=request).json()["predictions"][0]["warnings"])
    wrong["nodes"][2]["inputs"] = ["x"]
    wrong["nodes"][2]["attributes"] = {"k": 5}
    told = client.post("/predict", json=request).json()
    assert told["errors"][0]["loc"] == ["workload", "graph", "nodes", 2, "inputs", 0]
    twice = {"kind": "graph", "graph": GRAPH_EXAMPLE, "batch": 2, "dims": {"batch": 4}}
    told = client.post("/predict", json={"gpu": "nvidia-l4", "workload": twice}).json()
    assert told["errors"][0]["loc"] == ["workload", "dims"]
    absent = {"gpu": "nvidia-l4", "workload": {"kind": "graph", "graph_id": ABSENT}}
    assert client.post("/predict", json=absent).status_code == 404


def test_a_file_over_the_limit_is_told_to_leave_its_weights_outside(client: TestClient) -> None:
    headers = {"content-type": "application/octet-stream", "content-length": str(200 * 2**20)}
    answer = client.post("/graphs", content=b"\x08\x08", headers=headers)
    assert answer.status_code == 413
    assert all(
        word in answer.json()["detail"] for word in ("67,108,864 bytes", "external_data=True", "gpucast predict")
    )
