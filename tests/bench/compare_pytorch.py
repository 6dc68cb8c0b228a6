#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the same networks with millrace and with PyTorch, in turns on the same core, and prints the ratio.

Needs Debian's python3-torch (scripts/setup --with-bench) and a built millrace.

  tests/bench/compare_pytorch.py                        all cases, one thread, three rounds
  tests/bench/compare_pytorch.py --cases resnet20-bf16 --rounds 5

Both sides run SGD with momentum on synthetic images, channels last; PyTorch in bfloat16 through autocast
with float32 weights. A round runs PyTorch and then millrace; the figures are medians over all steps of all
rounds. PyTorch is noted at 325, 587 and 7.5 img/s on one core of this kind (Xeon with AMX): a comparison
in which it reaches less than 0.9 of that is void.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Case:
    network: str
    batch: int
    bf16: bool
    noted: float  # img/s of PyTorch 1.13 on one core
    warmup: int
    steps: int


CASES = {
    "resnet20-fp32": Case("resnet20", 128, False, 325.0, 2, 8),
    "resnet20-bf16": Case("resnet20", 128, True, 587.0, 2, 12),
    "resnet50-bf16": Case("resnet50", 16, True, 7.5, 1, 3),
}


# ---- PyTorch's side, in a process of its own ---------------------------------------------------------


def make_resnet20():
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(outputs)
            self.extra = outputs - inputs

        def forward(self, x):
            y = F.relu(self.norm1(self.conv1(x)), inplace=True)
            y = self.norm2(self.conv2(y))
            if self.extra:
                x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.extra))
            return F.relu(y + x, inplace=True)

    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    widths = [16] * 4 + [32] * 3 + [64] * 3
    for before, width in zip(widths, widths[1:]):
        layers.append(Block(before, width, width // before))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), 32, 10


def make_resnet50():
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self, inputs: int, mid: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(inputs, mid, 1, bias=False), nn.BatchNorm2d(mid)
            self.conv2, self.norm2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid)
            self.conv3, self.norm3 = nn.Conv2d(mid, 4 * mid, 1, bias=False), nn.BatchNorm2d(4 * mid)
            self.shortcut = nn.Sequential()
            if stride != 1 or inputs != 4 * mid:
                self.shortcut = nn.Sequential(nn.Conv2d(inputs, 4 * mid, 1, stride, bias=False),
                                              nn.BatchNorm2d(4 * mid))

        def forward(self, x):
            y = F.relu(self.norm1(self.conv1(x)), inplace=True)
            y = F.relu(self.norm2(self.conv2(y)), inplace=True)
            return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x), inplace=True)

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        mid = 64 << stage
        for block in range(blocks):
            layers.append(Block(inputs, mid, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * mid
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)), 224, 1000


def pytorch_worker(case: Case, threads: int, steps: int) -> None:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model, size, classes = make_resnet20() if case.network == "resnet20" else make_resnet50()
    model = model.to(memory_format=torch.channels_last).train()
    images = torch.randn(case.batch, 3, size, size).to(memory_format=torch.channels_last)
    labels = torch.randint(classes, (case.batch,))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    seconds = []
    for _ in range(case.warmup + steps):
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case.bf16):
            logits = model(images)
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
        optimiser.step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds[case.warmup:], "version": torch.__version__,
                      "mkldnn": torch.backends.mkldnn.is_available(),
                      "threads": torch.get_num_threads()}))


# ---- the comparison ---------------------------------------------------------------------------------


def environment(threads: int, **more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(threads), **more}


def pin(threads: int) -> None:
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.sched_setaffinity(0, cores)


def run_pytorch(name: str, threads: int, steps: int, verbose: bool = False) -> tuple[dict, str]:
    command = [sys.executable, __file__, "--worker", name, "--threads", str(threads), "--steps", str(steps)]
    extra = {"DNNL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"} if verbose else {}
    done = subprocess.run(command, env=environment(threads, **extra), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1]), done.stdout


def pytorch_kernels(name: str, threads: int) -> Counter:
    """Implementations of the convolutions that one step of PyTorch runs."""
    _, text = run_pytorch(name, threads, 1, verbose=True)
    return Counter(re.findall(r"exec,cpu,convolution,([^,]+),", text))


def run_millrace(binary: Path, name: str, threads: int) -> dict:
    case = CASES[name]
    words = [str(binary), "bench", "--json", "--threads-per-device", str(threads), "--batch-size", str(case.batch),
             "--precision", "16.32" if case.bf16 else "32.32", "--optimiser", "momentum",
             "--base-learning-rate", "-14", "--steps", str(case.steps), "--warmup-steps", str(case.warmup),
             "--synthetic-data"]
    if case.network == "resnet20":
        words += ["--dataset", "cifar-10", "--model-size", "20"]
    else:
        words += ["--dataset", "imagenet", "--model-size", "50", "--batch-norm"]
    done = subprocess.run(words, env=environment(threads), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


@dataclass
class Comparison:
    case: str
    pytorch: float   # img/s
    millrace: float
    ratio: float
    void: bool
    loader_percent: float


def compare(binary: Path, name: str, threads: int, rounds: int) -> Comparison:
    case = CASES[name]
    torch_seconds: list[float] = []
    millrace_seconds: list[float] = []
    loader = 0.0
    for _ in range(rounds):
        result, _ = run_pytorch(name, threads, case.steps)
        torch_seconds += result["seconds"]
        ours = run_millrace(binary, name, threads)
        millrace_seconds.append(ours["median_ms"] / 1e3)
        loader = max(loader, 100.0 * ours["loader_wait_ms"] / ours["median_ms"])
    theirs = case.batch / statistics.median(torch_seconds)
    mine = case.batch / statistics.median(millrace_seconds)
    void = threads == 1 and theirs < 0.9 * case.noted
    return Comparison(name, theirs, mine, mine / theirs, void, loader)


def print_table(rows: list[Comparison]) -> None:
    print("\n| training step, one process | PyTorch img/s | millrace img/s | ratio | loader |")
    print("|---|---|---|---|---|")
    for row in rows:
        note = " (void: PyTorch below 0.9 of its noted rate)" if row.void else ""
        print(f"| {row.case}, batch {CASES[row.case].batch} | {row.pytorch:.1f} | {row.millrace:.1f} "
              f"| {row.ratio:.2f}{note} | {row.loader_percent:.2f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--millrace", type=Path, default=ROOT / "build/default/millrace")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        pytorch_worker(CASES[options.worker], options.threads, options.steps)
        return
    pin(options.threads)
    result, _ = run_pytorch(options.cases[0], options.threads, 1)
    print(f"PyTorch {result['version']}, oneDNN {'on' if result['mkldnn'] else 'off'}, "
          f"{result['threads']} thread(s), channels last")
    rows = []
    for name in options.cases:
        kernels = pytorch_kernels(name, options.threads)
        print(f"{name}: PyTorch's convolutions: "
              + ", ".join(f"{count} x {kind}" for kind, count in kernels.most_common()))
        rows.append(compare(options.millrace, name, options.threads, options.rounds))
        print(f"{name}: PyTorch {rows[-1].pytorch:.1f}, millrace {rows[-1].millrace:.1f} img/s, "
              f"ratio {rows[-1].ratio:.2f}{' VOID' if rows[-1].void else ''}", flush=True)
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
