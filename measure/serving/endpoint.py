"""An OpenAI-compatible endpoint, the times of completions that it streams, and the random prompts that it is sent."""

from __future__ import annotations

import random
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import httpx

from app.errors import GpucastError
from app.stacks.registry import stacks
from measure.connection import PLAIN, Content, from_json, printable

# Of one read: a prompt waits in the engine's queue for as long. Then each token of the answer takes so long at most.
_READ_S = 600.0
_TIMEOUT = httpx.Timeout(_READ_S, connect=10.0)
_MOST_S_PER_TOKEN = 30.0
# Of an answer that is no stream, of the head and the end of a stream, and of each of its tokens.
_MOST_BYTES, _MOST_BYTES_PER_TOKEN = 2**20, 2**14
_LONGEST_MESSAGE, _MOST_TOKENS = 200, 2**31
_DATA, _END = b"data:", b"[DONE]"
Prompt = list[int] | str


class RequestFailed(Exception):
    """A completion that did not come, with the reason; `refused` if the endpoint does not take such a request."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(printable(reason[:_LONGEST_MESSAGE]))
        self.refused = refused


class Completion(NamedTuple):
    """Times of a streamed completion, seconds.

    gaps_s  between chunks, each of which has a token or more
    e2e_s   until the last chunk
    """

    ttft_s: float
    gaps_s: list[float]
    e2e_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def tpot_s(self) -> float:
        """Time per token after the first, seconds."""
        return (self.e2e_s - self.ttft_s) / max(self.output_tokens - 1, 1)


class Served(NamedTuple):
    """What an endpoint says: its model's name, and the engine with its version, if it tells."""

    model: str
    engine: str | None


class Endpoint:
    """A server of `/v1/completions`; `url` is with or without `/v1`. Use as an asynchronous context manager."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = PLAIN | ({"Authorization": f"Bearer {key.strip()}"} if key else {})
        self._tls = ssl.create_default_context()
        # One connection each: a shared pool searches all of its connections for every request.
        self._clients, self._idle = list[httpx.AsyncClient](), list[httpx.AsyncClient]()
        try:
            self._idle.append(self._connect())
        except httpx.InvalidURL as error:
            raise GpucastError(f"--serving {url}: {error}") from error
        self.model = ""
        # Engines without it stop at the end of a text, so that outputs are shorter.
        self.ignores_end = True

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.aclose()

    def _connect(self) -> httpx.AsyncClient:
        client = httpx.AsyncClient(base_url=self.url, headers=self._headers, timeout=_TIMEOUT, verify=self._tls)
        self._clients.append(client)
        return client

    async def look_up(self) -> Served:
        """Return what the endpoint serves, and use its first model. Raises GpucastError if it does not answer."""
        listed = await self._json("/v1/models")
        models = listed.get("data") if isinstance(listed, Mapping) else None
        first = models[0] if isinstance(models, list) and models else None
        about = first if isinstance(first, Mapping) else {}
        name = about.get("id")
        if not isinstance(name, str) or not name.isprintable() or len(name) > _LONGEST_MESSAGE:
            raise GpucastError(f"{self.url}/v1/models lists no model: is this an OpenAI-compatible endpoint?")
        self.model = name
        return Served(self.model, await self._engine(str(about.get("owned_by"))))

    async def _engine(self, owner: str) -> str | None:
        """Return the engine, and its version where its server reports it."""
        stack = stacks().get(owner)
        if stack is None or stack.kind != "serving":
            return None
        if stack.version_path is None:
            return owner
        try:
            reported = await self._json(stack.version_path)
        except GpucastError:
            return owner
        version = reported.get("version") if isinstance(reported, Mapping) else None
        return f"{owner}-{version}" if isinstance(version, str) and version.isprintable() else owner

    async def _json(self, path: str) -> Any:
        try:
            async with self._clients[0].stream("GET", path) as answer:
                answer.raise_for_status()
                return from_json((await _content(answer)).whole)
        except (httpx.HTTPError, ValueError) as error:
            raise GpucastError(f"{self.url}{path} does not answer: {error}") from error

    async def complete(self, prompt: Prompt, output_tokens: int) -> Completion:
        """Return the times of one completion. Raises RequestFailed."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignores_end else {}),
        }
        client = self._idle.pop() if self._idle else self._connect()
        arrivals, usage = list[float](), None
        began = perf_counter()
        try:
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                if not answer.is_success:
                    text = (await _content(answer)).whole.decode("utf-8", "replace")
                    raise RequestFailed(f"status {answer.status_code}: {text}", refused=answer.status_code < 500)
                async for event in _events(answer, output_tokens):
                    if event.get("choices"):
                        arrivals.append(perf_counter() - began)
                    usage = event.get("usage") or usage
        except httpx.HTTPError as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from error
        finally:
            self._idle.append(client)
        return _completion(arrivals, usage)


def _completion(arrivals: list[float], usage: Any) -> Completion:
    """Return the completion whose chunks arrived at these times; the endpoint counts the tokens."""
    if not arrivals:
        raise RequestFailed("no token came")
    counts = [
        usage.get(name) if isinstance(usage, Mapping) else None for name in ("prompt_tokens", "completion_tokens")
    ]
    if not all(type(count) is int and 0 <= count <= _MOST_TOKENS for count in counts):
        raise RequestFailed("the stream ends without `usage`: the endpoint must support stream_options.include_usage")
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    return Completion(arrivals[0], gaps, arrivals[-1], *counts)  # type: ignore[arg-type]  # whole numbers


async def _content(answer: httpx.Response) -> Content:
    """Return a short content. Raises httpx.ReadError for a long one, or one without an end."""
    content = Content(most_bytes=_MOST_BYTES)
    async for part in answer.aiter_raw():
        content.add(part)
    return content


async def _events(answer: httpx.Response, tokens: int) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the JSON objects of a stream of server-sent events about so many tokens, as they arrive.

    Reads the stream to its end, after [DONE] too: a connection that is left before is closed, and the time to the first
    token of the next request would include opening another one.
    """
    rest = b""
    seconds = _READ_S + _MOST_S_PER_TOKEN * tokens
    limits = Content(seconds=seconds, most_bytes=_MOST_BYTES + _MOST_BYTES_PER_TOKEN * tokens)
    async for received in answer.aiter_raw():
        limits.add(received)
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            if not line.startswith(_DATA) or (data := line[len(_DATA) :].strip()) == _END:
                continue
            try:
                event = from_json(data)
            except ValueError as error:
                raise RequestFailed(f"a chunk is not JSON: {data[:50]!r}") from error
            if not isinstance(event, Mapping) or event.get("error"):
                raise RequestFailed(f"the stream reports an error: {data.decode('utf-8', 'replace')}")
            yield event


# Ids that are ordinary tokens of every usual vocabulary: special ones are below or far above.
_IDS = range(1_000, 20_000)
# One token each in most vocabularies.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand"
    " part place case week company system program question work number night point home water room mother area"
)
_WORDS = _TEXT.split()
# Trials of words until the endpoint counts the requested tokens, and the share that may be missing.
_TRIALS, _NEAR = 4, 0.02
_PROBED_TOKENS = 2


@dataclass(slots=True)
class Prompts:
    """Prompts of `tokens` tokens; no two share a beginning, so that no cache has it.

    words  words of a prompt; None: token ids are sent
    """

    tokens: int
    words: int | None = None
    # Another in every run: an engine may still have the prompts of the last one.
    random: random.Random = field(default_factory=random.Random)

    def draw(self) -> Prompt:
        """Return a prompt."""
        if self.words is None:
            return self.random.choices(_IDS, k=self.tokens)
        return " ".join(self.random.choices(_WORDS, k=self.words))


async def find_prompts(endpoint: Endpoint, tokens: int) -> Prompts:
    """Return prompts that the endpoint takes, and turn off what it does not take. Raises GpucastError if none is."""
    failed: RequestFailed | None = None
    for endpoint.ignores_end in (True, False):
        for prompts in (Prompts(tokens), Prompts(tokens, words=tokens)):
            try:
                await _fit(endpoint, prompts)
            except RequestFailed as error:
                failed = failed or error
                if not error.refused:
                    break
            else:
                return prompts
    raise GpucastError(f"{endpoint.url}/v1/completions takes no prompt of {tokens} tokens: {failed}")


async def _fit(endpoint: Endpoint, prompts: Prompts) -> None:
    """Set the number of words so that the endpoint counts the requested tokens. Raises RequestFailed."""
    for _ in range(_TRIALS):
        counted = (await endpoint.complete(prompts.draw(), _PROBED_TOKENS)).prompt_tokens
        if prompts.words is None or abs(counted - prompts.tokens) <= max(_NEAR * prompts.tokens, 1.0):
            return
        prompts.words = max(round(prompts.words * prompts.tokens / max(counted, 1)), 1)
