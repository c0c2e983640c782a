"""What every data set is once it is loaded: checked arrays with fixed normalisation constants."""

import difflib
import math
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.wire.errors import CoterieError


class DataError(CoterieError, ValueError):
    """A user's mistake about data. The message says what is wrong, where, and what to do.

    `cell` is what it quotes of the data, and `place` where that stands: others than the owner are not told all of it.
    """

    def __init__(self, message: str, *, cell: str = "", place: str = "") -> None:
        super().__init__(message)
        self.cell, self.place = cell, place

    def told(self, *, private: bool) -> str:
        """What others may know: no cell; with privacy only the file, the line and the column."""
        if private:
            return f"{self.place or 'its data'}: cannot be used; the log of this client says why."
        return str(self).replace(self.cell, "a cell") if self.cell else str(self)


@dataclass(frozen=True)
class Dataset:
    """Samples with labels or targets. `(x - mean) / std`, per channel or per feature, is the input of a network.

    The constants are fixed per data set, in the units of `x` (0 to 255 for bytes): a client normalises alone.
    """

    x: np.ndarray  # images (n, channels, height, width), tables (n, features); uint8 or float32
    y: np.ndarray  # (n,) int64 labels, or float32 targets
    num_classes: int  # 0 = regression
    mean: np.ndarray  # (channels,) or (features,) float32
    std: np.ndarray
    owner: np.ndarray | None = None  # (n,) int64 index into owners
    owners: tuple[str, ...] = ()
    num_test: int = 0  # the last num_test samples are the published test set
    label_names: tuple[str, ...] = ()
    source: str = "the data"  # named in error messages

    def __post_init__(self) -> None:
        _check_arrays(self)
        _check_labels(self)
        _check_owner(self)

    def __len__(self) -> int:
        return len(self.y)


def _check_arrays(data: Dataset) -> None:
    where = data.source
    if data.x.dtype not in (np.uint8, np.float32) or data.x.ndim not in (2, 4):
        raise DataError(
            f"{where}: x is {data.x.shape} of {data.x.dtype}; it must be images (n, channels, height, width) "
            "or a table (n, features), of uint8 or float32."
        )
    if len(data.x) == 0 or 0 in data.x.shape:
        raise DataError(f"{where}: there are no samples (x has shape {data.x.shape}).")
    if data.y.shape != (len(data.x),):
        raise DataError(f"{where}: {len(data.x)} samples in x, but y has shape {data.y.shape}; one label per sample.")
    channels = (data.x.shape[1],)
    if data.mean.shape != channels or data.std.shape != channels:
        raise DataError(
            f"{where}: mean and std have shapes {data.mean.shape} and {data.std.shape}; one number for each of the "
            f"{channels[0]} channels or features."
        )
    if not np.isfinite(data.mean).all() or not np.isfinite(data.std).all() or (data.std <= 0).any():
        raise DataError(f"{where}: mean and std must be finite, and every std above 0.")
    if not 0 <= data.num_test < len(data.x):
        raise DataError(f"{where}: num_test is {data.num_test}, with {len(data.x)} samples in all.")
    check_finite(data.x, where, "x")


def _check_labels(data: Dataset) -> None:
    where = data.source
    if data.num_classes == 0:
        if data.y.dtype != np.float32:
            raise DataError(f"{where}: regression targets must be float32, not {data.y.dtype}.")
        check_finite(data.y, where, "y")
        return
    if data.y.dtype != np.int64 or data.num_classes < 2:
        raise DataError(
            f"{where}: {data.num_classes} classes, labels of {data.y.dtype}; there must be 2 or more, of int64."
        )
    bad = np.flatnonzero((data.y < 0) | (data.y >= data.num_classes))
    if len(bad):
        raise DataError(
            f"{where}: label {data.y[bad[0]]} in row {bad[0]} is outside 0..{data.num_classes - 1}. Labels count from "
            "0; if there are more classes, set `classes` to their number.",
            cell=f"label {data.y[bad[0]]}",
            place=f"{where}, row {bad[0]}",
        )
    if data.label_names and len(data.label_names) != data.num_classes:
        raise DataError(f"{where}: {len(data.label_names)} label names for {data.num_classes} classes.")


def _check_owner(data: Dataset) -> None:
    if data.owner is None:
        return
    if data.owner.shape != (len(data.y),) or data.owner.dtype != np.int64:
        raise DataError(f"{data.source}: owner must be one int64 per sample; its shape is {data.owner.shape}.")
    if data.owner.min() < 0 or data.owner.max() >= len(data.owners):
        raise DataError(f"{data.source}: owner must be 0..{len(data.owners) - 1}, an index into the owners.")


def check_finite(values: np.ndarray, source: str | Path, name: str) -> None:
    """Refuse NaN and infinity, naming the first place."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    place = np.argwhere(~np.isfinite(values))[0].tolist()
    column = f", column {place[1]}" if len(place) == 2 else f", position {tuple(place[1:])}" if len(place) > 2 else ""
    raise DataError(
        f"{source}: {name} has {values[tuple(place)]} in row {place[0]}{column} (counted from 0). "
        "Remove the row or fill in the value."
    )


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file. Nothing in it is unpickled."""
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if not isinstance(content, np.lib.npyio.NpzFile) or content.zip is None:
                raise ValueError("a single array")
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    _check_header(archive, member)
            return {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: not a readable .npz of plain arrays ({error}). Write it with numpy.savez.") from None


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """numpy makes room for as much as a header says, before it reads any of it."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    if math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"{member.filename} says that it has the shape {shape}, and has {member.file_size} bytes")


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the nearest one, and all of them."""
    names = list(known)
    near = difflib.get_close_matches(value, names, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    return f"{guess}Known: {', '.join(names)}."
