#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a network in one stage and in two stages on one GPU, in turns, and prints one line with the
ratio of their medians.

The two stages are in one process, which is what the bar is for: the copies between them are within
the GPU's memory, and nothing but the pipeline is added. At the end, if there is time, two processes
with a stage each share the GPU once. Their kernels never run at the same time, and their messages
go through host memory, as NCCL refuses ranks that share a GPU.
"""
import argparse
import os
import statistics
import time

from measure import BEGIN, NETWORKS, bench, in_short, rounds, save, spread  # and finds alike.py
from alike import differences

BAR = 1.10
SCHEDULE = "1F1B"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--millrace", required=True, help="the program")
    parser.add_argument("--batch", type=int, default=64, help="images of a micro-batch")
    parser.add_argument("--depth", type=int, default=8, help="micro-batches of a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="in a round")
    parser.add_argument("--seconds", type=float, help="the time for all rounds")
    parser.add_argument("--options", default="", help="more options of millrace bench")
    parser.add_argument("--json", metavar="FILE", help="for the results")
    return parser.parse_args()


def one_gpu():
    """The environment of runs that see one GPU and do not look for NCCL."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    return {**os.environ, "CUDA_VISIBLE_DEVICES": visible, "MILLRACE_MESSAGES": "mpi"}


def layouts(depth):
    two = ["--shards", "2", "--pipeline-depth", str(depth), "--pipeline-splits", "auto"]
    two += ["--pipeline-schedule", SCHEDULE]
    return {
        "one stage": ["--gradients-to-accumulate", str(depth)],
        "two stages": two + ["--ranks", "1"],
        "two processes": two + ["--ranks", "2"],
    }


def measure(options, name, words):
    """Milliseconds of the steps of a run, whose median is printed in case it is the last."""
    more = ["--batch-size", str(options.batch), "--precision", "16.32", "--warmup-steps", "2"]
    more += ["--steps", str(options.steps)] + options.options.split()
    result = bench(options.millrace, options.network, words + more, one_gpu())
    images = options.batch * options.depth
    if result["images_per_step"] != images or len(result["step_ms"]) != options.steps:
        raise SystemExit(f"bench measured other steps than {options.steps} of {images} images")
    layout = {"stages": 1} if name == "one stage" else {"stages": 2, "schedule": SCHEDULE}
    if unlike := differences((f"what was asked for as {name}", "bench"), {**result["side"], **layout}, result["side"]):
        raise SystemExit(unlike)
    print(f"{name}: {statistics.median(result['step_ms']):.2f} ms")
    return result["step_ms"]


def main():
    options = arguments()
    words = layouts(options.depth)
    save(options.json, {})
    times = {"one stage": [], "two stages": []}
    for _ in rounds(options.rounds, options.seconds):
        begin = time.monotonic()
        for name, measured in times.items():
            measured += measure(options, name, words[name])
        took = time.monotonic() - begin
    if not options.seconds or time.monotonic() + took < BEGIN + options.seconds:
        times["two processes"] = measure(options, "two processes", words["two processes"])
    medians = {name: statistics.median(measured) for name, measured in times.items()}
    for name, measured in times.items():
        print(f"{name}: {medians[name]:.2f} ms ({spread(measured)}), median of {len(measured)} steps")
    save(options.json, {"network": options.network, "batch": options.batch, "depth": options.depth,
                        "layouts": {name: in_short(measured) for name, measured in times.items()}})
    ratio = {name: f"{median / medians['one stage']:.3f}" for name, median in medians.items()}
    print(
        f"two stages take {ratio['two stages']} times one stage (bar: {BAR:.2f}), two processes "
        f"{ratio.get('two processes', 'not measured')}; {options.depth} x {options.batch} images"
    )


if __name__ == "__main__":
    main()
