"""Weights to begin with, from a file: a state dict as safetensors, of a run's personal model, or of a network from elsewhere.

Names are those of the network (`extractor.0.weight`), or of its extractor alone (`0.weight`, torchvision's
`features.0.0.weight`). All of the extractor must be there. The classifier is taken if it has the right shape: of other classes
it would be of no use.
"""

import logging
from pathlib import Path

import numpy as np
import torch

from coterie.tasks.models import ModelError, Network
from coterie.tasks.tensors import stored_arrays

log = logging.getLogger(__name__)
PREFIXES = ("", "extractor.", "extractor.1.")  # torchvision's networks stand behind a layer that prepares images
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")


def load_pretrained(network: Network, file: str) -> None:
    """Put the weights of the file into the network."""
    found = _read(file)
    wanted = network.state_dict()
    given = {prefix + name: value for prefix in reversed(PREFIXES) for name, value in found.items()}
    taken: dict[str, torch.Tensor] = {}
    for name, like in wanted.items():
        value = given.get(name)
        if value is not None and value.shape == tuple(like.shape):
            taken[name] = torch.from_numpy(value).to(like.dtype)
        elif name.startswith("classifier."):
            log.info(
                "pretrained = %r: has no %s of shape %s; the classifier begins anew", file, name, tuple(like.shape)
            )
        elif not name.endswith("num_batches_tracked"):
            has = "has none" if value is None else f"has one of shape {value.shape}"
            raise ModelError(
                f"pretrained = {file!r}: the network needs {name} of shape {tuple(like.shape)}, the file {has}; "
                "give weights of the same network, or name it with --model"
            )
    if not {"classifier.weight", "classifier.bias"} <= taken.keys():  # both or none
        taken = {name: value for name, value in taken.items() if not name.startswith("classifier.")}
    network.load_state_dict(taken, strict=False)


def _read(file: str) -> dict[str, np.ndarray]:
    path = Path(file)
    if not path.is_file():
        raise ModelError(f"pretrained = {file!r}: there is no such file; give a state dict as .safetensors")
    if path.suffix in PICKLES:
        raise ModelError(
            f"pretrained = {file!r}: nothing is unpickled here; write it as safetensors once: "
            "safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'weights.safetensors')"
        )
    try:
        arrays, _ = stored_arrays(path)
        values = {name: np.array(array[...]) for name, array in arrays.items()}
    except (ValueError, KeyError, OSError) as error:
        raise ModelError(f"pretrained = {file!r}: not a safetensors file ({error}); give another") from None
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise ModelError(f"pretrained = {file!r}: {name} has numbers that are not finite; give another")
    return values
