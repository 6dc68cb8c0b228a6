# SPDX-License-Identifier: Apache-2.0
"""Where the time of a training step goes: the kernels that the GPU ran, by kind.

Both sides are timed by the GPU's own clock, through CUPTI: PyTorch by its profiler, millrace by kernel_times.cpp, which
the driver loads into the program. Kept launches stay as they are. The host needs longer for each launch while it is
timed, so the sums here tell what kernels take, and not how long a step lasts.
"""
import os
import re
import tempfile
from pathlib import Path

from measure import bench

# Our kernels by name, the kind being that of the name that comes first in a kernel's type.
OURS = {
    "images": "PreparePieces MixPieces",
    "pools": "MaxForward AverageForward BlockGradients PixelGradients GlobalAverageForward GlobalAverageBackward",
    "norms": "NormTeams SumTiles JoinTiles Apply BackwardApply Coefficients UpdateRunning norm_join_moments "
             "norm_join_sums norm_statistics_from_running norm_statistics_of_sums add_parameter_gradients clear_counters",
    "convolutions": "ConvForward ConvBackwardInput ConvBackwardWeight BiasGradient ChannelSums JoinParts TileProduct Turn "
                    "DepthwisePixels PartialRuns JoinChunks JoinWeights WidenRow NarrowRow one_pixel",
    "optimiser": "UpdatePiece RefreshPiece LarsRatio SquaresOf FlagNonFinite AddParts begin_step exchange move_average "
                 "round_average",
    "loss": "LossByTeam LossOfRow GradientByTeam GradientOfRow",
    "elementwise": "Blocks Pixels ScaleBackward Accumulate DropSamples dropout set_values ShortcutForward ShortcutBackward",
}
OUR_KINDS = {name: kind for kind, names in OURS.items() for name in names.split()}
# Of others, the first that is found in the name says the kind.
KINDS = {
    "pools": r"[Pp]ool|MeanOps",
    "norms": r"[Nn]orm|\bbn_[bf]w|Moments|Statistics",
    "convolutions": r"cudnn|cutlass|xmma|nvjet|cublas|[Gg]emm|[sd]grad|wgrad|fprop|conv|[Dd]epthwise",
    "optimiser": r"optimi[sz]er|multi_tensor",
    "loss": r"[Ss]oft_?[Mm]ax|nll_loss",
    "elementwise": r"elementwise|dropout",
}
STEPS = 8
LOSS = r"\bLoss(ByTeam|OfRow)\b"  # a kernel of ours that runs once in a step


def kind_of(name):
    if "cutlass::" in name:  # which our own products are in
        return "convolutions"
    if "millrace::" in name:
        found = re.search(rf"\b({'|'.join(OUR_KINDS)})\b", name)
        return OUR_KINDS[found[0]] if found else "other"
    for kind, pattern in KINDS.items():
        if re.search(pattern, name):
            return kind
    return "other"


def by_kind(kernels, steps):
    """Milliseconds and launches of a step by kind, and the kernels that take the most, of (name, nanoseconds, launches)."""
    kinds = {}
    for name, nanoseconds, launches in kernels:
        row = kinds.setdefault(kind_of(name), {"ms": 0.0, "launches": 0.0})
        row["ms"] += 1e-6 * nanoseconds / steps
        row["launches"] += launches / steps
    top = [{"ms": 1e-6 * ns / steps, "launches": n / steps, "kernel": name[:200]}
           for name, ns, n in sorted(kernels, key=lambda row: -row[1])[:12]]
    return {"kinds": dict(sorted(kinds.items(), key=lambda row: -row[1]["ms"])), "top": top,
            "ms": sum(row["ms"] for row in kinds.values()), "launches": sum(row["launches"] for row in kinds.values())}


def of_millrace(library, program, network, words):
    """Of steps of the program, with the library that kernel_times.cpp makes. None if it wrote nothing.

    The steps are counted by their losses: bench runs more than it is asked for."""
    words = [*words, "--steps", str(STEPS), "--warmup-steps", "2"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times"
        environment = {**os.environ, "CUDA_INJECTION64_PATH": library, "LD_PRELOAD": "libcupti.so.13",
                       "MILLRACE_KERNEL_TIMES": str(file)}
        bench(program, network, words, environment)
        if not file.is_file():
            return None
        rows = [line.split(" ", 2) for line in file.read_text().splitlines()]
    steps = sum(int(n) for _, n, name in rows if re.search(LOSS, name))
    return by_kind([(name, int(ns), int(n)) for ns, n, name in rows], steps) if steps else None


def of_torch(torch, step):
    """Of steps of PyTorch, of which some have run."""
    count = 3
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    kernels = {}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and "#" not in event.name:  # which names a range
            row = kernels.setdefault(event.name, [0, 0])
            row[0] += 1000 * event.device_time
            row[1] += 1
    return by_kind([(name, *row) for name, row in kernels.items()], count)


def table(sides):
    """Lines of milliseconds and launches by kind; none if no side was timed."""
    if not sides:
        return []

    def line(title, rows):
        cells = [f"{row['ms']:9.2f} ms {row['launches']:6.0f} x" if row else " " * 21 for row in rows]
        return f"{title:20}" + "".join(cells)

    kinds = dict.fromkeys(kind for side in sides.values() for kind in side["kinds"])
    lines = [f"{'kernels of a step':20}" + "".join(f"{name:>21}" for name in sides)]
    lines += [line(kind, [side["kinds"].get(kind) for side in sides.values()]) for kind in kinds]
    return [*lines, line("all", sides.values())]
