"""What travels: counted from numbers of models, it is what was measured."""

import pytest

from coterie.communication import communication, communication_table, counted, sizes_of
from coterie.presets import PRESETS
from coterie.runs import Run
from coterie.server.app import checked_config
from coterie.server.report import read_run


@pytest.mark.parametrize(
    ("strategy", "more"),
    [("fedavg", {}), ("fedfomo", {}), ("pfedsv", {}), ("pfedsv", {"pfedsv.shared-extractor": True})],
    ids=["fedavg", "fedfomo", "pfedsv", "shared extractor"],
)
def test_counted_parameters_are_the_measured_bytes(federate, strategy, more):
    run = federate(strategy=strategy, partition="pathological", num_server_rounds=3, **more)
    config, events = read_run(run.path)
    told = counted(config, events, sizes_of("lenet5", (1, 8, 8)))
    exchanges = sum(len(event["train"]) for event in events)
    for key in ("bytes-down", "bytes-up"):
        measured = sum(sum(event[key].values()) for event in events) / exchanges
        assert told[key] <= measured <= told[key] + 3000  # headers of arrays
        assert told[key] > 20_000


def test_sizes_of_large_networks():
    assert sum(sizes_of("resnet34", (3, 32, 32)).values()) == 21_306_862
    assert sizes_of("resnet34", (3, 32, 32))["classifier"] == 512 * 10 + 10
    assert sum(sizes_of("vgg19", (3, 32, 32)).values()) == 139_611_210


def test_shared_extractor_costs_what_fedavg_costs(federate):
    runs = [
        federate(strategy="fedavg", num_clients=6),
        federate(strategy="pfedsv", num_clients=6),
        federate(strategy="fedavg", num_clients=6),
        federate(strategy="pfedsv", num_clients=6, **{"pfedsv.shared-extractor": True}),
    ]
    told = communication(Run(run.path) for run in runs)
    rows = {(row["method"], row["model"]): row for row in told}
    assert len(told) == len(rows)
    assert len(rows) == 9  # fedavg once
    shared, fedavg = rows["pfedsv, shared extractor", "resnet34"], rows["fedavg", "resnet34"]
    both = ("bytes-down", "bytes-up")
    assert sum(shared[key] for key in both) <= 1.1 * sum(fedavg[key] for key in both)
    assert len(communication_table(told).rows) == 9


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("pfedsv")])
def test_presets_are_valid_settings(name):
    preset = PRESETS[name]
    assert set(preset.quick_cells) <= set(preset.cells)
    for cell in preset.cells.values():
        for strategy in preset.strategies.split(","):
            checked_config({**preset.values, **preset.quick, **cell, "strategy": strategy})
