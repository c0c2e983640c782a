"""A personal model as an ONNX file, which needs nothing of Coterie to be used.

All arithmetic is in it: filling, logarithm, scaling, one-hot and indicators of a table, or the normalisation of images; then the
network, and probabilities or values in their own units. ONNX has no words, so a table goes in as numbers (float64, a row for each
sample, a column for each of the schema's): a number is itself, a category its place, NaN a missing cell. `FILE.json`, beside it,
says which column stands where and which categories have which place.
"""

import io
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.tasks.kinds import CATEGORY
from coterie.tasks.models import ModelError
from coterie.tasks.personal import PersonalModel
from coterie.tasks.preparing import LIMIT
from coterie.tasks.schema import Column, Schema
from coterie.wire.files import write_atomically

OPSET = 17


class Preparing(nn.Module):
    """What preparing.py does, (rows, columns) float64 -> (rows, features) float32."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.columns = schema.columns

    def forward(self, x: Tensor) -> Tensor:
        features = []
        for place, column in enumerate(self.columns):
            cells = x[:, place : place + 1]
            missing = torch.isnan(cells)
            filled = torch.where(missing, torch.full_like(cells, float(column.fill or 0.0)), cells)
            features.append(_one_hot(filled, column) if column.kind == CATEGORY else _scaled(filled, column))
            if column.indicator:
                features.append(missing.to(torch.float32))
        return torch.cat(features, dim=1)


def _one_hot(cells: Tensor, column: Column) -> Tensor:
    places = torch.arange(len(column.categories) + 1, dtype=torch.float64)
    return (cells == places).to(torch.float32)


def _scaled(cells: Tensor, column: Column) -> Tensor:
    if column.transform == "log":
        cells = torch.sign(cells) * torch.log(1 + torch.abs(cells))
    limited = torch.clamp((cells - column.mean) / column.std, -LIMIT, LIMIT)
    return limited.to(torch.float32)


class Exported(nn.Module):
    """From what is measured to probabilities, (n, labels), or values, (n,)."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: PersonalModel) -> None:
        super().__init__()
        shape = (-1, 1, 1) if len(model.input_shape) == 3 else (-1,)
        self.preparing = Preparing(model.schema) if model.schema else None
        self.register_buffer("mean", torch.from_numpy(model.mean).view(shape))
        self.register_buffer("std", torch.from_numpy(model.std).view(shape))
        self.network, self.schema, self.labels = model.network, model.schema, model.labels

    def forward(self, x: Tensor) -> Tensor:
        inputs = self.preparing(x) if self.preparing else x
        found: Tensor = self.network((inputs - self.mean) / self.std)
        if self.labels:
            return torch.softmax(found, dim=1)
        values = found[:, 0]
        return values * self.schema.label_std + self.schema.label_mean if self.schema else values


def export_onnx(model: PersonalModel, path: Path) -> Path:
    """Write the ONNX file, and beside it the JSON file, whose path is returned."""
    try:
        import onnx
    except ImportError:
        raise ModelError("export: onnx is not installed here; pip install 'coterie[onnx]'") from None
    module = Exported(model).eval()
    width = len(model.schema.columns) if model.schema else 0
    sample = torch.zeros(2, width, dtype=torch.float64) if width else torch.zeros(2, *model.input_shape)
    name = "probabilities" if model.labels else "values"
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter speaks of its own future
        torch.onnx.export(
            module,
            (sample,),
            buffer,  # type: ignore[arg-type]
            input_names=["x"],
            output_names=[name],
            dynamic_axes={"x": {0: "n"}, name: {0: "n"}},
            opset_version=OPSET,
            dynamo=False,
        )
    onnx.checker.check_model(onnx.load_from_string(buffer.getvalue()))
    facts = path.with_name(path.name + ".json")
    write_atomically(path, [buffer.getvalue()])
    write_atomically(facts, [(json.dumps(beside(model, name), ensure_ascii=False, indent=2) + "\n").encode()])
    return facts


def beside(model: PersonalModel, name: str) -> dict[str, Any]:
    """What the numbers mean that go in and come out."""
    told: dict[str, Any] = {"input": "x", "output": name, "labels": list(model.labels)}
    if len(model.labels) == 2:
        told["threshold"] = model.threshold  # the second label is said above it
    if model.schema is None:
        return {**told, "shape": list(model.input_shape), "values": "as they are stored, float32; images 0 to 255"}
    columns = [
        {"name": column.name, "kind": column.kind, "categories": list(column.categories)}
        for column in model.schema.columns
    ]
    codes = (
        "float64: a number is itself, a category its place in the list, missing is NaN; a word that is not in the list is the "
        "place after the last for a category, and NaN for yes/no and ordered"
    )
    return {**told, "columns": columns, "values": codes, "missing": model.schema.missing}
