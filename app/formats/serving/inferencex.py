"""Result rows of SemiAnalysis InferenceX (InferenceMAX): agg_*.json, an object or a list of them, times in seconds.

Its prompts and outputs are uniform in 0.8 to 1 of `isl` and `osl`.
"""

from __future__ import annotations

from app.formats.serving.point import (
    FP4,
    BenchmarkPoint,
    LeftOut,
    Reader,
    Record,
    end_to_end_s,
    figure,
    find,
    positive,
    text,
)

_SPREAD = 0.2
# It counts ten requests for each in flight.
_REQUESTS = 10
_GPUS = {"h100": "h100-sxm5-80gb"}
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt": "trtllm", "trtllm": "trtllm"}
_DTYPES = {"fp8": "fp8", "bf16": "bf16", "fp4": FP4}
_NONE = (None, "", "none", "false", False)


def matches(document: Record) -> bool:
    """Return whether this is a result row."""
    return {"hw", "conc", "framework", "precision", "mean_ttft", "mean_tpot"} <= document.keys()


def read(record: Record) -> BenchmarkPoint:
    """Return the point of a row. Raises LeftOut."""
    for name, meaning in (("spec_decoding", "speculative decoding"), ("mtp", "speculative decoding")):
        if _lower(record, name) not in (*_NONE, "off", "stp"):
            raise LeftOut(f"{name} is {str(record[name])[:20]!r}: {meaning}, whose acceptance is not in the file")
    for name, meaning in (("disagg", "prefill in other engines"), ("is_multinode", "several nodes")):
        if _lower(record, name) not in _NONE:
            raise LeftOut(f"{name}: {meaning}, which the row does not describe")
    engine = _ENGINES.get((text(record, "framework") or "").lower())
    if engine is None:
        raise LeftOut(f"framework {text(record, 'framework')!r} is none of {', '.join(_ENGINES)}")
    concurrency, output = positive(record, "conc"), positive(record, "osl")
    ttft_s, tpot_s = positive(record, "mean_ttft"), positive(record, "mean_tpot")
    told, mean_output = find(record, "mean_e2el") is not None, output * (1.0 - _SPREAD / 2.0)
    per_gpu, devices = figure(record, "output_tput_per_gpu"), positive(record, "tp")
    precision, gpu = _lower(record, "precision"), (text(record, "hw") or "").lower().replace("_", "-").split("-")[0]
    return BenchmarkPoint(
        load={"concurrency": concurrency},
        input_tokens=positive(record, "isl"),
        output_tokens=output,
        length_spread=_SPREAD,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=positive(record, "mean_e2el") if told else end_to_end_s(ttft_s, tpot_s, mean_output),
        requests=int(_REQUESTS * concurrency),
        output_tokens_per_s=None if per_gpu is None else per_gpu * devices,
        model=text(record, "model"),
        engine=engine,
        image=text(record, "image"),
        gpu=_GPUS.get(gpu, gpu),
        dtype=_DTYPES.get(str(precision)),
        parallelism=_parallelism(record, devices),
    )


def _lower(record: Record, name: str) -> object:
    value = find(record, name)
    return value.lower() if isinstance(value, str) else value


def _parallelism(record: Record, devices: float) -> dict[str, float]:
    """Return the split; replicas of attention take all devices where there are any."""
    split = {"tensor": devices}
    expert = figure(record, "ep")
    if expert is not None and expert > 1.0:
        split["expert"] = expert
    if _lower(record, "dp_attention") in (True, "true"):
        split["attention_data"] = devices
    return split


READER = Reader("InferenceX", matches, read)
