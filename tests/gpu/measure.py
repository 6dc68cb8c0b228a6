# SPDX-License-Identifier: Apache-2.0
"""What the other scripts here share: runs of `millrace bench`, variants of kernels that a run may have,
and rounds within a time."""
import json
import os
import re
import statistics
import subprocess
import sys
import time
import tomllib
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


def refuse(why):
    """Ends a program that was called with what it cannot work with: one line, and exit code 2."""
    print(f"{Path(sys.argv[0]).name}: {why}", file=sys.stderr)
    sys.exit(2)


def bench(program, network, words, environment=None, settings=None):
    """Trains on synthetic images and returns the JSON object that bench prints, with its side of a comparison. `settings`
    are numbers by the names of src/ops/variants.hpp; LookupError if the run came across no such choice."""
    line = [program, "bench", "--training", "--synthetic-data", "--format", "json"]
    line += NETWORKS[network].split() + ["--optimiser", "momentum"] + words
    wanted = {f"MILLRACE_VARIANT_{name}": str(value) for name, value in (settings or {}).items()}
    try:
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE if wanted else None, text=True,
                              env={**(environment or os.environ), **wanted})
    except OSError as error:
        sys.exit(f"{program} does not start: {error.strerror}")
    if done.returncode != 0:
        sys.exit(f"failed with exit code {done.returncode}: {' '.join(line)}")
    missing = [name for name, value in wanted.items() if f"{name} is {value}" not in done.stderr.splitlines()]
    if missing:
        raise LookupError(f"this build, or {network}, has no {' and '.join(missing)}")
    try:
        result = json.loads(done.stdout.strip().splitlines()[-1])
        return {**result, "side": millrace_side(result)}
    except (IndexError, ValueError):
        sys.exit(f"printed no JSON: {' '.join(line)}")
    except (KeyError, TypeError) as error:
        sys.exit(f"does not say what it measured ({error!r}): {' '.join(line)}")


# What a row of variants.toml may have.
FIELDS = {"name": (str, "a text"), "networks": (list, "a list"), "expect": (str, "a text"), "before": (bool, "true or false"),
          "options": (str, "a text"), "set": (dict, "names with numbers"), "environment": (dict, "names with texts")}


def why_not(row):
    """What keeps a row of variants.toml from being measured, if anything does."""
    for key, (kind, said) in FIELDS.items():
        value = row.get(key, kind())
        each = {"set": int, "environment": str}.get(key)
        if type(value) is not kind or each and not all(
                type(of) is each and re.fullmatch(r"\w+", name, re.ASCII) for name, of in value.items()):
            return f"has {key} = {value!r}; it needs {said}"
        if key in ("name", "networks", "expect") and not value:
            return f"needs {key}, {said}"
    for case in row["networks"]:
        if not re.fullmatch(f"({'|'.join(NETWORKS)}) [1-9][0-9]*", str(case)):
            return (f"has the network '{case}'; it needs a name and images, as in 'resnet50 256', "
                    f"and names are {', '.join(NETWORKS)}")
    changes = ("set",) if row.get("before") else ("set", "environment", "options")
    if not any(row.get(key) for key in changes):
        return f"needs {' or '.join(changes)}{', as it is marked before' if row.get('before') else ''}"
    unknown = [key for key in row if key not in FIELDS]
    return unknown and f"has {unknown[0]}; there are only {', '.join(FIELDS)}"


def variants_in(path):
    """The rows of variants.toml; others than its head describes are refused."""
    try:
        with open(path, "rb") as file:
            rows = tomllib.load(file).get("variant")
    except OSError as error:
        refuse(f"{path} cannot be read ({error.strerror}); name a file such as tests/gpu/variants.toml")
    except ValueError as error:
        refuse(f"{path} is not TOML: {error}")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        refuse(f"{path} has no [[variant]]; where none is left to measure, it says variant = []")
    for number, row in enumerate(rows, 1):
        if why := why_not(row) or (row["name"] in [other["name"] for other in rows[:number - 1]] and "has the name of another"):
            refuse(f"{path}: variant {number}, {row.get('name', 'without a name')}, {why}")
    return rows


def precision(kind):
    """The options of a type of activations."""
    return ["--precision", "16.32"] + (["--half", "fp16"] if kind == "float16" else [])


def time_left(seconds):
    """Of `seconds` since the start of this program."""
    return BEGIN + seconds - time.monotonic() if seconds else float("inf")


def rounds(most, seconds, before=0.0):
    """Yields 0, 1, .. up to `most` rounds, and begins none but the first that would probably end
    later than `seconds` after the start of this program. A part of the first round took `before`."""
    for number in range(most):
        begin = time.monotonic() - (before if number == 0 else 0.0)
        yield number
        now = time.monotonic()
        if seconds and number + 1 < most and now + (now - begin) > BEGIN + seconds:
            print(f"{number + 1} of {most} rounds, because {seconds:.0f} s are over")
            return


def spread(times):
    """The tenth and the ninetieth percent."""
    ordered = sorted(times)
    return f"{ordered[len(ordered) // 10]:.2f} to {ordered[-1 - len(ordered) // 10]:.2f}"


def in_short(times):
    """What a file of results says of the milliseconds of steps."""
    ordered = sorted(times)
    return {"ms": round(statistics.median(ordered), 4), "p10": round(ordered[len(ordered) // 10], 4),
            "p90": round(ordered[-1 - len(ordered) // 10], 4), "times": len(ordered)}


def save(path, value):
    """Writes a JSON file whole, so that a program that is stopped leaves what it knew."""
    if path:
        new = Path(f"{path}.new")
        try:
            new.write_text(json.dumps(value, indent=1) + "\n")
            new.replace(path)
        except OSError as error:
            refuse(f"{path} cannot be written ({error.strerror}); name a file in a folder that exists")
