"""Folders of images: any size, grey or coloured, turned as the camera says, of 8 or 16 bits.

A file that cannot be read is named and left out, and counted; or refused, if the user wants that.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from coterie.tasks.samples import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
NAMED = 5  # bad files that are named in full
LARGEST_SIDE = 224  # pixels of an image whose size nobody told
log = logging.getLogger(__name__)


@lru_cache(maxsize=1000)
def say_once(text: str) -> None:
    """A folder is read again once its classes and sizes are known."""
    log.warning("%s", text)


def is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def read_folder(path: Path, shape: tuple[int, ...], classes: str, refuse: bool) -> dict[str, Any]:
    """A sub-folder per class, named after it. Images become `shape`; without one, the size that they have, or their median."""
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    files = [file for folder in folders for file in sorted(folder.iterdir()) if is_image(file)]
    if not files:
        raise DataError(f"{path}: no images; put them ({', '.join(SUFFIXES)}) into a sub-folder for each class.")
    if shape and (len(shape) != 3 or shape[0] not in (1, 3)):
        raise DataError(f"input-shape is {shape}; for images write channels,height,width with 1 or 3 channels.")
    files, images = read_images(files, shape, refuse, str(path))
    sizes = {image.shape[1:] for image in images}
    if len(sizes) > 1:
        height, width = (
            min(int(np.median(side)), LARGEST_SIDE) for side in zip(*(i.shape[1:] for i in images), strict=True)
        )
        log.warning("%s: images of %d sizes become %dx%d; input-shape tells another", path, len(sizes), width, height)
        colours = max(image.shape[0] for image in images)
        files, images = read_images(files, (colours, height, width), refuse, str(path))
    colours = max(image.shape[0] for image in images)  # grey images among coloured ones become coloured
    x = np.stack([np.broadcast_to(image, (colours, *image.shape[1:])) for image in images])
    names = [file.parent.name for file in files]
    if classes.isdecimal() and all(name.isdecimal() for name in names):
        return {"x": x, "y": np.array(names, dtype=np.int64)}
    return {"x": x, "y": np.array(names)}


def read_images(
    files: Sequence[Path], shape: tuple[int, ...], refuse: bool, where: str
) -> tuple[list[Path], list[np.ndarray]]:
    """Those that can be read, with their files."""
    good, images, bad = [], [], []
    for file in files:
        try:
            images.append(read_image(file, shape))
            good.append(file)
        except DataError as error:
            if refuse:
                raise
            bad.append(file)
            if len(bad) <= NAMED:
                say_once(str(error))
    if bad:
        say_once(f"{where}: {len(bad)} of {len(files)} images cannot be read and are left out")
    if not images:
        raise DataError(f"{where}: none of {len(files)} images can be read; the first is {bad[0]}. Are they complete?")
    return good, images


def read_image(file: Path, shape: tuple[int, ...]) -> np.ndarray:
    """One image as (channels, height, width) bytes."""
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode.startswith("I") or image.mode == "F":
                image = Image.fromarray(_in_bytes(np.asarray(image)))
            channels = shape[0] if shape else 1 if image.mode in ("1", "L", "LA") else 3
            pixels = image.convert("L" if channels == 1 else "RGB")
            if shape and pixels.size != (shape[2], shape[1]):
                pixels = pixels.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{file}: not a readable image ({error}). Remove or replace it.", place=str(file)) from None
    return np.asarray(pixels, dtype=np.uint8).reshape(pixels.height, pixels.width, channels).transpose(2, 0, 1)


def _in_bytes(values: np.ndarray) -> np.ndarray:
    """Of more than 8 bits: the whole range of 16, or of 12, as scanners use them, where all values are below 4096."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("numbers that are not finite")
    largest = 4095.0 if values.max(initial=0) < 4096 else 65535.0
    return np.asarray(np.rint(np.clip(values, 0, largest) * (255.0 / largest)), np.uint8)
