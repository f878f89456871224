"""Exports of Nsight Systems and Nsight Compute, written by hand in their documented format."""

import os
from pathlib import Path

import pytest

from app.config import Settings
from app.errors import BadInput, NotFound
from app.formats.profiles import ProfileImporter, ProfileOptions, short_name
from app.services.measurements.importing import PartsReport, find_importer, import_parts
from app.services.measurements.stored import page
from app.store.measurements import MeasurementRow
from app.store.session import Database
from app.store.uploads import Page
from tests.forked import run_command

SAXPY = "saxpy(float, const float *, float *, int)"
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
V100 = "Tesla V100-SXM2-16GB"
TRACE = f"""
Processing [run.sqlite] with [cuda_gpu_trace.py]...
Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),\
Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
100,661398,123,,,,,,,,,,4.194,6337.593,Pinned,Device,{V100} (0),1,,13,[CUDA memcpy Host-to-Device]
200,9000000,124,16384,1,1,256,1,1,12,0.000,0.000,,,,,{V100} (0),1,,7,"{SAXPY}"
300,8000000,125,16384,1,1,256,1,1,12,0.000,0.000,,,,,{V100} (0),1,,7,"{SAXPY}"
400,10000000,126,16384,1,1,256,1,1,12,0.000,0.000,,,,,{V100} (0),1,,7,"{SAXPY}"
500,1000000,127,32,32,1,128,1,1,234,0.000,0.082,,,,,{V100} (0),1,,7,{GEMM}
600,1000000,127,8,32,1,128,1,1,234,0.000,0.082,,,,,{V100} (0),1,,7,{GEMM}
"""
SUMS = f"""Time (%),Total Time (us),Instances,Avg (us),Med (us),Min (us),Max (us),StdDev (us),Name
93.1,27000,3,9000,9000,8000,10000,1000,"{SAXPY}"
6.9,2000,2,1000,1000,1000,1000,0,{GEMM}
"""
LINEAR = """":{""op"": ""linear"", ""m"": 4096, ""n"": 4096, ""k"": 1024, ""dtype"": ""fp16""}\""""
RANGES = f"""NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),\
StdDev (ns),Kernel Name
{LINEAR},PushPop,1,1,4,4,8000000,2000000,2000000,1,3,0,{GEMM}
{LINEAR},PushPop,1,1,4,4,400000,100000,100000,1,3,0,splitKreduce
:step 3,PushPop,1,1,1,1,8400000,8400000,8400000,1,3,0,{GEMM}
"""
WORK = """kernel,grid,flops,bytes,n,op,m,k,dtype
saxpy*,,8388608,50331648,4194304,,,,
*gemm*,32x32x1,,,4096,linear,4096,1024,bf16
"""
EXECUTED = {f"{p}{k}": 0.0 for p in "dfh" for k in ("add", "mul", "fma")} | {"ffma": 4194304.0}
COUNTS = {f"sm__sass_thread_inst_executed_op_{name}_pred_on.sum": count for name, count in EXECUTED.items()}


def bring_in(database: Database, name: str, path: Path, options: ProfileOptions | None = None) -> PartsReport:
    importer = find_importer(name)
    assert isinstance(importer, ProfileImporter)
    return import_parts(database, importer.with_options(options or ProfileOptions()), path)


def stored(database: Database, software: str) -> list[MeasurementRow]:
    with database.begin() as connection:
        return page(connection, Page(limit=100, software=software))


def put(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def test_a_trace_is_listed_and_with_its_work_imported(database: Database, tmp_path: Path) -> None:
    folder = put(tmp_path / "nsys", trace=TRACE, sums=SUMS)
    alone = bring_in(database, "nsys", folder)
    reason = "neither its FLOPs and bytes nor its operator are known"
    assert (alone.received, alone.inserted) == (6, 0)
    assert alone.skipped == {
        f"{SAXPY}: {reason} (3 launches, 91.0% of the GPU time)": 1,
        f"{GEMM}: {reason} (2 launches, 6.7% of the GPU time)": 2,
        f"[CUDA memcpy Host-to-Device]: {reason} (1 launches, 2.2% of the GPU time)": 1,
        "kernel sums: the trace has each of their launches": 2,
    }
    work = put(tmp_path / "work", work=WORK) / "work.csv"
    report = bring_in(database, "nsys", folder, ProfileOptions(software="traced", work=work))
    assert report.inserted == 2
    assert f"{GEMM}: {reason} (1 launches, 3.4% of the GPU time)" in report.skipped
    rows = {row.kind: row for row in stored(database, "traced")}
    saxpy, gemm = rows["kernel"], rows["operator"]
    assert (saxpy.gpu_id, saxpy.name, saxpy.runs) == ("tesla-v100-sxm2-16gb", "saxpy", 3)
    assert saxpy.latency_s == pytest.approx(9e-3)
    assert saxpy.latency_std_s == pytest.approx(8.165e-4, rel=1e-3)
    launch = (
        "flops",
        "bytes",
        "blocks",
        "threads_per_block",
        "registers_per_thread",
        "shared_memory_per_block",
        "size",
    )
    assert [saxpy.workload[name] for name in launch] == [8388608, 50331648, 16384, 256, 12, 0, {"n": 4194304}]
    assert saxpy.kernel == {"name": SAXPY, "grid": [16384, 1, 1], "block": [256, 1, 1]}
    assert gemm.workload == {"kind": "operator", "op": "linear", "m": 4096, "n": 4096, "k": 1024, "dtype": "bf16"}
    assert (gemm.kernel or {})["grid"] == [32, 32, 1]


def test_an_nvtx_range_that_names_an_operator_is_imported(database: Database, tmp_path: Path) -> None:
    folder = put(tmp_path, ranges=RANGES)
    with pytest.raises(BadInput, match="--gpu"):
        bring_in(database, "nsys", folder)
    report = bring_in(database, "nsys", folder, ProfileOptions(gpu=V100, software="ranges"))
    assert report.skipped == {
        "step 3: neither its FLOPs and bytes nor its operator are known (1 launches, 50.0% of the GPU time)": 1
    }
    (row,) = stored(database, "ranges")
    assert (row.name, row.runs, row.kernel) == ("linear", 4, None)
    assert row.latency_s == pytest.approx(2.1e-3)


def test_summaries_without_traces(database: Database, tmp_path: Path) -> None:
    work = put(tmp_path / "work", work=WORK.replace("32x32x1", "")) / "work.csv"
    options = ProfileOptions(V100, "sums", work)
    report = bring_in(database, "nsys", put(tmp_path / "nsys", sums=SUMS) / "sums.csv", options)
    # A kernel's sum has no grid; an operator needs none.
    assert [row.latency_s for row in stored(database, "sums")] == [1e-3]
    assert report.skipped == {"threads_per_block: required field is missing": 1}


def test_sums_without_medians_are_averages_with_a_note(database: Database, tmp_path: Path) -> None:
    """As nsys 2020 prints them."""
    old = f'''"Time(%)","Total Time (ns)","Instances","Average","Minimum","Maximum","Name"
93.1,27000000,3,9000000.0,8000000,10000000,"{SAXPY}"
6.9,3000000,2,1500000.0,1000000,2000000,"{GEMM}"
'''
    work = put(tmp_path / "work", work=WORK.replace("32x32x1", "")) / "work.csv"
    report = bring_in(database, "nsys", put(tmp_path / "nsys", old=old), ProfileOptions(V100, "averages", work))
    assert [(row.latency_s, row.runs) for row in stored(database, "averages")] == [(1.5e-3, 2)]
    assert len(report.notes) == 1 and "old.csv: this nsys version prints no medians" in report.notes[0]


def long(*launches: tuple[str, dict[str, tuple[str, object]]]) -> str:
    about = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size"'
    lines = ["==PROF== Connected to process 42", about + ',"Section Name","Metric Name","Metric Unit","Metric Value"']
    for k, (kernel, metrics) in enumerate(launches):
        first = f'"{k}","42","app","host","{kernel}","1","7","(256, 1, 1)","(16384, 1, 1)","s"'
        lines += [f'{first},"{name}","{unit}","{value}"' for name, (unit, value) in metrics.items()]
    return "\n".join(lines) + "\n"


PAGES: dict[str, tuple[str, object]] = {
    "Duration": ("usecond", "9,000.5"),
    "SM Frequency": ("cycle/nsecond", "1.31"),
    "Registers Per Thread": ("register/thread", 12),
    "Static Shared Memory Per Block": ("Kbyte/block", "1.02"),
    "Dynamic Shared Memory Per Block": ("byte/block", 0),
}
COUNTED: dict[str, tuple[str, object]] = {name: ("inst", f"{count:,.0f}") for name, count in COUNTS.items()}
MOVED: dict[str, tuple[str, object]] = {"dram__bytes.sum": ("Mbyte", "50.331648")}


def test_one_metric_per_line(database: Database, tmp_path: Path) -> None:
    file = put(
        tmp_path,
        a=long(
            (SAXPY, PAGES | COUNTED | MOVED),
            (SAXPY, PAGES | COUNTED | MOVED | {"Duration": ("msecond", "8.0")}),
            ("copy", PAGES),
            (GEMM, PAGES | COUNTED | MOVED),
            ("mma", PAGES | COUNTED | MOVED | {"sm__inst_executed_pipe_tensor.sum": ("inst", 7)}),
        ),
    )
    report = bring_in(database, "ncu", file, ProfileOptions(V100, "counted"))
    (row,) = stored(database, "counted")
    assert (row.latency_s, row.runs, row.clock_hz) == (pytest.approx(8.50025e-3), 2, pytest.approx(1.31e9))
    assert row.workload == {
        "kind": "kernel",
        "name": "saxpy",
        "flops": 8388608,
        "bytes": 50331648,
        "working_set_bytes": 50331648,
        "threads_per_block": 256,
        "blocks": 16384,
        "registers_per_thread": 12,
        "shared_memory_per_block": 1020,
        "access_pattern": "coalesced",
        "dtype": "fp32",
    }
    assert [reason.partition(" (")[0] for reason in sorted(report.skipped)] == [
        f"{GEMM}: flops were not counted, and no work file has them",
        "copy: flops and bytes were not counted, and no work file has them",
        "mma: flops were not counted, and no work file has them",
    ]


def test_one_launch_per_line(database: Database, tmp_path: Path) -> None:
    about = {"ID": "", "Kernel Name": "", "Block Size": "", "Grid Size": "", "device__attribute_display_name": ""}
    units = about | {"gpu__time_duration.sum": "ns", "launch__registers_per_thread": "register/thread"}
    units |= {"launch__shared_mem_per_block_static": "byte/block", "launch__shared_mem_per_block_dynamic": "byte/block"}
    units |= dict.fromkeys(COUNTS, "inst") | {"dram__bytes_read.sum": "Mbyte", "dram__bytes_write.sum": "Mbyte"}
    cells = ["0", SAXPY, "(256, 1, 1)", "(16384, 1, 1)", V100, 9000000, 12, 0, 0, *COUNTS.values(), 33.554, 16.777]
    lines = [units, units.values(), cells]
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    report = bring_in(database, "ncu", put(tmp_path, raw=text), ProfileOptions(software="raw"))
    assert (report.received, report.inserted) == (1, 1)
    (row,) = stored(database, "raw")
    assert (row.gpu_id, row.latency_s, row.workload["bytes"]) == ("tesla-v100-sxm2-16gb", pytest.approx(9e-3), 50331000)


COMMAS = TRACE.replace(",", ";").replace("661398", "0,661398").replace("(ns)", "(ms)").replace(".", ",")


@pytest.mark.parametrize(
    "text",
    [
        TRACE.replace("000000,12", ",12").replace("(ns)", "(ms)"),
        COMMAS.replace("000000;12", ",0;12"),
        COMMAS.replace("000000;12", ",0;12").encode("utf-16"),
        TRACE.replace(",Name", ",Name,").replace(SAXPY + '"', SAXPY + '",').replace(GEMM, GEMM + ","),
    ],
    ids=["milliseconds", "decimal commas", "UTF-16", "a column more"],
)
def test_traces_in_other_formats(database: Database, tmp_path: Path, text: str | bytes) -> None:
    work = put(tmp_path / "work", work=WORK) / "work.csv"
    trace = tmp_path / "trace.csv"
    trace.write_bytes(text.encode() if isinstance(text, str) else text)
    bring_in(database, "nsys", trace, ProfileOptions(V100, "other forms", work))
    rows = {row.kind: row for row in stored(database, "other forms")}
    assert [rows[kind].latency_s for kind in ("kernel", "operator")] == pytest.approx([9e-3, 1e-3])


def test_several_reports_in_one_file_and_unknown_files_are_reported(database: Database, tmp_path: Path) -> None:
    both = TRACE.replace("9000000", "nan").replace("8000000", "") + RANGES.replace(":step", "Processing [a]\n:step")
    folder = put(tmp_path, all=both + "Cut,Push", other="a,b\n1,2\n", work=WORK)
    report = bring_in(database, "nsys", folder, ProfileOptions(V100, "both", folder / "work.csv"))
    assert sorted(row.latency_s for row in stored(database, "both")) == pytest.approx([1e-3, 2.1e-3, 1e-2])
    assert report.skipped[f"{SAXPY}: has no time (2 launches, 0.0% of the GPU time)"] == 1
    assert report.skipped["other.csv: no known report"] == 1
    assert not [reason for reason in report.skipped if "work.csv" in reason or "step" in reason]


def test_rows_with_unknown_time_units_are_skipped(database: Database, tmp_path: Path) -> None:
    weeks = put(tmp_path, trace=TRACE.replace("Duration (ns)", "Duration (weeks)"))
    report = bring_in(database, "nsys", weeks, ProfileOptions(work=put(tmp_path / "work", work=WORK) / "work.csv"))
    assert (report.inserted, report.skipped[f"{SAXPY}: has no time (3 launches, 0.0% of the GPU time)"]) == (0, 1)


def test_numbers_with_decimal_commas(database: Database, tmp_path: Path) -> None:
    """A locale's thousands and decimals; a compute capability is a version in each."""
    german = {
        **{"Duration": ("msecond", "9,000"), "SM Frequency": ("cycle/nsecond", "1,31"), "CC": ("", "7.0")},
        **{name: ("inst", f"{count:,.0f}".replace(",", ".")) for name, count in COUNTS.items()},
        **{"dram__bytes.sum": ("Mbyte", "50,331648"), "Static Shared Memory Per Block": ("Kbyte/block", "1,02")},
    }
    bring_in(database, "ncu", put(tmp_path, a=long((SAXPY, PAGES | german))), ProfileOptions(V100, "german"))
    (row,) = stored(database, "german")
    assert (row.latency_s, row.clock_hz) == (pytest.approx(9e-3), pytest.approx(1.31e9))
    assert (row.workload["flops"], row.workload["bytes"]) == (8388608, 50331648)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("void scan<float, (int)3, std::less<int>>(float *, int)", "scan<float, (int)3, std::less<int>>"),
        ("(anonymous namespace)::scan(float *)", "(anonymous namespace)::scan"),
        ("sum<(int)4>", "sum<(int)4>"),
        ("Sum::operator()(void (*)(int))", "Sum::operator()"),
        ("cut(float", "cut(float"),
    ],
)
def test_kernel_names_keep_their_template_parameters(symbol: str, name: str) -> None:
    assert short_name(symbol) == name


@pytest.mark.parametrize("name", ["nsys", "ncu"])
def test_invalid_files_are_rejected(database: Database, tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound, match=r"no \.csv file"):
        bring_in(database, name, tmp_path)
    with pytest.raises(BadInput, match=r"has (none of the reports|no export)"):
        bring_in(database, name, put(tmp_path, other="a,b\n1,2\n"))


@pytest.mark.parametrize(
    ("text", "message"), [("name,flops\n", "column `kernel`"), ("kernel,dtype\nsaxpy*,fp32\n", "row 0")]
)
def test_a_work_file_without_work_is_rejected(database: Database, tmp_path: Path, text: str, message: str) -> None:
    work = put(tmp_path / "work", work=text) / "work.csv"
    with pytest.raises(BadInput, match=message):
        bring_in(database, "nsys", put(tmp_path / "nsys", trace=TRACE), ProfileOptions(work=work))


def test_the_command_prints_and_writes_its_results(settings: Settings, tmp_path: Path) -> None:
    trace, work = put(tmp_path / "nsys", trace=TRACE), put(tmp_path / "work", work=WORK) / "work.csv"

    words = ("import", "nsys", trace / "trace.csv", "--work", work, "--dry-run")
    done = run_command(*words, env=os.environ | settings.environment())
    assert "linear              bf16" in done.stdout
    assert "2.2% of the GPU time" in done.stdout
    done = run_command("import", "neusight", tmp_path, "--gpu=l40s", env=os.environ | settings.environment())
    assert "--gpu, --work and --software apply to" in done.stderr
