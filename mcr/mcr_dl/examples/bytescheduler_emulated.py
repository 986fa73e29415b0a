# SPDX-License-Identifier: Apache-2.0
"""Models whose computation is emulated: each layer waits for its time, as for an accelerator.

The host's cores stay free for communication. The layers have the parameters of VGG-16, ResNet-50 and the Transformer
(base), divided by ``SCALE``, and share the model's time in proportion to their multiplications. Gradients are zeros.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

SCALE = 64  # real parameters for each emulated one; networks are to be scaled likewise
BACKWARD = 2  # times the forward pass

Layers = list[tuple[int, float]]  # parameters, multiplications of a forward pass, in the order of the forward pass


def vgg16() -> Layers:
    """13 convolutions of 224 x 224 images, and three linear layers with 90 % of the parameters."""
    layers: Layers = []
    given = 3
    for side, made, count in ((224, 64, 2), (112, 128, 2), (56, 256, 3), (28, 512, 3), (14, 512, 3)):
        for _ in range(count):
            layers.append((9 * given * made + made, 9.0 * given * made * side * side))
            given = made
    for given, made in ((25088, 4096), (4096, 4096), (4096, 1000)):
        layers.append((given * made + made, float(given * made)))
    return layers


def resnet50() -> Layers:
    """53 convolutions and a linear layer, none larger than a tenth of the model."""
    layers: Layers = [(49 * 3 * 64, 49.0 * 3 * 64 * 112 * 112)]
    given = 64
    for side, inner, count in ((56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3)):
        for block in range(count):
            sizes = [given * inner, 9 * inner * inner, inner * 4 * inner]
            sizes += [given * 4 * inner] if block == 0 else []
            layers += [(size, float(size * side * side)) for size in sizes]
            given = 4 * inner
    return [*layers, (given * 1000, float(given * 1000))]


def transformer() -> Layers:
    """Six encoder and six decoder layers, and a shared embedding, needed first and complete last."""
    width, inner, words = 512, 2048, 37000
    attention, feedforward = 4 * width * width, 2 * width * inner
    encoder = [(attention, float(attention)), (feedforward, float(feedforward))]
    decoder = [(attention, float(attention)), *encoder]
    return [(words * width, float(words * width)), *encoder * 6, *decoder * 6]


class _Waits(torch.autograd.Function):
    """The computation of a layer: waiting."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.elements, ctx.seconds = weight.numel(), seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        time.sleep(BACKWARD * ctx.seconds)
        return gradients[0], torch.zeros(ctx.elements), None


class Layer(nn.Module):
    """Parameters, and the seconds of its forward pass."""

    def __init__(self, elements: int, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self._seconds = seconds

    def forward(self, x: torch.Tensor) -> Any:
        """Wait, and return the input."""
        return _Waits.apply(x, self.weight, self._seconds)  # type: ignore[no-untyped-call]


def model(layers: Layers, seconds: float) -> nn.Module:
    """A model with ``1 / SCALE`` of the parameters whose step takes ``seconds`` without communication."""
    total = sum(each for _, each in layers)
    forward = seconds / (1 + BACKWARD)
    return nn.Sequential(*(Layer(max(size // SCALE, 1), forward * each / total) for size, each in layers))


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "vgg16": lambda: (model(vgg16(), 0.15), (1, 4)),
    "resnet50": lambda: (model(resnet50(), 0.1), (1, 4)),
    "transformer-base": lambda: (model(transformer(), 0.12), (1, 4)),
}
