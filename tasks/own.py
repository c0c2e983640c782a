"""Bring your own data: an .npz file, a table, a folder of images, or a Python file with a function `load`.

What the clients must agree on, the classes and the shape of a sample, can be given in words, because one client's file
need not show it: `classes` is a number ("10"), names ("cat,dog") or "regression"; `input_shape` is "3,32,32" or "20".
Files are only read as data, nothing is unpickled; a Python file, of course, is run.
"""

import logging
import runpy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.tasks.agreeing import agree
from coterie.tasks.facts import facts_of
from coterie.tasks.kinds import LABELS, OWNER, look
from coterie.tasks.pictures import SUFFIXES, is_image, read_folder, read_images, say_once
from coterie.tasks.preparing import dataset_of
from coterie.tasks.reading import Table, is_table, read_table
from coterie.tasks.samples import DataError, Dataset, check_finite, read_arrays
from coterie.tasks.sources import owners_in
from coterie.tasks.spec import TaskSpec

MOST_CLASSES = 100_000  # a network has an output for each
log = logging.getLogger(__name__)


def load_own(path: str | Path, *, classes: str = "", input_shape: str = "", refuse: bool = False) -> Dataset:
    """The user's data at `path`, checked. `refuse` a folder with an image that cannot be read."""
    path = Path(path).expanduser()
    shape = parse_shape(input_shape)
    fields: Mapping[str, Any]
    if path.is_dir():
        fields = read_folder(path, shape, classes, refuse)
    elif not path.is_file():
        raise DataError(f"data={path}: there is no such file or folder.")
    elif path.suffix == ".npz":
        fields = read_arrays(path)
    elif is_table(path):
        return load_table(path, classes)
    elif path.suffix == ".py":
        fields = _run_python(path)
    else:
        raise DataError(
            f"data={path}: unknown kind of file {path.suffix!r}; give an .npz, .csv, .parquet or .py file or a folder."
        )
    return make_dataset(fields, str(path), classes, shape)


def load_several(
    places: Mapping[str, Path], *, classes: str = "", input_shape: str = "", refuse: bool = False
) -> Dataset:
    """The data of several owners, each in a place of its own, as one data set with natural clients."""
    if not classes:
        folders = [folder for path in places.values() if path.is_dir() for folder in path.iterdir() if folder.is_dir()]
        classes = ",".join(sorted({folder.name for folder in folders if not folder.name.startswith(".")}))
    of = {
        name: load_own(path, classes=classes, input_shape=input_shape, refuse=refuse) for name, path in places.items()
    }
    shapes = {data.x.shape[1:] for data in of.values()}
    if len(shapes) > 1 and all(len(shape) == 3 for shape in shapes):
        colours, *size = (max(s[0] for s in shapes), *(int(np.median([s[i] for s in shapes])) for i in (1, 2)))
        log.warning("images of several clients become %dx%d; input-shape tells another", size[1], size[0])
        shape = f"{colours},{size[0]},{size[1]}"
        return load_several(places, classes=classes, input_shape=shape, refuse=refuse)
    first = next(iter(of.values()))
    for name, data in of.items():
        alike = (data.x.shape[1:], data.x.dtype, data.mean.tolist(), data.std.tolist(), data.num_classes > 0)
        if alike != (first.x.shape[1:], first.x.dtype, first.mean.tolist(), first.std.tolist(), first.num_classes > 0):
            raise DataError(
                f"{data.source}: samples of client {name} are not like those of {first.source} (shape, kind of numbers, "
                "mean, std, classes or values). Bring them to one form."
            )
    return replace(
        first,
        x=np.concatenate([data.x for data in of.values()]),
        y=np.concatenate([data.y for data in of.values()]),
        num_classes=max(data.num_classes for data in of.values()),
        owner=np.repeat(np.arange(len(of)), [len(data) for data in of.values()]),
        owners=tuple(of),
        source=", ".join(data.source for data in of.values()),
    )


def load_inputs(path: str | Path, shape: tuple[int, ...]) -> tuple[np.ndarray, list[str]]:
    """Samples of this shape without labels, as they are stored, and what to call each: its file, or its number.

    The files are those of `load_own`; labels in them are not looked at. Images may lie in the folder itself.
    """
    path = Path(path).expanduser()
    fields: Mapping[str, Any]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if is_image(file))
        if not files or len(shape) != 3:
            why = f"there are no images ({', '.join(SUFFIXES)})" if not files else f"a sample is {shape[0]} numbers"
            raise DataError(f"{path}: {why}.")
        files, images = read_images(files, shape, False, str(path))
        return np.stack(images), [str(file.relative_to(path)) for file in files]
    if not path.is_file() or not (is_table(path) or path.suffix in (".npz", ".py")):
        raise DataError(f"{path}: there is no such .npz, .csv or .py file or folder.")
    if is_table(path):
        fields = {"x": _columns_of_numbers(read_table(path), shape)}
    else:
        fields = read_arrays(path) if path.suffix == ".npz" else _run_python(path)
    if "x" not in fields:
        raise DataError(f"{path}: no 'x'.")
    x = _samples(_array(fields["x"], "x", str(path)), str(path))
    if x.shape[1:] != shape or not len(x):
        raise DataError(f"{path}: {len(x)} samples of shape {x.shape[1:]}; there must be some, of shape {shape}.")
    check_finite(x, path, "x")
    return x, [str(i) for i in range(len(x))]


def load_table(path: Path, classes: str = "") -> Dataset:
    """One table alone, prepared by its own statistics; a column `owner` names natural clients."""
    looked = look(read_table(path), classes=classes)
    owners, owner = owners_in(looked.table)
    facts = facts_of(looked, np.arange(len(looked.table)), min_count=1)
    data = dataset_of(agree({str(path): facts}, classes=classes, min_count=1).schema, looked.table)
    return replace(data, owner=owner, owners=owners) if owners else data


def _columns_of_numbers(table: Table, shape: tuple[int, ...]) -> np.ndarray:
    """All columns but those for labels and owners, as they are; a last one too many is a label without a name."""
    columns = [cells for name, cells in table.columns.items() if name not in (*LABELS, OWNER)]
    if len(columns) == shape[0] + 1 == len(table.columns):
        columns.pop()
    for cells in columns:
        if cells.values is None or np.isnan(cells.values).any():
            raise DataError(
                f"{table.source}, column {cells.name}: must be numbers without gaps; this model has no schema."
            )
    return np.column_stack([cells.values for cells in columns if cells.values is not None])


def describe(dataset: Dataset) -> TaskSpec:
    """The task that a data set is, for building a model."""
    return TaskSpec(
        "own",
        dataset.source,
        "classification" if dataset.num_classes else "regression",
        dataset.x.shape[1:],
        dataset.num_classes or 1,
        natural_clients=dataset.owners,
    )


def parse_shape(text: str) -> tuple[int, ...]:
    """ "3,32,32" or "20" as numbers; () if not given."""
    parts = text.replace("x", ",").split(",") if text else []
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts) or len(parts) not in (0, 1, 3):
        raise DataError(
            f"input-shape is {text!r}; write channels,height,width like 3,32,32, or the number of features."
        )
    return tuple(int(part) for part in parts)


def make_dataset(fields: Mapping[str, Any], source: str, classes: str, shape: tuple[int, ...]) -> Dataset:
    """Bring arrays of many kinds to a Dataset's."""
    for name in ("x", "y"):
        if name not in fields:
            raise DataError(f"{source}: no {name!r}; it needs x and y, and may have owner, mean and std.")
    x, y = _samples(_array(fields["x"], "x", source), source), _array(fields["y"], "y", source)
    if shape and x.shape[1:] != shape:
        raise DataError(f"{source}: a sample has shape {x.shape[1:]}, but input-shape says {shape}.")
    labels, num_classes, names = _labels(y.reshape(-1) if y.shape == (len(y), 1) else y, source, classes)
    if num_classes == 1 and len(labels):
        raise DataError(f"{source}: only one class. Set classes to the number or the names of all clients' classes.")
    owner, owners = _owners(fields.get("owner"), source)
    default = 127.5 if x.dtype == np.uint8 else 0.0
    return Dataset(
        x,
        labels,
        num_classes,
        _constants(fields.get("mean", default), x.shape[1], source),
        _constants(fields.get("std", default or 1.0), x.shape[1], source),
        owner=owner,
        owners=owners,
        label_names=names,
        source=source,
    )


def _array(values: Any, name: str, source: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{source}: {name} is not an array ({error}).") from None
    if array.ndim == 0:
        raise DataError(f"{source}: {name} is not an array but {values!r}.")
    return array


def _samples(x: np.ndarray, source: str) -> np.ndarray:
    """Images to (n, channels, height, width), tables to (n, features); images of bytes stay so, the rest is float32."""
    if x.dtype.kind not in "buif":
        raise DataError(f"{source}: x must be numbers, not {x.dtype}.")
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim not in (2, 4):
        raise DataError(
            f"{source}: x has shape {x.shape}; it must be a table (n, features) or images (n, height, width), "
            "(n, channels, height, width) or (n, height, width, channels)."
        )
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused by its place
        return np.ascontiguousarray(x, dtype=np.uint8 if x.dtype == np.uint8 and x.ndim == 4 else np.float32)


def _labels(y: np.ndarray, source: str, classes: str) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Labels as numbers, how many classes there are, and their names."""
    if classes == "regression" or (not classes and y.dtype.kind == "f"):
        if y.dtype.kind not in "buif":
            raise DataError(f"{source}: regression needs numbers in y, not {y.dtype}.")
        return y.astype(np.float32), 0, ()
    names = () if not classes or classes.isdecimal() else tuple(name.strip() for name in classes.split(","))
    if len(set(names)) != len(names) or "" in names:
        raise DataError(f"classes is {classes!r}; write different names with commas between them, like cat,dog.")
    if y.dtype.kind in "US":
        return _named_labels(y.astype(str), source, classes, names)
    check_finite(y, source, "y")
    if y.dtype.kind not in "buif" or (np.abs(y) >= 2.0**63).any() or (y != y.astype(np.int64)).any():
        raise DataError(
            f"{source}: labels must be whole numbers or names (set classes to regression for other targets)."
        )
    labels = y.astype(np.int64)
    if len(labels) and labels.max() >= MOST_CLASSES:
        raise DataError(
            f"{source}: label {labels.max()}; number classes from 0, at most {MOST_CLASSES}, or set classes to regression."
        )
    count = len(names) or int(classes or labels.max(initial=0) + 1)
    return labels, count, names


def _named_labels(
    y: np.ndarray, source: str, classes: str, names: tuple[str, ...]
) -> tuple[np.ndarray, int, tuple[str, ...]]:
    found = sorted(set(y.tolist()))
    if not names:
        names = tuple(found)
        if classes and int(classes) != len(names):
            raise DataError(
                f"{source}: found the labels {', '.join(found)}, but classes is {classes}; give all their names."
            )
        say_once(f"{source}: labels found: {','.join(names)}. If other clients have other labels, set classes for all.")
    unknown = [name for name in found if name not in names]
    if unknown:
        raise DataError(
            f"{source}: label {unknown[0]!r} is not among the classes {', '.join(names)}.",
            cell=repr(unknown[0]),
            place=source,
        )
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[name] for name in y.tolist()], dtype=np.int64), len(names), names


def _owners(owner: Any, source: str) -> tuple[np.ndarray | None, tuple[str, ...]]:
    if owner is None:
        return None, ()
    values = _array(owner, "owner", source)
    if values.dtype.kind not in "buiUS" or values.ndim != 1:
        raise DataError(
            f"{source}: owner must be one whole number or name per sample, not {values.shape} of {values.dtype}."
        )
    owners, index = np.unique(values, return_inverse=True)
    return index.astype(np.int64), tuple(str(name) for name in owners.tolist())


def _constants(values: Any, channels: int, source: str) -> np.ndarray:
    try:
        return np.broadcast_to(np.asarray(values, dtype=np.float32), (channels,)).copy()
    except (ValueError, TypeError):
        raise DataError(f"{source}: mean and std must be one number, or one for each of {channels} channels.") from None


def _run_python(path: Path) -> Mapping[str, Any]:
    try:
        load = runpy.run_path(str(path)).get("load")
        fields = load() if callable(load) else None
    except Exception as error:  # the user's code can raise anything
        raise DataError(f"{path}: load() failed with {type(error).__name__}: {error}") from error
    if not isinstance(fields, Mapping):
        raise DataError(f"{path}: it must define a function load() that returns a dict with x and y.")
    return fields
