# SPDX-License-Identifier: Apache-2.0
"""What compare.py and stages.py share: runs of `millrace bench`, and rounds within a time."""
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from alike import millrace_side  # noqa: E402

BEGIN = time.monotonic()

# millrace's options for a network as it is in PyTorch: with batch norm, which no network of ImageNet has by default,
# and a loss without smoothed labels.
NETWORKS = {
    "resnet50": "--dataset imagenet --model-size 50 --batch-norm --label-smoothing 0",
    "resnext101": "--dataset imagenet --model resnext --model-size 101 --batch-norm --label-smoothing 0",
    "efficientnet-b0": "--dataset imagenet --model efficientnet --model-size B0 --batch-norm --label-smoothing 0",
    "resnet20": "--dataset cifar-10 --model-size 20 --batch-norm",
    "resnet8": "--dataset cifar-10 --model-size 8 --batch-norm",
}


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def bench(program, network, words, environment=None):
    """Trains on synthetic images and returns the JSON object that bench prints, with its side of a comparison."""
    line = [program, "bench", "--training", "--synthetic-data", "--format", "json"]
    line += NETWORKS[network].split() + ["--optimiser", "momentum"] + words
    try:
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, env=environment)
    except OSError as error:
        sys.exit(f"{program} does not start: {error.strerror}")
    if done.returncode != 0:
        sys.exit(f"failed with exit code {done.returncode}: {' '.join(line)}")
    try:
        result = json.loads(done.stdout.strip().splitlines()[-1])
        return {**result, "side": millrace_side(result)}
    except (IndexError, ValueError):
        sys.exit(f"printed no JSON: {' '.join(line)}")
    except (KeyError, TypeError) as error:
        sys.exit(f"does not say what it measured ({error!r}): {' '.join(line)}")


def rounds(most, seconds):
    """Yields 0, 1, .. up to `most` rounds, and begins none but the first that would probably end
    later than `seconds` after the start of this program."""
    for number in range(most):
        begin = time.monotonic()
        yield number
        now = time.monotonic()
        if seconds and number + 1 < most and now + (now - begin) > BEGIN + seconds:
            print(f"{number + 1} of {most} rounds, because {seconds:.0f} s are over")
            return


def spread(times):
    """The tenth and the ninetieth percent."""
    ordered = sorted(times)
    return f"{ordered[len(ordered) // 10]:.2f} to {ordered[-1 - len(ordered) // 10]:.2f}"
