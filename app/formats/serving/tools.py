"""Readers of each tool: the common one (`reader.py`), and how to find what is no field of a tool's results.

gpucast measure       `gpucast measure --serving`: an object with `serving_points`, times in seconds
guidellm              benchmarks.json: a benchmark per load. Its time per output token counts the first token too; its
                      inter-token latency is ours, which does not
inference-perf        stage_N_lifecycle_metrics.json, and summary_lifecycle_metrics.json with --set load
aiperf                also genai-perf: profile_export_genai_perf.json, profile_export_aiperf.json. Their inter-token
                      latency is the time of a request after the first token over its later tokens
InferenceX            agg_*.json of SemiAnalysis InferenceX (InferenceMAX), an object or a list of them, in seconds
sglang bench_serving  a line of JSON per run
vllm bench serve      --save-result, --save-detailed and --append-result
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.config import SEED_DATA
from app.formats.serving.reader import (
    FP4,
    FieldMap,
    LeftOut,
    Record,
    TokenLengths,
    ToolReader,
    figure,
    find,
    lengths_of,
    load_of,
    positive,
    text,
)
from app.stacks.registry import engine_names, engine_of


class _Measure(ToolReader):
    def load(self, record: Record, requests: int) -> dict[str, float]:
        return load_of(requests, positive(record, "concurrency"), None)

    def lengths(self, record: Record, requests: int) -> TokenLengths:
        return super().lengths(record, requests)._replace(spread=0.0)

    def engine(self, record: Record) -> str | None:
        return text(record, *self.fields.engine)

    def workload(self, record: Record) -> dict[str, Any]:
        fields, config = find(record, "deployment.fields"), find(record, "deployment.model")
        own = dict(fields) if isinstance(fields, Mapping) else {}
        return {**own, "config": config} if isinstance(config, Mapping) else own


class _Guidellm(ToolReader):
    def load(self, record: Record, requests: int) -> dict[str, float]:
        strategy = find(record, "config.strategy") or find(record, "args.strategy") or {}
        kind = text(strategy, "type_") or text(strategy, "type")
        if kind == "synchronous":
            return load_of(requests, 1.0, None)
        if kind == "concurrent":
            return load_of(requests, figure(strategy, "streams") or positive(strategy, "max_concurrency"), None)
        if kind == "poisson":
            return load_of(requests, None, positive(strategy, "rate"))
        raise LeftOut(f"strategy {kind!r}: only synchronous, concurrent and poisson are loads of the service")

    def tokens(self, record: Record, names: Sequence[str]) -> float:
        """Return the mean tokens of a request, which some versions only give as a sum."""
        counts = find(record, names[0].removesuffix(".mean")) or {}
        total, count = figure(counts, "total_sum"), figure(counts, "count")
        if figure(counts, "mean") is None and total is not None and count:
            return positive({"mean": total / count}, "mean")
        return super().tokens(record, names)


class _InferencePerf(ToolReader):
    # Random arrivals over a minute deviate by some percent from the rate.
    most_off = 0.25

    def load(self, record: Record, requests: int) -> dict[str, float]:
        """Return the load of a stage; one of workers in a closed loop has a concurrency, and a rate that is not sent.

        Empty for the summary of all stages, unless it had one: `--set load.concurrency=...` tells it then.
        """
        concurrency = figure(record, self.fields.concurrency)
        if concurrency is not None:
            return load_of(requests, concurrency, None)
        rate = figure(record, self.fields.rate)
        if rate is None:
            return {}
        achieved = figure(record, "load_summary.achieved_rate") or rate
        if rate <= 0.0 or abs(achieved / rate - 1.0) > self.most_off:
            raise LeftOut(f"load_summary: {achieved:.4g} requests a second were sent where {rate:.4g} were requested")
        return {"rate_per_s": rate}


class _Aiperf(ToolReader):
    """Each metric is an object with its `unit` and statistics over requests (`avg`, `p50`, ...)."""

    units_s: Mapping[str, float] = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    # Where the versions of both tools keep the settings of a load, in `input_config`.
    settings = ("loadgen", "perf_analyzer.stimulus", "")

    def check(self, record: Record) -> None:
        if find(record, "was_cancelled") is True:
            raise LeftOut("was_cancelled: the run was interrupted")
        if "time_to_first_token" not in record:
            raise LeftOut("time_to_first_token is missing: measure with --streaming")

    def seconds(self, record: Record, time: str) -> float:
        """Return the mean of a time in its own unit, seconds."""
        path = getattr(self.fields, time)
        metric = path.removesuffix(".avg")
        unit = text(record, f"{metric}.unit") or "ms"
        if unit not in self.units_s:
            raise LeftOut(f"{metric}.unit is {unit[:20]!r}: none of {', '.join(self.units_s)}")
        return positive(record, path) * self.units_s[unit]

    def load(self, record: Record, requests: int) -> dict[str, float]:
        """Return the load of the profiled phase."""
        config = record["input_config"]
        phases = find(config, "phases")
        profiled = [phase for phase in phases if find(phase, "name") != "warmup"] if isinstance(phases, list) else []
        if len(profiled) > 1:
            raise LeftOut("input_config.phases: several loads in one summary")
        for place in (*profiled, *(find(config, path) if path else config for path in self.settings)):
            if not isinstance(place, Mapping):
                continue
            rate = figure(place, "request_rate") or figure(place, "rate")
            concurrency = figure(place, "concurrency")
            if rate is None and concurrency is None:
                continue
            mode = text(place, "arrival_pattern") or text(place, "request_rate_mode") or "poisson"
            if rate is not None and mode != "poisson":
                raise LeftOut(f"requests arrive in mode {mode[:20]!r}: only Poisson arrivals are a load of the service")
            return load_of(requests, concurrency, rate)
        raise LeftOut("input_config names no concurrency and no request_rate")

    def model(self, record: Record) -> str | None:
        """Return the model's name, which is a list of one in most versions."""
        for path in self.fields.model:
            value = find(record, path)
            first = value[0] if isinstance(value, list) and value else value
            name = find(first, "name") if isinstance(first, Mapping) else first
            if isinstance(name, str) and name:
                return name
        return None


class _InferenceX(ToolReader):
    """Its prompts and outputs are uniform in 0.8 to 1 of `isl` and `osl`; it counts ten requests for each in flight."""

    spread, requests_in_flight = 0.2, 10
    gpus: Mapping[str, str] = {"h100": "h100-sxm5-80gb"}
    dtypes: Mapping[str, str] = {"fp8": "fp8", "bf16": "bf16", "fp4": FP4}
    none = (None, "", "none", "false", False)

    def check(self, record: Record) -> None:
        for name, meaning in (("spec_decoding", "speculative decoding"), ("mtp", "speculative decoding")):
            if _lower(record, name) not in (*self.none, "off", "stp"):
                raise LeftOut(f"{name} is {str(record[name])[:20]!r}: {meaning}, whose acceptance is not in the file")
        for name, meaning in (("disagg", "prefill in other engines"), ("is_multinode", "several nodes")):
            if _lower(record, name) not in self.none:
                raise LeftOut(f"{name}: {meaning}, which the row does not describe")
        if self.engine(record) is None:
            raise LeftOut(f"framework {text(record, 'framework')!r} is none of {', '.join(engine_names())}")

    def requests(self, record: Record) -> int:
        return int(self.requests_in_flight * positive(record, "conc"))

    def load(self, record: Record, requests: int) -> dict[str, float]:
        return {"concurrency": positive(record, "conc")}

    def lengths(self, record: Record, requests: int) -> TokenLengths:
        return super().lengths(record, requests)._replace(spread=self.spread)

    def mean_output(self, record: Record, requests: int) -> float:
        return positive(record, "osl") * (1.0 - self.spread / 2.0)

    def tokens_per_s(self, record: Record) -> float | None:
        per_gpu = figure(record, "output_tput_per_gpu")
        return None if per_gpu is None else per_gpu * positive(record, "tp")

    def gpu(self, record: Record) -> str | None:
        name = (text(record, "hw") or "").lower().replace("_", "-").split("-")[0]
        return self.gpus.get(name, name)

    def dtype(self, record: Record) -> str | None:
        return self.dtypes.get(str(_lower(record, "precision")))

    def parallelism(self, record: Record) -> dict[str, float]:
        """Return the split; replicas of attention take all devices where there are any."""
        devices, expert = positive(record, "tp"), figure(record, "ep")
        split = {"tensor": devices}
        if expert is not None and expert > 1.0:
            split["expert"] = expert
        if _lower(record, "dp_attention") in (True, "true"):
            split["attention_data"] = devices
        return split


def _lower(record: Record, name: str) -> object:
    value = find(record, name)
    return value.lower() if isinstance(value, str) else value


class _PerRequest(ToolReader):
    """A tool that lists the lengths of each request where it is told to, else their sums."""

    def lengths(self, record: Record, requests: int) -> TokenLengths:
        prompts, outputs = find(record, "input_lens"), find(record, "output_lens")
        if isinstance(prompts, list) and isinstance(outputs, list) and prompts and outputs:
            return lengths_of(prompts, outputs)
        return self.lengths_together(record, requests)

    def lengths_together(self, record: Record, requests: int) -> TokenLengths:
        """Return the lengths of all requests. Raises LeftOut."""
        totals = positive(record, "total_input_tokens"), positive(record, "total_output_tokens")
        return TokenLengths(totals[0] / requests, totals[1] / requests)


class _Sglang(_PerRequest):
    random = ("random", "random-ids")
    # The least of a workload's lengths is more than nothing.
    most_spread = 0.99

    def check(self, record: Record) -> None:
        accepted = figure(record, "accept_length")
        if accepted is not None and accepted > 1.0:
            raise LeftOut(f"accept_length is {accepted:.3g}: speculative decoding")
        if text(record, "request_rate") == "trace":
            raise LeftOut("request_rate is 'trace': recorded arrivals are not in the file")

    def failed(self, record: Record, completed: float | None) -> float | None:
        """Return the requests with an error, which only --output-details writes."""
        errors = find(record, "errors")
        return float(sum(map(bool, errors))) if isinstance(errors, list) else None

    def lengths_together(self, record: Record, requests: int) -> TokenLengths:
        """Return the lengths of the random data set, or the means of another."""
        ratio = figure(record, "random_range_ratio")
        if text(record, "dataset_name") not in self.random or ratio is None or ratio > 1.0:
            return super().lengths_together(record, requests)
        longest = positive(record, "random_input_len"), positive(record, "random_output_len")
        return TokenLengths(*longest, min(1.0 - ratio, self.most_spread))

    def engine(self, record: Record) -> str | None:
        return engine_of((text(record, "backend") or "").split("-")[0])


class _Vllm(_PerRequest):
    def failed(self, record: Record, completed: float | None) -> float | None:
        failed, prompts = figure(record, "failed"), figure(record, "num_prompts")
        return failed if failed is not None or prompts is None else prompts - (completed or 0.0)

    def load(self, record: Record, requests: int) -> dict[str, float]:
        """Return the load; the rate of all at once is "inf" in the file."""
        if find(record, "ramp_up_strategy") is not None:
            raise LeftOut("ramp_up_strategy: the rate grows during the run")
        load, burstiness = super().load(record, requests), figure(record, "burstiness") or 1.0
        return load | ({"burstiness": burstiness} if "rate_per_s" in load and burstiness != 1.0 else {})


_CLASSES: Mapping[str, type[ToolReader]] = {
    "gpucast measure": _Measure,
    "guidellm": _Guidellm,
    "inference-perf": _InferencePerf,
    "aiperf": _Aiperf,
    "InferenceX": _InferenceX,
    "sglang bench_serving": _Sglang,
    "vllm bench serve": _Vllm,
}
_MAPS = msgspec.json.decode((SEED_DATA / "formats" / "serving.json").read_bytes(), type=dict[str, FieldMap])
# In order of trial: the formats of the first have names that no other has.
READERS = tuple(_CLASSES.get(tool, ToolReader)(tool, fields) for tool, fields in _MAPS.items())
OWN = READERS[0]
