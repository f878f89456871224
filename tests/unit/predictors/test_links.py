"""Collectives of more devices than a link joins: over the slot, in physics and in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from app.bands.conformal import Intervals
from app.engine.engine import Engine, MeasuredOperators, Served
from app.engine.exact_hits import NO_OPERATORS, OperatorIndex
from app.predictors.auto.operators.explain import explained
from app.predictors.auto.operators.learning.learn import expected_errors
from app.predictors.auto.predictor import Auto
from app.predictors.links import beyond_link_domain, by_link, gpu_id_of
from app.predictors.roofline import Roofline
from app.services.operators.explanations import explanations
from app.steps.predict_rows import OperatorQuery, in_racks, within_nodes
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import OpTable, concatenate
from app.wire.prediction_form import Explanation
from tests.unit.kernels import TURING
from tests.unit.learned import situation
from tests.unit.measured import no_evidence
from tests.unit.operator_runs import runs_of
from tests.unit.operators import mixed, operators

SLOT = 31.5e9
BRIDGED = replace(
    TURING, id="bridged", link_bandwidth_bytes_per_s=300e9, link_domain_gpus=2, slot_bandwidth_bytes_per_s=SLOT
)
SLOTTED = replace(TURING, id="slotted", link_bandwidth_bytes_per_s=SLOT)
SWITCHED = replace(TURING, id="switched", link_bandwidth_bytes_per_s=300e9)
RACKED = replace(SWITCHED, id="racked", link_domain_gpus=72)
SPECS = [BRIDGED, SLOTTED, SWITCHED, RACKED]
GPUS = GpuTable.from_specs(SPECS)
BRIDGE, SLOTS, SWITCH, RACK = range(4)
SIZES = [{"message_bytes": 2.0 ** (12 + 16 * k / 1200), "devices": 2.0 ** (1 + k % 3)} for k in range(1200)]


def sent(**sizes: float) -> OpTable:
    return operators("all_reduce", {"message_bytes": 2.0**28, **sizes}, dtype="bf16")


def seconds(ops: OpTable, gpu: int, predictor: Auto | Roofline | None = None) -> np.ndarray:
    i, j = np.arange(len(ops)), np.full(len(ops), gpu)
    return (predictor or Auto()).predict(ops, GPUS, i, j, evidence=no_evidence(ops)).latency_s


@pytest.mark.parametrize("predictor", [Auto(), Roofline()])
@pytest.mark.parametrize(
    ("sizes", "like"),
    [
        ({"devices": 2}, SWITCH),
        ({"devices": 4}, SLOTS),
        ({"devices": 8}, SLOTS),
        ({"devices": 2, "spread": 2}, SWITCH),
        ({"devices": 2, "spread": 8}, SLOTS),  # every fourth of eight: neighbours share the bridge
        ({"devices": 4, "nodes": 2}, SWITCH),
        ({"devices": 2, "nodes": 2, "spread": 8}, SWITCH),  # one on each machine: none to share a bridge with
        ({"devices": 16, "nodes": 2}, SLOTS),
    ],
)
def test_a_bridge_serves_the_gpus_it_joins(predictor: Auto | Roofline, sizes: Mapping[str, float], like: int) -> None:
    ops = sent(**sizes)
    assert seconds(ops, BRIDGE, predictor) == pytest.approx(seconds(ops, like, predictor))
    assert seconds(ops, SLOTS, predictor) > 3 * seconds(ops, SWITCH, predictor)


def test_links_are_chosen_per_row_and_gpu() -> None:
    ops = mixed([operators("linear", {"m": 512, "n": 512, "k": 512}), sent(devices=2), sent(devices=8)])
    i, j = np.tile(np.arange(3), 4), np.repeat(np.arange(4), 3)
    together = Auto().predict(ops, GPUS, i, j, evidence=no_evidence(ops)).latency_s.reshape(4, 3)
    for gpu in range(4):
        assert together[gpu] == pytest.approx(seconds(ops, gpu))
    assert together[BRIDGE] == pytest.approx([together[SWITCH, 0], together[SWITCH, 1], together[SLOTS, 2]])


def test_links_that_join_all_need_no_second_gpu_table() -> None:
    every = np.arange(len(SIZES))
    ops = operators("all_reduce", *SIZES)
    for gpu in (SLOTS, SWITCH, RACK):
        assert beyond_link_domain(ops, GPUS, every, np.full(len(every), gpu)) is None
    fresh = GpuTable.from_specs(SPECS)
    products = operators("linear", *[{"m": 8, "n": 8, "k": 8}] * 2)
    for table, gpu in ((products, BRIDGE), (sent(devices=2), BRIDGE), (sent(devices=8), SWITCH)):
        gpus, j = by_link(table, fresh, np.arange(len(table)), np.full(len(table), gpu))
        assert gpus is fresh and set(j.tolist()) == {gpu}
    assert "slots" not in fresh.memo


def taught(*parts: tuple[int, bool, float]) -> Auto:
    """Measured on a GPU, of more than two devices or of two, so many times as long as physics says."""
    tables, gpu, latency = [], list[int](), list[float]()
    for on, more, times in parts:
        ops = operators("all_reduce", *[size for size in SIZES if (size["devices"] > 2.0) == more])
        tables.append(ops)
        gpu += [on] * len(ops)
        latency += (times * seconds(ops, on)).tolist()
    return Auto().fit_operators([runs_of("all_reduce", "fp32", concatenate(tables), gpu=gpu, latency_s=latency)], GPUS)


PAIR, EIGHT = (operators("all_reduce", {"message_bytes": 2.0**26, "devices": n}) for n in (2.0, 8.0))


@pytest.mark.parametrize(
    ("more", "known", "ratio"),
    [
        ((), "unseen_outside", 1.0),
        (((SLOTS, True, 2.0), (SLOTS, False, 2.0)), "unseen", 1.0),
        (((SLOTS, True, 2.0), (BRIDGE, True, 4.0)), "seen", 4.0),
    ],
)
def test_link_measurements_do_not_correct_the_slot(
    more: tuple[tuple[int, bool, float], ...], known: str, ratio: float
) -> None:
    """Of eight only its own of as many tell: what the slots of another machine share is up to that machine."""
    trained = taught((BRIDGE, False, 3.0), *more)
    assert situation(trained, PAIR, BRIDGE, GPUS) == ["seen"]
    assert seconds(PAIR, BRIDGE, trained) == pytest.approx(3.0 * seconds(PAIR, BRIDGE), rel=0.1)
    assert situation(trained, EIGHT, BRIDGE, GPUS) == [known]
    assert seconds(EIGHT, BRIDGE, trained) == pytest.approx(ratio * seconds(EIGHT, SLOTS), rel=0.1)


def test_few_rows_correct_only_the_link_they_used() -> None:
    ops = operators("all_reduce", *[{"message_bytes": 2.0**size, "devices": 8.0} for size in range(14, 28, 2)])
    slow = runs_of("all_reduce", "fp32", ops, gpu=[BRIDGE] * len(ops), latency_s=(5.0 * seconds(ops, BRIDGE)).tolist())
    told = Auto().with_measured([slow], GPUS)
    assert seconds(EIGHT, BRIDGE, told) > 2.0 * seconds(EIGHT, BRIDGE)
    assert seconds(PAIR, BRIDGE, told) == pytest.approx(seconds(PAIR, BRIDGE))
    both = concatenate([PAIR, EIGHT])
    covariance = expected_errors(told.operators_, Measurements(both, np.full(2, BRIDGE), np.ones(2)), GPUS)
    assert covariance is not None and covariance[0, 1] == 0.0 < min(covariance[0, 0], covariance[1, 1])


def engine(auto: Auto, index: OperatorIndex = NO_OPERATORS) -> Engine:
    served = {("auto", "*"): Served(auto, Intervals.prior(), "test")}
    return Engine(Catalog(SPECS), GPUS, served, operators=MeasuredOperators(index))


def test_an_explanation_names_the_link_used() -> None:
    auto, ops = taught((BRIDGE, False, 3.0), (BRIDGE, True, 2.0)), concatenate([EIGHT, PAIR])
    answer = OperatorQuery(engine(auto), ops, GPUS, "auto", 0.8).predict([BRIDGE])
    assert [gpu_id_of(f"{gpu}/slot") for gpu in GPUS.ids] == list(GPUS.ids)
    eight, pair = explained(auto.operators_, ops, GPUS, np.full(len(ops), BRIDGE), answer)
    assert [one.gpu for one in eight.members if one.source != "physics"] == ["bridged/slot"]
    assert [one.gpu for one in pair.members if one.source != "physics"] == ["bridged"]
    assert eight.physics.link > 300 / 31.5 * pair.physics.link
    for found, latency in zip((eight, pair), answer.latency_s, strict=True):
        physics, *learned = found.members
        correction = found.fading * sum(one.weight * one.log_correction for one in learned)
        assert physics.latency_s * np.exp(correction) == pytest.approx(latency)


def asked(ops: OpTable, *targets: int, index: OperatorIndex = NO_OPERATORS) -> np.ndarray:
    answer = OperatorQuery(engine(Auto(), index), ops, GPUS, "auto", 0.8).predict(targets)
    return answer.latency_s.reshape(len(targets), len(ops))


def test_a_rack_counts_as_one_machine() -> None:
    """NVL72: four devices on each machine, all joined; a bridge joins none of another machine."""
    trays = concatenate([sent(devices=16, nodes=4), sent(devices=16), sent(devices=144, nodes=36)])
    racked, switched, bridged = asked(trays, RACK, SWITCH, BRIDGE)
    assert racked[0] == racked[1] == switched[1] < 0.5 * switched[0]
    assert bridged[0] >= switched[0]
    assert racked[2] == pytest.approx(asked(sent(devices=144, nodes=2), SWITCH)[0, 0])
    assert asked(sent(devices=144), RACK)[0, 0] == racked[2]  # no machine holds as many
    assert asked(trays, BRIDGE, RACK, SWITCH) == pytest.approx(np.array([bridged, racked, switched]))


def test_measurements_on_machines_of_a_rack_are_kept() -> None:
    ops = concatenate([sent(devices=16, nodes=4), sent(devices=16)])
    index = OperatorIndex.build([runs_of("all_reduce", "bf16", ops, gpu=[RACK] * 2, latency_s=[7e-3, 9e-3])], known=4)
    assert asked(ops, RACK, SWITCH, index=index)[0].tolist() == [7e-3, 9e-3]


def test_measured_collectives_over_nodes_are_explained_by_their_measurement() -> None:
    ops = concatenate([sent(devices=16, nodes=4), sent(devices=16, nodes=2)])
    index = OperatorIndex.build(
        [runs_of("all_reduce", "bf16", ops.take(np.arange(1)), gpu=[SWITCH], latency_s=[7e-3])], known=4
    )
    query = OperatorQuery(engine(Auto(), index), ops, GPUS, "auto", 0.8)
    stored, other = explanations(query, SWITCH, query.predict([SWITCH]))
    assert isinstance(stored, Explanation) and isinstance(other, Explanation)
    assert stored.network is None and stored.members[-1].latency_ms == pytest.approx(7.0)
    assert other.network is not None and other.network.nodes == 2


def test_measured_collectives_of_eight_devices_are_hits() -> None:
    ops = concatenate([sent(devices=2), sent(devices=8), sent(devices=2, spread=8)])
    index = OperatorIndex.build(
        [runs_of("all_reduce", "bf16", ops.take(np.arange(2)), gpu=[BRIDGE] * 2, latency_s=[7e-3, 9e-3])], known=4
    )
    found = asked(ops, BRIDGE, index=index)[0]  # of eight quicker than rings over slots
    assert found[:2].tolist() == [7e-3, 9e-3] and found[2] == pytest.approx(seconds(ops, BRIDGE)[2])


RACKS = [(72, np.nan, 1), (73, np.nan, 73), (144, np.nan, 2), (96, np.nan, 2), (2, 72, 1), (2, 144, 2), (4, 100, 2)]


@pytest.mark.parametrize(("devices", "spread", "racks"), RACKS)
def test_devices_are_spread_evenly_over_racks(devices: float, spread: float, racks: int) -> None:
    found = in_racks(sent(devices=devices, nodes=devices, spread=spread), 72.0)
    assert found.column("nodes").tolist() == [racks]
    assert within_nodes(found).column("spread")[0] == pytest.approx(spread / racks, nan_ok=True)
