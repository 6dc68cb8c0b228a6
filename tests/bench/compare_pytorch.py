#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the same networks with PyTorch and with millrace, in turns, and compares their speed.

Usage: compare_pytorch.py [--cases NAME,..] [--types TYPE,..] [--threads N] [--rounds N] [--isa LEVEL]
                          [--eager] [--torch-keeps-memory] [--millrace FILE] [--note] [--markdown] [--json FILE]

Both sides train networks of the same architecture (torch_networks.py; the numbers of parameters are compared) on
synthetic images, with momentum, weight decay and cross-entropy, on the same cores, one after the other, in several
rounds. PyTorch trains twice, eagerly and with the network compiled by torch.compile, and the faster of the two counts;
--eager leaves the compiled one out. A rate is the median over the rounds of the median over a round's steps. The second ratio compares the
processor time of a step, which other work on the machine disturbs less; the third one the most memory that a process
held, ours over theirs, where ours is more than this script holds. PyTorch stores images channels-last; bfloat16 is its
autocast with float32 weights, as in millrace's precision 16.32. float16 runs with millrace only.
--torch-keeps-memory makes the C library keep PyTorch's freed tensors instead of returning them to the system, which
saves page faults. This makes the comparison harder than PyTorch's default.

--isa avx2 or avx512 limits both sides to these instructions (avx512: with bfloat16 products, without tiles). The
comparison stops if oneDNN or PyTorch report others; millrace gets MILLRACE_MAX_ISA alone, and its own kernels are not
checked. pytorch_rates.json next to this file records PyTorch's rates on one core, by processor. --note writes today's
rates to it. A rate below 0.9 of a recorded one gives a warning, because the machine was probably busy.

Exit code: 0 all bars met, 1 a ratio is below its bar, 2 something could not run. Bars are for one thread.
Needs PyTorch in the Python that runs this, a C++ compiler for torch.compile, and a quiet machine.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn


def stop(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


try:
    import torch
    import torch.nn.functional as F
    from torch_networks import NETWORKS, Network
except ImportError as error:
    stop(f"{sys.executable} has no PyTorch ({error}); run this with a Python that has it: pip install torch, or "
         "scripts/setup --with-bench and /usr/bin/python3")

ROOT = Path(__file__).resolve().parents[2]
RATES = Path(__file__).resolve().with_name("pytorch_rates.json")
WEIGHT_DECAY = 1e-4
WARN_BELOW = 0.9
PRECISIONS = {"float32": ("--precision", "32.32"), "bfloat16": ("--precision", "16.32"),
              "float16": ("--precision", "16.32", "--half", "fp16")}
PYTORCH_TYPES = ("float32", "bfloat16")

# What millrace is meant to reach, of PyTorch's rate: by instruction level and type, and by network. Elsewhere 1.
FLOAT32_AVX512 = {"resnet20": 1.7, "resnet18": 1.4, "resnet50": 1.4, "resnext50": 1.5, "efficientnet-b0": 2.0,
                  "squeezenet": 1.8}
BARS = {("avx512-bf16", "float32"): FLOAT32_AVX512, ("avx512", "float32"): FLOAT32_AVX512,
        ("avx2", "float32"): {"resnet20": 1.4, "resnet18": 1.2, "resnet50": 1.25, "resnext50": 1.25,
                              "efficientnet-b0": 1.5, "squeezenet": 1.4},
        ("amx", "bfloat16"): {"resnet20": 1.8, "resnet18": 1.5, "resnet50": 1.5, "resnext50": 2.0,
                              "efficientnet-b0": 2.5, "squeezenet": 1.3}}


@dataclass(frozen=True)
class Case:
    network: Network
    storage: str

    @property
    def name(self) -> str:
        return f"{self.network.name}-{self.storage}"


# ---- the processor --------------------------------------------------------------------------------

# From highest to lowest: name, and the processor flag that indicates it.
LEVELS = {"amx": "amx_bf16", "avx512-bf16": "avx512_bf16", "avx512": "avx512f", "avx2": "avx2"}
KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 28)}
TORCH_CAPS = {"native": {},
              "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16",
                         "ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
              "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
                       "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}
BEYOND_CAP = {"native": "(?!)", "avx512": "AMX|Advanced Matrix", "avx2": "AVX-?512|AMX|Advanced Matrix"}


def cpuinfo(key: str) -> str:
    match = re.search(rf"^{key}\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match.group(1) if match else "unknown"


def millrace_cap(isa: str) -> dict[str, str]:
    return {} if isa == "native" else {"MILLRACE_MAX_ISA": isa}


def level_under(cap: str) -> str:
    """The highest level that the processor supports and the cap allows."""
    flags = cpuinfo("flags").split()
    first = {"native": "amx", "avx512": "avx512-bf16", "avx2": "avx2"}[cap]
    names = list(LEVELS)
    return next((name for name in names[names.index(first):] if LEVELS[name] in flags), "baseline")


def describe_machine(cores: list[int]) -> str:
    return (f"{cpuinfo('model name')}, core {', '.join(map(str, cores))} of {os.cpu_count()}; "
            f"load average before: {os.getloadavg()[0]:.1f}")


# ---- one round of PyTorch, in a separate process --------------------------------------------------


def torch_parameters(network: Network) -> list[int]:
    return sorted(p.numel() for p in network.build().parameters())


def train_with_torch(case: Case, mode: str, warmup: int, steps: int) -> dict[str, Any]:
    network = case.network
    torch.manual_seed(0)
    model = network.build().to(memory_format=torch.channels_last).train()
    if mode == "compiled":
        model.compile()
    images = torch.randn(network.batch, 3, network.size, network.size).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(network.classes, (network.batch,))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=WEIGHT_DECAY)
    seconds, processor = [], []
    for _ in range(warmup + steps):
        start, processor_start = time.perf_counter(), time.process_time()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case.storage == "bfloat16"):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - processor_start)
    return {"median_ms": 1e3 * statistics.median(seconds[warmup:]), "threads": torch.get_num_threads(),
            "processor_ms": 1e3 * statistics.mean(processor[warmup:]),
            "capability": torch_config(r"CPU capability usage: (\w+)")}


def torch_config(pattern: str) -> str:
    match = re.search(pattern, torch.__config__.show())
    return match.group(1) if match else "unknown"


def describe_torch() -> str:
    used = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    return (f"PyTorch {torch.__version__} (oneDNN {torch_config(r'MKL-DNN v([0-9.]+)')}"
            f"{'' if used else ', disabled'}), channels-last")


# ---- both sides as commands -----------------------------------------------------------------------


def torch_command(case: Case, mode: str, warmup: int, steps: int) -> list[str]:
    return [sys.executable, __file__, "--worker", case.network.name, case.storage, mode, str(warmup), str(steps)]


def network_words(network: Network, batch: int, storage: str) -> list[str]:
    """millrace's options for a network and for the same training as in train_with_torch."""
    return [*network.words, "--synthetic-data", "--batch-size", str(batch), *PRECISIONS[storage], "--optimiser",
            "momentum", "--weight-decay", str(WEIGHT_DECAY), "--weight-decay-excludes", "none"]


def millrace_command(binary: Path, case: Case, threads: int, warmup: int, steps: int) -> list[str]:
    return [str(binary), "bench", *network_words(case.network, case.network.batch, case.storage),
            "--threads-per-device", str(threads), "--warmup-steps", str(warmup), "--steps", str(steps), "--json"]


@dataclass(frozen=True)
class Ran:
    """What a process printed and used."""

    output: str
    cpu: float  # seconds
    peak: float | None  # GB of memory at most; None: less than this script, whose memory a child starts with


def timed_run(command: list[str], threads: int, **environment: str) -> Ran:
    """Runs a command that inherits this process' cores."""
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), **environment}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, env=variables, stdout=output, stderr=errors)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if child.returncode != 0:
            stop(f"exit code {child.returncode} from: {' '.join(command)}\n{errors.read().strip()}")
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak = 1024 * used.ru_maxrss / 1e9 if used.ru_maxrss > 1.05 * own else None
        return Ran(output.read(), used.ru_utime + used.ru_stime, peak)


def run(command: list[str], threads: int, **environment: str) -> str:
    return timed_run(command, threads, **environment).output


def millrace_parameters(binary: Path, network: Network) -> list[int]:
    """Number of elements of each parameter, from the list printed when training starts."""
    output = run([str(binary), "train", "-v", *network_words(network, 2, "float32"), "--iterations", "1", "--no-validation",
                  "--no-logs"], 1)
    shapes = re.findall(r"^  \S+ \(([\dx]+)\)$", output, re.MULTILINE)
    return sorted(math.prod(map(int, shape.split("x"))) for shape in shapes)


def check_parameters(binary: Path, network: Network) -> None:
    theirs, ours = torch_parameters(network), millrace_parameters(binary, network)
    if ours != theirs:
        stop(f"{network.title} has {sum(theirs):,} parameters in {len(theirs)} tensors in PyTorch, {sum(ours):,} in "
             f"{len(ours)} in millrace: the architectures differ")
    print(f"{network.title}: {sum(ours):,} parameters in {len(ours)} tensors of equal sizes on both sides")


# ---- which kernels of oneDNN ran ------------------------------------------------------------------

EXECUTED = re.compile(
    r"_verbose,(?:v\d,)?(?:primitive,)?exec,cpu,convolution,(?P<kernel>[^,]+),(?P<pass>\w+),"
    r"src[_:](?P<type>\w+?):\w*:blocked:(?P<layout>\w+):")
PASSES = {"forward_training": "forward", "backward_data": "backward input", "backward_weights": "backward weight"}
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
    """The convolutions that ran, from the output of one step with ONEDNN_VERBOSE."""
    counts = Counter((m["pass"], m["kernel"], m["type"], m["layout"]) for m in EXECUTED.finditer(verbose))
    return sorted(Kernel(PASSES.get(what, what), kernel, storage, LAYOUTS.get(layout, layout), calls)
                  for (what, kernel, storage, layout), calls in counts.items())


# ---- the comparison -------------------------------------------------------------------------------


@dataclass
class Side:
    """Results of one side in a case: a first run of a single step, then rounds."""

    name: str
    command: Callable[[int, int], list[str]]  # takes the numbers of warm-up and measured steps
    environment: dict[str, str]
    first_cpu: float = 0.0
    kernels: list[Kernel] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)  # images per second
    step_cpu: list[float] = field(default_factory=list)  # processor seconds per step
    peak: float | None = None  # GB

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cpu(self) -> float:
        return statistics.median(self.step_cpu)

    def run_first(self, threads: int, cap: str) -> None:
        """Runs a single step: records versions, instruction sets and the cost of the first step."""
        first = timed_run(self.command(0, 1), threads, **self.environment, ONEDNN_VERBOSE="1", DNNL_VERBOSE="1")
        self.first_cpu = first.cpu
        self.kernels = convolution_kernels(first.output)
        used = re.findall(r",info,cpu,isa:(.*)", first.output) + re.findall(r'"capability": "(\w+)"', first.output)
        beyond = [isa for isa in used if re.search(BEYOND_CAP[cap], isa)]
        if beyond:
            stop(f"--isa {cap} has no effect on {self.name}: it uses {beyond[0]}")

    def run_round(self, network: Network, threads: int) -> None:
        ran = timed_run(self.command(network.warmup, network.steps), threads, **self.environment)
        result = json.loads(ran.output)
        if result["threads"] != threads:
            stop(f"{self.name} used {result['threads']} threads, not {threads}")
        self.rates.append(1e3 * network.batch / result["median_ms"])
        self.step_cpu.append(result.get("processor_ms", 1e3 * self.beyond_first(ran.cpu, network)) / 1e3)
        self.peak = ran.peak

    def beyond_first(self, cpu: float, network: Network) -> float:
        """Processor seconds of a step, for a program that does not report them; start-up is negligible."""
        return (cpu - self.first_cpu) / (network.warmup + network.steps - 1)

    def as_dict(self) -> dict[str, Any]:
        return {"rate": self.rate, "cpu_seconds": self.cpu, "rates": self.rates, "step_cpu_seconds": self.step_cpu,
                "peak_gigabytes": self.peak,
                "kernels": [asdict(kernel) for kernel in self.kernels]}


@dataclass
class Comparison:
    case: Case
    millrace: Side
    theirs: list[Side]  # PyTorch's modes; none if it does not take part
    bar: float | None

    @property
    def sides(self) -> list[Side]:
        return [*self.theirs, self.millrace]

    @property
    def torch(self) -> Side | None:
        """The faster of PyTorch's modes."""
        return max(self.theirs, key=lambda side: side.rate, default=None)

    @property
    def ratio(self) -> float | None:
        return None if self.torch is None else self.millrace.rate / self.torch.rate

    @property
    def cpu_ratio(self) -> float | None:
        return None if self.torch is None else self.torch.cpu / self.millrace.cpu

    @property
    def memory_ratio(self) -> float | None:
        ours, theirs = self.millrace.peak, self.torch and self.torch.peak
        return None if ours is None or theirs is None else ours / theirs

    @property
    def verdict(self) -> str:
        if self.ratio is None or self.bar is None:
            return "no bar"
        return f"{self.bar:g} x {'met' if self.ratio >= self.bar else 'missed'}"

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.case.name, **{side.name: side.as_dict() for side in self.sides}, "ratio": self.ratio,
                "cpu_ratio": self.cpu_ratio, "memory_ratio": self.memory_ratio, "verdict": self.verdict}


def sides_of(case: Case, options: argparse.Namespace) -> tuple[Side, list[Side]]:
    ours = Side("millrace", lambda *steps: millrace_command(options.millrace, case, options.threads, *steps),
                millrace_cap(options.isa))
    if case.storage not in PYTORCH_TYPES:
        return ours, []
    memory = KEPT_MEMORY if options.torch_keeps_memory else {}
    modes = ("eager",) if options.eager else ("eager", "compiled")
    return ours, [Side(mode, lambda *steps, mode=mode: torch_command(case, mode, *steps),
                       {**TORCH_CAPS[options.isa], **memory}) for mode in modes]


def compare(case: Case, options: argparse.Namespace) -> Comparison:
    bar = BARS.get((level_under(options.isa), case.storage), {}).get(case.network.name, 1.0)
    result = Comparison(case, *sides_of(case, options), bar if options.threads == 1 else None)
    print(f"\n{case.network.title}, batch {case.network.batch}, {case.storage}: convolutions of one step")
    for side in result.sides:
        side.run_first(options.threads, options.isa)
        for kernel in side.kernels or ["none by oneDNN"]:
            print(f"  {side.name:9}{kernel}")
    for i in range(options.rounds):
        for side in result.sides:
            side.run_round(case.network, options.threads)
        print(f"  round {i + 1}: " + ", ".join(
            f"{side.name} {side.rates[-1]:.1f} img/s ({1e3 * side.step_cpu[-1]:.0f} ms processor time per step)"
            for side in result.sides), flush=True)
    return result


# ---- recorded rates -------------------------------------------------------------------------------


def torch_rates(results: list[Comparison]) -> dict[str, float]:
    """PyTorch's rates on one core, by case and, unless eager, mode."""
    return {f"{c.case.name}{'' if side.name == 'eager' else f'-{side.name}'}": side.rate
            for c in results if c.bar is not None for side in c.theirs}


def warnings(results: list[Comparison], noted: dict[str, float]) -> list[str]:
    """Warnings for cases in which PyTorch was slower than recorded for this processor."""
    return [f"warning: {name}: PyTorch reached {rate:.1f} img/s, {rate / noted[name]:.2f} of the {noted[name]:g} recorded"
            for name, rate in torch_rates(results).items() if name in noted and rate < WARN_BELOW * noted[name]]


def note(results: list[Comparison], processor: str) -> None:
    rates = json.loads(RATES.read_text()) if RATES.exists() else {}
    mine = rates.setdefault(processor, {}).setdefault(torch.__version__, {})
    mine.update({name: round(rate, 1) for name, rate in torch_rates(results).items()})
    RATES.write_text(json.dumps(rates, indent=2, sort_keys=True) + "\n")


def noted_rates(processor: str) -> dict[str, float]:
    rates = json.loads(RATES.read_text()) if RATES.exists() else {}
    return rates.get(processor, {}).get(torch.__version__, {})


# ---- tables ---------------------------------------------------------------------------------------

HEADS = ("network", "batch", "storage", "PyTorch img/s", "mode", "millrace img/s", "ratio", "of processor time", "of memory", "bar")


def table(results: list[Comparison], markdown: bool) -> str:
    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    rows = [(c.case.network.title, str(c.case.network.batch), c.case.storage,
             number(c.torch and c.torch.rate, 1), c.torch.name if c.torch else "-", number(c.millrace.rate, 1), number(c.ratio, 2),
             number(c.cpu_ratio, 2), number(c.memory_ratio, 2), c.verdict) for c in results]
    if markdown:
        return "\n".join(f"| {' | '.join(row)} |" for row in (HEADS, ("---",) * len(HEADS), *rows))
    widths = [max(map(len, column)) for column in zip(HEADS, *rows)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in (HEADS, *rows))


# ---- command line ---------------------------------------------------------------------------------


def names_of(what: str, known: list[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown {what} {name!r}; choose from {', '.join(known)}")
        return text.split(",")

    return parse


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    networks, types = list(NETWORKS), list(PRECISIONS)
    parser.add_argument("--cases", type=names_of("case", networks), default=networks, metavar="NAME,..",
                        help=f"networks: {', '.join(networks)} (default all)")
    parser.add_argument("--types", type=names_of("type", types), default=list(PYTORCH_TYPES), metavar="TYPE,..",
                        help=f"types: {', '.join(types)} (default {','.join(PYTORCH_TYPES)}; float16: millrace only)")
    parser.add_argument("--threads", type=positive, default=1, help="threads and cores per side (default 1)")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds per side; the sides take turns (default 3)")
    parser.add_argument("--isa", choices=list(TORCH_CAPS), default="native", help="highest instruction level for both sides")
    parser.add_argument("--eager", action="store_true", help="compare with PyTorch's eager mode alone")
    parser.add_argument("--torch-keeps-memory", action="store_true", help="avoid most of PyTorch's page faults")
    parser.add_argument("--millrace", type=Path, default=ROOT / "build/default/millrace", metavar="FILE",
                        help="path of millrace (default build/default/millrace)")
    parser.add_argument("--note", action="store_true", help=f"record PyTorch's rates in {RATES.name}")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    return parser.parse_args()


def pin(threads: int) -> list[int]:
    """Restricts this process, and thus both sides, to the last `threads` of its cores."""
    cores = sorted(os.sched_getaffinity(0))
    if threads > len(cores):
        stop(f"--threads {threads} exceeds the {len(cores)} cores of this process")
    os.sched_setaffinity(0, cores[-threads:])
    return cores[-threads:]


def work(name: str, storage: str, mode: str, warmup: str, steps: str) -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(json.dumps(train_with_torch(Case(NETWORKS[name], storage), mode, int(warmup), int(steps))))


def main() -> int:
    options = parse_arguments()
    if options.worker is not None:
        work(*options.worker)
        return 0
    if not options.millrace.is_file():
        stop(f"{options.millrace} does not exist; build it or set its path with --millrace")
    memory = ", kept memory" if options.torch_keeps_memory else ""
    about = {"machine": describe_machine(pin(options.threads)), "level": level_under(options.isa),
             "torch": describe_torch() + memory, "threads": options.threads,
             "millrace": run([str(options.millrace), "doctor"], 1, **millrace_cap(options.isa)).splitlines()[:2]}
    caption = (f"{about['machine']}; {about['level']} (--isa {options.isa}), {options.threads} thread(s) each\n"
               f"{about['torch']}\n" + "\n".join(about["millrace"]))
    print(caption)
    for name in options.cases:
        check_parameters(options.millrace, NETWORKS[name])
    results = [compare(Case(NETWORKS[name], storage), options) for name in options.cases for storage in options.types]
    processor = f"{cpuinfo('model name')}, {about['level']}{memory}"
    noted = noted_rates(processor)
    print("", caption, "", table(results, options.markdown), "", sep="\n")
    print("\n".join(warnings(results, noted)) if noted else f"no rates recorded for {processor}, {torch.__version__}")
    if options.note:
        note(results, processor)
    if options.json is not None:
        options.json.write_text(json.dumps({**about, "cases": [c.as_dict() for c in results]}, indent=2) + "\n")
    return 1 if any(c.verdict.endswith("missed") for c in results) else 0


if __name__ == "__main__":
    sys.exit(main())
