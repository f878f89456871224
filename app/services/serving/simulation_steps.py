"""Steps that the simulations of a request may take in all."""

from __future__ import annotations

from app.errors import TooLarge
from app.runtime.cancellation import check_cancelled, spend
from app.services.serving.engines import Engine
from app.serving.engine import Requests
from app.serving.simulation import Simulated, simulate

# Steps of all simulations of a request, about a microsecond each: of a search over GPUs, splits and loads; and of POST
# /predict, whose answer takes at most two seconds. There each GPU counts too, with what the rest of its answer takes.
MOST_SEARCHED, MOST_PREDICTED, GPU_STEPS = 10_000_000, 1_300_000, 6_000


def simulated(engine: Engine, requests: Requests) -> Simulated:
    """Return the times of requests on an engine. Raises TooLarge if the HTTP request simulated too much already."""
    check_cancelled()
    times = simulate(engine.times, engine.limits, requests)
    if spend(times.steps) > MOST_SEARCHED:
        raise too_much(MOST_SEARCHED)
    return times


def check_predicted(gpus: int, steps: int) -> None:
    """Raise TooLarge if so many GPUs and steps are more than an answer of POST /predict may take."""
    if gpus * GPU_STEPS + steps > MOST_PREDICTED:
        raise too_much(MOST_PREDICTED)


def too_much(most: int) -> TooLarge:
    """Return the error that names what to send instead."""
    return TooLarge(
        f"workload.load: simulating it takes over {most:,} steps, of which {GPU_STEPS:,} are counted for each GPU of"
        " POST /predict; send fewer gpus, a smaller load or shorter answers, or method closed_form."
    )
