"""The event simulation, against sums by hand and against the closed form."""

from __future__ import annotations

import numpy as np
import pytest

from app.serving.engine import EngineLimits, Lengths, Requests, StepTimes, arrivals, burst, closed, trace
from app.serving.simulation import Simulated, simulate
from app.serving.steady_state import Shape, closed_loop, open_load
from tests.unit.serving.engines import limits, step_times

SHORT = Lengths(1024.0, 128.0, 0.0, 0.0, 0.0)
BASE, TOKEN = 5e-3, 20e-6


def one(prompt: float, output: float, cached: float = 0.0) -> Requests:
    columns = (np.array([figure]) for figure in (0.0, prompt, cached, prompt - cached, output))
    return Requests(*columns, 0, 0)


def tpot_s(found: Simulated, requests: Requests) -> float:
    """Mean time per output token over the requests that count."""
    counted = slice(requests.warm_up, None)
    later = np.maximum(requests.output - 1.0, 1.0)
    return float((((found.ended_s - found.first_s) / later)[counted]).mean())


def test_a_request_alone_takes_its_prompt_and_a_step_for_every_token() -> None:
    found = simulate(step_times(), limits(), one(1000.0, 11.0))
    assert found.first_s[0] == pytest.approx(BASE + TOKEN * 1000.0, rel=0.01)
    assert found.ended_s[0] - found.first_s[0] == pytest.approx(10.0 * (BASE + TOKEN), rel=0.01)
    assert found.mixed_s == pytest.approx(found.first_s[0])


def test_a_step_takes_at_least_what_the_host_takes_beside_the_device() -> None:
    """Hosts that are slower than the device make it wait; quicker ones hide, whatever they take."""
    many = closed(SHORT, 64, 0)
    free, slow, hidden = (
        tpot_s(simulate(step_times(**more), limits(), many), many)
        for more in ({}, {"beside_s": 2e-3, "beside_sequence_s": 1e-3}, {"beside_s": 2e-3, "beside_sequence_s": 1e-5})
    )
    assert hidden == pytest.approx(free, rel=1e-9)
    assert slow == pytest.approx(2e-3 + 64.0 * 1e-3, rel=0.1)


def test_a_closed_loop_that_drifts_lets_few_prompts_wait_for_one_another() -> None:
    step, drifting = (closed(SHORT._replace(drift=drift), 32, 0) for drift in (0.0, 0.1))
    together, apart = (simulate(step_times(), limits(), requests) for requests in (step, drifting))
    assert drifting.output.mean() == pytest.approx(step.output.mean(), rel=0.01)
    later = slice(64, None)
    waits = [(found.first_s - found.arrived_s)[later] for found in (together, apart)]
    assert np.median(waits[1]) < 0.7 * np.median(waits[0])


def test_an_answer_of_one_token_ends_with_its_prompt() -> None:
    found = simulate(step_times(), limits(), one(1000.0, 1.0))
    assert found.ended_s[0] == found.first_s[0] > 0.0


def test_a_prompt_over_the_budget_is_split_into_chunks() -> None:
    whole = simulate(step_times(), limits(4096.0), one(4096.0, 1.0)).first_s[0]
    split = simulate(step_times(), limits(1024.0), one(4096.0, 1.0)).first_s[0]
    assert split == pytest.approx(whole + 3.0 * BASE, rel=0.01)
    unsplit = simulate(step_times(), limits(1024.0, splits=False), one(4096.0, 1.0)).first_s[0]
    assert unsplit == pytest.approx(whole)


def test_a_request_waits_for_the_streams_that_the_front_end_sends() -> None:
    requests = Requests(np.array([0.0, 1.0]), *(np.array([1000.0, 1000.0]) * k for k in (1.0, 0.0, 1.0, 1.0)), 0, 0)
    free, busy = (simulate(step_times(), limits(stream_s=wait), requests) for wait in (0.0, 0.5))
    assert busy.first_s[0] == free.first_s[0]  # nothing is sent yet
    assert busy.first_s[1] == pytest.approx(free.first_s[1] + 0.5, abs=0.05)
    shape = Shape(1000.0, 0.0, 1000.0, 1000.0, 1500.0)
    loops = [closed_loop(step_times(), limits(stream_s=wait), shape, 64.0) for wait in (0.0, 5e-4)]
    assert loops[1].ttft_s - loops[0].ttft_s == pytest.approx(5e-4 * 64.0, rel=0.2)
    assert loops[1].tpot_s == pytest.approx(loops[0].tpot_s, rel=0.02)


def test_cached_tokens_are_not_computed() -> None:
    found = simulate(step_times(), limits(), one(4000.0, 1.0, cached=3000.0))
    assert found.first_s[0] == pytest.approx(BASE + TOKEN * 1000.0, rel=0.01)


def test_prompts_of_a_burst_share_a_step_within_the_budget() -> None:
    found = simulate(step_times(), limits(2048.0), burst(SHORT, 4, 0))
    step = BASE + TOKEN * 2048.0
    assert found.first_s[1] == found.first_s[0] == pytest.approx(step, rel=0.01)
    assert found.first_s[3] > found.first_s[0] + step * 0.9


def test_stacks_that_do_not_mix_decode_nothing_beside_prompts() -> None:
    """The first request's second token waits for the other prompts, each in a step of its own."""
    requests = burst(Lengths(1024.0, 2.0, 0.0, 0.0, 0.0), 3, 0)
    apart = simulate(step_times(), limits(1024.0, mixes=False), requests)
    mixed = simulate(step_times(), limits(1024.0 + 2.0), requests)
    prompt = BASE + TOKEN * 1024.0
    assert apart.ended_s[0] - apart.first_s[0] == pytest.approx(2.0 * prompt + BASE + 3.0 * TOKEN, rel=0.02)
    assert mixed.ended_s[0] - mixed.first_s[0] == pytest.approx(prompt, rel=0.02)


def test_memory_caps_the_sequences_and_the_others_wait() -> None:
    """A sequence holds its prompt and half of its output, a kilobyte a token."""
    requests = burst(SHORT, 8, 0)
    found = simulate(step_times(), limits(kv_bytes=2.5 * 1088e3), requests)
    assert found.kv_bytes == pytest.approx(2.0 * 1088e3)
    assert found.running <= 2.0
    assert found.first_s[2] >= found.ended_s[0]
    assert np.isfinite(found.ended_s).all()


def test_a_request_that_never_fits_waits_forever() -> None:
    found = simulate(step_times(), limits(kv_bytes=100e3), one(1024.0, 2.0))
    assert np.isnan(found.first_s[0]) and np.isnan(found.ended_s[0])


def test_most_sequences_cap_the_sequences() -> None:
    assert simulate(step_times(), limits(sequences=3.0), burst(SHORT, 9, 0)).running <= 3.0


def test_speculation_takes_fewer_and_longer_steps() -> None:
    plain = simulate(step_times(), limits(), one(16.0, 101.0))
    drafted = simulate(step_times(verified=4.0, accepted=2.5), limits(), one(16.0, 101.0))
    ratio = (drafted.ended_s[0] - drafted.first_s[0]) / (plain.ended_s[0] - plain.first_s[0])
    assert ratio == pytest.approx((BASE + 4.0 * TOKEN) / (BASE + TOKEN) / 2.5, rel=0.01)


def test_the_host_adds_to_every_step_and_every_request() -> None:
    plain, slow = (simulate(step_times(host_s=host), limits(), one(16.0, 11.0)) for host in (0.0, 1e-3))
    assert slow.ended_s[0] == pytest.approx(plain.ended_s[0] + 11e-3)
    late = simulate(step_times(), limits(request_s=0.02), one(16.0, 11.0))
    assert late.first_s[0] == pytest.approx(plain.first_s[0] + 0.02)
    prompt = simulate(step_times(prefill=2.0), limits(), one(1000.0, 1.0))
    assert prompt.first_s[0] == pytest.approx(2.0 * (BASE + 1000.0 * TOKEN), rel=0.01)


def test_the_front_end_passes_requests_on_one_after_another() -> None:
    host = limits(request_s=0.5, serial_s=0.1, serial_token_s=1e-4)
    found = simulate(step_times(), host, burst(Lengths(1000.0, 1.0, 0.0, 0.0, 0.0), 3, 0))
    prompt = BASE + 1000.0 * TOKEN
    assert found.first_s.tolist() == pytest.approx([0.5 + 0.2 * k + prompt for k in (1, 2, 3)], rel=0.01)
    assert found.arrived_s.tolist() == [0.0, 0.0, 0.0]


def test_prompts_wait_for_one_another_and_not_for_ever() -> None:
    """Beside a sequence that decodes: two prompts are computed together, one alone after its patience."""
    waiting = limits(gathered=2.0, patience=20.0)
    three = trace(np.array([0.0, 0.05, 0.09]), np.full(3, 64.0), np.array([400.0, 2.0, 2.0]), 0.0)
    found = simulate(step_times(), waiting, three)
    assert found.first_s[1] == found.first_s[2] > 0.09
    two = trace(np.array([0.0, 0.05]), np.full(2, 64.0), np.array([400.0, 2.0]), 0.0)
    assert simulate(step_times(), waiting, two).first_s[1] == pytest.approx(0.05 + 21.0 * (BASE + TOKEN), rel=0.1)


@pytest.mark.parametrize(("gathered", "patience"), [(np.inf, 20.0), (3.0, 1e6), (1.0, 0.0)])
def test_the_closed_form_of_waiting_prompts(gathered: float, patience: float) -> None:
    """In the mean time to first token, of arrivals that find sequences that decode."""
    limit, lengths = limits(gathered=gathered, patience=patience), Lengths(256.0, 512.0, 0.2, 0.2, 0.0)
    requests = arrivals(lengths, 4.0, 10.0, 0)
    found = simulate(step_times(), limit, requests)
    first_s = (found.first_s - found.arrived_s)[requests.warm_up :].mean()
    assert open_load(step_times(), limit, Shape(*lengths.means()), 4.0).ttft_s == pytest.approx(first_s, rel=0.15)


def test_a_closed_loop_starts_a_request_when_one_ends() -> None:
    requests = closed(Lengths(512.0, 64.0, 0.3, 0.3, 0.0), 8, 1)
    found = simulate(step_times(), limits(), requests)
    assert (found.arrived_s[:8] == 0.0).all()
    assert np.isin(found.arrived_s[8:], found.ended_s).all()
    assert found.running == pytest.approx(8.0, rel=0.1)


def test_arrivals_find_an_engine_that_idles_between_them() -> None:
    requests = trace(np.array([5.0, 0.0]), np.array([16.0, 32.0]), np.array([4.0, 4.0]), 0.0)
    found = simulate(step_times(), limits(), requests)
    assert requests.prompt.tolist() == [32.0, 16.0]
    assert found.arrived_s.tolist() == [0.0, 5.0]
    assert found.first_s[1] == pytest.approx(5.0 + BASE + 16.0 * TOKEN, rel=0.01)


def test_the_same_seed_gives_the_same_times() -> None:
    first, again, other = (
        simulate(step_times(), limits(), arrivals(Lengths(1024.0, 128.0, 0.2, 0.2, 0.0), 4.0, 10.0, seed))
        for seed in (3, 3, 4)
    )
    assert first.ended_s.tolist() == again.ended_s.tolist() != other.ended_s.tolist()


ENGINES = [
    (step_times(), limits()),
    (step_times(), limits(mixes=False)),
    (step_times(key_s=4e-9), limits(2048.0)),
    (step_times(base_s=20e-3, replicas=4), limits(32768.0, sequences=1024.0)),
    (step_times(base_s=20e-3, replicas=4), limits(32768.0, sequences=1024.0, gathered=4.0, patience=50.0)),
    (step_times(), limits(gathered=np.inf, patience=20.0)),
]


@pytest.mark.parametrize(("times", "limit"), ENGINES)
@pytest.mark.parametrize(("concurrency", "output"), [(1, 512.0), (8, 512.0), (32, 1024.0)])
def test_the_closed_form_of_a_closed_loop(
    times: StepTimes, limit: EngineLimits, concurrency: int, output: float
) -> None:
    """In the mean time per output token within 5 % of the simulation."""
    lengths = Lengths(1024.0, output, 0.2, 0.2, 0.0)
    requests = closed(lengths, concurrency, 0)
    steady = closed_loop(times, limit, Shape(*lengths.means()), float(concurrency))
    assert steady.tpot_s == pytest.approx(tpot_s(simulate(times, limit, requests), requests), rel=0.05)


def test_the_closed_form_of_uneven_answers() -> None:
    """Long answers count for more of the tokens: a sequence has two thirds of a mean answer, not half, on average."""
    times, lengths = step_times(key_s=2e-7), Lengths(16.0, 4096.0, 1.0, 1.0, 0.0)
    requests = closed(lengths, 32, 0)
    found, steady = simulate(times, limits(), requests), closed_loop(times, limits(), Shape(*lengths.means()), 32.0)
    assert lengths.means()[-1] == pytest.approx(8.0 + 2048.0 * 2.0 / 3.0)
    # Those in the middle: the first ones start at once, and the last ones end alone.
    taken_s, tokens = ((found.ended_s - found.first_s)[64:-64].sum(), (requests.output - 1.0)[64:-64].sum())
    assert steady.tpot_s == pytest.approx(taken_s / tokens, rel=0.03)


@pytest.mark.parametrize(("times", "limit"), ENGINES)
@pytest.mark.parametrize("rate", [0.2, 2.0])
def test_the_closed_form_of_open_arrivals(times: StepTimes, limit: EngineLimits, rate: float) -> None:
    """In the mean time per output token within 5 % of the simulation."""
    lengths = Lengths(1024.0, 512.0, 0.2, 0.2, 0.0)
    steady = open_load(times, limit, Shape(*lengths.means()), rate)
    requests = arrivals(lengths, rate, steady.running, 0)
    assert steady.tpot_s == pytest.approx(tpot_s(simulate(times, limit, requests), requests), rel=0.05)
