"""Many mixtures of a few models on the same samples, faster than one evaluation after the other.

The models of a cooperative game are mixtures  theta_S = sum_j c_Sj theta_j  of the same few models. What is saved:

- the first layer is linear in its weights, so its outputs are computed once for every model and then mixed;
- normalisation in evaluation mode is a scale and a shift: folded into the weights of the layer before it;
- max-pooling comes before ReLU and before positive scaling, which keep the order of numbers: the same result from a
  quarter of the numbers;
- samples go through all mixtures in chunks that stay in the processor's cache, with channels last, chunks on all cores.

Networks that are not a plain chain of such layers are evaluated one mixture at a time.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.tasks.judging import answers_of
from coterie.tasks.metrics import ALWAYS, CALIBRATION, LOWER_IS_BETTER, OF_VALUES
from coterie.tasks.models import Network
from coterie.tasks.training import Samples, outputs

Parts = Mapping[str, np.ndarray]
CHUNK = 500_000  # numbers of a chunk's first layer: two megabytes for every model
BLOCK_BYTES = 256 * 2**20  # of mixed weights at a time
MIXED_AT_ONCE = 8
LARGEST_LOSS = 100.0  # of one sample: what a broken model gets instead of infinity
SUMS = ("accuracy", "balanced-accuracy", "loss")  # metrics to which each sample has its share


@dataclass
class Block:
    """(flatten) layer (normalisation) (ReLU) (max-pooling): a link of the chain."""

    layer: nn.Conv2d | nn.Linear
    part: str
    flatten: bool = False
    norm: nn.BatchNorm1d | nn.BatchNorm2d | None = None
    relu: bool = False
    pool: nn.MaxPool2d | None = None


@dataclass
class Folded:
    """A block with the weights of one mixture. The first layer's outputs are mixed already: scale, shift are left."""

    block: Block
    weight: Tensor | None
    bias: Tensor | None
    scale: Tensor | None = None
    shift: Tensor | None = None


class CoalitionModels:
    def __init__(self, network: Network, samples: Samples, metric: str = "accuracy", threads: int = 1) -> None:
        wanted = OF_VALUES if samples.regression else (*ALWAYS, *CALIBRATION)
        if metric not in wanted:
            raise ValueError(f"metric is {metric!r}: choose one of {', '.join(wanted)}")
        self.network = network.eval()
        self.samples = samples
        self.metric = metric
        self.sums = metric in SUMS
        self.threads = threads if samples.y.device.type == "cpu" else 1
        self.share = sample_shares(samples.y, balanced=metric == "balanced-accuracy")
        self.blocks = chain_of(network)

    @torch.inference_mode()
    def utilities(self, models: Sequence[Parts], mixtures: np.ndarray) -> np.ndarray:
        """The metric of every mixture: `mixtures` (mixtures, models), rows that sum to 1; the loss is negative.

        The first model is the one that the others started from: running statistics are averaged without it, with
        weights that sum to 1, unless it is alone.
        """
        device = self.samples.y.device
        rows = {
            part: torch.from_numpy(np.stack([model[part] for model in models])).to(device)
            for part in self.network.parts
        }
        if self.blocks is None:
            return np.array([self._plain(rows, mixture) for mixture in mixtures])
        size = 4 * sum(part.numel() for part in self.network.parts.values())
        step = max(MIXED_AT_ONCE, BLOCK_BYTES // size)
        return np.concatenate([self._block(rows, mixtures[i : i + step]) for i in range(0, len(mixtures), step)])

    def _plain(self, rows: Mapping[str, Tensor], mixture: np.ndarray) -> float:
        mixed = mix(rows, mixture[None])
        for part, value in self.network.parts.items():
            value.copy_(mixed[part][0] if part in mixed else rows[part][0])
        predicted = outputs(self.network, self.samples.x)
        return float(self._score(predicted, slice(None))) if self.sums else self._whole(predicted)

    def _block(self, rows: Mapping[str, Tensor], mixtures: np.ndarray) -> np.ndarray:
        blocks = self.blocks
        assert blocks is not None
        mixed = mix(rows, mixtures)
        folded = [
            [
                fold(block, {part: value[k] for part, value in mixed.items()}, first=not i)
                for i, block in enumerate(blocks)
            ]
            for k in range(len(mixtures))
        ]
        x = self.samples.x
        first = blocks[0]
        one = layer_output(
            first, x[:1].contiguous(), *weights_of(first, {part: value[0] for part, value in rows.items()})
        )
        step = int(np.clip(CHUNK // one.numel(), 8, 512))
        coefficients = torch.from_numpy(mixtures).to(x)

        @torch.inference_mode()
        def chunk(start: int) -> np.ndarray:
            where = slice(start, start + step)
            inputs = x[where].contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x[where]
            own = torch.stack(
                [
                    layer_output(first, inputs, *weights_of(first, {part: value[j] for part, value in rows.items()}))
                    for j in range(len(coefficients[0]))
                ]
            )  # (models, samples, ...), channels last
            own.nan_to_num_()  # what overflowed must not spoil mixtures that have nothing of it: 0 * inf is NaN
            scores = np.empty(
                len(mixtures) if self.sums else (len(mixtures), len(inputs), len(self.network.classifier.weight))
            )
            place = own.new_empty(MIXED_AT_ONCE, own[0].numel())  # used again: new memory costs more than the mixing
            for k in range(0, len(mixtures), MIXED_AT_ONCE):
                some = coefficients[k : k + MIXED_AT_ONCE]
                together = torch.mm(some, own.flatten(1), out=place[: len(some)])
                for j, hidden in enumerate(together.view(-1, *own.shape[1:])):
                    predicted = run_chain(hidden, folded[k + j])
                    scores[k + j] = float(self._score(predicted, where)) if self.sums else predicted.cpu().numpy()
            return scores

        starts = range(0, len(x), step)
        with ThreadPoolExecutor(max(1, self.threads)) as pool:
            chunks = list(pool.map(chunk, starts))
        if self.sums:
            return np.asarray(np.sum(chunks, axis=0))  # in the order of chunks: the same for any number of threads
        return np.array([self._whole(torch.from_numpy(one)) for one in np.concatenate(chunks, axis=1)])

    def _whole(self, predicted: Tensor) -> float:
        """A metric of all samples together; 0 where it is not defined, and at the worst for outputs that are not finite."""
        if not torch.isfinite(predicted).all():
            return -LARGEST_LOSS if self.metric in LOWER_IS_BETTER or self.samples.regression else 0.0
        value = answers_of(predicted, self.samples).value(self.metric)
        return 0.0 if np.isnan(value) else -value if self.metric in LOWER_IS_BETTER else value

    def _score(self, predicted: Tensor, where: slice) -> Tensor:
        """The share of these samples in the metric."""
        y, share = self.samples.y[where], self.share[where]
        if self.metric == "loss":
            losses = (
                functional.mse_loss(predicted.squeeze(1), y, reduction="none")
                if self.samples.regression
                else functional.cross_entropy(predicted, y, reduction="none")
            )
            return -(share * losses.nan_to_num(LARGEST_LOSS).clamp(max=LARGEST_LOSS)).sum()
        hits = (predicted.argmax(dim=1) == y) & predicted.isfinite().all(dim=1)
        return share[hits].sum()


def sample_shares(y: Tensor, *, balanced: bool) -> Tensor:
    """What each sample counts, 1 in all: the same, or so that every label present counts the same."""
    if not balanced:
        return torch.full(y.shape, 1 / len(y), dtype=torch.float64, device=y.device)
    counts = torch.bincount(y).to(torch.float64)
    return 1 / (counts[y] * (counts > 0).sum())


def mix(rows: Mapping[str, Tensor], mixtures: np.ndarray) -> dict[str, Tensor]:
    """The mixtures' numbers, part by part, (mixtures, size); counters have no use in evaluation and are left out."""
    statistics = np.array(mixtures)
    statistics[:, 0] = np.abs(mixtures[:, 1:]).sum(axis=1) == 0
    statistics /= statistics.sum(axis=1, keepdims=True)
    return {
        part: torch.from_numpy(statistics if part == "buffers" else mixtures).to(value) @ value
        for part, value in rows.items()
        if part != "counters"
    }


def chain_of(network: Network) -> list[Block] | None:
    """The network as blocks; None where it is not such a chain."""
    if not isinstance(network.extractor, nn.Sequential | nn.Flatten):
        return None
    extractor = network.extractor if isinstance(network.extractor, nn.Sequential) else nn.Sequential(network.extractor)
    blocks: list[Block] = []
    flatten = False
    for module in [*extractor, network.classifier]:
        if isinstance(module, nn.Dropout | nn.Identity):
            continue
        if isinstance(module, nn.Flatten):
            flatten = True
        elif isinstance(module, nn.Linear) or (
            isinstance(module, nn.Conv2d) and module.padding_mode == "zeros" and not flatten
        ):
            blocks.append(Block(module, "classifier" if module is network.classifier else "extractor", flatten))
            flatten = False
        elif not blocks or flatten or not _attached(blocks[-1], module):
            return None
    layers = [block.layer for block in blocks]
    return blocks if len(set(layers)) == len(layers) else None


def _attached(block: Block, module: nn.Module) -> bool:
    """Whether `module` could be made a part of the block before it."""
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        if block.norm or block.relu or block.pool or module.running_mean is None or not module.affine:
            return False
        block.norm = module
    elif isinstance(module, nn.ReLU):
        block.relu = True
    elif isinstance(module, nn.MaxPool2d) and block.pool is None and not module.return_indices:
        block.pool = module
    else:
        return False
    return True


def _of(flat: Tensor, like: Tensor) -> Tensor:
    """The numbers of one layer's tensor, which is a view into its part, in another model's part."""
    start = like.storage_offset()
    return flat[start : start + like.numel()].view(like.shape)


def weights_of(block: Block, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    layer = block.layer
    return _of(parts[block.part], layer.weight), None if layer.bias is None else _of(parts[block.part], layer.bias)


def fold(block: Block, parts: Mapping[str, Tensor], *, first: bool) -> Folded:
    weight, bias = weights_of(block, parts)
    if block.norm is None:
        return Folded(block, None if first else _laid_out(weight), None if first else bias)
    norm = block.norm
    assert norm.running_mean is not None and norm.running_var is not None
    mean, variance = _of(parts["buffers"], norm.running_mean), _of(parts["buffers"], norm.running_var)
    scale = _of(parts["norm"], norm.weight) / torch.sqrt(variance + norm.eps)
    shift = _of(parts["norm"], norm.bias) - mean * scale
    if first:
        return Folded(block, None, None, scale, shift)
    folded_bias = shift if bias is None else shift + bias * scale
    return Folded(block, _laid_out(weight * scale.view(-1, *[1] * (weight.ndim - 1))), folded_bias)


def _laid_out(weight: Tensor) -> Tensor:
    return weight.contiguous(memory_format=torch.channels_last) if weight.ndim == 4 else weight.contiguous()


def layer_output(block: Block, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A layer's outputs with channels last: (samples, height, width, channels) or (samples, features)."""
    layer = block.layer
    if isinstance(layer, nn.Conv2d):
        y = functional.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
        return y.permute(0, 2, 3, 1).contiguous()
    return functional.linear(x.flatten(1) if block.flatten else x, weight, bias)


def run_chain(hidden: Tensor, chain: Sequence[Folded]) -> Tensor:
    """From the mixed outputs of the first layer to the outputs of the network."""
    for i, folded in enumerate(chain):
        if i:
            inputs = hidden.permute(0, 3, 1, 2) if hidden.ndim == 4 else hidden
            assert folded.weight is not None
            hidden = layer_output(folded.block, inputs, folded.weight, folded.bias)
        scale = folded.scale
        if scale is not None and folded.block.pool is not None and bool((scale < 0).any()):
            hidden = hidden * torch.where(scale < 0, -1.0, 1.0)  # so that the largest stays the largest
            scale = scale.abs()
        if folded.block.pool is not None:
            hidden = max_pool(hidden, folded.block.pool)
        if scale is not None and folded.shift is not None:
            hidden = torch.addcmul(folded.shift, hidden, scale)
        if folded.block.relu:
            hidden = torch.relu_(hidden)
    return hidden


def max_pool(hidden: Tensor, pool: nn.MaxPool2d) -> Tensor:
    """Max-pooling of (samples, height, width, channels); the usual 2x2 as two maxima of slices, which is faster."""
    plain = (pool.padding, pool.dilation, pool.ceil_mode) == (0, 1, False)
    if plain and pool.kernel_size in (2, (2, 2)) and pool.stride in (2, (2, 2)):
        height, width = hidden.shape[1] // 2 * 2, hidden.shape[2] // 2 * 2
        rows = torch.maximum(hidden[:, 0:height:2, :width], hidden[:, 1:height:2, :width])
        return torch.maximum(rows[:, :, 0::2], rows[:, :, 1::2])
    pooled = functional.max_pool2d(
        hidden.permute(0, 3, 1, 2), pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode
    )
    return pooled.permute(0, 2, 3, 1)
