#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what the hottest kernels do for an element, from the machine code that `cuobjdump -sass`
finds in object files or a program. No GPU is needed.

Counted is the innermost loop with 16-byte accesses or, without one, the way through the kernel: the
fewest instructions past all these accesses, so without slow paths and edges. Threads: how many have
room for their registers in a multiprocessor of an H100. "-": the kernel has no such accesses.
"""
import argparse
import heapq
import re
import subprocess
from pathlib import Path

from measure import refuse

BF16 = "8bfloat16"
# Name, pattern of the mangled name, and how many elements are done with how many loads of 16 bytes (by
# a row of a depthwise window a third or a fifth of four pixels with eight channels). In bfloat16.
KERNELS = (
    ("norm statistics", f"ChunkMomentsI.*{BF16}.*WriteStatistics", 8, 1),
    ("norm + ReLU", f"5ApplyI.*{BF16}.*ActivationE1E.*4SkipE0E", 8, 1),
    ("norm + add + ReLU", f"5ApplyI.*{BF16}.*ActivationE1E.*4SkipE1ELb1E", 8, 2),
    ("norm + norm + ReLU", f"5ApplyI.*{BF16}.*ActivationE1E.*4SkipE2ELb1E", 8, 2),
    ("norm backward, sums", f"6ReduceI.*{BF16}.*ActivationE1ELb0ELb0ELb0ELb0E", 8, 2),
    ("norm backward, sums with add", f"6ReduceI.*{BF16}.*ActivationE1ELb1ELb0ELb1ELb0E", 8, 2),
    ("norm backward, sums with two gradients", f"6ReduceI.*{BF16}.*ActivationE1ELb1ELb1ELb1ELb0E", 8, 3),
    ("norm backward, sums with factors, swish", f"6ReduceI.*{BF16}.*ActivationE2ELb0ELb0ELb0ELb1E", 8, 2),
    ("norm backward, ReLU", f"13BackwardApplyI.*{BF16}.*ActivationE1ELb0E", 8, 2),
    ("norm backward, factors, swish", f"13BackwardApplyI.*{BF16}.*ActivationE2ELb1E", 8, 2),
    ("norm + swish, factors", f"5ApplyI.*{BF16}.*ActivationE2E.*4SkipE0ELb0ELb1E", 8, 1),
    ("swish", f"17ActivationForwardI.*{BF16}.*ActivationE2E", 8, 1),
    ("swish, backward", f"18ActivationBackwardI.*{BF16}.*ActivationE2E", 8, 2),
    ("depthwise 3x3", f"DepthwisePixelsI.*{BF16}.*ForwardTapsILi3ELi1E", 32 / 3, 6),
    ("depthwise 5x5", f"DepthwisePixelsI.*{BF16}.*ForwardTapsILi5ELi1E", 32 / 5, 8),
    ("depthwise backward input 3x3", f"DepthwisePixelsI.*{BF16}.*BackwardTapsILi3ELi1E", 32 / 3, 6),
    ("depthwise backward input 5x5", f"DepthwisePixelsI.*{BF16}.*BackwardTapsILi5ELi1E", 32 / 5, 8),
    ("depthwise weight gradient 3x3", f"PartialRunsI.*{BF16}ELi3ELi1E", 32 / 3, 10),
    ("depthwise weight gradient 5x5", f"PartialRunsI.*{BF16}ELi5ELi1E", 32 / 5, 12),
    ("update, momentum", f"UpdatePieceI.*8MomentumEfLb0E.*{BF16}", 8, 6),
    ("update, RMSprop", f"UpdatePieceI.*7RmsPropEfLb0E.*{BF16}", 8, 8),
    ("global average", f"PixelSumsI.*GlobalAverageForwardI.*{BF16}.*8AsStored", 8, 1),
    ("global average of norm + swish", f"PixelSumsI.*GlobalAverageForwardI.*{BF16}.*ActivationE2E", 8, 1),
    ("gradient of factors, norm + swish", f"PixelSumsI.*ScaleBackwardI.*{BF16}.*ActivationE2E", 8, 2),
)


class Kernel:
    """The instructions of a function of a listing, at addresses, and where they lead."""

    def __init__(self, text):
        lines = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", text, re.M)
        at = {int(address, 16): i for i, (address, _) in enumerate(lines)}
        self.code = [code for _, code in lines]
        self.next = []
        self.loops = []
        for i, code in enumerate(self.code):
            jump = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", code)
            always = re.match(r"(EXIT|RET|BRA (?!P|!P|U))", code)
            self.next.append([] if always or i + 1 == len(lines) else [i + 1])
            if jump and int(jump[1], 16) in at:
                target = at[int(jump[1], 16)]
                self.next[i].append(target)
                if target < i:
                    self.loops.append((target, i))
        self.wide = [i for i, code in enumerate(self.code) if re.search(r"\b(LDG|STG)\S*\.128", code)]

    def steps(self, start, ends, last):
        """The end that the fewest instructions from start lead to, and their number; none after last."""
        cost = {start: 0}
        heap = [(0, start)]
        while heap:
            steps, i = heapq.heappop(heap)
            if i in ends:
                return i, steps
            for j in self.next[i]:
                if j <= last and steps + 1 < cost.get(j, len(self.code)):
                    cost[j] = steps + 1
                    heapq.heappush(heap, (steps + 1, j))
        return None, 0

    def body(self):
        """Instructions and loads of 16 bytes of what is repeated; no loads where there are none."""
        if not any("LDG" in self.code[i] for i in self.wide):
            return 0, 0
        inner = [
            loop for loop in self.loops if not any(loop != o and loop[0] <= o[0] and o[1] <= loop[1] for o in self.loops)
        ]
        count = {(a, b): sum(a <= i <= b for i in self.wide) for a, b in inner}
        first, last = max((o for o in inner if count[o]), key=count.get, default=(0, len(self.code) - 1))
        inside = [i for i in self.wide if first <= i <= last]
        exits = {last} if last + 1 < len(self.code) else {i for i, c in enumerate(self.code) if "EXIT" in c and i > inside[-1]}
        place, total = first, 1
        for ends in [{i} for i in inside] + [exits]:
            reached, steps = self.steps(place, ends, last)
            if reached is not None:
                place, total = reached, total + steps
        return total, sum("LDG" in self.code[i] for i in inside)


def threads_of(registers):
    """A warp has registers in units of 256; each quarter of a multiprocessor has 16,384."""
    return min(2048, 16384 // (-(-registers // 8) * 256) * 128)


def table(listing, usage):
    registers = dict(re.findall(r"Function (\S+):\s+REG:(\d+)", usage))
    kernels = {text.split(None, 1)[0]: text for text in re.split(r"Function : ", listing)[1:]}
    rows = ["| kernel | instructions | registers | threads |", "|---|---|---|---|"]
    for name, pattern, elements, loads in KERNELS:
        for mangled in sorted(k for k in kernels if re.search(pattern, k))[:1]:
            steps, found = Kernel(kernels[mangled]).body()
            each = f"{steps * loads / (elements * found):.1f}" if found else "-"
            rows.append(f"| {name} | {each} | {registers[mangled]} | {threads_of(int(registers[mangled]))} |")
    return "\n".join(rows)


def dumped(program, what, file):
    """What cuobjdump says of a file."""
    if not Path(file).is_file():
        refuse(f"there is no file {file}; name object files of a build with CUDA, or its program")
    try:
        done = subprocess.run([program, what, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        refuse(f"{program} does not start ({error.strerror}); it comes with CUDA, and --cuobjdump names it")
    if done.returncode != 0:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        refuse(f"{program} finds no device code in {file} ({said}); name object files of a build with CUDA, or its program")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="object files, or a program")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    options = parser.parse_args()
    print(table(*("".join(dumped(options.cuobjdump, what, f) for f in options.files) for what in ("-sass", "-res-usage"))))


if __name__ == "__main__":
    main()
