"""Settings of the service, typed, each with its environment variable and one line of help."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from app.errors import BadInput, FieldError

CHECKOUT = Path(__file__).resolve().parent.parent
# A wheel has within `app` what lies beside it in a checkout (setup.py), and writes nothing where packages are.
_PACKED = CHECKOUT / "app" / "_data"
_SHIPPED, _OWN = (
    (_PACKED, Path(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "gpucast"))
    if _PACKED.is_dir()
    else (CHECKOUT, CHECKOUT / ".gpucast")
)
MIGRATIONS = _SHIPPED / "migrations"
SEED_DATA = _SHIPPED / "seed_data"
SEED_MEASUREMENTS = SEED_DATA / "measurements"
SHIPPED_MODELS = _SHIPPED / "models_store"

DEFAULT_RATE = "100/second"


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting's environment variable, and one line of help."""

    env: str
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one installation, from `Settings.from_env()`; nothing reads the environment at import."""

    database_url: Annotated[
        str | None, Knob("DATABASE_URL", "PostgreSQL URL; default: an embedded server in the data folder")
    ] = None
    data_dir: Annotated[Path, Knob("GPUCAST_DATA_DIR", "folder of the embedded database and the model store")] = _OWN
    shipped_dir: Annotated[
        Path, Knob("GPUCAST_SHIPPED_DIR", "folder of the shipped artefacts, used before any retraining")
    ] = SHIPPED_MODELS
    seed_measurements_dir: Annotated[
        Path, Knob("GPUCAST_SEED_MEASUREMENTS_DIR", "folder of Parquet measurements imported at start")
    ] = SEED_MEASUREMENTS
    host: Annotated[str, Knob("HOST", "address to listen on")] = "127.0.0.1"
    port: Annotated[int, Knob("PORT", "port to listen on; 0: any free port")] = 8000
    workers: Annotated[int, Knob("GPUCAST_WORKERS", "API processes")] = 1
    log_level: Annotated[str, Knob("GPUCAST_LOG_LEVEL", "debug, info, warning or error")] = "info"
    log_format: Annotated[str, Knob("GPUCAST_LOG_FORMAT", "text, or json: one object a line")] = "text"
    traces: Annotated[
        str | None,
        Knob("GPUCAST_TRACES", "OTLP collector of traces, like http://host:4318/v1/traces; needs the extra `tracing`"),
    ] = None
    keys: Annotated[
        str, Knob("GPUCAST_KEYS", "require API keys: on, off, or auto (on unless HOST is a loopback address)")
    ] = "auto"
    rate_limit: Annotated[
        str,
        Knob(
            "GPUCAST_RATE_LIMIT",
            "rate limit per caller over all processes, like 100/second; off; or auto (100/second if keys are required)",
        ),
    ] = "auto"
    request_timeout_s: Annotated[float, Knob("GPUCAST_REQUEST_TIMEOUT_S", "time limit of a request, seconds")] = 300.0
    max_body_bytes: Annotated[
        int, Knob("GPUCAST_MAX_BODY_BYTES", "largest body of a batch, upload or graph, bytes")
    ] = 64 * 2**20
    max_request_bytes: Annotated[int, Knob("GPUCAST_MAX_REQUEST_BYTES", "largest body of other requests, bytes")] = (
        4 * 2**20
    )
    max_connections: Annotated[
        int, Knob("GPUCAST_MAX_CONNECTIONS", "connections of an API process at a time; under its limit of open files")
    ] = 800
    max_connections_per_address: Annotated[
        int,
        Knob(
            "GPUCAST_MAX_CONNECTIONS_PER_ADDRESS",
            "connections of one address to an API process; as many as of all behind a proxy",
        ),
    ] = 200
    header_timeout_s: Annotated[
        float, Knob("GPUCAST_HEADER_TIMEOUT_S", "time to send the headers of a request, seconds")
    ] = 10.0
    body_timeout_s: Annotated[
        float, Knob("GPUCAST_BODY_TIMEOUT_S", "time to send a body, and a second more per 16 KiB of it, seconds")
    ] = 20.0
    keep_alive_s: Annotated[
        float, Knob("GPUCAST_KEEP_ALIVE_S", "time that a connection without a request stays open, seconds")
    ] = 20.0
    max_waiting: Annotated[
        int, Knob("GPUCAST_MAX_WAITING", "requests of a caller that wait in an API process; more get 429")
    ] = 64
    max_batch_rows: Annotated[int, Knob("GPUCAST_MAX_BATCH_ROWS", "most rows in one batch or upload")] = 1_000_000
    max_saved_per_key: Annotated[int, Knob("GPUCAST_MAX_SAVED_PER_KEY", "most saved answers of an API key")] = 10_000
    max_graphs_per_key: Annotated[int, Knob("GPUCAST_MAX_GRAPHS_PER_KEY", "most stored graphs of an API key")] = 1_000
    saved_days: Annotated[
        float, Knob("GPUCAST_SAVED_DAYS", "age at which saved answers are removed, days; 0: none are")
    ] = 0.0
    doubtful_factor: Annotated[
        float,
        Knob(
            "GPUCAST_DOUBTFUL_FACTOR",
            "ratio to the expected time over which an uploaded measurement is doubtful; 0: none is",
        ),
    ] = 30.0
    database_wait_s: Annotated[
        float, Knob("GPUCAST_DATABASE_WAIT_S", "time that a start waits for the database, seconds")
    ] = 30.0
    database_timeout_s: Annotated[
        float, Knob("GPUCAST_DATABASE_TIMEOUT_S", "time limit of a request's statement in the database, seconds")
    ] = 3.0
    database_long_timeout_s: Annotated[
        float,
        Knob(
            "GPUCAST_DATABASE_LONG_TIMEOUT_S",
            "time limit of a statement of an upload, a deletion, a listing or a refresh, seconds",
        ),
    ] = 600.0
    revision_poll_s: Annotated[
        float, Knob("GPUCAST_REVISION_POLL_S", "polling interval of API processes for changes, seconds")
    ] = 0.5
    retrain_gate_tolerance: Annotated[
        float, Knob("GPUCAST_RETRAIN_GATE_TOLERANCE", "relative loss of accuracy up to which a new version is served")
    ] = 0.02
    retrain_most_error: Annotated[
        float,
        Knob("GPUCAST_RETRAIN_MOST_ERROR", "mean error on held-out rows above which no version is served, percent"),
    ] = 300.0
    retrain_attempts: Annotated[
        int, Knob("GPUCAST_RETRAIN_ATTEMPTS", "attempts for a retraining whose worker dies")
    ] = 3
    retrain_timeout_s: Annotated[float, Knob("GPUCAST_RETRAIN_TIMEOUT_S", "time limit of one retraining, seconds")] = (
        3600.0
    )
    retrain_wait_s: Annotated[
        float, Knob("GPUCAST_RETRAIN_WAIT_S", "time that a retraining waits for the database or a full disk, seconds")
    ] = 600.0
    retrain_memory_bytes: Annotated[
        int, Knob("GPUCAST_RETRAIN_MEMORY_BYTES", "memory limit of one retraining, bytes")
    ] = 8 * 2**30
    retrain_threads: Annotated[
        int, Knob("GPUCAST_RETRAIN_THREADS", "GPUs that one retraining fits at the same time; more take from serving")
    ] = 1
    heartbeat_s: Annotated[float, Knob("GPUCAST_HEARTBEAT_S", "heartbeat interval of workers, seconds")] = 1.0
    stalled_after_s: Annotated[
        float, Knob("GPUCAST_STALLED_AFTER_S", "time without heartbeat after which a worker counts as dead, seconds")
    ] = 30.0
    stop_grace_s: Annotated[
        float, Knob("GPUCAST_STOP_GRACE_S", "time that a stop waits for requests and a running job, seconds")
    ] = 30.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Return settings from environment variables; unset or empty ones keep their default."""
        source = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        wrong: list[FieldError] = []
        for name, knob in knobs().items():
            text = source.get(knob.env, "").strip()
            if text:
                try:
                    values[name] = _parse(name, text)
                except ValueError as error:
                    wrong.append(FieldError((knob.env,), str(error)))
        if wrong:
            raise BadInput("; ".join(f"{item.loc[0]}: {item.msg}" for item in wrong), errors=wrong)
        return cls(**values)

    def environment(self) -> dict[str, str]:
        """Return the variables from which `from_env` restores these settings, for child processes."""
        pairs = ((knob.env, getattr(self, name)) for name, knob in knobs().items())
        return {env: str(value) for env, value in pairs if value is not None}

    @property
    def needs_keys(self) -> bool:
        """Whether a caller must send an API key."""
        return self.keys == "on" or (self.keys == "auto" and not _is_loopback(self.host))

    @property
    def rate(self) -> str | None:
        """The rate limit in the `limits` package's notation, or None."""
        if self.rate_limit == "auto":
            return DEFAULT_RATE if self.needs_keys else None
        return None if self.rate_limit == "off" else self.rate_limit

    @property
    def models_dir(self) -> Path:
        """The artefact store of this installation; SHIPPED_MODELS has those of the repository."""
        return self.data_dir / "models_store"

    @property
    def scorecard_file(self) -> Path:
        """The runs of the scorecard that this installation keeps (`gpucast evaluate scorecard --keep`)."""
        return self.data_dir / "scorecard.json"


# Least values other than 0.
_LEAST = {"retrain_threads": 1}
_CHOICES = {
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("text", "json"),
    "keys": ("auto", "on", "off"),
}


def knobs() -> dict[str, Knob]:
    """Return every setting by name, in the order of `Settings`."""
    hints = get_type_hints(Settings, include_extras=True)
    return {item.name: hints[item.name].__metadata__[0] for item in fields(Settings)}


def _parse(name: str, text: str) -> Any:
    """Return `text` as the type of the setting's default. Raises ValueError with what to set instead."""
    default = {item.name: item.default for item in fields(Settings)}[name]
    if isinstance(default, Path):
        return Path(text).expanduser().absolute()
    if isinstance(default, int):
        return _number(int, text, "a whole number", _LEAST.get(name, 0))
    if isinstance(default, float):
        return _number(float, text, "a number", 0)
    if name == "rate_limit":
        return _rate(text)
    if name in _CHOICES:
        return _choice(text, _CHOICES[name])
    return text


def _choice(text: str, known: tuple[str, ...]) -> str:
    if text.lower() not in known:
        raise ValueError(f"must be {', '.join(known[:-1])} or {known[-1]}, not {text!r}")
    return text.lower()


def _rate(text: str) -> str:
    if text.lower() in ("off", "auto"):
        return text.lower()
    from limits import parse  # noqa: PLC0415 - 0.2 s that most starts need not spend

    try:
        parse(text)
    except ValueError:
        raise ValueError(f"must be auto, off or like 100/second or 5000/minute, not {text!r}") from None
    return text


def _is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address; names other than localhost may resolve anywhere."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _number(kind: type[int] | type[float], text: str, expected: str, least: int) -> float:
    refused = f"must be {expected} of at least {least}, not {text!r}"
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(refused) from None
    if not least <= value < 1e15:
        raise ValueError(refused)
    return value
