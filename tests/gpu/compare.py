#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a network with millrace and with PyTorch on the GPU of this machine, in turns, on synthetic
images in the GPU's memory, and prints one line with medians and their ratio.

PyTorch runs with channels last and autocast in three modes (eager, torch.compile, a CUDA graph of the
whole step); the best one counts. Exit code 77: PyTorch, its GPU or the network is not there.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

# millrace's options, and the network in PyTorch.
NETWORKS = {
    "resnet50": ("--dataset imagenet --model-size 50", 224, 1000),
    "resnext101": ("--dataset imagenet --model resnext --model-size 101", 224, 1000),
    "efficientnet-b0": ("--dataset imagenet --model efficientnet --model-size B0", 224, 1000),
    "resnet20": ("--dataset cifar-10 --model-size 20", 32, 10),
}


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--millrace", required=True, help="the program")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--type", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--modes", default="eager,compiled,graph", help="of PyTorch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30, help="in a round")
    parser.add_argument("--ceilings", help="what gpu_ceilings printed, for the share of the roofline")
    return parser.parse_args()


def make_network(torch, name, classes):
    nn = torch.nn
    if name == "efficientnet-b0":
        try:
            from torchvision.models import efficientnet_b0
        except ImportError:
            skip("torchvision is not installed")
        return efficientnet_b0(num_classes=classes)

    def conv(inputs, outputs, size, stride=1, groups=1):
        return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)

    class Block(nn.Module):
        """Two 3x3 convolutions, or 1x1, 3x3 in groups, 1x1; with a shortcut."""

        def __init__(self, inputs, inner, outputs, stride, groups, bottleneck):
            super().__init__()
            sizes = (
                [(inputs, inner, 1, 1, 1), (inner, inner, 3, stride, groups), (inner, outputs, 1, 1, 1)]
                if bottleneck
                else [(inputs, outputs, 3, stride, 1), (outputs, outputs, 3, 1, 1)]
            )
            layers = []
            for a, b, size, step, group in sizes:
                layers += [conv(a, b, size, step, group), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
            self.body = nn.Sequential(*layers[:-1])
            self.shortcut = nn.Identity()
            if stride != 1 or inputs != outputs:
                self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

        def forward(self, x):
            return nn.functional.relu(self.body(x) + self.shortcut(x), inplace=True)

    small = name == "resnet20"
    counts = {"resnet50": (3, 4, 6, 3), "resnext101": (3, 4, 23, 3), "resnet20": (3, 3, 3)}[name]
    groups = 32 if name == "resnext101" else 1
    width = 16 if small else 64
    layers = [conv(3, width, 3 if small else 7, 1 if small else 2), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    if not small:
        layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = width
    for stage, count in enumerate(counts):
        inner = width << stage
        outputs = inner if small else 4 * inner
        if groups > 1:
            inner *= 2
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Block(inputs, inner, outputs, stride, groups, not small))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Training:
    """A step of training in one mode of PyTorch."""

    def __init__(self, torch, options, mode):
        self.torch = torch
        _, size, classes = NETWORKS[options.network]
        network = make_network(torch, options.network, classes).cuda().to(memory_format=torch.channels_last)
        self.rule = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4, fused=True)
        images = torch.randn(options.batch, 3, size, size, device="cuda")
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.randint(classes, (options.batch,), device="cuda")
        self.network = torch.compile(network) if mode == "compiled" else network
        self.type = getattr(torch, options.type)
        self.step = self.plain_step
        if mode == "graph":
            self.capture()

    def plain_step(self):
        self.rule.zero_grad(set_to_none=False)
        with self.torch.autocast("cuda", dtype=self.type, cache_enabled=False):
            loss = self.torch.nn.functional.cross_entropy(self.network(self.images), self.labels)
        loss.backward()
        self.rule.step()

    def capture(self):
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(3):
                self.plain_step()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.plain_step()
        self.step = graph.replay

    def milliseconds(self, steps):
        cuda = self.torch.cuda
        for _ in range(5):
            self.step()
        times = []
        for _ in range(steps):
            cuda.synchronize()
            begin = time.perf_counter()
            self.step()
            cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begin))
        return times


def millrace_step(options):
    line = [options.millrace, "bench", "--training", "--synthetic-data", "--format", "json"]
    line += NETWORKS[options.network][0].split() + ["--optimiser", "momentum"]
    line += ["--batch-size", str(options.batch), "--steps", str(options.steps)]
    line += ["--precision", "16.32"] + (["--half", "fp16"] if options.type == "float16" else [])
    done = subprocess.run(line, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def spread(times):
    ordered = sorted(times)
    return f"{ordered[len(ordered) // 10]:.2f} to {ordered[-1 - len(ordered) // 10]:.2f}"


def main():
    options = arguments()
    try:
        import torch
    except ImportError:
        skip("PyTorch is not installed")
    if not torch.cuda.is_available():
        skip("PyTorch sees no GPU")
    torch.backends.cudnn.benchmark = True
    trainings = {}
    for mode in options.modes.split(","):
        try:
            trainings[mode] = Training(torch, options, mode)
            trainings[mode].milliseconds(1)
        except Exception as error:  # a mode that this installation cannot do is left out
            print(f"PyTorch, {mode}: {str(error).splitlines()[0]}")
            trainings.pop(mode, None)
    if not trainings:
        skip("no mode of PyTorch works")
    ours, theirs, rate = [], {mode: [] for mode in trainings}, 0.0
    for _ in range(options.rounds):
        result = millrace_step(options)
        ours += result["step_ms"]
        rate = max(rate, result["gflop_per_second"])
        for mode, training in trainings.items():
            theirs[mode] += training.milliseconds(options.steps)
    mine = statistics.median(ours)
    medians = {mode: statistics.median(times) for mode, times in theirs.items()}
    print(f"millrace: {mine:.2f} ms ({spread(ours)})")
    for mode, times in theirs.items():
        print(f"PyTorch {torch.__version__}, {mode}: {medians[mode]:.2f} ms ({spread(times)})")
    best = min(medians, key=medians.get)
    share = ""
    if options.ceilings:
        with open(options.ceilings) as file:
            ceiling = 1e3 * json.load(file)[f"{options.type}_tflop_per_second"]
        share = f", {100 * rate / ceiling:.0f} % of the GEMM ceiling"
    eager = f", {medians['eager'] / mine:.2f} times eager" if "eager" in medians else ""
    print(
        f"{1e3 * options.batch / mine:.0f} img/s{share}; PyTorch {1e3 * options.batch / medians[best]:.0f} "
        f"({best}): {medians[best] / mine:.2f} times{eager}"
    )


if __name__ == "__main__":
    main()
