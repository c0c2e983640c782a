"""The image data sets, found on disk or downloaded.

Looked for in this order: `<root>/<name>.npz` (x_train, y_train, x_test, y_test), torchvision's layout under the root,
Debian's package (Fashion-MNIST), and last a download by torchvision into the root.
"""

import gzip
import importlib.util
import math
import os
import shutil
import socket
import tempfile
import threading
import urllib.request
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.tasks.image_folders import Arrays, read_cinic, read_tiny_imagenet
from coterie.tasks.samples import DataError, Dataset, read_arrays
from coterie.tasks.spec import KINDS, OF_A_KIND, TASKS

DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
PROBE_SECONDS = 8.0


@dataclass(frozen=True)
class _Published:
    """How a set is published: torchvision's class if it has one, its folder under the root, mean and std of pixels in 0..1."""

    torchvision: str
    folder: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    prefix: str = ""  # of the idx files


PUBLISHED = {
    "mnist": _Published("MNIST", "MNIST/raw", (0.1307,), (0.3081,)),
    "fashion-mnist": _Published("FashionMNIST", "FashionMNIST/raw", (0.2860,), (0.3530,)),
    "emnist": _Published("EMNIST", "EMNIST/raw", (0.1751,), (0.3332,), prefix="emnist-balanced-"),
    "emnist-byclass": _Published("EMNIST", "EMNIST/raw", (0.1736,), (0.3317,), prefix="emnist-byclass-"),
    "cifar10": _Published("CIFAR10", "cifar-10-batches-py", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": _Published("CIFAR100", "cifar-100-python", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "cinic10": _Published("", "CINIC-10", (0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587)),
    "tiny-imagenet": _Published("", "tiny-imagenet-200", (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
}
FOLDERS = {"cinic10": read_cinic, "tiny-imagenet": read_tiny_imagenet}


def load_digits() -> Dataset:
    """scikit-learn's 1797 digits, 8x8 pixels of 0..16."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("task 'digits': scikit-learn is not installed. Run `pip install scikit-learn`.")
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():  # read directly: importing scikit-learn costs more than a second in every client process
        with gzip.open(file, "rt") as text:
            table = np.loadtxt(text, delimiter=",", dtype=np.uint8)
        x, y = table[:, :-1], table[:, -1]
    else:
        from sklearn.datasets import load_digits as from_sklearn

        x, y = from_sklearn(return_X_y=True)
    return Dataset(
        np.ascontiguousarray(x, dtype=np.uint8).reshape(-1, 1, 8, 8),
        y.astype(np.int64),
        10,
        np.array([4.884], np.float32),
        np.array([6.017], np.float32),
        label_names=tuple("0123456789"),
        source="scikit-learn's digits",
    )


def load_kinds() -> Dataset:
    """140 digits for each of twelve clients, dealt at random once for all; those of kinds B and C are turned."""
    digits, clients = load_digits(), TASKS["kinds"].natural_clients
    each = len(digits) // len(clients) // 10 * 10
    chosen = np.random.default_rng(0).permutation(len(digits))[: each * len(clients)]
    owner = np.repeat(np.arange(len(clients)), each)
    x = digits.x[chosen]
    for kind in range(len(KINDS)):
        mine = owner // OF_A_KIND == kind
        x[mine] = np.rot90(x[mine], kind, (2, 3))
    return replace(digits, x=x, y=digits.y[chosen], owner=owner, owners=clients, source="scikit-learn's digits, turned")


def load_images(task: str, root: Path, download: bool) -> Dataset:
    """A published image set: train and test pooled, train first."""
    arrays, source = _find(task, root, download)
    x_train, y_train, x_test, y_test = arrays
    channels, height, width = TASKS[task].input_shape
    for name, part in (("x_train", x_train), ("x_test", x_test)):
        wanted = (height, width) if channels == 1 else (height, width, channels)
        if part.dtype != np.uint8 or part.shape[1:] not in (wanted, (height, width, channels)):
            raise DataError(f"{source}: {name} is {part.shape} of {part.dtype}, not (n, {str(wanted)[1:]} of uint8.")
    x = np.empty((len(x_train) + len(x_test), channels, height, width), np.uint8)
    for block, part in ((x[: len(x_train)], x_train), (x[len(x_train) :], x_test)):
        block[...] = part.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)
    published = PUBLISHED[task]
    return Dataset(
        x,
        np.concatenate([y_train.reshape(-1), y_test.reshape(-1)]).astype(np.int64),
        TASKS[task].num_outputs,
        np.array(published.mean, np.float32) * 255,
        np.array(published.std, np.float32) * 255,
        num_test=len(x_test),
        source=source,
    )


def _find(task: str, root: Path, download: bool) -> tuple[Arrays, str]:
    npz, layout = root / f"{task}.npz", root / PUBLISHED[task].folder
    looked = [str(npz), str(layout)]
    if npz.is_file():
        return _read_npz(npz), str(npz)
    if (found := _read_layout(task, root)) is not None:
        return found, str(layout)
    if task == "fashion-mnist":
        looked.append(str(DEBIAN_FASHION))
        if (found := _read_idx_folder(DEBIAN_FASHION, "")) is not None:
            return found, str(DEBIAN_FASHION)
    problem, files = "downloads are switched off", f"torchvision's {PUBLISHED[task].torchvision} files"
    if task in FOLDERS:
        raise DataError(
            f"task {task!r}: not found, and nobody downloads it. Looked for {', '.join(looked)}. Unpack the published archive "
            f"so that {layout} is there, or put {task}.npz with x_train, y_train, x_test, y_test (uint8) under {root}."
        )
    if download:
        problem = _download(task, root)
        if not problem and (found := _read_layout(task, root)) is not None:
            return found, str(layout)
    debian = ", or `apt-get install dataset-fashion-mnist`" if task == "fashion-mnist" else ""
    raise DataError(
        f"task {task!r}: not found ({problem}). Looked for {', '.join(looked)}. Either put {task}.npz with x_train, "
        f"y_train, x_test, y_test (uint8) or {files} under data-root "
        f"({root}), or start once with internet access{debian}."
    )


def _read_npz(path: Path) -> Arrays:
    """The four arrays of an .npz in the layout of Keras' data sets."""
    arrays = read_arrays(path)
    names = ("x_train", "y_train", "x_test", "y_test")
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataError(f"{path}: no array {', '.join(missing)}; it has {', '.join(arrays) or 'none'}.")
    return arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"]


def _read_layout(task: str, root: Path) -> Arrays | None:
    published = PUBLISHED[task]
    folder = root / published.folder
    if not folder.is_dir():
        return None
    if task in FOLDERS:
        return FOLDERS[task](folder, TASKS[task].input_shape, TASKS[task].num_outputs)
    if not task.startswith("cifar"):
        return _read_idx_folder(folder, published.prefix)
    from coterie.tasks.vision import datasets as vision

    # CIFAR is published as pickles. torchvision opens them only if their checksums are the published ones.
    try:
        train, test = (getattr(vision, published.torchvision)(root, train=train) for train in (True, False))
    except RuntimeError:
        raise DataError(f"{folder}: files are missing or changed (checksum). Get the set anew.") from None
    return train.data, np.asarray(train.targets), test.data, np.asarray(test.targets)


def _read_idx_folder(folder: Path, prefix: str) -> Arrays | None:
    """MNIST's four files, plain or gzipped; None if none of them is there."""
    names = [f"{part}-{what}" for part in ("train", "t10k") for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    if prefix:
        names = [prefix + name.replace("t10k", "test") for name in names]
    paths = [next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None) for name in names]
    if not any(paths):
        return None
    arrays = []
    for name, path in zip(names, paths, strict=True):
        if path is None:
            raise DataError(f"{folder}: {name} is missing (the other files of the set are there). Get the set anew.")
        arrays.append(read_idx(path))
    return arrays[0], arrays[1], arrays[2], arrays[3]


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes in MNIST's idx format: 0, 0, type 8, dimensions, big-endian sizes, then the data."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}). Get the file anew.") from None
    if len(content) < 4 or content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise DataError(f"{path}: not an idx file of bytes. Get the file anew.")
    start = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    if len(content) - start != math.prod(shape):
        raise DataError(f"{path}: {len(content) - start} bytes, but the header says {shape}. Get the file anew.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _download(task: str, root: Path) -> str:
    """Download with torchvision; returns the reason if that is not possible."""
    from coterie.tasks.vision import datasets as vision

    kind: Any = getattr(vision, PUBLISHED[task].torchvision)
    addresses = [kind.url] if hasattr(kind, "url") else [f"{mirror}{kind.resources[0][0]}" for mirror in kind.mirrors]
    if not any(_reachable(address) for address in addresses):
        return "no download: " + " and ".join(addresses) + " cannot be reached"
    arguments = {"split": PUBLISHED[task].prefix.split("-")[1]} if PUBLISHED[task].prefix else {}
    before = socket.getdefaulttimeout()
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Into a folder of its own first: another process never sees half a data set.
        with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as fresh:
            socket.setdefaulttimeout(60)
            kind(fresh, train=True, download=True, **arguments)
            _move_files(Path(fresh) / PUBLISHED[task].folder, root / PUBLISHED[task].folder)
    except (OSError, RuntimeError) as error:
        return f"the download failed: {error}"
    finally:
        socket.setdefaulttimeout(before)
    return ""


def _move_files(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file():
            os.replace(path, target / path.name)
    shutil.rmtree(source)


def _reachable(address: str) -> bool:
    """Does the server answer within seconds? In a thread, because the lookup of a name ignores the timeout."""
    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(address, timeout=PROBE_SECONDS):
                answered.set()
        except (OSError, ValueError):
            pass

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return answered.is_set()
