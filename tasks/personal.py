"""A personal model in a file: what a client saved of it, and how it is used."""

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from coterie.tasks.models import ModelError, Network, build_network
from coterie.tasks.own import MOST_CLASSES, parse_shape
from coterie.tasks.preparing import prepared
from coterie.tasks.reading import Reading, Table, read_table
from coterie.tasks.samples import Dataset
from coterie.tasks.schema import Schema
from coterie.tasks.spec import TaskSpec
from coterie.tasks.tensors import stored_arrays
from coterie.tasks.training import Samples, normalised, outputs

MOST_RESIDUALS = 1000


@dataclass(frozen=True)
class PersonalModel:
    network: Network
    input_shape: tuple[int, ...]
    mean: np.ndarray  # of each channel or feature, as in training
    std: np.ndarray
    labels: tuple[str, ...]  # of all outputs; () for regression
    schema: Schema | None = None  # of a table: how its cells are prepared
    residuals: np.ndarray = field(default_factory=lambda: np.empty(0))  # of values: |true - said| of validation samples
    threshold: float = 0.5

    def read(self, path: str | Path, reading: Reading | None = None) -> Table:
        """The table in a file, with the codes for missing cells that were told in training, and perhaps others."""
        reading = reading or Reading()
        codes = [self.schema.missing if self.schema else "", reading.missing]
        return read_table(path, replace(reading, missing=",".join(code for code in codes if code)))

    def predict(self, x: "np.ndarray | Table | str | Path") -> np.ndarray:
        """Probabilities of all labels for each sample, (n, labels), or values, (n,). A table, or its file, goes by its
        column names; an array is taken as it is."""
        if isinstance(x, str | Path):
            x = self.read(x)
        if isinstance(x, Table):
            if self.schema is None:
                raise ModelError("predict: this model was not trained with a table; give an array")
            x = prepared(self.schema, x, new=True)
        found = outputs(self.network, normalised(x, self.mean, self.std, "cpu"))
        if self.labels:
            return np.asarray(torch.softmax(found, dim=1).numpy())
        values = np.asarray(found[:, 0].numpy())
        return values if self.schema is None else values * self.schema.label_std + self.schema.label_mean

    def said(self, probabilities: np.ndarray) -> np.ndarray:
        """The place of the label that is said of each sample: the most probable one; of two, the second above the run's
        threshold."""
        if probabilities.shape[1] == 2:
            return np.asarray(probabilities[:, 1] > self.threshold).astype(np.int64)
        return np.asarray(probabilities.argmax(axis=1))

    def interval(self, values: np.ndarray, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """In which new values lie with this probability, if they are like the validation samples; infinite with too few."""
        radius = conformal_radius(self.residuals, coverage)
        return values - radius, values + radius


def conformal_radius(residuals: np.ndarray, coverage: float) -> float:
    """The ceil((n + 1) coverage)-th smallest of n residuals (split conformal prediction; Lei et al. 2018): if a new one is
    exchangeable with them, it is at most that with probability `coverage` or more, and by less than 1 / (n + 1) more."""
    place = math.ceil((len(residuals) + 1) * coverage - 1e-9)
    return float(np.sort(residuals)[place - 1]) if place <= len(residuals) else math.inf


def residuals_of(network: Network, samples: Samples, scale: float) -> str:
    """What a file with the model says of its errors on validation samples, in the values' own units."""
    chosen = Samples(samples.x[:MOST_RESIDUALS], samples.y[:MOST_RESIDUALS])
    if not len(chosen):
        return "[]"
    away = (outputs(network, chosen.x)[:, 0] - chosen.y).abs() * scale
    return json.dumps([float(f"{value:.6g}") for value in sorted(away.tolist())])


def personal_facts(spec: TaskSpec, dataset: Dataset, model: str, buffers: str, *, group_norm: bool) -> dict[str, str]:
    """What a file with the network's numbers must say besides them, so that `load_personal` can use it."""
    return {
        "task": spec.name,
        "kind": spec.kind,
        "model": model,
        "input-shape": "x".join(str(size) for size in spec.input_shape),
        "outputs": str(spec.num_outputs),
        "buffers": buffers,
        "group-norm": json.dumps(group_norm),
        "mean": json.dumps(dataset.mean.tolist()),
        "std": json.dumps(dataset.std.tolist()),
        "labels": json.dumps(dataset.label_names),
    }


def load_personal(path: Path, network_file: str = "") -> PersonalModel:
    """The model in a `models/<client>.safetensors`.

    A network of the user's own is built only if its file is given here: what a file of numbers says starts no program.
    """
    try:
        arrays, facts = stored_arrays(path)
        shape, count = parse_shape(facts["input-shape"]), int(facts["outputs"])
        if not 0 < count <= MOST_CLASSES:
            raise ValueError(f"{count} outputs")
        mean, std = (np.array(json.loads(facts[name]), np.float32).reshape(shape[0]) for name in ("mean", "std"))
        names = [str(name) for name in json.loads(facts["labels"])] or [str(i) for i in range(count)]
        model, regression = facts["model"], facts["kind"] == "regression"
        if len(names) != count or not shape:
            raise ValueError(f"{len(names)} labels for {count} outputs of samples of shape {shape}")
        schema = Schema.from_json(facts["table"], "its schema") if "table" in facts else None
        residuals = np.array(json.loads(facts.get("residuals", "[]")), np.float64)
        threshold = float(facts.get("threshold", 0.5))
        if residuals.ndim != 1 or not np.isfinite(residuals).all() or (residuals < 0).any():
            raise ValueError("residuals that are none")
        if schema is not None and (len(schema.features) != shape[0] or not schema.is_prepared):
            raise ValueError(f"a schema of {len(schema.features)} features for samples of shape {shape}")
    except (OSError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ModelError(
            f"{path}: not a personal model of Coterie ({error}); give a models/<client>.safetensors"
        ) from None
    if model.endswith(".py") and not network_file:
        raise ModelError(f"{path}: its network was defined in {model!r}; name that file with --network")
    network = build_network(
        network_file or model,
        shape,
        count,
        seed=0,
        buffers=facts.get("buffers", "average"),
        group_norm=facts.get("group-norm") == "true",
    )
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    if wanted != {name: array.shape for name, array in arrays.items()}:
        raise ModelError(f"{path}: its numbers are not those of the network {network_file or model!r}")
    network.load_state_dict({name: torch.from_numpy(np.array(array[...])) for name, array in arrays.items()})
    return PersonalModel(network, shape, mean, std, () if regression else tuple(names), schema, residuals, threshold)
