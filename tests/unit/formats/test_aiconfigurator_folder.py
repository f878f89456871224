"""aiconfigurator's own folder is read as its tables by serving stack are."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import write_csv

from app.errors import BadInput
from app.store.session import Database
from tests.unit.formats.test_operator_tables import bring_in, stored

COLLECTED = {"framework": "VLLM", "version": "x", "device": "NVIDIA H100", "power": 500.0}
ATTENTION = {"attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "batch_size": 2, "num_heads": 32, "beam_width": 1}
ATTENTION |= {"num_key_value_heads": 8, "head_dim": 128, "latency": 0.05, "kernel_source": "fa3"}
SENT = {"node_num": 1, "hidden_size": 7168, "num_token": 64, "num_topk": 8, "num_experts": 256}
MOE = {
    "moe_dtype": "fp8_block",
    "num_tokens": 64,
    "hidden_size": 4096,
    "inter_size": 1536,
    "topk": 8,
    "num_experts": 128,
}
MOE |= {"moe_tp_size": 1, "moe_ep_size": 8, "distribution": "balanced", "latency": 0.2, "kernel_source": "deepgemm"}
GEMM = {"gemm_dtype": "bfloat16", "n": 4096, "k": 4096, "op_name": "gemm", "kernel_source": "cublas"}
UPSTREAM: dict[str, list[dict[str, Any]]] = {
    "gemm/vllm/0.24.0/gemm_perf.txt": [GEMM | {"m": 8, "latency": 0.01}, GEMM | {"m": 16, "latency": 0.0}],
    "attention/vllm/0.24.0/context_attention_perf.parquet": [
        ATTENTION | {"op_name": "context_attention", "isl": 512, "step": 0, "window_size": 128}
    ],
    # From before windows were measured.
    "attention/vllm/0.24.0/generation_attention_perf.txt": [
        ATTENTION | {"op_name": "generation_attention", "isl": 1, "step": 4095}
    ],
    "linear_attention/vllm/0.24.0/gdn_perf.parquet": [
        {
            "op_name": "gdn",
            "kernel_source": "chunk_gated_delta_rule",
            "phase": "context",
            "batch_size": 2,
            "seq_len": 512,
        }
        | {"num_tokens": 1024, "d_model": 4096, "d_conv": 4, "num_k_heads": 8, "head_k_dim": 128, "num_v_heads": 24}
        | {"head_v_dim": 128, "model_name": "x", "latency": 0.1}
    ],
    "moe/vllm/0.24.0/moe_perf.parquet": [MOE | {"op_name": "moe"}],
    "moe/sglang/0.5.10/wideep_context_moe_perf.parquet": [MOE | {"op_name": "moe"}],
    "comm/sglang/0.5.12/wideep_deepep_normal_perf.parquet": [
        SENT
        | {"op_name": "normal", "kernel_source": "deepep", "dispatch_sms": 20, "combine_sms": 20}
        | {
            f"{way}_{part}_us": us
            for way, us in (("dispatch", 20.0), ("combine", 30.0))
            for part in ("transmit", "notify")
        }
    ],
    "comm/sglang/0.5.12/wideep_deepep_ll_perf.txt": [
        SENT | {"op_name": "ll", "kernel_source": "deepep", "dispatch_avg_t_us": 15.0, "combine_avg_t_us": 16.0}
    ],
    "comm/nccl/2.27.3/nccl_perf.txt": [
        {"nccl_dtype": "half", "num_gpus": 8, "message_size": 1024, "op_name": "all_gather", "kernel_source": "NCCL"}
        | {"latency": 0.02}
    ],
    "moe/trtllm/1.3.0/trtllm_alltoall_perf.parquet": [{"latency": 0.1}],
}


def upstream(folder: Path, *, families: bool) -> Path:
    """aiconfigurator's own folder on one GPU, as it is now with families of tables, or as it was without."""
    for name, rows in UPSTREAM.items():
        path = folder / "systems/data/h100_sxm" / (name if families else name.partition("/")[2])
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist([COLLECTED | row for row in rows])
        if path.suffix == ".txt":
            write_csv(table, path)
        else:
            pq.write_table(table, path)
    return folder


@pytest.mark.parametrize("families", [True, False], ids=["by family", "by framework"])
def test_the_folder_of_aiconfigurator_itself_is_read(database: Database, tmp_path: Path, families: bool) -> None:
    report = bring_in(database, "aiconfigurator", upstream(tmp_path, families=families))
    assert report.skipped == {"times of zero": 1}
    assert report.notes == ["not read, as no operator stands for their rows: trtllm_alltoall_perf.parquet"]
    assert report.ignored["power"] == 10
    assert {gpu for _, _, gpu in report.accepted} == {"h100-sxm5-80gb"}
    assert report.accepted.total() == 11  # ten rows, of which DeepEP's two hold two operators each; one has no time
    mine = [row for row in stored(database, source="aiconfigurator") if row.gpu_id == "h100-sxm5-80gb"]
    rows = {(row.name, row.software): row for row in mine}
    assert {key for key in rows if key[0] in ("linear", "moe", "linear_attention", "all_gather")} == {
        ("linear", "vllm-0.24.0"),
        ("moe", "vllm-0.24.0"),
        ("linear_attention", "vllm-0.24.0"),
        ("all_gather", "nccl-2.27.3"),
    }
    prefill = rows["attention_prefill", "vllm-0.24.0"].workload
    decode = rows["attention_decode", "vllm-0.24.0"].workload
    assert (prefill["context_length"], prefill["window"], prefill["kv_dtype"]) == (512, 128, "fp8")
    assert (decode["context_length"], decode.get("window", 0)) == (4096, 0)
    assert rows["moe_wide", "sglang-0.5.10"].workload["expert_parallel"] == 8
    sent = [row for row in mine if row.name == "expert_dispatch"]
    assert sorted(round(1e6 * row.latency_s) for row in sent) == [15, 40]


def test_files_that_git_lfs_has_not_fetched_and_lacking_columns_are_named(database: Database, tmp_path: Path) -> None:
    folder = upstream(tmp_path, families=True)
    path = folder / "systems/data/h100_sxm/moe/vllm/0.24.0/moe_perf.parquet"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (note,) = bring_in(database, "aiconfigurator", folder, dry_run=True).notes
    assert note.endswith("vllm/0.24.0/moe_perf.parquet (not fetched: git lfs pull)")
    pq.write_table(pa.Table.from_pylist([COLLECTED | MOE]).drop_columns(["topk"]), path)
    with pytest.raises(BadInput, match=r"moe_perf\.parquet: columns top_k are missing"):
        bring_in(database, "aiconfigurator", folder)
