#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains on two ranks with PyTorch and with millrace, in turns, and compares their speed.

Usage: compare_pytorch_pipeline.py [--cases NAME,..] [--rounds N] [--batch N] [--micro-batches N] [--steps N]
                                   [--millrace FILE] [--markdown]

Networks and training are those of compare_pytorch.py, in bfloat16. Each way of training uses the same images
for a weight update:

one       one process on one core, gradients of all micro-batches accumulated
pipeline  two processes with one core each, 1F1B; PyTorch communicates over gloo, asynchronously and with receives
          posted early, and uses the cut between blocks that was fastest in a short trial; millrace chooses its
          cut from a profile
replicas  two processes with one core each; PyTorch's DistributedDataParallel over gloo, which reduces gradients in
          the last backward pass only; millrace's --replicas 2

Both sides say what they trained: parameters, numbers of convolutions and norms, type, images of a step, layout, and the
schedule: millrace's name of it, and PyTorch's by the order in which its stages worked. The comparison stops where they
differ.

Exit code: 0 measured, 2 something could not run or the sides are not alike. Needs PyTorch in the Python that runs this, and two
idle cores.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from alike import differences, in_words, millrace_side, torch_network
from compare_pytorch import ROOT, WEIGHT_DECAY, describe_machine, describe_torch, network_words, positive, run, stop
from torch_networks import NETWORKS, Network

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

WAYS = ("one", "pipeline", "replicas")
SCHEDULE = "1F1B"


def one_f_one_b(rank: int, count: int) -> list[str]:
    """The order of a device of two stages: the first is a forward pass ahead."""
    ahead = 1 - rank
    order = [f"F{i}" for i in range(ahead)]
    for i in range(count):
        order += [f"F{i + ahead}"] * (i + ahead < count) + [f"B{i}"]
    return order


@dataclass(frozen=True)
class Case:
    """A network, the number of micro-batches per weight update, and the cuts (layer indices) to try."""

    network: Network
    batch: int
    micro_batches: int
    cuts: tuple[int, ...]
    warmup: int
    steps: int

    @property
    def name(self) -> str:
        return self.network.name


CASES = (Case(NETWORKS["resnet20"], batch=32, micro_batches=16, cuts=(5, 6, 7), warmup=2, steps=8),
         Case(NETWORKS["resnet50"], batch=4, micro_batches=16, cuts=(11, 12, 13), warmup=1, steps=2))


# ---- PyTorch, in separate processes ---------------------------------------------------------------


class Data:
    """Repeats one random micro-batch."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(1)
        shape = (case.batch, 3, case.network.size, case.network.size)
        self.images = torch.randn(shape).contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(case.network.classes, (case.batch,))


def network_of(case: Case) -> nn.Sequential:
    torch.manual_seed(0)
    return case.network.build().to(memory_format=torch.channels_last).train()


def optimiser_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=WEIGHT_DECAY)


def forward(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x)


def loss_of(logits: Tensor, labels: Tensor, micro_batches: int) -> Tensor:
    return F.cross_entropy(logits.float(), labels) / micro_batches


class Accumulating:
    """A whole network in this process, for `one` and, wrapped in DistributedDataParallel, for `replicas`."""

    def __init__(self, case: Case, replicas: int) -> None:
        model = network_of(case)
        self.data = Data(case)
        self.count = case.micro_batches // replicas
        self.model = nn.parallel.DistributedDataParallel(model) if replicas > 1 else model
        self.optimiser = optimiser_of(model)

    def side(self, case: Case) -> dict[str, Any]:
        replicas = case.micro_batches // self.count
        model = self.model.module if replicas > 1 else self.model
        return {**torch_network([model]), "type": name_of(forward(model, self.data.images).dtype), "stages": 1,
                "replicas": replicas, "micro-batches": self.count, "images": replicas * self.count * case.batch}

    def step(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        for i in range(self.count):
            last = i + 1 == self.count
            wait = isinstance(self.model, nn.parallel.DistributedDataParallel) and not last
            with self.model.no_sync() if wait else contextlib.nullcontext():
                logits = forward(self.model, self.data.images)
                loss_of(logits, self.data.labels, self.count).backward()
        self.optimiser.step()


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def as_bytes(x: Tensor) -> Tensor:
    """A channels-last tensor as bytes, because gloo does not support bfloat16."""
    return x.detach().permute(0, 2, 3, 1).contiguous().view(torch.uint8)


class Pipelined:
    """One of two stages, in 1F1B order."""

    def __init__(self, case: Case, rank: int, cut: int) -> None:
        whole = network_of(case)
        self.data = Data(case)
        self.rank, self.count = rank, case.micro_batches
        self.model = whole[:cut] if rank == 0 else whole[cut:]
        self.optimiser = optimiser_of(self.model)
        with torch.no_grad():
            value = forward(whole[:cut], self.data.images)
        self.shape, self.dtype = value.permute(0, 2, 3, 1).shape, value.dtype
        self.buffers = [torch.empty(self.shape, dtype=self.dtype) for _ in range(2)]
        self.kept: list[tuple[Any, Tensor]] = []
        self.order: list[str] = []  # of the passes of a step

    def side(self, case: Case) -> dict[str, Any]:
        """Of this stage; the other one has the rest of the network."""
        schedule = SCHEDULE if self.order == one_f_one_b(self.rank, self.count) else " ".join(self.order)
        return {**torch_network([self.model]), "type": name_of(self.dtype), "stages": 2,
                "replicas": 1, "micro-batches": self.count, "images": self.count * case.batch, "schedule": schedule}

    def receive(self, i: int) -> Any:
        return dist.irecv(self.buffers[i % 2].view(torch.uint8), 1 - self.rank)

    def send(self, x: Tensor) -> None:
        message = as_bytes(x)
        self.kept = self.kept[-2:] + [(dist.isend(message, 1 - self.rank), message)]

    def received(self, request: Any, i: int) -> Tensor:
        request.wait()
        return self.buffers[i % 2].permute(0, 3, 1, 2)

    def first_stage(self) -> None:
        outputs: list[Tensor] = []
        gradient = self.receive(0)

        def ahead(i: int) -> None:
            self.order.append(f"F{i}")
            outputs.append(forward(self.model, self.data.images))
            self.send(outputs[-1])

        ahead(0)
        for i in range(self.count):
            if i + 1 < self.count:
                ahead(i + 1)
            value = self.received(gradient, i)
            if i + 1 < self.count:
                gradient = self.receive(i + 1)
            self.order.append(f"B{i}")
            outputs.pop(0).backward(value)

    def last_stage(self) -> None:
        activation = self.receive(0)
        for i in range(self.count):
            x = self.received(activation, i).detach().requires_grad_()
            if i + 1 < self.count:
                activation = self.receive(i + 1)
            self.order += [f"F{i}", f"B{i}"]
            loss_of(forward(self.model, x), self.data.labels, self.count).backward()
            self.send(x.grad)

    def step(self) -> None:
        self.order.clear()
        self.optimiser.zero_grad(set_to_none=True)
        if self.rank == 0:
            self.first_stage()
        else:
            self.last_stage()
        for request, _ in self.kept:
            request.wait()
        self.kept.clear()
        self.optimiser.step()


def work(case: Case, way: str, cut: int, warmup: int, steps: int) -> dict[str, Any]:
    """Runs one process of the PyTorch side; returns the seconds of its steps and what it trained."""
    rank = int(os.environ.get("RANK", "0"))
    os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[rank]])
    torch.set_num_threads(1)
    if way != "one":
        dist.init_process_group("gloo")
    training = Pipelined(case, rank, cut) if way == "pipeline" else Accumulating(case, 1 if way == "one" else 2)
    seconds = []
    for _ in range(warmup + steps):
        if way != "one":
            dist.barrier()
        start = time.perf_counter()
        training.step()
        seconds.append(time.perf_counter() - start)
    return {"step_seconds": seconds[warmup:], "side": training.side(case)}


# ---- both sides as commands -----------------------------------------------------------------------


Measured = tuple[float, dict[str, Any]]  # seconds of a step, and what was trained


def both_stages(sides: list[dict[str, Any]]) -> dict[str, Any]:
    """What two stages trained together; what they say of the whole must be equal."""
    parts = ("parameters", "products", "BatchNorm", "GroupNorm")
    first, second = ({key: value for key, value in side.items() if key not in parts} for side in sides)
    if unlike := differences(("PyTorch's rank 0", "its rank 1"), first, second):
        stop(unlike)
    return {**{key: sum(side[key] for side in sides) for key in parts}, **first}


def measure_torch(case: Case, way: str, cut: int, warmup: int, steps: int) -> Measured:
    words = [sys.executable, __file__, "--worker", case.name, way, str(cut), str(warmup), str(steps), "--batch",
             str(case.batch), "--micro-batches", str(case.micro_batches)]
    ranks = 1 if way == "one" else 2
    with tempfile.TemporaryDirectory() as directory:
        processes = []
        for rank in range(ranks):
            variables = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
                         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "TMPDIR": directory}
            processes.append(subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True))
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        stop(f"exit code {[process.returncode for process in processes]} from: {' '.join(words)}")
    # A step ends when the slower rank has finished it.
    results = [json.loads(output) for output in outputs]
    sides = [result["side"] for result in results]
    seconds = statistics.median(max(times) for times in zip(*(result["step_seconds"] for result in results)))
    return seconds, both_stages(sides) if way == "pipeline" else sides[0]


def layout_of(binary: Path, case: Case, way: str, directory: Path) -> list[str]:
    if way == "replicas":
        return ["--replicas", "2", "--gradients-to-accumulate", str(case.micro_batches // 2)]
    if way == "one":
        return ["--gradients-to-accumulate", str(case.micro_batches)]
    depth = ["--pipeline-depth", str(case.micro_batches), "--pipeline-schedule", SCHEDULE]
    plan = directory / f"{case.name}.json"
    if not plan.exists():
        plan.write_text(run([str(binary), "plan", *network_words(case.network, case.batch, "bfloat16"), *depth,
                             "--shards", "2", "--cost-model", "profile", "--threads-per-device", "1", "--format",
                             "json"], 1))
    return [*depth, "--plan", str(plan)]


def measure_millrace(binary: Path, case: Case, way: str, directory: Path) -> Measured:
    command = [str(binary), "bench", *network_words(case.network, case.batch, "bfloat16"),
               *layout_of(binary, case, way, directory), "--threads-per-device", "1", "--warmup-steps",
               str(case.warmup), "--steps", str(case.steps), "--json"]
    result = json.loads(run(command, 1, OMP_WAIT_POLICY="passive"))
    return float(result["median_ms"]) / 1e3, millrace_side(result)


# ---- the comparison -------------------------------------------------------------------------------


def compare(case: Case, binary: Path, rounds: int, directory: Path) -> dict[str, tuple[float, float]]:
    trials = {cut: measure_torch(case, "pipeline", cut, 1, case.steps)[0] for cut in case.cuts}
    cut = min(trials, key=lambda c: trials[c])
    print(f"{case.name}: PyTorch's cut is before layer {cut} of "
          f"{', '.join(f'{c}: {1e3 * s:.0f} ms' for c, s in trials.items())}", flush=True)
    measured: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS:
            theirs, their_side = measure_torch(case, way, cut, case.warmup, case.steps)
            ours, our_side = measure_millrace(binary, case, way, directory)
            if unlike := differences(("PyTorch", "millrace"), their_side, our_side):
                stop(f"{case.name}, {way}: {unlike}")
            if number == 0:
                print(f"  {way:9} both: {in_words(our_side)}")
            measured[way].append((theirs, ours))
            print(f"  {way:9} PyTorch {1e3 * theirs:7.0f} ms, millrace {1e3 * ours:7.0f} ms, "
                  f"ratio {theirs / ours:.2f}", flush=True)
    return {way: (statistics.median(t for t, _ in pairs), statistics.median(m for _, m in pairs))
            for way, pairs in measured.items()}


def table(results: dict[str, dict[str, tuple[float, float]]], markdown: bool) -> str:
    heads = ("network", "two ranks as", "PyTorch", "x one", "millrace", "x one", "ratio")
    rows = []
    for name, ways in results.items():
        torch_one, millrace_one = ways["one"]
        for way, (theirs, ours) in ways.items():
            rows.append((name, "(one rank)" if way == "one" else way, f"{1e3 * theirs:.0f} ms",
                         f"{torch_one / theirs:.2f}", f"{1e3 * ours:.0f} ms", f"{millrace_one / ours:.2f}",
                         f"{theirs / ours:.2f}"))
    if markdown:
        return "\n".join("| " + " | ".join(row) + " |" for row in (heads, ("---",) * len(heads), *rows))
    return "\n".join("  ".join(f"{cell:>12}" for cell in row) for row in (heads, *rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [case.name for case in CASES]
    parser.add_argument("--cases", default=",".join(names), metavar="NAME,..",
                        help=f"networks: {', '.join(names)} (default all)")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds per side; the sides take turns (default 3)")
    parser.add_argument("--batch", type=positive, help="images of a micro-batch (default: that of the case)")
    parser.add_argument("--micro-batches", type=positive, help="of an update, an even number (default 16)")
    parser.add_argument("--steps", type=positive, help="measured updates of a round (default: those of the case)")
    parser.add_argument("--millrace", type=Path, default=ROOT / "build/default/millrace", metavar="FILE",
                        help="path of millrace (default build/default/millrace)")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("batch", "micro_batches", "steps")
             if getattr(options, name) is not None}
    by_name = {case.name: replace(case, **given) for case in CASES}
    if options.worker is not None:
        name, way, *numbers = options.worker
        print(json.dumps(work(by_name[name], way, *map(int, numbers))))
        return 0
    unknown = [name for name in options.cases.split(",") if name not in by_name]
    if unknown:
        stop(f"unknown case {unknown[0]!r}; choose from {', '.join(names)}")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        stop("this comparison needs two cores")
    if not options.millrace.is_file():
        stop(f"{options.millrace} does not exist; build it or set its path with --millrace")
    print(f"{describe_machine(cores[:2])}\n{describe_torch()}")
    with tempfile.TemporaryDirectory() as directory:
        results = {name: compare(by_name[name], options.millrace, options.rounds, Path(directory))
                   for name in options.cases.split(",")}
    print("\n" + table(results, options.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
