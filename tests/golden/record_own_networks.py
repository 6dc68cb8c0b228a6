#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Records the losses of PyTorch for the networks in ONNX of tests/support/onnx_bytes.hpp.

Usage: record_own_networks.py

Writes tests/golden/pytorch/own-networks.json, which tests/tools/onnx/own_networks_golden_test.cpp reads: the losses of
ten steps of SGD with momentum, in float64 from float32 weights. Weights and images are closed formulae of
names and indices, in the order of PyTorch and of the files.
"""
from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from record_pytorch import PLACE, uniform
from torch import Tensor

BATCH = 8
RATE = 0.05
MOMENTUM = 0.9


class Net:
    """Parameters by name, made when a network asks for them first."""

    def __init__(self) -> None:
        self.parameters: dict[str, Tensor] = {}

    def weight(self, name: str, shape: tuple[int, ...], scale: float, offset: float = 0.0) -> Tensor:
        if name not in self.parameters:
            flat = (offset + scale * uniform(f"{name}@0", math.prod(shape))).astype(np.float32)
            self.parameters[name] = torch.from_numpy(flat).double().view(shape).requires_grad_()
        return self.parameters[name]

    def conv(self, name: str, x: Tensor, out: int, kernel: int, stride: int = 1, groups: int = 1,
             bias: bool = False) -> Tensor:
        shape = (out, x.shape[1] // groups, kernel, kernel)
        w = self.weight(f"{name}.weight", shape, math.sqrt(6 / math.prod(shape[1:])))
        b = self.weight(f"{name}.bias", (out,), 0.1) if bias else None
        return F.conv2d(x, w, b, stride, kernel // 2, groups=groups)

    def norm(self, name: str, x: Tensor) -> Tensor:
        gamma = self.weight(f"{name}.weight", (x.shape[1],), 0.2, 1.0)
        return F.batch_norm(x, None, None, gamma, self.weight(f"{name}.bias", (x.shape[1],), 0.1), True)


def plain(net: Net, x: Tensor) -> Tensor:
    x = F.max_pool2d(F.relu(net.norm("n1", net.conv("c1", x, 8, 3))), 2)
    x = F.relu(net.conv("c2", x, 12, 3, 2, bias=True)).flatten(1)
    return F.linear(x, net.weight("fc.weight", (10, 192), 0.02), net.weight("fc.bias", (10,), 0.1))


def dense(net: Net, x: Tensor) -> Tensor:
    x = net.conv("stem", x, 8, 3)
    for at in ("d1", "d2", "d3"):
        x = torch.cat((x, net.conv(f"{at}.conv", F.relu(net.norm(f"{at}.norm", x)), 4, 3)), 1)
    x = F.avg_pool2d(net.conv("transition", x, 10, 1), 2)
    x = F.relu(net.norm("norm", x)).mean((2, 3))
    return x @ net.weight("fc.weight", (10, 10), 0.08) + net.weight("fc.bias", (10,), 0.1)


def depthwise(net: Net, x: Tensor) -> Tensor:
    x = F.silu(net.norm("n1", net.conv("c1", x, 8, 3, 2)))
    y = F.silu(net.norm("n2", net.conv("dw", x, 8, 3, groups=8)))
    s = F.relu(net.conv("reduce", y.mean((2, 3), keepdim=True), 2, 1, bias=True))
    y = y * torch.sigmoid(net.conv("expand", s, 8, 1, bias=True))
    x = (net.norm("n3", net.conv("project", y, 8, 1)) + x).mean((2, 3))
    return F.linear(x, net.weight("fc.weight", (10, 8), 0.1), net.weight("fc.bias", (10,), 0.1))


def mobile(net: Net, x: Tensor) -> Tensor:
    x = F.hardswish(net.norm("n1", net.conv("c1", x, 8, 3, 2)))
    y = F.relu6(net.norm("n2", net.conv("widen", x, 16, 1)))
    y = F.leaky_relu(net.norm("n3", net.conv("dw", y, 16, 3, groups=16)), 0.1)
    s = F.relu(net.conv("reduce", y.mean((2, 3), keepdim=True), 4, 1, bias=True))
    y = y * F.hardsigmoid(net.conv("expand", s, 16, 1, bias=True))
    y = net.norm("n4", net.conv("project", y, 8, 1))
    x = (x + y + net.norm("n5", net.conv("beside", x, 8, 1))).mean((2, 3))
    return F.linear(x, net.weight("fc.weight", (10, 8), 0.1), net.weight("fc.bias", (10,), 0.1))


def losses(network: Callable[[Net, Tensor], Tensor]) -> list[float]:
    net = Net()
    pixels = uniform("images@0", BATCH * 16 * 16 * 3).astype(np.float32)
    images = torch.from_numpy(pixels).double().view(BATCH, 16, 16, 3).permute(0, 3, 1, 2)
    labels = torch.tensor([(3 + 7 * n) % 10 for n in range(BATCH)])
    network(net, images)  # makes the parameters
    optimizer = torch.optim.SGD(net.parameters.values(), lr=RATE, momentum=MOMENTUM)
    result = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(net, images), labels)
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


def main() -> None:
    recorded = {"batch": BATCH, "rate": RATE, "momentum": MOMENTUM,
                "losses": {f.__name__: losses(f) for f in (plain, dense, depthwise, mobile)}}
    (PLACE / "own-networks.json").write_text(json.dumps(recorded, indent=2) + "\n")


if __name__ == "__main__":
    main()
