"""How much of an update right labels explain.

Training adds up steps down the loss of the client's samples. In the last layer, with features h and probabilities p, a
step for a sample of label k is along (e_k - p) h^T. So whoever has samples of every class knows the directions

    g_k = mean over samples of class k of (e_k - p) h^T

that right labels lead to, and an update of the last layer that honest training made is close to sum_k a_k g_k, a >= 0.
What least squares leave over is due to something else: other labels, other inputs, noise. Directions change on the way;
they are taken at a quarter of it.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.tasks.models import Network
from coterie.tasks.training import Samples, features

Parts = Mapping[str, np.ndarray]
ON_THE_WAY = 0.25


@torch.inference_mode()
def explained(network: Network, samples: Samples, before: Parts, after: Parts) -> float:
    """The share of |update|^2 in the last layer that right labels explain: 0 to 1. `samples` has all classes."""
    from scipy.optimize import nnls  # here: a client may import this file, and needs none of it

    network.load(after)
    end = _last_layer(network)
    network.load(before)
    update = end - _last_layer(network)
    moved = set(after) - {"counters"}
    network.load({part: before[part] + ON_THE_WAY * (after[part] - before[part]) for part in moved})
    target, columns = update.flatten(), _directions(network, samples).flatten(start_dim=1)
    columns = columns / columns.norm(dim=1, keepdim=True).clamp_min(1e-12)
    length = target.norm()
    if not (0 < length < float("inf") and columns.isfinite().all()):
        return 0.0
    _, left_over = nnls(columns.T.numpy(), (target / length).numpy())
    return float(1 - left_over**2)


def _last_layer(network: Network) -> Tensor:
    """Its weights and, as a last column, its bias, (labels, features + 1)."""
    layer = network.classifier
    bias = layer.bias if layer.bias is not None else layer.weight.new_zeros(layer.out_features)
    return torch.cat([layer.weight, bias[:, None]], dim=1).double().cpu()


def _directions(network: Network, samples: Samples) -> Tensor:
    """g_k of every label k, (labels, labels, features + 1)."""
    h = features(network, samples.x)
    p = torch.softmax(network.classifier(h), dim=1).double().cpu()
    h, y = h.double().cpu(), samples.y.cpu()
    one = torch.full((len(h), 1), float(network.classifier.bias is not None), dtype=h.dtype)
    h = torch.cat([h, one], dim=1)
    steps = one_hot(y, p.shape[1]) - p
    return torch.stack([steps[y == k].T @ h[y == k] / (y == k).sum() for k in range(p.shape[1])])
