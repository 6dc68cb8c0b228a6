#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Records the schedules of PyTorch (torch.distributed.pipelining, 2.15) as its own CSV files.

Usage: record_schedules.py [FOLDER]

Writes tests/golden/pytorch/schedules/<class>-<devices>-<micro-batches>.csv for 2, 4 and 8 devices, and
for the smallest also the form with communication. tests/pipeline/schedule_test.cpp proves and replays
them, tests/e2e trains with them. DualPipeV needs at least as many micro-batches as stages.

Needs PyTorch 2.15 or later (pip install torch).
"""
from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.distributed.pipelining import schedules

ONE_STAGE = ("GPipe", "1F1B")
TWO_STAGES = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def stage(index: int, devices: int, stages: int) -> SimpleNamespace:
    """What a schedule asks of a stage before it runs."""
    return SimpleNamespace(
        stage_index=index, num_stages=stages, group_size=devices, group_rank=0, group=None,
        is_first=index == 0, is_last=index == stages - 1, submod=torch.nn.Identity(), device="cpu",
        has_backward=True)


def orders(name: str, devices: int, micro_batches: int) -> dict[str, dict[int, list]]:
    """Lists by rank, without and with communication."""
    cls = getattr(schedules, "Schedule" + name)
    if name in ONE_STAGE:
        schedule = cls.__new__(cls)  # its constructor wants a process group
        schedule._num_stages = schedule.pp_group_size = devices
        schedule._n_microbatches = micro_batches
        return {"": schedule._get_pipeline_order()}
    stages = 2 * devices
    second = stages - 1 if name in V_SHAPED else devices
    schedule = cls([stage(0, devices, stages), stage(second, devices, stages)], micro_batches,
                   loss_fn=lambda output, target: output, scale_grads=False)
    return {"": schedule.pipeline_order, "-comms": schedule.pipeline_order_with_comms}


def main() -> None:
    default = Path(__file__).resolve().parent / "pytorch/schedules"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    for name in ONE_STAGE + TWO_STAGES:
        for devices in (2, 4, 8):
            for micro_batches in (8, 16):
                if name == "DualPipeV" and micro_batches < 2 * devices:
                    continue
                for form, lists in orders(name, devices, micro_batches).items():
                    if form and (devices, micro_batches) != (2, 8):
                        continue
                    path = folder / f"{name}-{devices}-{micro_batches}{form}.csv"
                    with path.open("w", newline="") as file:
                        csv.writer(file).writerows(lists[rank] for rank in lists)


if __name__ == "__main__":
    main()
