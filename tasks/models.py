"""The networks, each a feature extractor (omega) followed by one linear classifier (phi).

A `Network` keeps its numbers in a few flat vectors, its *parts*; the parameters of its layers are views into them:

    extractor   weights of the extractor, without its normalisation layers
    norm        scale and shift of the normalisation layers
    classifier  the last linear layer
    buffers     running means and variances of BatchNorm, floats
    counters    BatchNorm's batch counters, integers

So which numbers belong to the classifier is known by construction, a model travels as at most five arrays, and a step of
SGD is one operation per part. A part that a network has no numbers for is absent.
"""

import math
import runpy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coterie.tasks import installed
from coterie.tasks.tensors import Vector, pieces
from coterie.wire.errors import CoterieError
from coterie.wire.installed import entry_points, load, names

WEIGHTS = ("extractor", "norm", "classifier")
STATISTICS = ("buffers", "counters")
PARTS = WEIGHTS + STATISTICS

NORMALISATION = (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm1d, nn.InstanceNorm2d)
SMALLEST_IMAGE = 32  # torchvision's networks halve the image five times


class ModelError(CoterieError, ValueError):
    """A model that cannot be built as asked; the message names the remedy."""


class Network(nn.Module):
    """classifier(extractor(x)), with all numbers in the flat vectors of `parts`."""

    def __init__(self, extractor: nn.Module, classifier: nn.Linear) -> None:
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier
        self.parts: dict[str, Tensor] = {}
        self.tensors = self._tensors_of_parts()
        for part, tensors in self.tensors.items():
            if tensors:
                self.parts[part] = _flatten(tensors)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.extractor(x))
        return logits

    def dump(self, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Copies of the named parts (all by default; those that the network has not are left out)."""
        return {name: value.copy() for name, value in self.views(names).items()}

    def views(self, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """The same without copying, on a CPU: they change with the network."""
        return {name: self.parts[name].detach().cpu().numpy() for name in self._wanted(names)}

    def like(self, names: Iterable[str] | None = None, rows: int | None = None) -> dict[str, np.ndarray]:
        """What these parts look like, of one model or of several as rows; the numbers mean nothing and take no memory."""
        lead = () if rows is None else (rows,)
        return {
            name: np.empty((*lead, self.parts[name].numel()), str(self.parts[name].dtype).removeprefix("torch."))
            for name in self._wanted(names)
        }

    def _wanted(self, names: Iterable[str] | None) -> list[str]:
        wanted = set(self.parts if names is None else names)
        return [name for name in PARTS if name in wanted & set(self.parts)]

    def load(self, parts: Mapping[str, np.ndarray]) -> None:
        """Overwrite the given parts, leave the others as they are."""
        for name, value in parts.items():
            target = self.parts[name].detach()
            if target.device.type == "cpu":
                np.copyto(target.numpy(), value)  # torch warns of arrays that cannot be written to
            else:
                target.copy_(torch.from_numpy(np.array(value)))

    def fill(self, model: Mapping[str, Vector]) -> None:
        """The same, piece by piece from vectors that may be in files."""
        for part, vector in model.items():
            for piece in pieces(vector.size):
                self.parts[part][piece] = as_tensor(vector[piece])

    def variances(self) -> np.ndarray:
        """Where in the part `buffers` the running variances stand: they must not be negative."""
        found: list[np.ndarray] = []
        start = 0
        for module in self.extractor.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    if name == "running_var":
                        found.append(np.arange(start, start + buffer.numel()))
                    start += buffer.numel()
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def parameters_of(self, part: str) -> list[Tensor]:
        return self.tensors[part]

    def _tensors_of_parts(self) -> dict[str, list[Tensor]]:
        tensors: dict[str, list[Tensor]] = {part: [] for part in PARTS}
        seen: set[Tensor] = set()  # layers may share weights
        for module in self.extractor.modules():
            part = "norm" if isinstance(module, NORMALISATION) else "extractor"
            tensors[part] += [parameter for parameter in module.parameters(recurse=False) if parameter not in seen]
            seen.update(module.parameters(recurse=False))
            for buffer in module.buffers(recurse=False):
                tensors["buffers" if buffer.is_floating_point() else "counters"].append(buffer)
        tensors["classifier"] += self.classifier.parameters()
        return tensors


class HalvingPool(nn.MaxPool2d):
    """Max-pooling by two. Where no gradient is wanted it takes the maxima of slices: the same numbers in half the time."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            pooled: Tensor = super().forward(x)
            return pooled
        height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
        rows = torch.maximum(x[..., 0:height:2, :width], x[..., 1:height:2, :width])
        return torch.maximum(rows[..., 0::2], rows[..., 1::2])


def as_tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values if values.flags.writeable else values.copy())  # torch warns of what is read-only


def _flatten(tensors: list[Tensor]) -> Tensor:
    """One vector with all numbers of `tensors`, which become views into it."""
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    start = 0
    for tensor in tensors:
        tensor.data = flat[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()
    return flat


def build_network(
    model: str,
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    seed: int,
    buffers: str = "average",
    group_norm: bool = False,
    device: str = "cpu",
    dropout: float = 0.0,
) -> Network:
    """The network called `model` (or defined in the Python file `model`) with weights drawn from `seed`.

    `buffers="drop"` makes BatchNorm layers without running statistics: they normalise by the batch, in evaluation too.
    `group_norm` puts GroupNorm in place of BatchNorm, which mixes samples and so cannot be trained with privacy.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if model.endswith(".py"):
            extractor, classifier = _from_outside(model, _build_of(Path(model)), input_shape, num_outputs)
        elif model in MODELS:
            extractor, classifier = MODELS[model](input_shape, num_outputs)
        elif model in entry_points(installed.MODELS):
            build = load(installed.MODELS, model)
            extractor, classifier = _from_outside(model, build, input_shape, num_outputs)
        else:
            names = ", ".join(model_names())
            raise ModelError(f"model = {model!r}: unknown; choose one of {names}, or name a .py file")
    if group_norm:
        _replace_batchnorm(extractor)
    if dropout and model != "mlp":
        raise ModelError(f"dropout = {dropout:g}: is for the model 'mlp', and this run has {model!r}; leave it out")
    if dropout:
        _drop_after_relu(extractor, dropout)
    if buffers == "drop":
        for module in extractor.modules():
            if isinstance(module, _BatchNorm):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
    return Network(extractor.to(device), classifier.to(device))


def has_batchnorm(network: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in network.modules())


def _replace_batchnorm(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm):
            groups = math.gcd(32, child.num_features)  # 32 where it divides the channels (Wu & He 2018)
            setattr(module, name, nn.GroupNorm(groups, child.num_features, eps=child.eps, affine=child.affine))
        else:
            _replace_batchnorm(child)


def _drop_after_relu(extractor: nn.Module, share: float) -> None:
    """In the places of the activations, so that layers keep their names and a saved model needs no dropout."""
    for name, child in extractor.named_children():
        if isinstance(child, nn.ReLU):
            setattr(extractor, name, nn.Sequential(child, nn.Dropout(share)))


def default_model(input_shape: tuple[int, ...], *, regression: bool) -> str:
    if regression:
        return "linear"
    return "lenet5" if len(input_shape) == 3 else "mlp"


def model_names() -> list[str]:
    """All networks that are installed here."""
    return names(installed.MODELS, tuple(MODELS))


def _build_of(path: Path) -> Any:
    """What a user's own file defines as `build`."""
    if not path.is_file():
        raise ModelError(f"model = {str(path)!r}: there is no such file")
    try:
        build = runpy.run_path(str(path)).get("build")
    except Exception as error:  # the user's code can raise anything
        raise ModelError(f"model = {str(path)!r}: failed with {type(error).__name__}: {error}") from error
    if build is None:
        raise ModelError(f"model = {str(path)!r}: define build(input_shape, num_outputs) in it")
    return build


def _from_outside(
    model: str, build: Any, input_shape: tuple[int, ...], num_outputs: int
) -> tuple[nn.Module, nn.Linear]:
    """Another's network: build(input_shape, num_outputs) returns (extractor, classifier)."""
    try:
        pair = build(input_shape, num_outputs)
    except Exception as error:
        raise ModelError(f"model = {model!r}: failed with {type(error).__name__}: {error}") from error
    if not (
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], nn.Module) and isinstance(pair[1], nn.Linear)
    ):
        raise ModelError(
            f"model = {model!r}: build() must return (extractor, classifier), the classifier a torch.nn.Linear"
        )
    _try_out(model, pair[0], pair[1], input_shape, num_outputs)
    return pair


def _try_out(
    model: str, extractor: nn.Module, classifier: nn.Linear, input_shape: tuple[int, ...], num_outputs: int
) -> None:
    if classifier.out_features != num_outputs:
        raise ModelError(
            f"model = {model!r}: the classifier has {classifier.out_features} outputs, this task has {num_outputs}"
        )
    extractor.eval()
    try:
        with torch.no_grad():
            classifier(extractor(torch.zeros(2, *input_shape)))
    except Exception as error:
        raise ModelError(f"model = {model!r}: fails on an input of shape {input_shape}: {error}") from error
    extractor.train()


def _images_only(model: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(input_shape) != 3:
        raise ModelError(
            f"model = {model!r}: needs images, this task has {input_shape[0]} features; use 'mlp' or 'linear'"
        )
    channels, height, width = input_shape
    return channels, height, width


def _with_classifier(
    extractor: nn.Module, input_shape: tuple[int, ...], num_outputs: int
) -> tuple[nn.Module, nn.Linear]:
    extractor.eval()  # measuring the output must not touch running statistics
    with torch.no_grad():
        features = extractor(torch.zeros(1, *input_shape)).shape[1]
    return extractor.train(), nn.Linear(features, num_outputs)


def lenet5(input_shape: tuple[int, ...], num_outputs: int) -> tuple[nn.Module, nn.Linear]:
    """Two 5x5 convolutions (6, 16) with BatchNorm, then 120 and 84 units. Images under 16 pixels are padded, larger ones not."""
    channels, height, width = _images_only("lenet5", input_shape)
    padding = 2 if min(height, width) < 16 else 0

    def after(size: int) -> int:
        return (size + 2 * padding - 4) // 2

    flat = 16 * after(after(height)) * after(after(width))
    if flat == 0:
        raise ModelError(f"model = 'lenet5': images of {height}x{width} pixels are too small; use 'mlp'")
    extractor = nn.Sequential(
        *[nn.Conv2d(channels, 6, 5, padding=padding), nn.BatchNorm2d(6), nn.ReLU(), HalvingPool()],
        *[nn.Conv2d(6, 16, 5, padding=padding), nn.BatchNorm2d(16), nn.ReLU(), HalvingPool()],
        *[nn.Flatten(), nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()],
    )
    return extractor, nn.Linear(84, num_outputs)


def cnn(input_shape: tuple[int, ...], num_outputs: int) -> tuple[nn.Module, nn.Linear]:
    """McMahan et al. 2017: two padded 5x5 convolutions (32, 64), each with 2x2 pooling, then 512 units."""
    channels, height, width = _images_only("cnn", input_shape)
    if min(height, width) < 4:
        raise ModelError(f"model = 'cnn': images of {height}x{width} pixels are too small; use 'mlp'")
    extractor = nn.Sequential(
        *[nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), HalvingPool()],
        *[nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), HalvingPool()],
        *[nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU()],
    )
    return extractor, nn.Linear(512, num_outputs)


def cnn_bn(input_shape: tuple[int, ...], num_outputs: int) -> tuple[nn.Module, nn.Linear]:
    """Two padded 5x5 convolutions (16, 32) with BatchNorm, each with 2x2 pooling, then the classifier."""
    channels, height, width = _images_only("cnn-bn", input_shape)
    if min(height, width) < 4:
        raise ModelError(f"model = 'cnn-bn': images of {height}x{width} pixels are too small; use 'mlp'")
    extractor = nn.Sequential(
        *[nn.Conv2d(channels, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), HalvingPool()],
        *[nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), HalvingPool()],
        nn.Flatten(),
    )
    return extractor, nn.Linear(32 * (height // 4) * (width // 4), num_outputs)


def mlp(input_shape: tuple[int, ...], num_outputs: int) -> tuple[nn.Module, nn.Linear]:
    """McMahan et al. 2017: two hidden layers of 200 units."""
    hidden = [nn.Flatten(), nn.LazyLinear(200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()]
    return _with_classifier(nn.Sequential(*hidden), input_shape, num_outputs)


def linear(input_shape: tuple[int, ...], num_outputs: int) -> tuple[nn.Module, nn.Linear]:
    return _with_classifier(nn.Flatten(), input_shape, num_outputs)


def _from_torchvision(
    name: str, take_classifier: Callable[[Any], nn.Linear]
) -> Callable[[tuple[int, ...], int], tuple[nn.Module, nn.Linear]]:
    """A torchvision network whose last linear layer is taken off; small images are enlarged, grey ones repeated."""

    def build(input_shape: tuple[int, ...], num_outputs: int) -> tuple[nn.Module, nn.Linear]:
        from coterie.tasks.vision import models

        channels, height, width = _images_only(name.replace("_", "-"), input_shape)
        if channels not in (1, 3):
            raise ModelError(f"model = {name.replace('_', '-')!r}: needs 1 or 3 channels, this task has {channels}")
        body = getattr(models, name)(weights=None, num_classes=num_outputs)
        classifier = take_classifier(body)
        return nn.Sequential(_Prepare(min(height, width)), body), classifier

    return build


class _Prepare(nn.Module):
    def __init__(self, smaller_side: int) -> None:
        super().__init__()
        self.scale = SMALLEST_IMAGE / smaller_side if smaller_side < SMALLEST_IMAGE else None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is not None:
            x = nn.functional.interpolate(x, scale_factor=self.scale, mode="nearest")
        return x.expand(-1, 3, -1, -1)


def _take_fc(body: Any) -> nn.Linear:
    classifier: nn.Linear = body.fc
    body.fc = nn.Identity()
    return classifier


def _take_last(body: Any) -> nn.Linear:
    classifier: nn.Linear = body.classifier[-1]
    body.classifier[-1] = nn.Identity()
    return classifier


MODELS: dict[str, Callable[[tuple[int, ...], int], tuple[nn.Module, nn.Linear]]] = {
    "lenet5": lenet5,
    "cnn": cnn,
    "cnn-bn": cnn_bn,
    "mlp": mlp,
    "linear": linear,
    "mobilenet-v2": _from_torchvision("mobilenet_v2", _take_last),
    "resnet18": _from_torchvision("resnet18", _take_fc),
    "resnet34": _from_torchvision("resnet34", _take_fc),
    "efficientnet-b0": _from_torchvision("efficientnet_b0", _take_last),
    "vgg19": _from_torchvision("vgg19", _take_last),
}
