#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what `millrace plan --cost-model profile` predicts with what `millrace bench` measures.

plan_accuracy.py MILLRACE [ROUNDS] [NAME ..]

The configurations were chosen before anything was measured. In each round every configuration is
planned once and run twice, in turns; the figures are medians over the rounds. A prediction comes
from the times of ops in one process, from the times of the stages of each rank, which plays its
part without messages, from the link's model and from a simulation; it knows nothing of the runs.
The second run of each round shows how far two equal measurements differ.
"""
import json
import re
import statistics
import subprocess
import sys

CIFAR = "--dataset cifar-10 --model resnet"
IMAGE = "--dataset imagenet"
CONFIGURATIONS = {
    "ResNet-20, 1 rank": f"{CIFAR} --model-size 20 --batch-size 32 --pipeline-depth 4 --ranks 1",
    "ResNet-20, 2 stages, 1F1B": f"{CIFAR} --model-size 20 --batch-size 32 --pipeline-depth 8"
    " --shards 2 --pipeline-schedule 1F1B --pipeline-splits auto",
    "ResNet-20, 2 stages, 32 micro-batches": f"{CIFAR} --model-size 20 --batch-size 8"
    " --pipeline-depth 32 --shards 2 --pipeline-schedule Grouped --pipeline-splits auto",
    "ResNet-20, cut at b3/0/relu": f"{CIFAR} --model-size 20 --batch-size 32 --pipeline-depth 8"
    " --shards 2 --pipeline-splits b3/0/relu",
    "ResNet-20, ZB-V": f"{CIFAR} --model-size 20 --batch-size 32 --pipeline-depth 8 --shards 2"
    " --pipeline-schedule ZB-V --pipeline-splits auto",
    "ResNet-20, bfloat16": f"{CIFAR} --model-size 20 --batch-size 32 --pipeline-depth 8 --shards 2"
    " --precision 16.32 --pipeline-splits auto",
    "ResNet-20, 4 ranks": f"{CIFAR} --model-size 20 --batch-size 32 --pipeline-depth 8 --shards 4"
    " --pipeline-splits auto",
    "ResNet-20, 2 replicas of 2 stages": f"{CIFAR} --model-size 20 --batch-size 32"
    " --pipeline-depth 8 --shards 2 --replicas 2 --pipeline-splits auto",
    "ResNet-18, 2 replicas": f"{IMAGE} --model resnet --model-size 18 --batch-size 2"
    " --pipeline-depth 2 --replicas 2",
    "ResNet-18, 2 stages, GPipe": f"{IMAGE} --model resnet --model-size 18 --batch-size 2"
    " --pipeline-depth 4 --shards 2 --pipeline-schedule GPipe --pipeline-splits auto",
    "SqueezeNet, 2 stages, ZB-H1": f"{IMAGE} --model squeezenet --batch-size 4 --pipeline-depth 4"
    " --shards 2 --pipeline-schedule ZB-H1 --pipeline-splits auto",
    "EfficientNet-B0, 2 stages, recomputed": f"{IMAGE} --model efficientnet --model-size B0"
    " --batch-size 2 --pipeline-depth 4 --shards 2 --xla-recompute --pipeline-splits auto",
}


def run(millrace, words):
    done = subprocess.run([millrace] + words.split(), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{words}\n{done.stdout}{done.stderr}")
    return done.stdout


def options_of(line):
    # Weights of 32 bits unless the line says otherwise; what costs nothing on synthetic images.
    return line if "--precision" in line else line + " --precision 32.32"


def predicted(millrace, line):
    plan = json.loads(run(millrace, f"plan {options_of(line)} --cost-model profile --format json"))
    return 1e3 * plan["seconds"], 100 * plan["bubble"], plan


def measured(millrace, line, splits):
    line = options_of(line).replace("--pipeline-splits auto", f"--pipeline-splits {splits}")
    text = run(millrace, f"bench {line} --synthetic-data --steps 9 --warmup-steps 2 --pipeline")
    step = float(re.search(r"step time +([0-9.]+) ms", text)[1])
    bubble = re.search(r"Bubble: ([0-9.]+) % measured", text)
    return step, float(bubble[1]) if bubble else 0.0


def main():
    millrace = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    chosen = {n: c for n, c in CONFIGURATIONS.items() if not sys.argv[3:] or n in sys.argv[3:]}
    samples = {name: [] for name in chosen}
    splits = {}
    for turn in range(rounds):
        for name, line in chosen.items():
            step, bubble, plan = predicted(millrace, line)
            # The run keeps the cuts of the first plan; later plans predict these cuts.
            if "--pipeline-splits auto" in line:
                found = " ".join(plan["splits"])
                splits[name] = splits.get(name, found)
                chosen[name] = line.replace("--pipeline-splits auto",
                                            f"--pipeline-splits {splits[name]}")
            one = measured(millrace, chosen[name], splits.get(name, ""))
            two = measured(millrace, chosen[name], splits.get(name, ""))
            samples[name].append((step, one[0], two[0], bubble, one[1]))
            print(f"round {turn + 1}: {name}: {step:.1f} planned, {one[0]:.1f}, {two[0]:.1f} run",
                  file=sys.stderr, flush=True)
    print("| layout | planned | run | error | repeat | all runs | waiting planned | run |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    errors = []
    for name, rows in samples.items():
        plan, one, two, planned_bubble, bubble = (statistics.median(c) for c in zip(*rows))
        errors.append(100 * (plan / one - 1))
        every = [time for row in rows for time in row[1:3]]
        print(f"| {name} | {plan:.0f} ms | {one:.0f} ms | {errors[-1]:+.1f} % | "
              f"{100 * (two / one - 1):+.1f} % | {min(every):.0f} to {max(every):.0f} ms | "
              f"{planned_bubble:.1f} % | {bubble:.1f} % |")
    sizes = [abs(e) for e in errors]
    print(f"\nMean error {statistics.mean(sizes):.1f} %, worst {max(sizes):.1f} %.")


if __name__ == "__main__":
    main()
