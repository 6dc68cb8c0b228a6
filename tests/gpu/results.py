#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes one JSON file of all that the steps of run.sh left in a folder, and prints a short table of it."""
import argparse
import json
import re
import sys
from pathlib import Path

from measure import refuse, save

# What is wanted: times the speed of PyTorch's best mode.
BARS = {
    ("resnet50", 256): 1.6,
    ("resnet50", 32): 1.5,
    ("resnext101", 128): 1.4,
    ("efficientnet-b0", 128): 1.3,
    ("resnet20", 128): 1.5,
}


def text_of(path):
    return path.read_text(errors="replace") if path and path.is_file() else ""


def json_of(path):
    """None if the step that should have written it did not."""
    try:
        return json.loads(text_of(path))
    except ValueError:
        return None


def streaming_in(text):
    """Shares of a copy by kernel, in percent, of what gpu_streaming printed."""
    rows = re.findall(r"^(\S.*?) +[0-9.]+ +[0-9.]+ +([0-9.]+) %$", text, re.MULTILINE)
    return {name: float(share) for name, share in rows}


def steps_in(path):
    """The steps of a run, which run.sh wrote."""
    rows = [re.fullmatch(r"([^\t]+)\t([^\t]+)\t(\d+)\t(.*)", line) for line in text_of(path).split("\n") if line]
    if None in rows:
        refuse(f"{path}: line {rows.index(None) + 1} is not what run.sh writes of a step")
    return [{"name": row[1], "result": row[2], "seconds": int(row[3]), "said": row[4]} for row in rows]


def checked(path, results):
    """Results that a file has, which is refused if no run wrote it."""
    try:
        table(merged({}, results)["measured"])
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        refuse(f"{path} is not what run.sh writes ({error!r})")
    return results


def collected(folder):
    """All that the steps of a run left. What others left in its folder is older."""
    steps = steps_in(folder / "steps.tsv")
    files = {step["name"]: folder / step["name"] for step in steps}
    found = {"machine": text_of(folder / "machine").strip(), "doctor": text_of(files.get("doctor")).splitlines(),
             "steps": steps, "ceilings": json_of(files.get("ceilings")),
             "streaming": streaming_in(text_of(files.get("streaming"))),
             "measured": {name: value for name in sorted(files) if isinstance(value := json_of(folder / f"{name}.json"), dict)
                          and value and checked(folder / f"{name}.json", {"measured": {name: value}})}}
    return {name: value for name, value in found.items() if value}


def merged(new, old):
    """Of two runs on one GPU."""
    machines = [run["machine"] for run in (old, new) if run.get("machine")]
    if len(set(machines)) > 1:
        sys.exit(f"these runs are of different machines: {' and '.join(machines)}")
    names = {step["name"] for step in new.get("steps", [])}
    steps = [step for step in old.get("steps", []) if step["name"] not in names] + new.get("steps", [])
    return {**old, **new, "steps": steps, "measured": {**old.get("measured", {}), **new.get("measured", {})}}


def comparisons(measured):
    """Those of one network, batch and type are one: whatever was measured of PyTorch's modes counts, each beside
    millrace's time in the same step."""
    rows = {}
    for result in measured.values():
        if not result.get("millrace", {}).get("ms"):
            continue
        key = (result["network"], result["batch"], result["type"], result["options"])
        row = rows.setdefault(key, {"pytorch": {}})
        row.update({name: value for name, value in result.items() if name != "pytorch"})
        for mode, times in result.get("pytorch", {}).items():
            row["pytorch"][mode] = {**times, "beside": result["millrace"]["ms"]}
    return rows


def table(measured):
    """Lines for people."""
    lines = [f"{'a step':40}{'millrace':>12}{'img/s':>9}{'set back':>12}{'PyTorch':>12} {'best mode':10}{'times':>6}{'bar':>6}"]
    notes = []
    for (network, batch, kind, options), row in comparisons(measured).items():
        mode = min(row["pytorch"], key=lambda each: row["pytorch"][each]["ms"], default=None)
        ms = row["pytorch"][mode]["beside"] if mode else row["millrace"]["ms"]
        name = f"{network} {batch} {kind} {options}".rstrip()
        before = ""
        if "set_back" in row:
            before = f"{row['set_back']['ms']:.2f} ms"
            notes.append(f"set back in {name}: {', '.join(row['set_back']['set'])}, and no other change")
        line = f"{name:40}{ms:>9.2f} ms{1e3 * batch / ms:>9.0f}{before:>12}"
        if mode:
            best = row["pytorch"][mode]["ms"]
            bar = BARS.get((network, batch), "") if (kind, options) == ("bfloat16", "") else ""
            line += f"{best:>9.2f} ms {mode:10}{best / ms:>6.2f}{bar:>6}"
        lines.append(line.rstrip())
    variants = [row for result in measured.values() for row in result.get("variants", [])]
    for row in variants:
        once = ", ".join(row.get("as_it_is_once", []))
        notes.append(f"variant {row['name']}: {row['verdict']}" + (f" (measured once as it is: {once})" if once else ""))
    return lines + notes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("earlier", type=Path, nargs="*", metavar="RESULTS.json",
                        help="of earlier runs on the same GPU, such as one for PyTorch's compiled mode: what FOLDER has "
                        "again counts, the rest stays")
    options = parser.parse_args()
    folder = options.folder
    if not folder.is_dir():
        sys.exit(f"there is no folder {folder}")
    results = collected(folder)
    for other in options.earlier:
        if not isinstance(old := json_of(other), dict) or "steps" not in old:
            refuse(f"{other} has no results of run.sh")
        results = merged(results, checked(other, old))
    save(folder / "results.json", results)
    if results.get("measured"):
        print("\n".join(table(results["measured"])))
    print(f"all results: {folder / 'results.json'}")


if __name__ == "__main__":
    main()
