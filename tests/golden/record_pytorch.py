#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Records what PyTorch computes for the networks that tests/train/pytorch_golden_test.cpp trains.

Usage: record_pytorch.py [--cases NAME,..] [--check] [--safetensors FILE]

Writes tests/golden/pytorch/<case>.json. A case is a network with 1000 classes on a few 64x64 images;
weights, images and labels are closed formulae of names and indices, so that nothing but results is
stored. Everything is computed in float64 from float32 weights: what is recorded is exact as far as
float32 can tell. `--check` writes nothing and prints how far PyTorch's own float32 is from that.
`--safetensors` writes the weights of ResNet-18 under torchvision's names instead.

Recorded, of the first step: logits, loss, and of each parameter's gradient its norm, its products with
two fixed pseudo-random vectors and its first three elements; running statistics behind the step; the
losses of ten steps of SGD with momentum; what momentum, RMSprop and LARS change in each parameter when
the gradient of the first step is applied twice, as norm and two products.

The networks are written down here from recipes and papers, not from models/: convolutions with a stride
pad floor((k-1)/2) before and the rest after, the stem's pool is TensorFlow's SAME, every stage of a
residual net begins with a projection; EfficientNet's convolutions are SAME throughout; no dropout.

Needs PyTorch (scripts/setup --with-bench installs Debian's for /usr/bin/python3).
"""
from __future__ import annotations

import argparse
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

PLACE = Path(__file__).resolve().parent / "pytorch"
CLASSES = 1000
IMAGE = 64
MASK = 0xFFFFFFFFFFFFFFFF


# ---- numbers that both sides compute ---------------------------------------------------------------


def key_of(name: str) -> int:
    """FNV-1a, 64 bits."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = (key ^ byte) * 0x100000001B3 & MASK
    return key


def uniform(name: str, count: int) -> np.ndarray:
    """`count` multiples of 2^-23 in [-1, 1): SplitMix64 of the name's key and the index."""
    with np.errstate(over="ignore"):
        z = np.uint64(key_of(name)) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1.0


# Small logits: the loss falls slowly then, and its gradient does not hang on their last digits.
LAST_LAYERS = ("fc1/kernel", "conv10/conv/kernel", "Top/logits/kernel")


def initial(name: str, shape: tuple[int, ...], salt: int) -> np.ndarray:
    """float32 values of a parameter, in the order of OHWI."""
    u = uniform(f"{name}@{salt}", math.prod(shape))
    role = name.rsplit("/", 1)[1]
    if role == "gamma":
        return (1.0 + 0.2 * u).astype(np.float32)
    if role in ("beta", "bias"):
        return (0.1 * u).astype(np.float32)
    assert role == "kernel", name
    scale = math.sqrt((0.06 if name in LAST_LAYERS else 6.0) / math.prod(shape[1:]))
    return (scale * u).astype(np.float32)


# ---- networks --------------------------------------------------------------------------------------


@dataclass
class Norm:
    """Batch norm, or group norm with contiguous groups."""

    groups: int = 0  # 0: batch norm
    epsilon: float = 1e-5
    decay: float = 0.97


class Net:
    """Parameters by name, made when a network asks for them first; the parts of a forward pass."""

    def __init__(self, norm: Norm, dtype: torch.dtype, salt: int) -> None:
        self.rule = norm
        self.dtype = dtype
        self.salt = salt
        self.parameters: dict[str, Tensor] = {}  # flat, in the order of OHWI
        self.state: dict[str, Tensor] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def parameter(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self.parameters:
            self.shapes[name] = shape
            flat = torch.from_numpy(initial(name, shape, self.salt)).to(self.dtype)
            self.parameters[name] = flat.requires_grad_()
        return self.parameters[name].view(shape)

    def conv(self, name: str, x: Tensor, out: int, kernel: int = 1, stride: int = 1, pad: tuple[int, int] | None = None,
             groups: int = 1, bias: bool = False) -> Tensor:
        """`pad`: before and after, on both axes; SAME when it is left out."""
        before, after = same(x.shape[-1], kernel, stride) if pad is None else pad
        weight = self.parameter(f"{name}/kernel", (out, kernel, kernel, x.shape[1] // groups)).permute(0, 3, 1, 2)
        b = self.parameter(f"{name}/bias", (out,)) if bias else None
        return F.conv2d(F.pad(x, (before, after, before, after)), weight, b, stride, groups=groups)

    def norm(self, name: str, x: Tensor) -> Tensor:
        channels = x.shape[1]
        gamma, beta = (self.parameter(f"{name}/{role}", (channels,)) for role in ("gamma", "beta"))
        if self.rule.groups:
            return F.group_norm(x, min(channels, self.rule.groups), gamma, beta, self.rule.epsilon)
        mean = self.state.setdefault(f"{name}/moving_mean", torch.zeros(channels, dtype=self.dtype))
        variance = self.state.setdefault(f"{name}/moving_variance", torch.ones(channels, dtype=self.dtype))
        # Both sides move by the unbiased variance; PyTorch's momentum is the share of the new.
        return F.batch_norm(x, mean, variance, gamma, beta, True, 1.0 - self.rule.decay, self.rule.epsilon)

    def dense(self, name: str, x: Tensor, units: int) -> Tensor:
        weight = self.parameter(f"{name}/kernel", (units, x.shape[1]))
        return F.linear(x, weight, self.parameter(f"{name}/bias", (units,)))


def same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME: pixels before and after."""
    missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return missing // 2, missing - missing // 2


def explicit(kernel: int, stride: int) -> tuple[int, int] | None:
    """The residual nets' rule for windows with a stride; SAME without one."""
    before = (kernel - 1) // 2
    return None if stride == 1 else (before, kernel - 1 - before)


def max_pool(x: Tensor, pad: tuple[int, int]) -> Tensor:
    before, after = pad
    return F.max_pool2d(F.pad(x, (before, after, before, after), value=-math.inf), 3, 2)


def residual(net: Net, x: Tensor, blocks: tuple[int, ...], bottleneck: bool, groups: int, middle: int) -> Tensor:
    def conv_norm(conv: str, norm: str, x: Tensor, out: int, kernel: int, stride: int = 1, groups: int = 1) -> Tensor:
        return net.norm(norm, net.conv(conv, x, out, kernel, stride, explicit(kernel, stride), groups))

    x = F.relu(conv_norm("b0/conv", "b0/norm", x, 64, 7, 2))
    x = max_pool(x, same(x.shape[-1], 3, 2))
    for stage, count in enumerate(blocks):
        for i in range(count):
            at = f"b{stage + 1}/{i}/"
            width = middle << stage
            out = (64 << stage) * (4 if bottleneck else 1)
            stride = 2 if stage > 0 and i == 0 else 1
            if bottleneck:
                y = F.relu(conv_norm(at + "conv1", at + "norm1", x, width, 1))
                y = F.relu(conv_norm(at + "conv2", at + "norm2", y, width, 3, stride, groups))
                y = conv_norm(at + "conv3", at + "norm3", y, out, 1)
            else:
                y = F.relu(conv_norm(at + "conv1", at + "norm1", x, width, 3, stride))
                y = conv_norm(at + "conv2", at + "norm2", y, out, 3)
            if i == 0:
                x = conv_norm(at + "shortcut_conv", at + "shortcut_norm", x, out, 1, stride)
            x = F.relu(y + x)
    return net.dense("fc1", x.mean((2, 3)), CLASSES)


def resnet18(net: Net, x: Tensor) -> Tensor:
    return residual(net, x, (2, 2, 2, 2), False, 1, 64)


def resnext50(net: Net, x: Tensor) -> Tensor:
    return residual(net, x, (3, 4, 6, 3), True, 32, 128)


def squeezenet(net: Net, x: Tensor) -> Tensor:
    def conv_relu(name: str, x: Tensor, out: int, kernel: int = 1, stride: int = 1) -> Tensor:
        return F.relu(net.conv(name, x, out, kernel, stride))

    x = max_pool(conv_relu("conv1/conv", x, 96, 7, 2), (0, 0))
    fires = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    for number, (squeeze, expand) in enumerate(fires, start=2):
        s = conv_relu(f"fire{number}/squeeze1x1", x, squeeze)
        x = torch.cat((conv_relu(f"fire{number}/expand1x1", s, expand),
                       conv_relu(f"fire{number}/expand3x3", s, expand, 3)), 1)
        if number in (4, 8):
            x = max_pool(x, (0, 0))
    return conv_relu("conv10/conv", x, CLASSES).mean((2, 3))


def efficientnet_b0(net: Net, x: Tensor) -> Tensor:
    def conv_norm(name: str, x: Tensor, out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Tensor:
        return net.norm(f"{name}/norm", net.conv(f"{name}/conv", x, out, kernel, stride, groups=groups))

    x = F.silu(conv_norm("block0", x, 32, 3, 2))
    stages = ((3, 1, 16, 1, 1), (3, 2, 24, 6, 2), (5, 2, 40, 6, 2), (3, 3, 80, 6, 2), (5, 3, 112, 6, 1),
              (5, 4, 192, 6, 2), (3, 1, 320, 6, 1))
    for number, (kernel, repeats, out, expand, first_stride) in enumerate(stages, start=1):
        for i in range(repeats):
            block = f"block{number}{'abcd'[i]}"
            stride = first_stride if i == 0 else 1
            channels = x.shape[1]
            middle = channels * expand
            y = x if expand == 1 else F.silu(conv_norm(block, x, middle))
            y = F.silu(conv_norm(f"{block}/b", y, middle, kernel, stride, middle))
            s = y.mean((2, 3), keepdim=True)
            s = F.silu(net.conv(f"{block}/SE/reduce", s, channels // 4, bias=True))
            y = y * torch.sigmoid(net.conv(f"{block}/SE/expand", s, middle, bias=True))
            y = conv_norm(f"{block}/c", y, out)
            x = x + y if stride == 1 and channels == out else y
    x = F.silu(conv_norm("Top", x, 1280))
    return net.dense("Top/logits", x.mean((2, 3)), CLASSES)


@dataclass
class Case:
    network: Callable[[Net, Tensor], Tensor]
    norm: Norm
    batch: int
    rate: float = 0.01  # of the ten steps
    # Part of the key of every number, chosen so that no unit stands so near to the kink of its ReLU, and
    # no pixel to its window's winner, that float32 and float64 take different sides in the first step.
    salt: int = 0
    millrace: dict[str, str] | None = None  # what the test builds


CASES = {
    "resnet-18-batch": Case(resnet18, Norm(), 4, rate=0.0005, salt=1, millrace={"model": "resnet", "size": "18", "norm": "batch"}),
    "resnet-18-group": Case(resnet18, Norm(32, 1.53e-5), 2, rate=0.0005, millrace={"model": "resnet", "size": "18", "norm": "group"}),
    "resnext-50-group": Case(resnext50, Norm(32, 1.53e-5), 2, rate=0.0005,
                             millrace={"model": "resnext", "size": "50", "norm": "group"}),
    "squeezenet": Case(squeezenet, Norm(), 2, rate=0.0003, millrace={"model": "squeezenet", "size": "1.0", "norm": "none"}),
    "efficientnet-b0-group": Case(efficientnet_b0, Norm(4, 1e-3), 2, rate=0.001,
                                  millrace={"model": "efficientnet", "size": "B0", "norm": "group"}),
}


# ---- training --------------------------------------------------------------------------------------

WEIGHT_DECAY = 1e-4
MOMENTUM = 0.9
MEAN_SQUARE_DECAY = 0.9
RMSPROP_EPSILON = 1e-3
RMSPROP_RATE = 0.01
LARS_RATE = 5.0
LARS_TRUST = 1e-3
LARS_EPSILON = 1e-9
LARS_SKIPS = ("gamma", "beta", "bias")

Gradients = dict[str, Tensor]
Rule = Callable[[str, Tensor, Tensor, dict[str, Tensor]], Tensor]


def momentum(rate: float) -> Rule:
    def change(name: str, w: Tensor, g: Tensor, slots: dict[str, Tensor]) -> Tensor:
        v = MOMENTUM * slots.get(name, torch.zeros_like(w)) + g + WEIGHT_DECAY * w
        slots[name] = v
        return rate * v

    return change


def rmsprop(name: str, w: Tensor, g: Tensor, slots: dict[str, Tensor]) -> Tensor:
    """As TensorFlow 1: the mean square begins at one, and epsilon is inside the root."""
    g = g + WEIGHT_DECAY * w
    s = MEAN_SQUARE_DECAY * slots.get(name + "/s", torch.ones_like(w)) + (1 - MEAN_SQUARE_DECAY) * g * g
    v = MOMENTUM * slots.get(name, torch.zeros_like(w)) + RMSPROP_RATE * g / torch.sqrt(s + RMSPROP_EPSILON)
    slots[name], slots[name + "/s"] = v, s
    return v


def lars(name: str, w: Tensor, g: Tensor, slots: dict[str, Tensor]) -> Tensor:
    """You et al. 2017; skipped parameters neither adapt nor decay."""
    ratio = 1.0
    if not any(skip in name for skip in LARS_SKIPS):
        ratio = LARS_TRUST * w.norm() / (g.norm() + WEIGHT_DECAY * w.norm() + LARS_EPSILON)
        g = g + WEIGHT_DECAY * w
    v = MOMENTUM * slots.get(name, torch.zeros_like(w)) + LARS_RATE * ratio * g
    slots[name] = v
    return v


class Training:
    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.case = case
        self.net = Net(case.norm, dtype, case.salt)
        pixels = uniform(f"images@{case.salt}", case.batch * IMAGE * IMAGE * 3).astype(np.float32)
        self.images = torch.from_numpy(pixels).to(dtype).view(case.batch, IMAGE, IMAGE, 3).permute(0, 3, 1, 2)
        self.labels = torch.tensor([(3 + 7 * n) % CLASSES for n in range(case.batch)])

    def gradients(self) -> tuple[Tensor, float, Gradients]:
        logits = self.case.network(self.net, self.images)
        loss = F.cross_entropy(logits, self.labels)
        for parameter in self.net.parameters.values():
            parameter.grad = None
        loss.backward()
        return logits.detach(), loss.item(), {n: p.grad.clone() for n, p in self.net.parameters.items()}

    def steps(self, rule: Rule, count: int) -> list[float]:
        losses, slots = [], {}
        for _ in range(count):
            _, loss, gradients = self.gradients()
            losses.append(loss)
            with torch.no_grad():
                for name, parameter in self.net.parameters.items():
                    parameter -= rule(name, parameter, gradients[name], slots)
        return losses


def products(name: str, value: Tensor) -> list[float]:
    flat = value.double().numpy()
    return [float(flat @ uniform(f"{name}#{k}", flat.size)) for k in range(2)]


def changes(case: Case, dtype: torch.dtype, rule: Rule) -> dict[str, list[float]]:
    training = Training(case, dtype)
    _, _, gradients = training.gradients()
    result, slots = {}, {}
    for name, parameter in training.net.parameters.items():
        with torch.no_grad():
            for _ in range(2):
                parameter -= rule(name, parameter, gradients[name], slots)
        start = torch.from_numpy(initial(name, training.net.shapes[name], case.salt)).to(dtype)
        change = parameter.detach() - start
        result[name] = [change.double().norm().item(), *products(name, change)]
    return result


def record(case: Case, dtype: torch.dtype) -> dict[str, object]:
    first = Training(case, dtype)
    logits, loss, gradients = first.gradients()
    return {
        "network": case.millrace,
        "batch": case.batch,
        "salt": case.salt,
        "loss": loss,
        "logits": logits.flatten().tolist(),
        "gradients": {n: [g.double().norm().item(), *products(n, g), *g[:3].tolist()] for n, g in gradients.items()},
        "state": {n: [s.double().norm().item(), *products(n, s)] for n, s in first.net.state.items()},
        "rate": case.rate,
        "losses": Training(case, dtype).steps(momentum(case.rate), 10),
        "changes": {"momentum": changes(case, dtype, momentum(case.rate)),
                    "rmsprop": changes(case, dtype, rmsprop),
                    "lars": changes(case, dtype, lars)},
    }


def rounded(value: object) -> object:
    """Ten digits: a hundred times finer than float32."""
    if isinstance(value, float):
        return float(f"{value:.9e}")
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return value


def to_text(recorded: dict[str, object]) -> str:
    """JSON with one row a parameter."""
    def rows(value: dict[str, object], indent: str) -> str:
        inner = (f"{indent}  {json.dumps(k)}: {render(v, indent + '  ')}" for k, v in value.items())
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"

    def render(value: object, indent: str) -> str:
        deep = isinstance(value, dict) and any(isinstance(v, (dict, list)) for v in value.values())
        return rows(value, indent) if deep else json.dumps(value)

    return rows(recorded, "") + "\n"


def check(name: str, case: Case) -> None:
    """How far float32 is from float64, relative to the norm of each tensor; of a change, beyond what weights
    stored in float32 cannot tell."""
    exact, single = record(case, torch.float64), record(case, torch.float32)
    start = Training(case, torch.float64)
    start.gradients()
    weights = {n: p.detach().norm().item() for n, p in start.net.parameters.items()}

    def worst(a: dict[str, list[float]], b: dict[str, list[float]], step: float = 0.0) -> tuple[float, str]:
        def error(n: str) -> float:
            return max(0.0, max(abs(x - y) for x, y in zip(a[n], b[n])) - step * weights[n]) / a[n][0]

        return max((error(n), n) for n in a)

    print(name, "losses", [round(x, 4) for x in exact["losses"]])
    print("  loss", abs(exact["loss"] - single["loss"]) / exact["loss"],
          "ten losses", max(abs(a - b) / a for a, b in zip(exact["losses"], single["losses"])))
    print("  logits", max(abs(a - b) for a, b in zip(exact["logits"], single["logits"])) /
          max(map(abs, exact["logits"])))
    print("  gradients", *worst(exact["gradients"], single["gradients"]))
    for rule in exact["changes"]:
        print(" ", rule, *worst(exact["changes"][rule], single["changes"][rule], 1.2e-7))


# ---- ResNet-18 under torchvision's names -----------------------------------------------------------


def torchvision_name(name: str) -> str:
    place, role = name.rsplit("/", 1)
    modules = {"norm1": "bn1", "norm2": "bn2", "shortcut_conv": "downsample.0", "shortcut_norm": "downsample.1"}
    fields = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias", "moving_mean": "running_mean",
              "moving_variance": "running_var"}
    outside = {"b0/conv": "conv1", "b0/norm": "bn1", "fc1": "fc"}
    if place in outside:
        return f"{outside[place]}.{fields[role]}"
    stage, block, module = place.split("/")
    return f"layer{stage[1:]}.{block}.{modules.get(module, module)}.{fields[role]}"


def write_safetensors(path: Path) -> None:
    training = Training(CASES["resnet-18-batch"], torch.float32)
    training.gradients()
    header: dict[str, object] = {}
    body = b""
    net = training.net
    shapes = dict(net.shapes) | {n: tuple(s.shape) for n, s in net.state.items()}
    for name, value in sorted((net.parameters | net.state).items()):
        shape = shapes[name]
        value = value.detach().view(shape)
        value = value.permute(0, 3, 1, 2) if len(shape) == 4 else value
        data = value.contiguous().numpy().astype("<f4").tobytes()
        header[torchvision_name(name)] = {"dtype": "F32", "shape": list(value.shape),
                                          "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--safetensors", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.safetensors:
        write_safetensors(arguments.safetensors)
        return
    PLACE.mkdir(exist_ok=True)
    for name in arguments.cases.split(","):
        if arguments.check:
            check(name, CASES[name])
        else:
            (PLACE / f"{name}.json").write_text(to_text(rounded(record(CASES[name], torch.float64))))
            print(PLACE / f"{name}.json")


if __name__ == "__main__":
    main()
