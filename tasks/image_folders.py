"""Image sets that are published as folders of image files.

    CINIC-10/{train,valid,test}/<class>/*.png                      train and valid are for training
    tiny-imagenet-200/train/<class>/images/*.JPEG                  as published, or without the folder `images`
    tiny-imagenet-200/val/images/*.JPEG, val/val_annotations.txt   the test set; or val/<class>/*.JPEG, as many rearrange it

Classes are in the order of their names. Tiny-ImageNet's own test images have no labels and are not used.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie.tasks.pictures import is_image, read_image
from coterie.tasks.samples import DataError

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # x_train, y_train, x_test, y_test
Labelled = list[tuple[Path, int]]


def read_cinic(folder: Path, shape: tuple[int, ...], classes: int) -> Arrays:
    names = class_names(folder / "train", classes)
    train = [one for part in ("train", "valid") for one in labelled(folder / part, names)]
    return (*arrays_of(train, shape), *arrays_of(labelled(folder / "test", names), shape))


def read_tiny_imagenet(folder: Path, shape: tuple[int, ...], classes: int) -> Arrays:
    names = class_names(folder / "train", classes)
    notes = folder / "val" / "val_annotations.txt"
    if notes.is_file():
        rows = [line.split("\t")[:2] for line in notes.read_text().splitlines() if line.strip()]
        strange = {name for _, name in rows} - set(names)
        if strange:
            raise DataError(f"{notes}: {min(strange)!r} is no class of {folder / 'train'}. Get the set anew.")
        test = [(folder / "val" / "images" / file, names.index(name)) for file, name in rows]
    else:
        test = labelled(folder / "val", names)
    return (*arrays_of(labelled(folder / "train", names), shape), *arrays_of(test, shape))


def class_names(folder: Path, classes: int) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if len(names) != classes:
        raise DataError(f"{folder}: {len(names)} folders of classes, not {classes}. Get the set anew.")
    return names


def labelled(folder: Path, names: Sequence[str]) -> Labelled:
    """All images of these classes, in a stable order."""
    found: Labelled = []
    for label, name in enumerate(names):
        inner = folder / name / "images"
        place = inner if inner.is_dir() else folder / name
        files = sorted(path for path in place.iterdir() if is_image(path)) if place.is_dir() else []
        if not files:
            raise DataError(f"{place}: no images. Get the set anew.")
        found += [(file, label) for file in files]
    return found


def arrays_of(files: Labelled, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(n, height, width, channels) bytes, and labels; grey images become coloured."""
    channels, height, width = shape
    x = np.empty((len(files), height, width, channels), np.uint8)
    for row, (file, _) in zip(x, files, strict=True):
        row[...] = read_image(file, shape).transpose(1, 2, 0)
    return x, np.array([label for _, label in files], np.int64)
