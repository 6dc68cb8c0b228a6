# SPDX-License-Identifier: Apache-2.0
"""The networks of compare_pytorch.py in PyTorch, layer by layer the same as millrace's.

Strided windows use symmetric padding here, as in torchvision; in millrace's EfficientNet and SqueezeNet they start one
pixel earlier. Shapes, parameters and work are the same.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layers = list[nn.Module]


@dataclass(frozen=True)
class Network:
    """A network, its micro-batch size in the comparison, and millrace's options for it."""

    name: str
    title: str
    build: Callable[[], nn.Sequential]
    words: tuple[str, ...]
    batch: int = 16
    size: int = 224
    classes: int = 1000
    warmup: int = 1
    steps: int = 3


# ---- parts ----------------------------------------------------------------------------------------


def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=bias)


def conv_norm(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Layers:
    return [conv(inputs, outputs, kernel, stride, groups), nn.BatchNorm2d(outputs)]


def relu() -> nn.Module:
    return nn.ReLU(inplace=True)


def swish() -> nn.Module:
    return nn.SiLU()  # not in place, because then it would copy its input for the gradient


def head(inputs: int, classes: int) -> Layers:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]


class ShortcutA(nn.Module):
    """Every stride-th pixel, with zero channels at the end."""

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


class Residual(nn.Module):
    """The sum of two branches, followed by a ReLU."""

    def __init__(self, body: Layers, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = nn.Sequential(*body), shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.body(x) + self.shortcut(x))


class DropConnect(nn.Module):
    """Adds the body's output for a random part of the images, scaled to preserve the mean."""

    def __init__(self, body: Layers, survival: float) -> None:
        super().__init__()
        self.body, self.survival = nn.Sequential(*body), survival

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if self.survival < 1:
            kept = torch.empty((len(y), 1, 1, 1), dtype=y.dtype).bernoulli_(self.survival)
            y = y * kept.div_(self.survival)
        return x + y


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(channels, squeezed, bias=True), swish(),
                                   conv(squeezed, channels, bias=True), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


class Fire(nn.Module):
    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(conv(inputs, squeezed), relu())
        self.one = nn.Sequential(conv(squeezed, expanded), relu())
        self.three = nn.Sequential(conv(squeezed, expanded, 3), relu())

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return torch.cat((self.one(x), self.three(x)), 1)


# ---- networks -------------------------------------------------------------------------------------


def residual_block(inputs: int, plan: list[tuple[int, int, int, int]], shortcut: nn.Module) -> Residual:
    """`plan` lists kernel, channels, stride and groups of the convolutions."""
    layers: Layers = []
    for kernel, outputs, stride, groups in plan:
        layers += [*conv_norm(inputs, outputs, kernel, stride, groups), relu()]
        inputs = outputs
    return Residual(layers[:-1], shortcut)


def resnet20() -> nn.Sequential:
    layers, channels = [*conv_norm(3, 16, 3), relu()], 16
    for stage, width in enumerate((16, 32, 64)):
        for i in range(3):
            stride = 2 if stage > 0 and i == 0 else 1
            shortcut = nn.Identity() if channels == width else ShortcutA(stride, width - channels)
            layers.append(residual_block(channels, [(3, width, stride, 1), (3, width, 1, 1)], shortcut))
            channels = width
    return nn.Sequential(*layers, *head(channels, 10))


def residual_net(blocks: tuple[int, ...], bottleneck: bool, middle: int = 64, groups: int = 1) -> nn.Sequential:
    """A ResNet or ResNeXt for ImageNet; every stage starts with a projection."""
    # ceil_mode pads only at the bottom and on the right, as "SAME" does.
    layers, channels = [*conv_norm(3, 64, 7, 2), relu(), nn.MaxPool2d(3, 2, ceil_mode=True)], 64
    for stage, count in enumerate(blocks):
        width, outputs = middle << stage, (256 if bottleneck else 64) << stage
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            plan = ([(1, width, 1, 1), (3, width, stride, groups), (1, outputs, 1, 1)] if bottleneck else
                    [(3, width, stride, 1), (3, outputs, 1, 1)])
            shortcut = nn.Identity() if i > 0 else nn.Sequential(*conv_norm(channels, outputs, 1, stride))
            layers.append(residual_block(channels, plan, shortcut))
            channels = outputs
    return nn.Sequential(*layers, *head(channels, 1000))


def efficientnet_block(inputs: int, outputs: int, kernel: int, stride: int, expand: int, survival: float) -> Layers:
    middle = inputs * expand
    layers = [*conv_norm(inputs, middle), swish()] if expand > 1 else []
    layers += [*conv_norm(middle, middle, kernel, stride, middle), swish(), SqueezeExcite(middle, inputs // 4),
               *conv_norm(middle, outputs)]
    return [DropConnect(layers, survival)] if stride == 1 and inputs == outputs else layers


def efficientnet_b0() -> nn.Sequential:
    # Kernel, blocks, channels, stride of the first block, expansion.
    stages = ((3, 1, 16, 1, 1), (3, 2, 24, 2, 6), (5, 2, 40, 2, 6), (3, 3, 80, 2, 6), (5, 3, 112, 1, 6),
              (5, 4, 192, 2, 6), (3, 1, 320, 1, 6))
    layers, channels, before = [*conv_norm(3, 32, 3, 2), swish()], 32, 0
    for kernel, count, outputs, first, expand in stages:
        for i in range(count):
            survival = 1 - 0.2 * before / sum(stage[1] for stage in stages)
            layers += efficientnet_block(channels, outputs, kernel, first if i == 0 else 1, expand, survival)
            channels, before = outputs, before + 1
    gap, flat, dense = head(1280, 1000)
    return nn.Sequential(*layers, *conv_norm(channels, 1280), swish(), gap, flat, nn.Dropout(0.2), dense)


def squeezenet() -> nn.Sequential:
    layers, channels = [conv(3, 96, 7, 2), relu(), nn.MaxPool2d(3, 2)], 96
    for i, width in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        layers.append(Fire(channels, width, 4 * width))
        channels = 8 * width
        if i in (2, 6):
            layers.append(nn.MaxPool2d(3, 2))
    return nn.Sequential(*layers, nn.Dropout(0.5), conv(channels, 1000), relu(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def at_224(name: str, title: str, build: Callable[[], nn.Sequential], family: str, size: str) -> Network:
    # Batch norm where there is a norm; the loss is plain cross-entropy.
    norm = () if family == "squeezenet" else ("--batch-norm",)
    words = ("--dataset", "imagenet", "--model", family, "--model-size", size, *norm, "--label-smoothing", "0")
    return Network(name, title, build, words)


NETWORKS = {network.name: network for network in (
    Network("resnet20", "ResNet-20 CIFAR", resnet20, ("--dataset", "cifar-10", "--model-size", "20", "--batch-norm"),
            batch=128, size=32, classes=10, warmup=2, steps=12),
    at_224("resnet18", "ResNet-18 224", lambda: residual_net((2, 2, 2, 2), False), "resnet", "18"),
    at_224("resnet50", "ResNet-50 224", lambda: residual_net((3, 4, 6, 3), True), "resnet", "50"),
    at_224("resnext50", "ResNeXt-50 32x4d 224", lambda: residual_net((3, 4, 6, 3), True, 128, 32), "resnext", "50"),
    at_224("efficientnet-b0", "EfficientNet-B0 224", efficientnet_b0, "efficientnet", "B0"),
    at_224("squeezenet", "SqueezeNet 1.0 224", squeezenet, "squeezenet", "1.0"))}
