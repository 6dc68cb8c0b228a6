#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a network with millrace and with PyTorch on the GPU of this machine, in turns, on synthetic
images in the GPU's memory, and prints one line with medians and their ratio.

PyTorch runs with channels last and autocast in three modes (eager, torch.compile, a CUDA graph of the
whole step); the best one counts. The line names the modes that were not measured. Exit code 77:
PyTorch, its GPU or the network is not there.

What is in a step: both train on one batch that lies in the GPU's memory and update float32 weights by
SGD with momentum. PyTorch finds the images in the 16-bit type, so that autocast casts none; millrace
makes them from bytes in every step, as in a training. Each step of millrace is timed alone, until the
host has its losses, and looks for gradients that are not finite; where the host goes ahead, it queues
the next step meanwhile. Steps of PyTorch are timed in groups,
without a wait between them, and nobody reads a loss or looks for gradients that are not finite. Turns
alternate, and while one side or mode has its turn, the others hold no more than weights and momentum in
the GPU's memory. Both sides say what they train: parameters, numbers of convolutions and norms, type,
images of a step. The comparison stops where they differ.

With --variants, millrace is also measured once with all variants of that file which are marked `before` set back. All
other changes stay. With --profile, the kernels of both sides are timed at the end, if there is time. --json keeps what is
known so far, also if this program is stopped.
"""
import argparse
import contextlib
import gc
import json
import math
import signal
import statistics
import sys
import time

from measure import bench, in_short, precision, rounds, save, skip, spread, time_left, variants_in  # and finds alike.py
from alike import differences, in_words, torch_network
import profile_kernels

# The size of the images and the number of classes.
NETWORKS = {
    "resnet50": (224, 1000),
    "resnext101": (224, 1000),
    "efficientnet-b0": (224, 1000),
    "resnet20": (32, 10),
}
MODES = ("eager", "graph", "compiled")
GROUP = 10  # steps between two waits for the GPU


def modes_of(text):
    modes = text.split(",")
    for mode in modes:
        if mode not in MODES:
            raise argparse.ArgumentTypeError(f"there is no mode '{mode}', only {', '.join(MODES)}")
    return list(dict.fromkeys(modes))


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--millrace", required=True, help="the program")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--type", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--modes", type=modes_of, default=list(MODES), help="of PyTorch: eager,graph,compiled")
    parser.add_argument("--set-up", type=float, default=0, help="seconds for the set-up of a mode")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="the time for everything")
    parser.add_argument("--steps", type=int, default=30, help="in a round; those of PyTorch in tens")
    parser.add_argument("--options", default="", help="more options of millrace bench")
    parser.add_argument("--ceilings", help="what gpu_ceilings printed, for the share of the roofline")
    parser.add_argument("--variants", metavar="FILE", help="variants.toml")
    parser.add_argument("--profile", metavar="LIBRARY", help="what kernel_times.cpp makes")
    parser.add_argument("--json", metavar="FILE", help="for the results")
    return parser.parse_args()


def residual_parts(torch):
    """A convolution, and a block of several."""
    nn = torch.nn

    def conv(inputs, outputs, size, stride=1, groups=1):
        return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)

    class Padded(nn.Module):
        """Every stride-th pixel, with zero channels at the end: the shortcut of the small networks."""

        def __init__(self, stride, extra):
            super().__init__()
            self.stride, self.extra = stride, extra

        def forward(self, x):
            return nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))

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
            if inputs != outputs and not bottleneck:
                self.shortcut = Padded(stride, outputs - inputs)
            elif stride != 1 or inputs != outputs:
                self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

        def forward(self, x):
            return nn.functional.relu(self.body(x) + self.shortcut(x), inplace=True)

    return conv, Block


def make_network(torch, name, classes):
    nn = torch.nn
    if name == "efficientnet-b0":
        try:
            from torchvision.models import efficientnet_b0
        except ImportError:
            skip("torchvision is not installed")
        return efficientnet_b0(num_classes=classes)

    conv, Block = residual_parts(torch)
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
        self.type = getattr(torch, options.type)
        images = torch.randn(options.batch, 3, size, size, device="cuda")
        # Autocast takes images of its type as they are, and would cast others in every step.
        self.images = images.to(self.type, memory_format=torch.channels_last)
        self.labels = torch.randint(classes, (options.batch,), device="cuda")
        self.side = self.side_of(network)
        self.network = torch.compile(network) if mode == "compiled" else network
        self.mode = mode

    def side_of(self, network):
        """What is trained, as PyTorch says it."""
        with self.torch.no_grad(), self.torch.autocast("cuda", dtype=self.type):
            kind = str(network(self.images).dtype).removeprefix("torch.")
        return {**torch_network([network]), "type": kind, "images": len(self.labels), "stages": 1, "replicas": 1,
                "micro-batches": 1}

    def learn(self):
        """A step for which no gradients are there yet."""
        with self.torch.autocast("cuda", dtype=self.type, cache_enabled=False):
            loss = self.torch.nn.functional.cross_entropy(self.network(self.images), self.labels)
        loss.backward()
        self.rule.step()

    def step(self):
        self.rule.zero_grad(set_to_none=True)
        self.learn()

    def captured(self):
        """A CUDA graph of a step. Its gradients are made in the capture, in the memory of the graph, and
        written again by every replay."""
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(3):
                self.step()
        cuda.current_stream().wait_stream(side)
        self.release()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.learn()
        return graph

    def milliseconds(self, steps):
        """Of a step, once for each group of steps. Leaves weights and momentum in the GPU's memory."""
        step = self.captured().replay if self.mode == "graph" else self.step
        times = self.timed(step, steps)
        del step
        self.release()
        return times

    def timed(self, step, steps):
        group = min(GROUP, steps)
        for _ in range(5):
            step()
        times = []
        for _ in range(steps // group):
            self.torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(group):
                step()
            self.torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begin) / group)
        return times

    def release(self):
        """Gives gradients, activations and scratch back to the GPU, for what runs next."""
        self.rule.zero_grad(set_to_none=True)
        gc.collect()
        self.torch.cuda.empty_cache()


def millrace_words(options):
    return ["--batch-size", str(options.batch), *precision(options.type), *options.options.split()]


def millrace_step(options, settings=None):
    words = ["--steps", str(options.steps), *millrace_words(options)]
    return bench(options.millrace, options.network, words, settings=settings)


def set_back(options, rows):
    """Milliseconds of steps with the choices set back that variants mark, and these. None where there are none."""
    settings = {name: value for row in rows if row.get("before")
                and options.network in [case.split()[0] for case in row["networks"]] for name, value in row["set"].items()}
    if not settings:
        return None
    try:
        return millrace_step(options, settings)["step_ms"], settings
    except LookupError as error:
        print(f"{', '.join(settings)} set back: {error}")
        return None


@contextlib.contextmanager
def within(seconds):
    """Raises TimeoutError in what takes longer, again and again, in case somebody catches it."""

    def over(*_):
        raise TimeoutError(f"not ready after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, 0 if math.isinf(seconds) else seconds, 1)
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


def require_alike(trainings, ours):
    for mode, training in trainings.items():
        if unlike := differences((f"PyTorch, {mode},", "millrace"), training.side, ours):
            sys.exit(unlike)


def set_up(torch, options, record):
    """The modes of PyTorch that work here, ready to be measured. Their first times count if there is no time for more."""
    torch.backends.cudnn.benchmark = True
    trainings = {}
    first = {}
    for mode in options.modes:
        begin = time.monotonic()
        try:
            with within(min(options.set_up or math.inf, max(1.0, time_left(options.seconds)))):
                trainings[mode] = Training(torch, options, mode)
                first[mode] = in_short(trainings[mode].milliseconds(1))
            record.add(torch=torch.__version__, pytorch=first)
            print(f"PyTorch, {mode}: ready after {time.monotonic() - begin:.0f} s")
        except Exception as error:  # a mode that this installation cannot do is left out
            print(f"PyTorch, {mode}: {(str(error) or repr(error)).splitlines()[0]}")
            trainings.pop(mode, None)
        gc.collect()
        torch.cuda.empty_cache()  # what a failed set-up left
    if not trainings:
        skip("no mode of PyTorch works")
    return trainings


def profiled(torch, options, trainings):
    """Both sides' kernels by kind, as far as there is time."""
    needed = 5  # seconds, about, for a side
    sides = {}
    for name, measure in (
        ("millrace", lambda: profile_kernels.of_millrace(options.profile, options.millrace, options.network,
                                                         millrace_words(options))),
        ("pytorch", lambda: "eager" in trainings and profile_kernels.of_torch(torch, trainings["eager"].step)),
    ):
        try:
            if time_left(options.seconds) > needed and (kernels := measure()):
                sides[name] = kernels
        except (Exception, SystemExit) as error:  # a comparison is worth something without it
            print(f"no times of the kernels of {name}: {error}")
    return sides


class Record:
    """What is known of a comparison, in its file from the beginning."""

    def __init__(self, options):
        self.file = options.json
        self.known = {"network": options.network, "batch": options.batch, "type": options.type,
                      "options": options.options}

    def add(self, **more):
        self.known.update({name: value for name, value in more.items() if value})
        save(self.file, self.known)


def import_torch():
    try:
        import torch
    except ImportError:
        skip("PyTorch is not installed")
    if not torch.cuda.is_available():
        skip("PyTorch sees no GPU")
    return torch


def main():
    options = arguments()
    record = Record(options)
    record.add()
    rows = variants_in(options.variants) if options.variants else []
    begin = time.monotonic()
    result = millrace_step(options)
    took = time.monotonic() - begin
    ours, rate = result["step_ms"], result["gflop_per_second"]
    record.add(millrace=in_short(ours), arena_bytes=result.get("arena_bytes"))
    before = set_back(options, rows)
    if before:
        times, settings = before
        record.add(set_back={**in_short(times), "set": settings})
        print(f"{', '.join(settings)} set back: {statistics.median(times):.2f} ms ({spread(times)})")
    torch = import_torch()
    trainings = set_up(torch, options, record)
    require_alike(trainings, result["side"])
    theirs = {mode: [] for mode in trainings}
    for number in rounds(options.rounds, options.seconds, took):
        if number > 0:
            result = millrace_step(options)
            ours += result["step_ms"]
            rate = max(rate, result["gflop_per_second"])
        for mode, training in trainings.items():
            theirs[mode] += training.milliseconds(options.steps)
            record.add(millrace=in_short(ours), torch=torch.__version__,
                       pytorch={mode: in_short(times) for mode, times in theirs.items() if times})
    mine = statistics.median(ours)
    medians = {mode: statistics.median(times) for mode, times in theirs.items()}
    if options.profile:
        profile = profiled(torch, options, trainings)
        record.add(profile=profile)
        print("\n".join(profile_kernels.table(profile)))
    print(f"both: {in_words(result['side'])}")
    print(f"millrace {options.options}".rstrip() + f": {mine:.2f} ms ({spread(ours)}), each of {len(ours)} steps")
    for mode, times in theirs.items():
        print(f"PyTorch {torch.__version__}, {mode}: {medians[mode]:.2f} ms ({spread(times)}), {len(times)} groups of steps")
    share = share_of_ceiling(options.ceilings, options.type, rate) if options.ceilings else ""
    print(summary(options.batch, mine, medians, share))


if __name__ == "__main__":
    main()
