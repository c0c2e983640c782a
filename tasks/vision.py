"""torchvision, importable with any build of torch.

torchvision's wheel registers its compiled operators only beside a torch with CUDA libraries. Without them `import torchvision`
stops at its declaration of the meta kernels of `torchvision::nms`. We use none of these operators, so declaring their
signatures is enough. Everything imports torchvision from here.
"""

from typing import Any

import torch

try:
    import torchvision
except RuntimeError as error:
    if "torchvision::nms" not in str(error):
        raise
    _declared: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]  # kept alive: a collected library takes its operators along
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

from torchvision import datasets, models

__all__ = ["datasets", "models", "torchvision"]
