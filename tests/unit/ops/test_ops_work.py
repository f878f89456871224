"""FLOPs and bytes of every family against hand calculations."""

import numpy as np
import pytest

from app.ops import OP_CODE, OPS
from app.ops.attention_kernels import DECODE_COSTS, attended, decode_loops, fill_tiles, queries_of
from app.ops.attention_module import KINDS as MODULE_KINDS
from app.ops.collective import AT_ONCE
from app.ops.conv import transformed
from app.ops.experts import BY_GROUPS, GELU, OTHER, UNGATED, distribution, load
from app.ops.figures import Costing, LibraryCosts, Work
from app.ops.linear_attention import KINDS
from app.ops.moe import EXPERT_COSTS, GROUPED, OTHER_GATE, USUAL, router_class
from app.stacks.libraries import LIBRARIES, LIBRARY_CODE
from app.stacks.registry import code_of
from app.tables.ops import OpTable
from tests.unit.operators import operators


def work(table: OpTable) -> Work:
    return Work(*(column[0] for column in OPS[int(table.kind[0])].work(table)))


def one(name: str, dtype: str = "fp32", **row: float) -> Work:
    return work(operators(name, row, dtype=dtype))


def broken(name: str, **row: float) -> list[str]:
    table = operators(name, row)
    return [rule.field for rule in OPS[OP_CODE[name]].broken(table) if rule.rows.any()]


def test_linear() -> None:
    # 2 x 3 outputs of 4 multiply-adds; (2 x 4 + 4 x 3 + 2 x 3) x 4 bytes
    assert one("linear", m=2, n=3, k=4) == (48, 104, 104)
    # Two products; distinct are x, W and their gradients, and dY: (2 x 8 + 2 x 12 + 6) x 4
    assert one("linear", m=2, n=3, k=4, backward=1) == (96, 208, 184)
    # NVFP4: inputs and weights 9/16 byte, outputs BF16
    assert one("linear", "nvfp4", m=16, n=16, k=16).bytes == 16 * 16 * (9 / 16 + 9 / 16 + 2)


def test_bmm() -> None:
    assert one("bmm", b=5, m=2, n=3, k=4) == (240, 520, 520)


def test_conv2d() -> None:
    # ResNet-50's first layer: 118,013,952 multiply-adds (He et al. 2016; fvcore prints the same)
    first = one("conv2d", b=1, in_channels=3, out_channels=64, kernel_size=7, input_size=224, stride=2, padding=3)
    assert first.flops == 2 * 118_013_952
    assert first.bytes == 4 * (3 * 224 * 224 + 64 * 3 * 49 + 64 * 112 * 112)
    # Depthwise 3x3 over 8 channels, 4 x 6 input without padding: 2 x 4 outputs each
    wide = {"input_size_height": 4, "input_size_width": 6}
    depthwise = one("conv2d", b=1, in_channels=8, out_channels=8, kernel_size=3, groups=8, **wide)
    assert depthwise.flops == 2 * 8 * (2 * 4) * 9
    assert broken("conv2d", b=1, in_channels=6, out_channels=8, kernel_size=3, input_size=8, groups=4) == ["groups"]
    assert broken("conv2d", b=1, in_channels=3, out_channels=8, kernel_size=5, input_size=3) == ["kernel_size"] * 2


def test_winograd() -> None:
    # 20 images count as 32, of 5 x 5 tiles each: 6.25 blocks of 128; 100 channels out are 2 of 64, 1 of 128
    shape = {"b": 20, "in_channels": 36, "out_channels": 100, "kernel_size": 3, "input_size": 20, "padding": 1}
    _, blocks, fill, moved = transformed(operators("conv2d", shape))
    # Of F(2 x 2): one image's 3 x 2 blocks of 8 x 16; or 5 x 3 of 4 x 8 of four images, which is fewer
    assert blocks[:, 0].tolist() == [36 * 7 * 2, 20 * 3 * 2 * 4, 36 * 7 * 1, 5 * 5 * 3 * 4, 63 * 2]
    # A full block saves 4 and 2.25 times, or nothing; 8, 20 and 16 steps of 36, 36 and 324 are its ends
    full, (around, between, plain) = 20 * 20 * 20 * 100, (1.05 * 36 / 44, 0.9 * 36 / 56, 1.15 * 324 / 340)
    saved = np.array([4 * around, 2.25 * between, 4 * around, 2.25 * between, plain])
    outputs = [7 * 2 * 128 * 64 * 16, 20 * 24 * 128 * 32, 7 * 128 * 128 * 16, 5 * 60 * 128 * 32, 63 * 2 * 128 * 64]
    assert fill[:, 0] == pytest.approx(saved * full / outputs)
    # Images in and out, their tiles and those of results 36 / 16 as large, weights and theirs twice
    tiles, weights = 32 * 25, 36 * 100
    images = 20 * 20 * 20 * (36 + 100)
    assert moved[0, 0] == 4 * (images + 36 * tiles * (36 + 100) + 2 * (9 + 36) * weights)
    assert moved[2, 0] == moved[0, 0] > 10 * moved[1, 0] > 0
    assert moved[3, 0] == moved[1, 0] and moved[4, 0] == 0


def test_shapes_without_winograd_kernels() -> None:
    shape = {"b": 2, "in_channels": 8, "out_channels": 8, "kernel_size": 3, "input_size": 9}
    found = transformed(operators("conv2d", shape))
    assert found.rows.tolist() == [0] and (found.fill > 0).all()
    for other in ({"stride": 2}, {"kernel_size": 5}, {"groups": 2}, {"kernel_size_width": 1}):
        assert not len(transformed(operators("conv2d", shape | other)).rows)
    assert not len(transformed(operators("conv2d", shape, dtype="fp16")).rows)


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("layer_norm", 2 * 16 + 2 * 8, 3 * 16 + 4 * 8),
        ("rms_norm", 2 * 16 + 8, 3 * 16 + 2 * 8),
        ("softmax", 2 * 16, 3 * 16),
        ("add", 3 * 16, 3 * 16),
        ("mul", 3 * 16, 5 * 16),
        ("relu", 2 * 16, 3 * 16),
        ("mul_scalar", 2 * 16, 2 * 16),
        ("copy", 2 * 16, 2 * 16),
    ],
)
def test_bytes_of_elementwise_operators(name: str, forward: float, backward: float) -> None:
    assert one(name, b=2, h=8).bytes == 4 * forward
    assert one(name, "bf16", b=2, h=8, backward=1).bytes == 2 * backward


def test_dropout_also_moves_a_byte_of_mask_per_element() -> None:
    assert one("dropout", b=2, h=8).bytes == one("dropout", b=2, h=8, backward=1).bytes == (4 + 4 + 1) * 16


def test_strided_tensors_are_read_in_sectors() -> None:
    assert one("add_strided", b=32, h=8, stride=32).bytes == 32 * 8 * (4 + 4 + 32)
    assert one("add_strided", b=32, h=8, stride=1) == one("add", b=32, h=8)


def test_pool() -> None:
    # ResNet-50's pooling: 64 x 56 x 56 windows of 9
    pooled = one("max_pool2d", b=1, channels=64, kernel_size=3, input_size=112, stride=2, padding=1)
    assert pooled.flops == 64 * 56 * 56 * 9
    # Without a stride the window is the step: 4 x 4 outputs
    assert one("avg_pool2d", b=1, channels=1, kernel_size=2, input_size=8).bytes == 4 * (64 + 16)


def test_embedding() -> None:
    # 10 indices of 8 bytes, 10 rows of 64 bytes in and out; of 4 distinct rows
    assert one("embedding", b=10, h=16, vocabulary=4) == (0, 80 + 1280, 80 + 640 + 256)


def test_recurrent() -> None:
    # Four gates of 3 from 2 inputs and 3 states, five steps: 2 x 5 x 12 x 5
    assert one("recurrent", batch=1, input=2, hidden=3, steps=5).flops == 600
    assert one("recurrent", batch=1, input=2, hidden=3, steps=5, cell=0).flops == 150


@pytest.mark.parametrize(
    ("queries", "context", "window", "pairs", "keys"),
    [
        (4, 4, 0, 1 + 2 + 3 + 4, 4),
        (2, 4, 0, 3 + 4, 4),
        (1, 4, 0, 4, 4),
        (4, 4, 2, 1 + 2 + 2 + 2, 4),
        (2, 8, 3, 3 + 3, 4),
        (1, 8, 3, 3, 3),
        (4, 4, 4, 10, 4),
        (4, 4, 9, 10, 4),
    ],
)
def test_causal_pairs(queries: float, context: float, window: float, pairs: float, keys: float) -> None:
    shape = {"batch": 1, "heads": 1, "head_dim": 1}
    table = operators(
        "attention_prefill", shape | {"query_length": queries, "context_length": context, "window": window}
    )
    assert tuple(column[0] for column in attended(table)) == (queries, pairs, keys)


def test_attention() -> None:
    # Llama 3 8B, one new token after 4,095: 32 heads on 8 KV heads of 128, BF16
    llama = {"batch": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "context_length": 4096}
    decode = one("attention_decode", "bf16", **llama)
    assert decode.flops == 4 * 32 * 128 * 4096
    assert decode.bytes == 2 * (2 * 32 * 128 + 2 * 8 * 128 * 4096)
    fp8_cache = one("attention_decode", "bf16", kv_dtype=5, **llama)
    assert fp8_cache.bytes == 2 * 2 * 32 * 128 + 2 * 8 * 128 * 4096
    # A whole prefill: half of the square, and its diagonal
    assert one("attention_prefill", "bf16", **llama).flops == 4 * 32 * 128 * (4096 * 4097 / 2)
    assert one("attention_prefill", "bf16", backward=1, **llama).flops == 10 * 32 * 128 * (4096 * 4097 / 2)
    assert broken("attention_prefill", **llama | {"kv_heads": 5}) == ["kv_heads"]
    assert broken("attention_prefill", query_length=5000, **llama) == ["query_length"]
    assert broken("attention_decode", query_length=2, backward=1, **llama) == ["query_length", "backward"]


@pytest.mark.parametrize(
    ("queries", "context", "window", "group", "visited"),
    [
        (256, 256, 0, 1, 64 * (64 + 128 + 192 + 256)),  # a tile works on all keys up to its last query's
        (256, 512, 0, 1, 64 * (4 * 256 + 64 + 128 + 192 + 256)),
        (16, 16, 0, 1, 64 * 16),  # and on all its rows
        (16, 16, 0, 4, 16 * 16),  # which heads of one KV head share
        (64, 4096, 128, 1, 64 * 191),  # a window, and what its first query sees more
    ],
)
def test_tiles_of_attention(queries: float, context: float, window: float, group: float, visited: float) -> None:
    shape = {"batch": 3, "heads": 8 * group, "kv_heads": 8, "head_dim": 1}
    table = operators(
        "attention_prefill", shape | {"query_length": queries, "context_length": context, "window": window}
    )
    padding, clocks, of_one = np.empty(1), np.empty(1), np.empty(1)
    fill_tiles(queries_of(table), padding, clocks)
    assert padding[0] * attended(table).pairs[0] == pytest.approx(visited)
    one = {"query_length": 1, "context_length": 1, "window": 0}
    fill_tiles(queries_of(operators("attention_prefill", shape | one)), padding, of_one)
    assert clocks[0] == np.ceil(queries * group / 64) * of_one[0]


@pytest.mark.parametrize(
    ("kv_heads", "window", "loops"),
    [
        (8, 0, (3 * 8, 32, 32)),  # heads that share a KV head are one block's, and keys may be dealt to more
        (32, 0, (3 * 32, 32, 1)),  # a head of its own is not cut
        (8, 300, (3 * 32, 3, 1)),  # nor is a window, whose heads do not share either
    ],
)
def test_loops_of_decoding(kv_heads: float, window: float, loops: tuple[float, float, float]) -> None:
    # Of 4,096 keys 128 at a time, which heads of 128 leave room for
    shape = {"batch": 3, "heads": 32, "kv_heads": kv_heads, "head_dim": 128, "context_length": 4096, "window": window}
    assert tuple(column[0] for column in decode_loops(operators("attention_decode", shape))) == loops


def costs_of_each_library(costing: Costing, table: OpTable) -> LibraryCosts:
    """Costs [LIBRARIES, n], as if each library were that of a generation of GPUs."""
    library = np.tile(np.arange(float(len(LIBRARIES)))[:, None], len(table))
    costs = LibraryCosts(*np.zeros((len(LibraryCosts._fields), *library.shape)))
    costing.fill(costing.rows(table), library, costs)
    return costs


def test_costs_of_the_blocks_of_decoding() -> None:
    shape = {"batch": 3, "heads": 32, "kv_heads": 8, "head_dim": 128, "context_length": 1000}
    trtllm = code_of("trtllm")
    apart, few = {**shape, "kv_heads": 32}, {**shape, "heads": 64, "kv_heads": 1}
    shapes = (shape, apart, {**shape, "window": 128}, *({**rows, "stack": trtllm} for rows in (shape, apart, few)))
    costs = costs_of_each_library(DECODE_COSTS, operators("attention_decode", *shapes, dtype="bf16"))
    fa2, flashinfer, unnamed, alone, xqa = (
        LIBRARY_CODE[name] for name in ("flash-attention-2", "flashinfer", "", "trtllm-fp8", "trtllm")
    )
    together, each, windowed, usual, masked, many = range(len(shapes))
    assert costs.blocks[unnamed].tolist() == [3 * 8, 3 * 32, 3 * 8, 3 * 8, 3 * 32, 3 * 64]
    # FlashAttention-2 computes the heads of a group apart where there is a window
    assert costs.blocks[fa2, windowed] == 4 * costs.blocks[fa2, together] == costs.blocks[fa2, each]
    # Its block of 64 queries, and 128 keys and values, has 80 KiB: an SM of 100 KiB runs one of them at a time
    assert costs.shared_bytes[fa2, together] == 80 * 1024
    assert not costs.shared_bytes[[flashinfer, unnamed, xqa]].any()
    assert costs.clocks[flashinfer, each] < costs.clocks[flashinfer, together]  # without tensor units
    assert costs.clocks[alone, usual] == costs.clocks[xqa, usual] + 2 * 128 * 1000 * 2 / 8  # reads all keys itself
    # TensorRT-LLM's kernel for heads that share no keys, which reads those that many share again for each of them
    assert costs.clocks[xqa, masked] < costs.clocks[xqa, usual]
    assert costs.clocks[xqa, many] == costs.clocks[xqa, masked] + 2 * 128 * 1000 * 2 / 25


def test_latent_attention() -> None:
    # DeepSeek-V3 decoding: 128 heads on 512 + 64 numbers a key
    shape = {"batch": 1, "heads": 128, "head_dim": 128, "query_length": 1, "context_length": 1000}
    latent = one("attention_mla", "bf16", **shape)
    assert latent.flops == 2 * 128 * (576 + 512) * 1000
    assert latent.bytes == 2 * (128 * (576 + 512) + 1000 * 576)


def test_moe() -> None:
    # Mixtral 8x7B, one token: two experts of three matrices
    mixtral = {"hidden": 4096, "intermediate": 14336, "experts": 8, "top_k": 2}
    alone = one("moe", "bf16", tokens=1, **mixtral)
    assert alone.flops == 2 * 2 * 3 * 4096 * 14336
    assert alone.bytes == 2 * (2 * 3 * 4096 * 14336 + 2 * 4096 + 2 * 2 * 14336)
    # Eight ranks of one expert share 16 pairs evenly
    assert one("moe", "bf16", tokens=8, expert_parallel=8, **mixtral).flops == alone.flops
    assert one("moe", "bf16", tokens=8, tensor_parallel=8, **mixtral).flops == alone.flops
    assert broken("moe", tokens=1, expert_parallel=3, **mixtral) == ["expert_parallel"]
    assert broken("moe", tokens=1, **mixtral | {"top_k": 9}) == ["top_k"]


def test_skewed_experts() -> None:
    layer = {"tokens": 4096, "hidden": 64, "intermediate": 64, "experts": 64, "top_k": 4}
    shapes = [layer | {"expert_parallel": ranks, "distribution": skew} for ranks in (1, 16) for skew in (0, 1.01, 2)]
    pairs, active = load(operators("moe", *shapes))
    # One rank has all pairs, however they spread; of sixteen the busiest has more the steeper the law
    np.testing.assert_allclose(pairs[:3], 4 * 4096)
    assert pairs[3] == 1024 < pairs[4] < pairs[5] <= 4 * 4096
    assert active[:3].tolist() == [64, 64, 64]
    # 32 tokens, 128 pairs: drawn between 1 and 25.6, scaled, rounded; what that leaves goes to experts without any
    _, few = load(operators("moe", layer | {"tokens": 32, "distribution": 1.0}))
    drawn = 25.6 ** ((np.arange(64) + 0.5) / 64)
    whole = np.round(128 * drawn / drawn.sum())
    assert few[0] == pytest.approx((whole > 0).sum() + 128 - whole.sum(), rel=0.03)
    # Few pairs, none of which rounds to one: each has an expert of its own, the busiest of eight ranks more than two
    _, ones = load(
        operators("moe", *(layer | {"tokens": 4, "distribution": 1.0, "expert_parallel": r} for r in (1, 8)))
    )
    assert ones[0] == pytest.approx(16, rel=0.01)
    assert 2.0 < ones[1] < 8.0
    assert distribution("power_law_1.01") == 1.01
    assert distribution("balanced") == 0
    for wrong in ("power_law_", "power_law_-1", "zipf", "power_law_nan"):
        with pytest.raises(ValueError, match="power_law_"):
            distribution(wrong)


def test_libraries_hand_on_the_pairs_of_all_ranks_or_of_one() -> None:
    layer = {"tokens": 256, "hidden": 4096, "intermediate": 1536, "experts": 128, "top_k": 8}
    table = operators("moe", layer, {**layer, "expert_parallel": 8}, dtype="bf16")
    costs = costs_of_each_library(EXPERT_COSTS, table)
    every = 2 * 2 * 256 * 8 * (2 * 1536 + 4096)
    triton, cutlass, marlin = (LIBRARY_CODE[name] for name in ("triton", "cutlass", "marlin"))
    assert costs.handed_bytes[triton].tolist() == costs.handed_bytes[marlin].tolist() == [every, every]
    rows = 2 * 2 * 256 * 2 * 4096
    assert costs.handed_bytes[cutlass].tolist() == [every + rows, every / 8 + rows]
    assert costs.flops_per_clock[marlin].all()
    assert not costs.flops_per_clock[[triton, cutlass]].any()


def test_experts_without_gate() -> None:
    layer = {"tokens": 64, "hidden": 2688, "intermediate": 1856, "experts": 128, "top_k": 6}
    assert one("moe", "bf16", **layer, gate=UNGATED).flops == 4 * 64 * 6 * 2688 * 1856
    assert one("moe", "bf16", **layer).flops == 6 * 64 * 6 * 2688 * 1856


def test_router_classes_of_layers_with_equal_dimensions() -> None:
    layer = {"tokens": 64, "hidden": 4096, "intermediate": 2048, "experts": 128, "top_k": 8}
    layers = [layer | fields for fields in ({"gate": GELU}, {"gate": OTHER}, {"router": BY_GROUPS}, {})]
    for dtype, gelu, grouped in (("fp8", OTHER_GATE, GROUPED), ("nvfp4", USUAL, GROUPED), ("bf16", OTHER_GATE, USUAL)):
        assert router_class(operators("moe", *layers, dtype=dtype)).tolist() == [gelu, OTHER_GATE, grouped, USUAL]


@pytest.mark.parametrize(
    ("name", "sent", "hops", "kept"),
    [
        ("all_reduce", 1500, 6, 250),
        ("all_gather", 750, 3, 250),
        ("reduce_scatter", 750, 3, 250),
        ("all_to_all", 750, 3 * AT_ONCE, 250),
        ("send_recv", 1000, 1, 0),
    ],
)
def test_collectives(name: str, sent: float, hops: float, kept: float) -> None:
    table = operators(name, {"message_bytes": 1000, "devices": 4}, {"message_bytes": 1000, "devices": 1})
    link_bytes = OPS[OP_CODE[name]].link_bytes
    assert link_bytes is not None
    assert link_bytes(table).tolist() == [sent, 0]
    passing = OPS[OP_CODE[name]].passing
    assert passing is not None
    assert [part[0] for part in passing(table)] == [pytest.approx(hops), kept, 4]
    assert broken(name, message_bytes=1, devices=3, nodes=2) == ["nodes"]
    assert broken(name, message_bytes=1, devices=4, spread=3) == ["spread"]
    assert not broken(name, message_bytes=1, devices=4, spread=4)


def test_memory() -> None:
    assert one("memory", bytes=12345) == (0, 12345, 12345)


STATE = {"batch": 2, "key_heads": 2, "value_heads": 4, "key_dim": 8, "value_dim": 16}


def test_linear_attention_step() -> None:
    # 2 sequences x 4 heads x 7 x 8 x 16; states 2 x 4 x 8 x 16 x 4 bytes in and out; per sequence q and k 2 x 2 x 8,
    # v 4 x 16, two gates of 4 heads, o 4 x 16 in FP32
    states, tokens = 2 * 2 * 4 * 8 * 16 * 4, 2 * (32 + 64 + 8 + 64) * 4
    assert one("linear_attention_step", **STATE) == (2 * 4 * 7 * 8 * 16, states + tokens, states + tokens)
    assert one("linear_attention_step", **STATE, variant=KINDS.index("mamba2")).flops == 2 * 4 * 5 * 8 * 16
    kda = one("linear_attention_step", **STATE, variant=KINDS.index("kda"))
    assert kda.bytes == states + tokens + 2 * 4 * (9 - 2) * 4  # a decay per element of the key


def test_linear_attention_scan() -> None:
    # A token and head: 6 x 8 x 16 with the state, 4 x (3 x 8 + 2 x 16) within the chunk
    row = STATE | {"query_length": 100, "chunk": 4}
    assert one("linear_attention", **row).flops == 2 * 100 * 4 * (6 * 8 * 16 + 4 * 56)
    assert one("linear_attention", **row, variant=KINDS.index("mamba2")).flops == 2 * 100 * 4 * (4 * 8 * 16 + 4 * 24)
    short = one("linear_attention", **row | {"query_length": 3})  # chunks are no longer than the sequence
    assert short.flops == 2 * 3 * 4 * (6 * 8 * 16 + 3 * 56)
    assert broken("linear_attention", **row | {"key_heads": 3}) == ["key_heads"]
    assert broken("linear_attention_step", **STATE, backward=1) == ["backward"]


def test_short_convolution() -> None:
    # 2 x 5 tokens of 6 channels, 4 taps: in and out, and 3 tokens of state in and out, 4 bytes each
    assert one("short_convolution", batch=2, query_length=5, channels=6) == (2 * 4 * 60, *[(120 + 72) * 4] * 2)


LATENT = {"batch": 1, "heads": 2, "head_dim": 8, "value_dim": 4, "hidden": 32, "latent_dim": 16, "rope_dim": 2}
# Queries straight, 32 x 2 x (8 + 2); keys kept 32 x 18 and expanded 16 x 2 x 12; out 2 x 4 x 32
LATENT_WEIGHTS = 640 + 576 + 384 + 256


def test_attention_module_is_its_projections_and_attention() -> None:
    decode = one("attention_module", **LATENT, query_length=1, context_length=100)
    assert decode.flops == 2 * LATENT_WEIGHTS + 2 * 2 * 100 * (18 + 16)  # on what is kept
    assert decode.bytes == (LATENT_WEIGHTS + 100 * 18 + 2 * 32) * 4
    prefill = one("attention_module", **LATENT, context_length=100)
    assert prefill.flops == 2 * 100 * LATENT_WEIGHTS + 2 * 2 * 5050 * (10 + 4)  # on expanded keys


def test_attention_module_reads_selected_keys_and_all_of_the_indexer() -> None:
    kind = MODULE_KINDS.index("dsa")
    row = LATENT | {"variant": kind, "index_keys": 10, "query_length": 1, "context_length": 100}
    again, own = one("attention_module", **row), one("attention_module", **row, index_heads=3, index_dim=128)
    indexer = 32 * 3 * 128 + 32 * 3 + 32 * 128
    assert again.flops == 2 * LATENT_WEIGHTS + 2 * 2 * 10 * (18 + 16)
    assert own.flops - again.flops == 2 * indexer + 2 * 100 * 3 * 128
    assert own.bytes - again.bytes == indexer * 4 + 100 * 132


def test_attention_module_of_compressed_keys_and_a_window() -> None:
    row = {"batch": 1, "heads": 2, "head_dim": 8, "value_dim": 8, "hidden": 32, "query_rank": 4, "window": 16}
    row |= {"variant": MODULE_KINDS.index("hca"), "query_length": 1, "context_length": 1280, "compression": 128}
    weights = 4 * (32 + 16) + 32 * 8 + 16 * 32 + 2 * 32 * 8
    assert one("attention_module", **row).flops == 2 * weights + 2 * 2 * (10 + 16) * 16
    alone = one("attention_module", **row | {"compression": 0})
    assert alone.flops == 2 * (weights - 2 * 32 * 8) + 2 * 2 * 16 * 16
    assert broken("attention_module", **row | {"variant": 0}) == ["latent_dim"]


def test_hyper_connections() -> None:
    # 3 tokens of 2 streams of 5 features: 8 columns of FP32 weights; streams in, one out
    assert one("hyper_connections", b=3, h=5, streams=2) == (30 * (2 * 9 + 3), *[(15 * 3 + 80) * 4] * 2)
    assert one("hyper_connections", b=3, h=5, streams=2, part=1) == (30 * 6, *[15 * 5 * 4] * 2)


def test_quantize_reads_16_bits_and_writes_the_narrow_format() -> None:
    # 3 rows of 8: in FP32's four bytes here; a known scale saves two operations an element and the row's own scale
    assert one("quantize", b=3, h=8, scale=0) == (2 * 24, 24 * (2 + 4), 24 * (2 + 4))
    assert one("quantize", b=3, h=8, scale=1) == (4 * 24, 24 * 6 + 3 * 4, 24 * 6 + 3 * 4)
    assert broken("quantize", b=3, h=8, backward=1) == ["backward"]


EXCHANGE = {"tokens": 10, "hidden": 128, "top_k": 2, "experts": 8, "devices": 2}


def test_dispatch_sends_a_copy_per_device_or_per_expert() -> None:
    normal = one("expert_dispatch", **EXCHANGE)
    assert normal.bytes == 10 * 128 * 4 * (1 + 1.5)  # of two random experts one in four tokens has both on a device
    assert one("expert_dispatch", **EXCHANGE, mode=1).bytes == 10 * 128 * 4 * 3
    assert one("expert_combine", **EXCHANGE).flops == 2 * 10 * 128 * 1.5
    table = operators("expert_dispatch", EXCHANGE, EXCHANGE | {"mode": 1}, dtype="fp8")
    sent = OPS[OP_CODE["expert_dispatch"]].link_bytes
    assert sent is not None
    np.testing.assert_allclose(sent(table), 10 * (128 + 4) * np.array([0.75, 1.0]))
    assert broken("expert_dispatch", **EXCHANGE | {"devices": 3}) == ["devices"]
    assert broken("expert_combine", **EXCHANGE | {"top_k": 9}) == ["top_k"]


def test_fewer_sms_need_more_clocks_to_send() -> None:
    table = operators("expert_dispatch", EXCHANGE, EXCHANGE | {"sms": 10}, EXCHANGE | {"sms": 10, "mode": 1})
    rereads = OPS[OP_CODE["expert_dispatch"]].rereads
    assert rereads is not None
    usual, few, low_latency = rereads(table).clocks
    assert few == 2 * usual
    assert low_latency < usual


WIDE = {"tokens": 64, "hidden": 4, "intermediate": 2, "experts": 8, "top_k": 2, "expert_parallel": 4}


def test_wide_experts_hold_slots_and_a_balancer_evens_their_load() -> None:
    even = one("moe_wide", **WIDE)
    assert even.flops == 2 * 3 * 32 * 4 * 2  # 128 pairs over 4 ranks, three matrices each
    assert one("moe_wide", **WIDE, distribution=1.2).flops > even.flops
    assert one("moe_wide", **WIDE, distribution=1.2, balancer=1).flops == even.flops
    assert (
        one("moe_wide", **WIDE, slots=16).bytes - even.bytes == 2 * 3 * 4 * 2 * 4
    )  # four slots of a rank in place of two
    assert broken("moe_wide", **WIDE, slots=4) == ["slots"]
    assert broken("moe_wide", **WIDE, slots=9) == ["expert_parallel"]
