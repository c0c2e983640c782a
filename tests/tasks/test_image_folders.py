"""CINIC-10 and Tiny-ImageNet, made up in their published layouts with a few tiny images."""

import numpy as np
import pytest
from PIL import Image

from coterie.tasks.datasets import DataError, load_dataset

CINIC = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def colour(path, value: int, size: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size, size), (value, value + 1, value + 2) if mode == "RGB" else value).save(path)


def test_cinic10(tmp_path):
    for p, part in enumerate(("train", "valid", "test")):
        for label, name in enumerate(CINIC):
            for i in range(2 if part == "train" else 1):
                colour(tmp_path / "CINIC-10" / part / name / f"{i}.png", 60 * p + 5 * label + i, 32)
    data = load_dataset("cinic10", tmp_path, download=False)
    assert data.x.shape == (40, 3, 32, 32) and data.num_test == 10 and data.num_classes == 10
    assert data.y.tolist() == [*np.repeat(range(10), 2), *range(10), *range(10)]  # train, valid, and last the tests
    assert data.x[3, :, 0, 0].tolist() == [6, 7, 8] and data.x[20, :, 5, 5].tolist() == [60, 61, 62]
    assert data.x[39, :, 31, 31].tolist() == [165, 166, 167]
    (tmp_path / "CINIC-10" / "test" / "dog" / "0.png").unlink()
    load_dataset.__globals__["_load"].cache_clear()
    with pytest.raises(DataError, match=r"test/dog: no images\. Get the set anew"):
        load_dataset("cinic10", tmp_path, download=False)


@pytest.mark.parametrize("rearranged", [False, True])
def test_tiny_imagenet(rearranged, tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    names = [f"n{i:08d}" for i in range(200)]
    rows = []
    for label, name in enumerate(names):
        inner = root / "train" / name if rearranged else root / "train" / name / "images"
        colour(inner / f"{name}_0.png", label, 64, "L" if label == 7 else "RGB")
        place = root / "val" / name if rearranged else root / "val" / "images"
        colour(place / f"val_{label}.png", 250 - label, 64, "L")
        rows.append(f"val_{label}.png\t{name}\t0\t0\t62\t62\n")
    if not rearranged:
        (root / "val" / "val_annotations.txt").write_text("".join(reversed(rows)))
    data = load_dataset("tiny-imagenet", tmp_path, download=False)
    assert data.x.shape == (400, 3, 64, 64) and data.num_test == 200
    assert data.y[:200].tolist() == list(range(200)) and sorted(data.y[200:]) == list(range(200))
    assert data.x[7, :, 3, 3].tolist() == [7, 7, 7] and data.x[8, :, 3, 3].tolist() == [8, 9, 10]
    assert all(data.x[200 + i, 0, 0, 0] == 250 - data.y[200 + i] for i in range(200))


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(DataError, match=r"task 'cinic10': not found, and nobody downloads it.*CINIC-10 is there"):
        load_dataset("cinic10", tmp_path)
    (tmp_path / "tiny-imagenet-200" / "train" / "n1").mkdir(parents=True)
    with pytest.raises(DataError, match="train: 1 folders of classes, not 200"):
        load_dataset("tiny-imagenet", tmp_path)
