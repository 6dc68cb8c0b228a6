#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a network with millrace and with PyTorch on the GPU of this machine, in turns, on synthetic
images in the GPU's memory, and prints one line with medians and their ratio.

PyTorch runs with channels last and autocast in three modes (eager, torch.compile, a CUDA graph of the
whole step); the best one counts. The line names the modes that were not measured. Exit code 77:
PyTorch, its GPU or the network is not there.
"""
import argparse
import contextlib
import json
import signal
import statistics
import time

from measure import bench, rounds, skip, spread

# The size of the images and the number of classes.
NETWORKS = {
    "resnet50": (224, 1000),
    "resnext101": (224, 1000),
    "efficientnet-b0": (224, 1000),
    "resnet20": (32, 10),
}
MODES = ("eager", "graph", "compiled")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--millrace", required=True, help="the program")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--type", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--modes", default=",".join(MODES), help="of PyTorch")
    parser.add_argument("--set-up", type=float, default=0, help="seconds for the set-up of a mode")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="the time for everything")
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
        size, classes = NETWORKS[options.network]
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
    words = ["--batch-size", str(options.batch), "--steps", str(options.steps)]
    words += ["--precision", "16.32"] + (["--half", "fp16"] if options.type == "float16" else [])
    return bench(options.millrace, options.network, words)


@contextlib.contextmanager
def within(seconds):
    """Raises TimeoutError in what takes longer, again and again, in case somebody catches it."""

    def over(*_):
        raise TimeoutError(f"not ready after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def share_of_ceiling(file, kind, gflop_per_second):
    """The share of what gpu_ceilings measured, or "" if its file does not say that."""
    try:
        with open(file) as text:
            ceiling = 1e3 * json.load(text)[f"{kind}_tflop_per_second"]
        return f", {100 * gflop_per_second / ceiling:.0f} % of the GEMM ceiling"
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        print(f"the share of the GEMM ceiling is left out: {file} does not say it ({error!r})")
        return ""


def summary(batch, mine, medians, share):
    """The last line; milliseconds of millrace, and of each mode of PyTorch that was measured."""
    best = min(medians, key=medians.get)
    missing = [mode for mode in MODES if mode not in medians]
    named = best + (f"; {' and '.join(missing)} not measured" if missing else "")
    eager = f", {medians['eager'] / mine:.2f} times eager" if "eager" in medians else ""
    return (
        f"{1e3 * batch / mine:.0f} img/s{share}; PyTorch {1e3 * batch / medians[best]:.0f} ({named}): "
        f"{medians[best] / mine:.2f} times{eager}"
    )


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
        begin = time.monotonic()
        try:
            with within(options.set_up):
                trainings[mode] = Training(torch, options, mode)
                trainings[mode].milliseconds(1)
            print(f"PyTorch, {mode}: ready after {time.monotonic() - begin:.0f} s")
        except Exception as error:  # a mode that this installation cannot do is left out
            print(f"PyTorch, {mode}: {(str(error) or repr(error)).splitlines()[0]}")
            trainings.pop(mode, None)
    if not trainings:
        skip("no mode of PyTorch works")
    ours, theirs, rate = [], {mode: [] for mode in trainings}, 0.0
    for _ in rounds(options.rounds, options.seconds):
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
    share = share_of_ceiling(options.ceilings, options.type, rate) if options.ceilings else ""
    print(summary(options.batch, mine, medians, share))


if __name__ == "__main__":
    main()
