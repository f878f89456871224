"""Write FP32 into measured networks that were stored without a number format, which meant it until now."""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# Of inference, a network that is published in formats of its own ran in these: by its configuration, or by its name.
_NAMED = (
    "-(fp8|awq|gptq|int4|nvfp4|fp4|mxfp4|w4a16|w8a8|bnb-4bit)|deepseek-(v3|v4|r1)|gpt-oss|kimi-k|mimo-v2|minimax-m2"
)
_OWN = "?| array['quantization_config', 'quantization']"
_PLAIN = f"""
    kind = 'model' AND w->'dtype' IS NULL AND (w->>'mode' = 'training' OR NOT (
        coalesce(w->>'name', '') ~* '{_NAMED}'
        OR coalesce(w->'config' {_OWN}, false) OR coalesce(w->'config'->'text_config' {_OWN}, false)
    ))
"""
# What a row's id is the hash of.
_IDENTITY = ("gpu_id", "software", "kind", "name", "workload", "latency_s", "source", "phases_s", "kernel", "clock_hz")
_AT_ONCE = 5000
_CHANGE = """
    UPDATE measurements AS of SET id = new.id, workload = workload || '{"dtype": "fp32"}'
    FROM (SELECT %s AS id) AS new
    WHERE of.id = %s AND NOT EXISTS (SELECT FROM measurements AS known WHERE known.id = new.id)
"""
_DOUBTFUL = "UPDATE doubtful_measurements SET body = jsonb_set(body, '{workload,dtype}', '\"fp32\"') WHERE "


def upgrade() -> None:
    connection = op.get_bind()
    columns = ", ".join(("id", "measured_at", *_IDENTITY))
    rows = connection.exec_driver_sql(f"SELECT {columns} FROM measurements WHERE {_PLAIN.replace('w->', 'workload->')}")
    for part in rows.mappings().partitions(_AT_ONCE):
        changes = []
        for row in part:
            written = {**row, "workload": {**row["workload"], "dtype": "fp32"}}
            changes.append((_identity(written), row["id"]))
        connection.exec_driver_sql(_CHANGE, changes)
    connection.exec_driver_sql(_DOUBTFUL + _PLAIN.replace("w->", "body->'workload'->"))


def _identity(row: dict[str, Any]) -> str:
    content = {name: _canonical(row[name]) for name in (*_IDENTITY, "measured_at")}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def downgrade() -> None:
    """Leave the format: earlier releases read it as they read none."""
