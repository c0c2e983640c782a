"""Data sets: every place where they are looked for, their encoding, and what is said when they are not there.

The files are small generated ones in the published formats. Tests of the real files need their folder in COTERIE_DATA.
"""

import functools
import gzip
import hashlib
import http.server
import importlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from coterie.tasks import images
from coterie.tasks.datasets import DataError, Dataset, load_dataset
from coterie.tasks.spec import TASKS
from coterie.tasks.tabular import load_adult, load_heart, synthetic_parameters

IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def pictures(classes: int, shape: tuple[int, ...], seed: int = 0, n_train: int = 12, n_test: int = 5):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (n_train + n_test, *shape), dtype=np.uint8)
    y = rng.integers(0, classes, n_train + n_test, dtype=np.uint8)
    return x[:n_train], y[:n_train], x[n_train:], y[n_train:]


def write_npz(path: Path, arrays) -> None:
    np.savez(path, **dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True)))


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_idx(folder: Path, arrays, names=IDX_NAMES, compress: bool = False) -> None:
    folder.mkdir(parents=True)
    for name, array in zip(names, arrays, strict=True):
        content = idx_bytes(array)
        (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0)) if compress else (
            folder / name
        ).write_bytes(content)


def same(dataset: Dataset, arrays) -> bool:
    x_train, y_train, x_test, y_test = arrays
    x = np.concatenate([x_train, x_test])
    x = x[:, None] if x.ndim == 3 else np.moveaxis(x, 3, 1)
    y = np.concatenate([y_train, y_test])
    return np.array_equal(dataset.x, x) and np.array_equal(dataset.y, y) and dataset.num_test == len(x_test)


def check_spec(task: str, dataset: Dataset) -> None:
    spec = TASKS[task]
    assert dataset.x.shape[1:] == spec.input_shape
    assert dataset.num_classes == (spec.num_outputs if spec.kind == "classification" else 0)
    assert dataset.owners == spec.natural_clients
    assert dataset.mean.shape == dataset.std.shape == spec.input_shape[:1]


# --- digits and the generated task -----------------------------------------------------------------------------------


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    expected = load_digits()
    data = load_dataset("digits", "unused")
    check_spec("digits", data)
    assert np.array_equal(data.x[:, 0], expected.images) and np.array_equal(data.y, expected.target)
    assert data.mean[0] == pytest.approx(expected.data.mean(), abs=0.01)
    assert data.std[0] == pytest.approx(expected.data.std(), abs=0.01)


def test_digits_without_the_file_come_from_the_function(monkeypatch):
    direct = images.load_digits()
    monkeypatch.setattr(images.Path, "is_file", lambda self: False)
    assert np.array_equal(images.load_digits().x, direct.x)


def test_least_squares_finds_the_parameters_of_synthetic_linear():
    data = load_dataset("synthetic-linear", "unused")
    check_spec("synthetic-linear", data)
    assert data.y.dtype == np.float32
    thetas = synthetic_parameters()
    for client, theta in enumerate(thetas):
        mine = data.owner == client
        found = np.linalg.lstsq(data.x[mine], data.y[mine], rcond=None)[0]
        assert np.sum((found - theta) ** 2) < 3 * 20 / (200 - 20 - 1)  # three times the expectation
    distance = np.linalg.norm(thetas[:, None] - thetas[None], axis=2)
    assert distance[:3, :3].max() < 0.6 and distance[3:, 3:].max() < 0.6
    assert distance[:3, 3:].min() > 3


def test_a_data_set_is_read_once_per_process():
    assert load_dataset("digits", "a/../b") is load_dataset("digits", "b")


def test_a_client_process_imports_no_more_than_it_needs():
    code = (
        "import sys; from tasks import chart, own; from tasks.datasets import load_dataset\n"
        "from tasks.partitions import partition\n"
        "partition(load_dataset('digits', 'unused'), 10, kind='pathological', seed=1)\n"
        "print({'torch', 'sklearn', 'datasets', 'flwr_datasets', 'matplotlib', 'PIL'} & set(sys.modules))"
    )
    root = Path(images.__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_an_unknown_task_is_refused_with_a_guess():
    with pytest.raises(DataError, match=r"'fashionmnist'.*Did you mean 'fashion-mnist'"):
        load_dataset("fashionmnist", "unused")


def test_own_needs_a_path_and_others_have_none(tmp_path):
    with pytest.raises(DataError, match="needs data=PATH"):
        load_dataset("own", tmp_path)
    with pytest.raises(DataError, match="is for task 'own'"):
        load_dataset("digits", tmp_path, data="my.npz")


# --- image sets on disk ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["mnist", "fashion-mnist", "emnist", "cifar10", "cifar100"])
def test_an_npz_under_the_root_is_found(task, tmp_path):
    channels, height, width = TASKS[task].input_shape
    arrays = pictures(TASKS[task].num_outputs, (height, width) if channels == 1 else (height, width, channels))
    write_npz(tmp_path / f"{task}.npz", arrays)
    data = load_dataset(task, tmp_path, download=False)
    check_spec(task, data)
    assert same(data, arrays) and data.x.flags.c_contiguous
    published = {"mnist": (33.318, 78.567), "fashion-mnist": (72.940, 90.021), "cifar10": (125.307, 62.993)}
    if task in published:  # of the first channel, over the published training set
        assert (data.mean[0], data.std[0]) == pytest.approx(published[task], abs=0.1)


@pytest.mark.parametrize(
    ("task", "name"),
    [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST"), ("emnist", "EMNIST"), ("emnist-byclass", "EMNIST")],
)
@pytest.mark.parametrize("compress", [False, True])
def test_torchvisions_layout_reads_as_torchvision_reads_it(task, name, compress, tmp_path):
    arrays = pictures(TASKS[task].num_outputs, (28, 28))
    names = IDX_NAMES
    split = {"emnist": "balanced", "emnist-byclass": "byclass"}.get(task)
    if split:
        names = tuple(f"emnist-{split}-" + name.replace("t10k", "test") for name in names)
    write_idx(tmp_path / name / "raw", arrays, names, compress)
    data = load_dataset(task, tmp_path, download=False)
    check_spec(task, data)
    assert same(data, arrays)
    if not compress:
        from coterie.tasks.vision import datasets as vision

        more = {"split": split} if split else {}
        test = getattr(vision, name)(tmp_path, train=False, **more)
        assert np.array_equal(data.x[-5:, 0], test.data.numpy()) and data.y[-5:].tolist() == test.targets.tolist()


def write_cifar(root: Path, task: str, arrays) -> dict[str, list[list[str]]]:
    """torchvision's layout; returns its lists of files and checksums."""
    x_train, y_train, x_test, y_test = arrays
    folder = root / images.PUBLISHED[task].folder
    folder.mkdir(parents=True)
    key = "labels" if task == "cifar10" else "fine_labels"
    parts = np.array_split(np.arange(len(x_train)), 5 if task == "cifar10" else 1)
    batches = {
        f"data_batch_{i + 1}" if task == "cifar10" else "train": (x_train[p], y_train[p]) for i, p in enumerate(parts)
    }
    test_name, meta_name = ("test_batch", "batches.meta") if task == "cifar10" else ("test", "meta")
    sums = {}
    for name, (x, y) in {**batches, test_name: (x_test, y_test)}.items():
        content = pickle.dumps({"data": x.transpose(0, 3, 1, 2).reshape(len(x), -1), key: y.tolist()})
        (folder / name).write_bytes(content)
        sums[name] = hashlib.md5(content).hexdigest()
    meta = pickle.dumps({"label_names": ["a"], "fine_label_names": ["a"]})
    (folder / meta_name).write_bytes(meta)
    sums[meta_name] = hashlib.md5(meta).hexdigest()
    return {
        "train_list": [[name, sums[name]] for name in batches],
        "test_list": [[test_name, sums[test_name]]],
        "meta": [[meta_name, sums[meta_name]]],
    }


@pytest.mark.parametrize(("task", "name"), [("cifar10", "CIFAR10"), ("cifar100", "CIFAR100")])
def test_cifar_in_torchvisions_layout(task, name, tmp_path, monkeypatch):
    from coterie.tasks.vision import datasets as vision

    arrays = pictures(TASKS[task].num_outputs, (32, 32, 3))
    lists = write_cifar(tmp_path, task, arrays)
    with pytest.raises(DataError, match="checksum"):  # pickles that are not the published ones stay closed
        load_dataset(task, tmp_path, download=False)
    kind = getattr(vision, name)
    monkeypatch.setattr(kind, "train_list", lists["train_list"])
    monkeypatch.setattr(kind, "test_list", lists["test_list"])
    meta = {**kind.meta, "filename": lists["meta"][0][0], "md5": lists["meta"][0][1]}
    monkeypatch.setattr(kind, "meta", meta)
    data = load_dataset(task, tmp_path, download=False)
    check_spec(task, data)
    assert same(data, arrays)


def test_the_order_of_places(tmp_path, monkeypatch):
    first, second, third = (pictures(10, (28, 28), seed) for seed in range(3))
    monkeypatch.setattr(images, "DEBIAN_FASHION", tmp_path / "debian")
    write_idx(tmp_path / "debian", third, compress=True)
    assert same(images.load_images("fashion-mnist", tmp_path, False), third)
    write_idx(tmp_path / "FashionMNIST" / "raw", second)
    assert same(images.load_images("fashion-mnist", tmp_path, False), second)
    write_npz(tmp_path / "fashion-mnist.npz", first)
    assert same(images.load_images("fashion-mnist", tmp_path, False), first)


def test_missing_images_name_every_place_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "DEBIAN_FASHION", tmp_path / "debian")
    with pytest.raises(DataError) as caught:
        load_dataset("fashion-mnist", tmp_path, download=False)
    for part in ("fashion-mnist.npz", "FashionMNIST/raw", str(tmp_path / "debian"), "apt-get install", "switched off"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: {"x_train": arrays[0]}, "no array y_train, x_test, y_test"),
        (lambda arrays: {"x_train": arrays[0][:, :20]}, "x_train is"),
        (lambda arrays: {"x_train": arrays[0].astype(np.float64)}, "float64"),
        (lambda arrays: {"y_train": arrays[1][:3]}, "y has shape"),
        (lambda arrays: {"y_train": arrays[1] + 10}, "outside 0..9"),
        (lambda arrays: {"x_train": np.array([{}], dtype=object)}, "not a readable"),
    ],
)
def test_a_wrong_npz_is_refused(change, message, tmp_path):
    arrays = pictures(10, (28, 28))
    fields = dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True))
    fields = change(arrays) if "no array" in message else {**fields, **change(arrays)}
    np.savez(tmp_path / "mnist.npz", **fields)
    with pytest.raises(DataError, match=message) as caught:
        load_dataset("mnist", tmp_path, download=False)
    assert "mnist.npz" in str(caught.value)


def test_damaged_files_are_refused_by_name(tmp_path):
    arrays = pictures(10, (28, 28))
    folder = tmp_path / "MNIST" / "raw"
    write_idx(folder, arrays)
    file = folder / IDX_NAMES[0]
    for content in (file.read_bytes()[:-1], b"", b"hello world", b"\0\0\x08\x03\0\0"):
        file.write_bytes(content)
        with pytest.raises(DataError, match=f"{IDX_NAMES[0]}: .*Get the file anew"):
            load_dataset("mnist", tmp_path, download=False)
    file.unlink()
    with pytest.raises(DataError, match=f"{IDX_NAMES[0]} is missing"):
        load_dataset("mnist", tmp_path, download=False)
    (folder / f"{IDX_NAMES[0]}.gz").write_bytes(gzip.compress(b"x" * 1000, mtime=0)[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset("mnist", tmp_path, download=False)
    (tmp_path / "mnist.npz").write_bytes(b"PK\x03\x04 not a zip file")
    with pytest.raises(DataError, match=r"mnist\.npz: not a readable"):
        load_dataset("mnist", tmp_path, download=False)


# --- downloads -------------------------------------------------------------------------------------------------------


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None: ...


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A web server on this machine with MNIST's four files, which torchvision takes for the mirror."""
    from coterie.tasks.vision import datasets as vision

    arrays = pictures(10, (28, 28))
    folder = tmp_path / "mirror"
    write_idx(folder, arrays, compress=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(vision.MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
    monkeypatch.setattr(vision.MNIST, "resources", [(f"{name}.gz", None) for name in IDX_NAMES])
    yield folder, arrays
    server.shutdown()
    server.server_close()


def test_a_download_lands_in_torchvisions_layout(mirror, tmp_path):
    _, arrays = mirror
    root = tmp_path / "root"
    assert same(load_dataset("mnist", root), arrays)
    assert [path.name for path in root.iterdir()] == ["MNIST"]
    assert {path.name for path in (root / "MNIST" / "raw").iterdir()} >= set(IDX_NAMES)


def test_a_failed_download_leaves_nothing_behind(mirror, tmp_path):
    folder, _ = mirror
    (folder / f"{IDX_NAMES[2]}.gz").unlink()
    root = tmp_path / "root"
    with pytest.raises(DataError, match="the download failed"):
        load_dataset("mnist", root)
    assert list(root.iterdir()) == []


def test_a_silent_server_is_given_up_in_seconds(tmp_path, monkeypatch):
    from coterie.tasks.vision import datasets as vision

    monkeypatch.setattr(images, "PROBE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        monkeypatch.setattr(vision.MNIST, "mirrors", [f"http://127.0.0.1:{silent.getsockname()[1]}/"])
        start = time.monotonic()
        with pytest.raises(DataError, match=r"cannot be reached.*mnist\.npz"):
            load_dataset("mnist", tmp_path / "root")
        assert time.monotonic() - start < 3
    assert not (tmp_path / "root").exists()


def test_a_lookup_of_names_that_hangs_is_given_up_in_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "PROBE_SECONDS", 0.2)
    end = threading.Event()

    def hang(*_, **__):
        end.wait(20)
        raise OSError("no answer")

    monkeypatch.setattr("urllib.request.urlopen", hang)
    importlib.import_module("coterie.tasks.vision")
    start = time.monotonic()
    with pytest.raises(DataError, match="cannot be reached"):
        load_dataset("cifar100", tmp_path)
    assert time.monotonic() - start < 3
    end.set()


# --- tables ----------------------------------------------------------------------------------------------------------

ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K"
)


def write_adult(root: Path, train: list[str], test: list[str]) -> None:
    (root / "adult.data").write_text("\n".join([*train, "", ""]))
    (root / "adult.test").write_text("\n".join(["|1x3 Cross validator", *test, ""]))


def test_adult_encodes_numbers_and_categories(tmp_path):
    richer = ADULT_ROW.replace("<=50K", ">50K").replace("Bachelors", "Doctorate").replace("State-gov", "?")
    write_adult(tmp_path, [ADULT_ROW, richer], [ADULT_ROW + "."])
    data = load_adult(tmp_path)
    check_spec("adult", data)
    assert data.y.tolist() == [0, 1, 0] and data.num_test == 1
    assert [data.owners[i] for i in data.owner] == ["no-doctorate", "doctorate", "no-doctorate"]
    assert data.x[0, :6].tolist() == [39, 77516, 13, 2174, 0, 40]
    assert set(np.unique(data.x[:, 6:])) == {0, 1} and data.x[:, 6:].sum(axis=1).tolist() == [8, 8, 8]
    assert (data.x[0] != data.x[1]).sum() == 4  # two categories changed, each in two places
    assert np.array_equal(data.x[0], data.x[2])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ADULT_ROW.replace("Male", "male"), "line 2: 'male' is none of"),
        (ADULT_ROW.replace("39", "nan"), "line 2, column 0: 'nan'"),
        (ADULT_ROW.replace("39", "old"), "line 2, column 0: 'old'"),
        (ADULT_ROW.replace(", White", ""), "line 2: 14 columns instead of 15"),
        (ADULT_ROW.replace("<=50K", "?"), "line 2: '\\?' is none of"),
    ],
)
def test_a_wrong_row_of_adult_is_refused(row, message, tmp_path):
    write_adult(tmp_path, [ADULT_ROW, row], [ADULT_ROW])
    with pytest.raises(DataError, match=message) as caught:
        load_adult(tmp_path)
    assert "adult.data" in str(caught.value)


def write_heart(root: Path, row: str = "63,1,1,145,233,1,2,150,0,2.3,3,0,6,0") -> None:
    (root / "heart").mkdir(exist_ok=True)
    rows = {
        "cleveland": row,
        "hungarian": "28,1,2,130,132,0,2,185,0,0,?,?,?,1",
        "switzerland": "32,1,1,0,0,?,0,127,0,.7,1,?,?,4",
        "va": "44,0,4,?,?,0,?,?,?,?,?,?,?,0\n44,0,4,?,?,0,?,?,?,?,?,?,?,2",
    }
    for hospital, text in rows.items():
        (root / "heart" / f"processed.{hospital}.data").write_text(text + "\n")


def test_heart_fills_in_and_knows_its_hospitals(tmp_path):
    write_heart(tmp_path)
    data = load_heart(tmp_path)
    check_spec("heart", data)
    assert data.y.tolist() == [0, 1, 1, 0, 1] and data.owner.tolist() == [0, 1, 2, 3, 3]
    assert data.x[0].tolist() == pytest.approx([63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6])
    assert data.x[1].tolist() == [28, 1, 2, 130, 132, 0, 2, 185, 0, 0, 2, 0, 3]
    assert data.x[2].tolist() == pytest.approx([32, 1, 1, 130, 240, 0, 0, 127, 0, 0.7, 1, 0, 3])
    assert data.x[3].tolist() == [44, 0, 4, 130, 240, 0, 0, 140, 0, 0.5, 2, 0, 3]


def test_a_wrong_value_in_heart_is_refused(tmp_path):
    write_heart(tmp_path, "63,1,1,145,nan,1,2,150,0,2.3,3,0,6,0")
    with pytest.raises(DataError, match=r"processed\.cleveland\.data, line 1, column 4: 'nan'"):
        load_heart(tmp_path)


@pytest.mark.parametrize(("task", "file"), [("adult", "adult.data"), ("heart", "processed.cleveland.data")])
def test_missing_tables_name_the_file_and_the_source(task, file, tmp_path):
    with pytest.raises(DataError, match=f"{file}.*archive.ics.uci.edu"):
        load_dataset(task, tmp_path)


# --- what a Dataset refuses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((4, 3, 2), np.float32)}, "it must be images"),
        ({"x": np.zeros((4, 2))}, "float64"),
        ({"x": np.zeros((0, 2), np.float32), "y": np.zeros(0, np.int64)}, "no samples"),
        ({"x": np.zeros((3, 2), np.float32)}, "3 samples in x, but y has shape \\(4,\\)"),
        ({"x": np.array([[0, 0], [0, np.nan], [0, 0], [0, 0]], np.float32)}, "file: x has nan in row 1, column 1"),
        ({"x": np.array([[0, 0], [0, 0], [np.inf, 0], [0, 0]], np.float32)}, "x has inf in row 2, column 0"),
        ({"y": np.array([0, 1, 2, 0])}, "label 2 in row 2 is outside 0..1"),
        ({"y": np.array([0, 1, -1, 0])}, "label -1 in row 2"),
        ({"y": np.array([0, 1, 0, 1], np.int32)}, "int32"),
        ({"num_classes": 0}, "float32, not int64"),
        ({"num_classes": 0, "y": np.array([0, 1, np.nan, 1], np.float32)}, "y has nan in row 2"),
        ({"num_classes": 1, "y": np.zeros(4, np.int64)}, "2 or more"),
        ({"mean": np.zeros(3, np.float32)}, "mean and std have shapes"),
        ({"std": np.array([1, 0], np.float32)}, "every std above 0"),
        ({"mean": np.array([1, np.nan], np.float32)}, "must be finite"),
        ({"num_test": 4}, "num_test is 4"),
        ({"owner": np.zeros(3, np.int64), "owners": ("a",)}, "owner must be one int64 per sample"),
        ({"owner": np.array([0, 0, 0, 1]), "owners": ("a",)}, "owner must be 0..0"),
        ({"label_names": ("a",)}, "1 label names for 2 classes"),
    ],
)
def test_wrong_arrays_are_refused(change, message):
    fields = {
        "x": np.zeros((4, 2), np.float32),
        "y": np.array([0, 1, 0, 1]),
        "num_classes": 2,
        "mean": np.zeros(2, np.float32),
        "std": np.ones(2, np.float32),
        "source": "file",
    }
    assert len(Dataset(**fields)) == 4
    with pytest.raises(DataError, match=message):
        Dataset(**{**fields, **change})


# --- the real files --------------------------------------------------------------------------------------------------


def real(name: str) -> Path:
    root = os.environ.get("COTERIE_DATA", "")
    if not root or not (Path(root) / name).exists():
        pytest.skip(
            f"needs the published {name}: set COTERIE_DATA to a folder that has it (docs/reference/data.md says how)"
        )
    return Path(root)


@pytest.mark.parametrize(
    ("task", "n", "n_test"), [("mnist", 70_000, 10_000), ("fashion-mnist", 70_000, 10_000), ("cifar10", 60_000, 10_000)]
)
def test_real_images(task, n, n_test):
    data = load_dataset(task, real(f"{task}.npz"), download=False)
    check_spec(task, data)
    assert (len(data), data.num_test) == (n, n_test)
    train = data.x[:-n_test]
    assert data.mean == pytest.approx(train.mean(axis=(0, 2, 3)), abs=0.15)
    assert data.std == pytest.approx(train.std(axis=(0, 2, 3), dtype=np.float64), abs=0.15)


def test_real_adult_is_encoded_as_pandas_does_it():
    import pandas as pd

    root = real("adult.data")
    read = functools.partial(pd.read_csv, header=None, skipinitialspace=True, comment="|")
    table = pd.concat([read(root / "adult.data"), read(root / "adult.test")])
    data = load_dataset("adult", root)
    check_spec("adult", data)
    numbers = table[[0, 2, 4, 10, 11, 12]].to_numpy(np.float32)
    categories = pd.get_dummies(table[[1, 3, 5, 6, 7, 8, 9, 13]]).to_numpy(np.float32)
    assert np.array_equal(data.x, np.hstack([numbers, categories]))
    assert np.array_equal(data.y, table[14].str.startswith(">").to_numpy())
    assert data.num_test == 16_281 and (data.owner == 0).sum() == (table[3] == "Doctorate").sum()
    inputs = (data.x[:, :6] - data.mean[:6]) / data.std[:6]
    assert np.abs(inputs.mean(axis=0)).max() < 0.02 and np.abs(inputs.std(axis=0) - 1).max() < 0.02


def test_real_heart_has_its_four_hospitals():
    data = load_dataset("heart", real("heart"))
    check_spec("heart", data)
    assert np.bincount(data.owner).tolist() == [303, 294, 123, 200]
    assert [int(data.y[data.owner == i].sum()) for i in range(4)] == [139, 106, 115, 149]
    inputs = (data.x - data.mean) / data.std
    assert np.abs(inputs.mean(axis=0)).max() < 0.02 and np.abs(inputs.std(axis=0) - 1).max() < 0.02
