"""Random prompts of a wanted length: token ids where the endpoint takes them, else words."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from app.errors import GpucastError
from app.measure.serving.endpoint import Endpoint, Prompt, RequestFailed

# Ids that are ordinary tokens of every usual vocabulary: special ones are below or far above.
_IDS = range(1_000, 20_000)
# One token each in most vocabularies.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand"
    " part place case week company system program question work number night point home water room mother area"
)
_WORDS = _TEXT.split()
# Trials of words until the endpoint counts as many tokens as wanted, and the share that may be missing.
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
    """Set the number of words so that the endpoint counts the tokens that are wanted. Raises RequestFailed."""
    for _ in range(_TRIALS):
        counted = (await endpoint.complete(prompts.draw(), _PROBED_TOKENS)).prompt_tokens
        if prompts.words is None or abs(counted - prompts.tokens) <= max(_NEAR * prompts.tokens, 1.0):
            return
        prompts.words = max(round(prompts.words * prompts.tokens / max(counted, 1)), 1)
