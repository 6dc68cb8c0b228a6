#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the variants of variants.toml beside the code as it is, on one GPU, and says which to keep.

Every network that a variant names is measured as it is at the beginning and at the end. A variant counts as faster or
slower where it differs by more than these two do, and by more than one percent. It is to be kept if it is faster with
one of its networks and slower with none. Where the time ends before a network is measured once more, only the one
percent counts, and the results say so. What fails is left out, and --json has the rest from the first variant on.
"""
import argparse
import os
import sys
from pathlib import Path

from measure import bench, in_short, precision, save, skip, time_left, variants_in

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
        self.failures = []

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

    def tried(self, what, cases, row=None):
        """Milliseconds by network, up to the first that cannot be measured."""
        times = {}
        try:
            for case in cases:
                times[case] = self.milliseconds(case, row)
        except (LookupError, TimeoutError, SystemExit) as error:
            print(f"{what}: {error}")
            self.failures.append(error)
        return times


def verdict(gains, noise):
    """Of a variant with these gains by network: 0.02 is 2 % faster than as it is."""
    faster = [case for case, gain in gains.items() if gain > noise[case]]
    slower = [case for case, gain in gains.items() if gain < -noise[case]]
    if faster:
        return "mixed" if slower else "keep"
    return "slower" if slower else "no difference"


def measured(options, rows):
    """The results of all variants, and what failed."""
    measurement = Measurement(options)
    cases = list(dict.fromkeys(case for row in rows for case in row["networks"]))
    unchanged = {case: list(measurement.tried(f"{case} as it is", [case]).values()) for case in cases}
    found = {}
    for row in rows:
        known = [case for case in row["networks"] if unchanged[case]]
        found[row["name"]] = measurement.tried(row["name"], known, row)
        save(options.json, {"variants": judged(rows, found, unchanged)})
    for case, times in unchanged.items():
        if times:
            times += measurement.tried(f"{case} as it is, once more", [case]).values()
    results = judged(rows, found, unchanged)
    save(options.json, {"variants": results})
    return results, measurement.failures


def judged(rows, found, unchanged):
    """What the file of results says of every variant that had its turn."""
    middle = {case: sum(times) / len(times) for case, times in unchanged.items() if times}
    noise = {case: max(LEAST, max(unchanged[case]) / min(unchanged[case]) - 1) for case in middle}
    results = []
    for row in rows:
        if row["name"] not in found:
            continue
        times = found[row["name"]]
        gains = {case: middle[case] / ms - 1 for case, ms in times.items()}
        complete = len(times) == len(row["networks"])
        results.append({**row, "ms": times, "as_it_is": {case: middle[case] for case in row["networks"] if case in middle},
                        "as_it_is_once": [case for case in row["networks"] if len(unchanged[case]) == 1],
                        "verdict": verdict(gains, noise) if complete else "not measured"})
    return results


def end_without_results(failures):
    """Says why there are none."""
    if all(isinstance(error, LookupError) for error in failures):
        skip("this build has no variants: it needs -DMILLRACE_VARIANTS=ON")
    if all(isinstance(error, (LookupError, TimeoutError)) for error in failures):
        skip("there was no time for a variant: --seconds needs to be more")
    sys.exit("no variant was measured: see the failures above")


def main():
    options = arguments()
    rows = variants_in(options.file)
    if not rows:
        skip("there are no variants")
    save(options.json, {"variants": []})
    results, failures = measured(options, rows)
    if not any(row["ms"] for row in results):
        end_without_results(failures)
    for row in results:
        for case, ms in row["ms"].items():
            base = row["as_it_is"][case]
            once = f" (once: noise is taken as {100 * LEAST:.0f} %)" if case in row["as_it_is_once"] else ""
            print(f"{row['name']:48} {case:20} {ms:8.2f} ms, as it is {base:8.2f} ms{once}: {100 * (base / ms - 1):+.1f} %")
        print(f"{row['name']:48} {row['verdict']}; expected: {' '.join(row['expect'].split())}")
    of = {kind: [row["name"] for row in results if row["verdict"] == kind] for kind in ("keep", "mixed", "not measured")}
    print("; ".join(f"{kind}: {', '.join(names) or 'none'}" for kind, names in of.items()))


if __name__ == "__main__":
    main()
