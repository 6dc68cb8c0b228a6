#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the variants of variants.toml beside the code as it is, on one GPU, and says which to keep.

Every network that a variant names is measured as it is at the beginning and at the end. A variant counts as faster or
slower where it differs by more than these two do, and by more than one percent. It is to be kept if it is faster with
one of its networks and slower with none.
"""
import argparse
import os
from pathlib import Path

from measure import NETWORKS, bench, in_short, precision, save, skip, time_left, variants_in

LEAST = 0.01


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=Path(__file__).with_name("variants.toml"))
    parser.add_argument("--millrace", required=True, help="the program, of a build with MILLRACE_VARIANTS")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, help="the time for everything")
    parser.add_argument("--json", help="a file for the results")
    return parser.parse_args()


class Measurement:
    """Of networks as "resnet50 256", with settings and without."""

    def __init__(self, options):
        self.options = options
        self.longest = 0.0  # seconds of a run

    def milliseconds(self, case, row=None):
        network, batch = case.split()
        row = row or {}
        before = time_left(self.options.seconds)
        if before < self.longest:
            raise TimeoutError("no time is left")
        words = ["--batch-size", batch, "--steps", str(self.options.steps), *precision("bfloat16")]
        result = bench(self.options.millrace, network, words + row.get("options", "").split(),
                       {**os.environ, **row.get("environment", {})}, row.get("set"))
        if self.options.seconds:
            self.longest = max(self.longest, before - time_left(self.options.seconds))
        return in_short(result["step_ms"])["ms"]


def verdict(gains, noise):
    """Of a variant with these gains by network: 0.02 is 2 % faster than as it is."""
    faster = [case for case, gain in gains.items() if gain > noise[case]]
    slower = [case for case, gain in gains.items() if gain < -noise[case]]
    if faster:
        return "mixed" if slower else "keep"
    return "slower" if slower else "no difference"


def measured(options, rows):
    """Times by variant and network, and those of networks as they are."""
    measurement = Measurement(options)
    cases = list(dict.fromkeys(case for row in rows for case in row["networks"]))
    unchanged = {case: [measurement.milliseconds(case)] for case in cases}
    found = {}
    for row in rows:
        times = {}
        try:
            for case in row["networks"]:
                times[case] = measurement.milliseconds(case, row)
        except (LookupError, TimeoutError, SystemExit) as error:
            print(f"{row['name']}: {error}")
        found[row["name"]] = times
    try:
        for case in cases:
            unchanged[case].append(measurement.milliseconds(case))
    except TimeoutError as error:
        print(f"as it is, once more: {error}")
    return found, unchanged


def judged(rows, found, unchanged):
    """What the file of results says of every variant."""
    noise = {case: max(LEAST, max(times) / min(times) - 1) for case, times in unchanged.items()}
    middle = {case: sum(times) / len(times) for case, times in unchanged.items()}
    results = []
    for row in rows:
        times = found[row["name"]]
        gains = {case: middle[case] / ms - 1 for case, ms in times.items()}
        complete = len(times) == len(row["networks"])
        results.append({**row, "ms": times, "as_it_is": {case: middle[case] for case in row["networks"]},
                        "verdict": verdict(gains, noise) if complete else "not measured"})
    return results


def main():
    options = arguments()
    rows = variants_in(options.file)
    if not rows:
        skip("there are no variants")
    for row in rows:
        for case in row["networks"]:
            if case.split()[0] not in NETWORKS:
                raise SystemExit(f"{options.file}: {row['name']} names an unknown network, {case}")
    results = judged(rows, *measured(options, rows))
    if not any(row["ms"] for row in results):
        skip("this build has no variants: it needs -DMILLRACE_VARIANTS=ON")
    save(options.json, {"variants": results})
    for row in results:
        for case, ms in row["ms"].items():
            base = row["as_it_is"][case]
            print(f"{row['name']:48} {case:20} {ms:8.2f} ms, as it is {base:8.2f} ms: {100 * (base / ms - 1):+.1f} %")
        print(f"{row['name']:48} {row['verdict']}; expected: {' '.join(row['expect'].split())}")
    of = {kind: [row["name"] for row in results if row["verdict"] == kind] for kind in ("keep", "mixed", "not measured")}
    print("; ".join(f"{kind}: {', '.join(names) or 'none'}" for kind, names in of.items()))


if __name__ == "__main__":
    main()
