#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the same networks with PyTorch and with millrace, in turns, and prints how they compare.

Usage: compare_pytorch.py [--cases NAME,..] [--threads N] [--rounds N] [--millrace FILE]
                          [--markdown] [--json FILE]

Both sides train ResNets of one architecture on synthetic images, with momentum, weight decay and
cross-entropy, on the same cores, one after the other, several rounds each; rates are medians of the rounds,
and those of a round medians of its steps. PyTorch stores images channels-last; bfloat16 is its autocast with
float32 weights, as in millrace's precision 16.32. A comparison is void where PyTorch itself reaches less than
0.9 of what was noted for it on one core: then the machine was busy, or is another.

Exit code: 0 all bars met, 1 a ratio below its bar, 2 something could not run, 3 void.
Needs PyTorch (scripts/setup --with-bench installs Debian's) and a quiet machine.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn


def stop(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
except ImportError as error:
    stop(f"{sys.executable} has no PyTorch ({error}); scripts/setup --with-bench installs it for "
         "/usr/bin/python3")

ROOT = Path(__file__).resolve().parents[2]
WEIGHT_DECAY = 1e-4
VOID_BELOW = 0.9


@dataclass(frozen=True)
class Case:
    """A network and how it is trained; `noted` is PyTorch 1.13's rate on one core of Sapphire Rapids."""

    network: str
    batch: int
    storage: str
    noted: float
    bar: float
    warmup: int
    steps: int

    @property
    def name(self) -> str:
        return f"resnet{self.network}-{self.storage}"

    @property
    def title(self) -> str:
        return f"ResNet-{self.network}, {'CIFAR-10' if self.network == '20' else 'ImageNet at 224'}"


CASES = (
    Case("20", batch=128, storage="float32", noted=325.0, bar=1.2, warmup=3, steps=15),
    Case("20", batch=128, storage="bfloat16", noted=587.0, bar=1.5, warmup=3, steps=25),
    Case("50", batch=16, storage="bfloat16", noted=7.5, bar=1.2, warmup=1, steps=5),
)


# ---- the networks in PyTorch ----------------------------------------------------------------------


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class ShortcutA(nn.Module):
    """Every stride-th pixel, with zero channels at the end."""

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


class Block(nn.Module):
    """A residual block; `plan` holds kernel, channels and stride of its convolutions."""

    def __init__(self, inputs: int, plan: list[tuple[int, int, int]], shortcut: nn.Module) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for kernel, outputs, stride in plan:
            layers += [*conv_norm(inputs, outputs, kernel, stride), nn.ReLU(inplace=True)]
            inputs = outputs
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.body(x) + self.shortcut(x))


def basic_block(inputs: int, width: int, stride: int) -> Block:
    same = inputs == width and stride == 1
    shortcut = nn.Identity() if same else ShortcutA(stride, width - inputs)
    return Block(inputs, [(3, width, stride), (3, width, 1)], shortcut)


def bottleneck_block(inputs: int, width: int, stride: int) -> Block:
    outputs = 4 * width
    project = nn.Sequential(*conv_norm(inputs, outputs, 1, stride))
    shortcut = nn.Identity() if inputs == outputs else project
    return Block(inputs, [(1, width, 1), (3, width, stride), (1, outputs, 1)], shortcut)


def head(inputs: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]


def resnet20() -> nn.Sequential:
    layers = [*conv_norm(3, 16, 3, 1), nn.ReLU(inplace=True)]
    channels = 16
    for stage, width in enumerate((16, 32, 64)):
        for i in range(3):
            layers.append(basic_block(channels, width, 2 if stage > 0 and i == 0 else 1))
            channels = width
    return nn.Sequential(*layers, *head(channels, 10))


def resnet50() -> nn.Sequential:
    # ceil_mode pads below and on the right only, as "SAME" does.
    layers = [*conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for i in range(blocks):
            layers.append(bottleneck_block(channels, width, 2 if stage > 0 and i == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, *head(channels, 1000))


NETWORKS = {"20": (resnet20, 32, 10, 269_722), "50": (resnet50, 224, 1000, 25_557_032)}


# ---- one round of PyTorch, in a process of its own ------------------------------------------------


def train_with_torch(case: Case, warmup: int, steps: int) -> dict[str, Any]:
    build, size, classes, parameters = NETWORKS[case.network]
    torch.manual_seed(0)
    model = build().to(memory_format=torch.channels_last).train()
    counted = sum(p.numel() for p in model.parameters())
    if counted != parameters:
        stop(f"the PyTorch model has {counted} parameters, not {parameters}: another architecture")
    images = torch.randn(case.batch, 3, size, size).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(classes, (case.batch,))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=WEIGHT_DECAY)
    seconds = []
    for _ in range(warmup + steps):
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case.storage == "bfloat16"):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        seconds.append(time.perf_counter() - start)
    return {"step_seconds": seconds[warmup:], "threads": torch.get_num_threads()}


def describe_torch() -> str:
    library = re.search(r"MKL-DNN v([\w.]+)", torch.__config__.show())
    used = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    return (f"PyTorch {torch.__version__}, mkldnn {'enabled' if used else 'disabled'} "
            f"(oneDNN {library.group(1) if library else 'unknown'}), channels-last")


# ---- both sides as commands -----------------------------------------------------------------------


def torch_command(case: Case, warmup: int, steps: int) -> list[str]:
    return [sys.executable, __file__, "--worker", case.name, str(warmup), str(steps)]


def millrace_command(binary: Path, case: Case, threads: int, warmup: int, steps: int) -> list[str]:
    dataset = "cifar-10" if case.network == "20" else "imagenet"
    precision = "32.32" if case.storage == "float32" else "16.32"
    return [str(binary), "bench", "--dataset", dataset, "--synthetic-data", "--model-size", case.network,
            "--batch-norm", "--batch-size", str(case.batch), "--precision", precision,
            "--optimiser", "momentum", "--weight-decay", str(WEIGHT_DECAY),
            "--threads-per-device", str(threads), "--warmup-steps", str(warmup), "--steps", str(steps),
            "--json"]


def run(command: list[str], threads: int, **environment: str) -> str:
    """Output of a command that inherits this process' cores."""
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        stop(f"exit code {done.returncode} from: {' '.join(command)}\n{done.stderr.strip()}")
    return done.stdout


def torch_rate(case: Case, threads: int) -> float:
    result = json.loads(run(torch_command(case, case.warmup, case.steps), threads))
    if result["threads"] != threads:
        stop(f"PyTorch took {result['threads']} threads, not {threads}")
    return case.batch / statistics.median(result["step_seconds"])


def millrace_rate(binary: Path, case: Case, threads: int) -> float:
    result = json.loads(run(millrace_command(binary, case, threads, case.warmup, case.steps), threads))
    return float(result["images_per_second"])


# ---- which kernels of oneDNN ran ------------------------------------------------------------------

EXECUTED = re.compile(
    r"_verbose,(?:v\d,)?(?:primitive,)?exec,cpu,convolution,(?P<kernel>[^,]+),(?P<pass>\w+),"
    r"src_(?P<type>\w+?):\w*:blocked:(?P<layout>\w+):")
PASSES = {"forward_training": "forward", "backward_data": "backward input",
          "backward_weights": "backward weight"}
LAYOUTS = {"acdb": "nhwc", "abcd": "nchw"}


@dataclass(frozen=True, order=True)
class Kernel:
    """Convolutions of one kind in a step."""

    what: str
    implementation: str
    storage: str
    layout: str
    calls: int

    def __str__(self) -> str:
        return f"{self.calls:3d} x {self.what:15} {self.implementation} ({self.storage}, {self.layout})"


def convolution_kernels(verbose: str) -> list[Kernel]:
    """What ran, from the output of one step under ONEDNN_VERBOSE."""
    counts = Counter((m["pass"], m["kernel"], m["type"], m["layout"]) for m in EXECUTED.finditer(verbose))
    return sorted(Kernel(PASSES.get(what, what), kernel, storage, LAYOUTS.get(layout, layout), calls)
                  for (what, kernel, storage, layout), calls in counts.items())


def kernels_of(command: list[str], threads: int) -> list[Kernel]:
    return convolution_kernels(run(command, threads, ONEDNN_VERBOSE="1", DNNL_VERBOSE="1"))


# ---- the comparison -------------------------------------------------------------------------------


@dataclass
class Comparison:
    case: Case
    one_core: bool
    torch_rounds: list[float] = field(default_factory=list)
    millrace_rounds: list[float] = field(default_factory=list)
    torch_kernels: list[Kernel] = field(default_factory=list)
    millrace_kernels: list[Kernel] = field(default_factory=list)

    @property
    def torch_rate(self) -> float:
        return statistics.median(self.torch_rounds)

    @property
    def millrace_rate(self) -> float:
        return statistics.median(self.millrace_rounds)

    @property
    def ratio(self) -> float:
        return self.millrace_rate / self.torch_rate

    @property
    def verdict(self) -> str:
        """What was noted, and the bars, are for one core."""
        if not self.one_core:
            return "no bar"
        if self.torch_rate < VOID_BELOW * self.case.noted:
            return "void"
        return "met" if self.ratio >= self.case.bar else "missed"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "name": self.case.name, "torch_rate": self.torch_rate,
                "millrace_rate": self.millrace_rate, "ratio": self.ratio, "verdict": self.verdict}


def compare(case: Case, binary: Path, threads: int, rounds: int) -> Comparison:
    result = Comparison(case, one_core=threads == 1)
    result.torch_kernels = kernels_of(torch_command(case, 0, 1), threads)
    result.millrace_kernels = kernels_of(millrace_command(binary, case, threads, 0, 1), threads)
    print(f"\n{case.title}, batch {case.batch}, {case.storage}: convolutions of one step")
    for side, kernels in (("PyTorch", result.torch_kernels), ("millrace", result.millrace_kernels)):
        for kernel in kernels or ["none by oneDNN"]:
            print(f"  {side:9}{kernel}")
    for i in range(rounds):
        result.torch_rounds.append(torch_rate(case, threads))
        result.millrace_rounds.append(millrace_rate(binary, case, threads))
        print(f"  round {i + 1}: PyTorch {result.torch_rounds[-1]:7.1f}, "
              f"millrace {result.millrace_rounds[-1]:7.1f} img/s, "
              f"ratio {result.millrace_rounds[-1] / result.torch_rounds[-1]:.2f}", flush=True)
    return result


def describe_machine(cores: list[int]) -> str:
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return (f"{model.group(1) if model else 'unknown processor'}, core {', '.join(map(str, cores))} of "
            f"{os.cpu_count()}; load average before: {os.getloadavg()[0]:.1f}")


def verdict_text(c: Comparison) -> str:
    if c.verdict == "void":
        return f"void: PyTorch below {VOID_BELOW:.1f} x {c.case.noted:g}"
    return c.verdict if c.verdict == "no bar" else f"{c.case.bar:g} x {c.verdict}"


def plain_table(results: list[Comparison]) -> str:
    lines = [f"{'network':28} {'batch':>5} {'storage':9} {'PyTorch':>9} {'millrace':>9} {'ratio':>6}  bar"]
    for c in results:
        lines.append(f"{c.case.title:28} {c.case.batch:5d} {c.case.storage:9} {c.torch_rate:9.1f} "
                     f"{c.millrace_rate:9.1f} {c.ratio:6.2f}  {verdict_text(c)}")
    return "\n".join(lines)


def markdown_table(results: list[Comparison]) -> str:
    lines = ["| network | batch | storage | PyTorch img/s | millrace img/s | ratio | bar |",
             "|---|---|---|---|---|---|---|"]
    for c in results:
        lines.append(f"| {c.case.title} | {c.case.batch} | {c.case.storage} | {c.torch_rate:.1f} | "
                     f"{c.millrace_rate:.1f} | {c.ratio:.2f} | {verdict_text(c)} |")
    return "\n".join(lines)


def exit_code(results: list[Comparison]) -> int:
    verdicts = {c.verdict for c in results}
    return 1 if "missed" in verdicts else 3 if "void" in verdicts else 0


# ---- command line ---------------------------------------------------------------------------------


def case_named(name: str) -> Case:
    for case in CASES:
        if case.name == name:
            return case
    raise argparse.ArgumentTypeError(f"no case {name!r}; cases: {', '.join(c.name for c in CASES)}")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=lambda text: [case_named(name) for name in text.split(",")],
                        default=list(CASES), metavar="NAME,..",
                        help=f"of {', '.join(c.name for c in CASES)} (default all)")
    parser.add_argument("--threads", type=positive, default=1, help="on as many cores (default 1)")
    parser.add_argument("--rounds", type=positive, default=3, help="of each side, in turns (default 3)")
    parser.add_argument("--millrace", type=Path, default=ROOT / "build/default/millrace", metavar="FILE",
                        help="the program (default build/default/millrace)")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--worker", nargs=3, metavar=("CASE", "WARMUP", "STEPS"), help=argparse.SUPPRESS)
    return parser.parse_args()


def pin(threads: int) -> list[int]:
    """Leaves this process, and so both sides, the last `threads` of its cores."""
    cores = sorted(os.sched_getaffinity(0))
    if threads > len(cores):
        stop(f"--threads {threads}, but this process has {len(cores)} cores")
    os.sched_setaffinity(0, cores[-threads:])
    return cores[-threads:]


def main() -> int:
    options = parse_arguments()
    if options.worker is not None:
        case, warmup, steps = options.worker
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        print(json.dumps(train_with_torch(case_named(case), int(warmup), int(steps))))
        return 0
    if not options.millrace.is_file():
        stop(f"{options.millrace} does not exist; build it or say where it is with --millrace")
    cores = pin(options.threads)
    about = {"machine": describe_machine(cores), "torch": describe_torch(), "threads": options.threads}
    print(f"{about['machine']}\n{about['torch']}\n{options.threads} thread(s) each")
    results = [compare(case, options.millrace, options.threads, options.rounds) for case in options.cases]
    print("\n" + (markdown_table if options.markdown else plain_table)(results))
    if options.json is not None:
        cases = [c.as_dict() for c in results]
        options.json.write_text(json.dumps({**about, "cases": cases}, indent=2) + "\n")
    return exit_code(results)


if __name__ == "__main__":
    sys.exit(main())
