"""Split of a network into pipeline stages, their transfers, and the memory of a step on the device that needs most.

Stages are whole consecutive layers, the largest stage minimal. Memory is that of the stage that needs most:

Parameters: weights, their gradients, the optimiser's states and, with 16-bit weights, its FP32 master copy (16 bytes
per parameter with Adam in either case; ZeRO, Rajbhandari et al. 2020, section 3). ZeRO divides the optimiser's part by
the data-parallel devices from stage 1, gradients from stage 2, weights from stage 3.

Activations: in training the saved tensors of every microbatch in flight: all of them in GPipe, in 1F1B at most as many
as there are stages from this one to the last. Recomputation saves the input of each repetition of a block, and one
repetition's activations. In inference the live tensors: an output lives from its launch to its last reader.

Workspace: the GEMM library's; in training also the gradients of the largest output and of its input; with several
data-parallel devices also the gradient buckets (DistributedDataParallel's default), or with ZeRO 3 the largest layer's
gathered weights. Reserve: the CUDA context with its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.networks.batched import per_configuration, unique_rows, work_of_rows
from app.networks.build import FP32_BYTES, Builder
from app.networks.exchanges import gradient_bytes
from app.networks.roles import fed_by, learning, of_experts, of_loss, of_modules
from app.networks.run import FULL, OPERATORS, Run
from app.networks.training_pass import kept_of_operators, recomputed
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints
from app.tables.ops import OpTable
from app.tables.workload import FORWARD, Workload

# FLOPs per byte of bandwidth: about the ratio of tensor cores to HBM in 16 bits. It hardly matters: layers of a
# transformer are equal, only the embedding and the head differ.
_FLOPS_PER_BYTE = 100.0
_HALVINGS = 50
# Rounding tolerance of a stage's limit, in layers.
_TOLERANCE = 1e-9


def stage_repeats(w: Workload, stages: int) -> Floats:
    """Return how often each forward block runs on each stage, float64 [stages, blocks] or [stages, c, blocks].

    With fewer layers than stages some stages are empty.
    """
    repeats = w.repeats[..., : w.blocks]
    if stages == 1:
        return repeats[None]
    cost, repeats = np.broadcast_arrays(_costs(w), repeats)
    dealt = np.zeros((stages, *repeats.shape))
    cost, repeats = (np.array(part.reshape(-1, w.blocks), order="C") for part in (cost, repeats))
    _deal(cost, repeats, dealt.reshape(stages, -1, w.blocks))
    return dealt


def _costs(w: Workload) -> Floats:
    """Return the cost of one repetition of every forward block, in FLOPs."""
    work = work_of_rows(w.ops)
    flops = np.maximum(work.flops, _FLOPS_PER_BYTE * work.bytes) * w.ops.column("count") * (w.phase == FORWARD)
    return w.per_block(flops)


@compiled
def _deal(cost: Floats, repeats: Floats, dealt: Floats) -> None:
    """Fill `dealt` [stages, c, blocks] with the layers of each stage, minimising the largest stage by bisection.

    cost, repeats  float64 [c, blocks], cost of one layer of each block, and its number of layers
    """
    for k in range(len(cost)):
        whole = np.sum(cost[k] * repeats[k])
        low, high = max(np.max(cost[k]), whole / len(dealt)), whole
        fits = _filled(cost[k], repeats[k], high, dealt[:, k])
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            if _filled(cost[k], repeats[k], middle, dealt[:, k]):
                fits, high = True, middle
            else:
                low = middle
        if fits:
            _filled(cost[k], repeats[k], high, dealt[:, k])
        else:
            dealt[:, k] = 0.0
            dealt[0, k] = repeats[k]


@compiled
def _filled(cost: Floats, repeats: Floats, most: float, dealt: Floats) -> bool:
    """Fill `dealt` [stages, blocks] in order with no stage above cost `most`; return False if the layers do not fit."""
    dealt[:] = 0.0
    stage, room = 0, most
    for block in range(len(cost)):
        each, layers = cost[block], repeats[block]
        if each == 0:
            dealt[stage, block] = layers
            continue
        fits = np.floor(most / each + _TOLERANCE)
        if fits < 1:
            return False
        here = min(layers, max(np.floor(room / each + _TOLERANCE), 0.0))
        dealt[stage, block] = here
        room -= here * each
        if layers > here:
            more = int(np.ceil((layers - here) / fits))
            if stage + more >= len(dealt):
                return False
            dealt[stage + 1 : stage + more, block] = fits
            stage += more
            dealt[stage, block] = layers - here - (more - 1) * fits
            room = most - dealt[stage, block] * each
    return True


def stage_transfer(rows: Workload, run: Run) -> OpTable:
    """Return the transfer of a microbatch's activations between pipeline stages: one row, or one per configuration.

    Stages are cut between layers; the transfer is the output of the most repeated layer.
    """
    longest = np.atleast_1d(rows.repeats[..., : rows.blocks].argmax(axis=-1))
    last = np.searchsorted(rows.block, longest, side="right") - 1
    written = np.atleast_2d(rows.output_bytes)
    message = np.maximum(written[np.arange(len(written)), last], 1.0)
    builder = Builder(run.dtype)
    split = run.parallelism
    nodes, spread = 2.0 if split.nodes > 1 else 1.0, float(split.devices)
    builder.add(
        "send_recv", outputs=0.0, message_bytes=per_configuration(message), devices=2.0, nodes=nodes, spread=spread
    )
    return unique_rows(builder.build().ops).table


# FP32 states of the optimiser, bytes per parameter.
STATE_BYTES = {"none": 0.0, "sgd": 0.0, "adam": 8.0, "adamw": 8.0}
# Share of tensors that come and go in a step which PyTorch's caching allocator holds beside them.
SLACK = Coefficients("steps").number("allocator_slack")
# cuBLAS's workspace, and the memory of a context with PyTorch's kernels before the first tensor.
_GEMM_WORKSPACE_BYTES = 32.0 * 2**20
RESERVE_BYTES = 500.0 * 2**20


# Names of the parts of Memory in answers of training.
_PARTS = (
    *("parameters", "gradients", "optimizer_states", "activations", "logits", "kv_cache", "workspace"),
    *("gathered_units", "buffers", "allocator", "reserve"),
)


class Memory(NamedTuple):
    """Bytes on the device that needs most; with c configurations float64 [c] each.

    activations  saved for backward, or alive in inference, but for
    logits       those of the loss over the vocabulary, with their gradients
    workspace    of the GEMM library, and gradients of the largest other output
    gathered     units whose weights are whole while they run (ZeRO 3); in a pipeline, where PyTorch leaves a stage's
                 weights whole between microbatches, all of them, and the gradients that these add to, in FP32
    buffers      of collectives: buckets of gradients
    allocator    what PyTorch's caching allocator holds more than tensors take: rounded and split segments
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    kv_cache: float
    workspace: float
    gathered: float
    buffers: float
    allocator: float
    reserve: float

    @property
    def required_bytes(self) -> float:
        """Total bytes."""
        required: float = sum(self)
        return required

    @property
    def breakdown(self) -> tuple[float, ...]:
        """Weights, gradients, optimizer, activations, keys and values, all scratch memory, reserve: of every answer."""
        scratch = self.workspace + self.gathered + self.buffers + self.allocator
        return (*self[:3], self.activations + self.logits, self.kv_cache, scratch, self.reserve)

    @property
    def parts(self) -> dict[str, float]:
        """All parts of a training step by name."""
        return dict(zip(_PARTS, self, strict=True))


def memory(w: Workload, run: Run) -> Memory:
    """Return the memory of a step; `w` is the forward workload, before or after the passes."""
    return memories(w, run, (1.0,))[0]


def memories(w: Workload, run: Run, shares: Sequence[float]) -> list[Memory]:
    """Return the memory of a step for each of `shares`, fractions of the batch that `w` was lowered for.

    Outputs, saved tensors, keys and values scale with the batch; weights, gradients and optimiser states do not.
    """
    training = run.mode == "training"
    ranks = stage_repeats(w, run.parallelism.pipeline)
    ranks = ranks.reshape(len(ranks), -1, w.blocks)
    zero, data = run.parallelism.zero, run.parallelism.replicas
    learns, copies = learning(w, run) * training, np.where(of_experts(w), run.parallelism.expert_copies, data)
    states = STATE_BYTES[run.optimizer] * w.parameters + _masters(w) * (run.optimizer != "none")
    figures = (
        w.weight_bytes / (copies if zero >= 3 and training else 1),
        gradient_bytes(w) * learns / (copies if zero >= 2 else 1),
        states * learns / (copies if zero >= 1 else 1),
        w.kv_bytes,
    )
    held = [w.per_block(values) for values in figures]
    weights, gradients, optimizer, kv = ((ranks * values).sum(axis=-1) for values in held)
    activations = _saved(w, run, ranks) if training else _live(w, ranks)
    workspace, logits, flowing, gathered, buffers = (
        np.full_like(weights, _GEMM_WORKSPACE_BYTES),
        *np.zeros((4, *weights.shape)),
    )
    if training:
        of_vocabulary = of_loss(w)
        lost = (ranks * w.per_block(w.saved_bytes * of_vocabulary)).sum(axis=-1)
        grown = 2.0 * (w.output_bytes * of_vocabulary).max(axis=-1, initial=0.0)
        activations, logits = activations - lost, lost + grown
        flowing = flowing + 2.0 * w.output_bytes.max(axis=-1, initial=0.0) - grown
        if data > 1 and zero == 0:
            buffers = gradients
        elif data > 1 and zero == 3:
            gathered = _most(ranks, w.per_block(w.weight_bytes))
            if len(ranks) > 1 and run.release.kernels is None:
                gathered = (ranks * w.per_block(w.weight_bytes + FP32_BYTES * w.parameters * learns)).sum(axis=-1)
    slack = SLACK if training and run.release.kernels is None and not run.of_images else 0.0
    still = np.array(
        np.broadcast_arrays(
            weights, gradients, optimizer, 0.0, 0.0, 0.0, workspace, gathered, buffers, slack * gathered
        )
    )
    grows = np.array(
        np.broadcast_arrays(
            0.0, 0.0, 0.0, activations, logits, kv, flowing, 0.0, 0.0, slack * (activations + logits + flowing)
        )
    )
    return [_fullest(still + share * grows) for share in shares]


def _fullest(parts: Floats) -> Memory:
    """Return the memory of the stage that needs most, from parts [figures, stages, c]."""
    fullest = parts.sum(axis=0).argmax(axis=0)
    parts = parts[:, fullest, np.arange(len(fullest))]
    figures: list[Any] = parts[:, 0].tolist() if len(fullest) == 1 else list(parts)
    return Memory._make([*figures, RESERVE_BYTES])


def _most(ranks: Floats, values: Floats) -> Floats:
    """Return the maximum over each stage's blocks of a figure [..., blocks], as [stages, ...]."""
    most: Floats = ((ranks > 0) * values).max(axis=-1)
    return most


def _masters(w: Workload) -> Floats:
    """Return bytes of the FP32 copies of narrower weights, per row."""
    return np.where(w.weight_bytes < FP32_BYTES * w.parameters, FP32_BYTES * w.parameters, 0.0)


def _ends(w: Workload) -> Ints:
    """Return the last row of each forward block, int [blocks]."""
    ends: Ints = np.searchsorted(w.block, np.arange(w.blocks), side="right") - 1
    return ends


def _saved(w: Workload, run: Run, ranks: Floats) -> Floats:
    """Return bytes of activations saved for backward, float64 [stages, c].

    `ranks`, float64 [stages, c, blocks], is how often each stage runs each block.
    """
    saved = w.per_block(w.saved_bytes)
    if not {FULL, OPERATORS} & {*run.recompute}:
        again = w.per_block(w.saved_bytes * of_modules(w, run.recompute))
        saved = saved - run.recompute_layers * again
    else:
        dropped, operators = recomputed(w), OPERATORS in run.recompute
        kept = w.per_block(w.output_bytes * kept_of_operators(w)) if operators else np.zeros_like(saved)
        again = np.where(dropped, np.maximum(saved - kept, 0.0), 0.0)
        inside = w.output_bytes[..., _ends(w)]
        entering = np.concatenate([np.zeros_like(inside[..., :1]), inside[..., :-1]], axis=-1)
        entering = np.where(w.repeats[..., : w.blocks] > 1, np.maximum(entering, inside), entering)
        saved = np.where(dropped, run.recompute_layers * (entering + kept - saved) + saved, saved)
    stages = len(ranks)
    micro = run.parallelism.microbatches
    begun = np.full(stages, float(micro))
    if run.parallelism.schedule == "1f1b":
        begun = np.minimum(begun, _in_flight(stages, run.parallelism.virtual_pipeline))
    if stages == 1:
        begun = np.ones(1)  # one microbatch at a time
    activations: Floats = begun[:, None] * (ranks * saved).sum(axis=-1) + _most(ranks, again)
    return activations


def _in_flight(stages: int, chunks: int) -> Floats:
    """Return the microbatches whose activations each stage holds in 1F1B, float64 [stages].

    With c chunks of layers per stage, of P stages, stage p begins 2 (P - p - 1) + (c - 1) P + 1 chunks before its first
    backward (Megatron-LM's interleaved schedule).
    """
    behind = np.arange(stages, dtype=np.float64)[::-1]
    if chunks == 1:
        return behind + 1.0
    held: Floats = (2.0 * behind + (chunks - 1.0) * stages + 1.0) / chunks
    return held


def _live(w: Workload, ranks: Floats) -> Floats:
    """Return peak bytes of live outputs, float64 [stages, c]; `ranks` as in `_saved`."""
    n = int((w.phase == FORWARD).sum())
    if not n:
        return np.zeros(ranks.shape[:2])
    last = np.arange(n)
    inside = w.edges[:, (w.edges < n).all(axis=0)]
    np.maximum.at(last, inside[0], inside[1])
    ends = _ends(w)
    readers = np.flatnonzero(fed_by(w)[2][:n])
    readers = readers[w.block[readers] > 0]
    np.maximum.at(last, ends[w.block[readers] - 1], readers)
    written = w.output_bytes.T[:n]
    change = np.zeros((n + 1, *written.shape[1:]))
    change[:n] += written
    np.subtract.at(change, last + 1, written)
    live = np.cumsum(change[:n], axis=0)
    # The second repetition of a block reads the first one's output, which is as large as the first one's input.
    peak = np.zeros((w.blocks, *written.shape[1:]))
    np.maximum.at(peak, w.block[:n], live)
    return _most(ranks, peak.T)
