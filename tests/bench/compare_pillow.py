#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the speed of reading photos with Pillow, as torchvision does, and with millrace.

Usage: compare_pillow.py [--rounds N] [--bench FILE] [--shard FILE] [--draw FILE.svg]

Both sides take turns. They decode photos of ImageNet, crop at random, resize to 224 x 224, mirror and
normalize, in one thread on one core. Pillow's side makes the same calls of Pillow and PyTorch as
torchvision's usual transforms: RandomResizedCrop (bilinear), RandomHorizontalFlip, ToTensor, Normalize.
Rates are by CPU time. Ratios are computed for each round; the medians over the rounds are reported. There
are three bars for preset tf, with bfloat16 output: at least 0.85 x the rate of only decoding the same boxes,
1.15 x the rate of decoding whole photos, 2.5 x Pillow's rate. --draw draws the rates as a figure.

Exit code: 0 all bars met, 1 a ratio is below its bar, 2 something could not run.
Needs Pillow and PyTorch (scripts/setup --with-bench installs Debian's for /usr/bin/python3), the program
images_bench, the photos, and a quiet machine.
"""
from __future__ import annotations

import argparse
import io
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn


def stop(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


try:
    import numpy as np
    import torch
    from PIL import Image
    from torch import Tensor
except ImportError as error:
    stop(f"{sys.executable} cannot import what this needs ({error}); scripts/setup --with-bench installs it "
         "for /usr/bin/python3")

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("MILLRACE_TEST_DATA", ROOT / "../shared/data"))
SIDE = 224
EPOCHS = 2
MEAN = [0.485, 0.456, 0.406]
DEVIATION = [0.229, 0.224, 0.225]
WHOLE, BOX, OURS, TORCH = "decode/whole", "decode/box/tf", "training/tf", "training/torch"
PACKED = "load/packed/tf/1/real_time"
BARS = {
    "Pillow": "Pillow and PyTorch, as torchvision calls them",
    WHOLE: "libjpeg-turbo: decoding the whole photo only",
    TORCH: "millrace, preset torch: resampling bit-identical to Pillow",
    OURS: "millrace, preset tf",
    PACKED: "millrace, preset tf, from packed images",
}


# ---- Pillow's side --------------------------------------------------------------------------------


def take_varint(record: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = record[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place


def encoded_in(record: bytes) -> bytes:
    """The key is followed by tag and length of the feature, of its list of bytes, and of the first item."""
    key = b"image/encoded"
    place, size = record.index(key) + len(key), 0
    for _ in range(3):
        size, place = take_varint(record, place + 1)
    return record[place:place + size]


def read_photos(shard: Path) -> list[bytes]:
    file = shard.read_bytes()
    lines = Path(f"{shard}.idx").read_text().splitlines()
    places = [tuple(map(int, line.split())) for line in lines]
    return [encoded_in(file[offset:offset + size]) for offset, size in places]


def uniform(low: float, high: float) -> float:
    return torch.empty(1).uniform_(low, high).item()


def draw_box(width: int, height: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop; the whole image if it finds no box, which does not happen with photos."""
    ratios = torch.log(torch.tensor((3 / 4, 4 / 3)))
    for _ in range(10):
        area = width * height * uniform(0.08, 1.0)
        aspect = torch.exp(torch.empty(1).uniform_(ratios[0], ratios[1])).item()
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = torch.randint(0, height - h + 1, size=(1,)).item()
            left = torch.randint(0, width - w + 1, size=(1,)).item()
            return left, top, left + w, top + h
    return 0, 0, width, height


def to_tensor(image: Image.Image) -> Tensor:
    pixels = torch.from_numpy(np.array(image, np.uint8, copy=True)).view(SIDE, SIDE, 3)
    return pixels.permute((2, 0, 1)).contiguous().to(dtype=torch.float32).div(255)


def normalised(tensor: Tensor) -> Tensor:
    mean, deviation = torch.as_tensor(MEAN), torch.as_tensor(DEVIATION)
    return tensor.clone().sub_(mean.view(-1, 1, 1)).div_(deviation.view(-1, 1, 1))


def prepare(photo: bytes) -> Tensor:
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    image = image.crop(draw_box(*image.size)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    if torch.rand(1) < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return normalised(to_tensor(image))


def pillow_rate(photos: list[bytes]) -> float:
    begin = time.process_time()
    for _ in range(EPOCHS):
        for photo in photos:
            prepare(photo)
    return EPOCHS * len(photos) / (time.process_time() - begin)


# ---- the figure -----------------------------------------------------------------------------------


def bar(row: int, words: str, rate: float, most: float) -> list[str]:
    left, full, height, y = 24, 640, 20, 74 + 46 * row
    width = max(2.0, full * rate / most)
    colour = "#0b6bcb" if words.startswith("millrace") else "#9aa7b8"
    return [f'<text x="{left}" y="{y - 6}" fill="#24303c">{words}</text>',
            f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>',
            f'<text x="{left + width + 8:.1f}" y="{y + 15}" fill="#24303c" font-weight="bold">'
            f'{rate:,.0f}/s</text>']


def draw(rates: dict[str, float]) -> str:
    most = max(rates[name] for name in BARS)
    bars = [bar(i, words, rates[name], most) for i, (name, words) in enumerate(BARS.items())]
    return "\n".join([
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 306" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="760" height="306" fill="white"/>',
        '<text x="24" y="26" fill="#24303c" font-size="15">Photos of 500 x 375 per second on one core</text>',
        '<text x="24" y="44" fill="#24303c">decode, crop at random, resize to 224, mirror, normalize</text>',
        *(line for lines in bars for line in lines), "</svg>", ""])


# ---- the comparison -------------------------------------------------------------------------------


def our_rates(bench: Path, shard: Path) -> dict[str, float]:
    names = "|".join([WHOLE, BOX, OURS, TORCH, PACKED])
    command = [str(bench), f"--benchmark_filter=^({names})$", "--benchmark_format=json",
               "--benchmark_repetitions=3", "--benchmark_enable_random_interleaving=true",
               "--benchmark_report_aggregates_only=true", "--benchmark_min_time=0.1", str(shard)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        stop(f"exit code {done.returncode} from: {' '.join(command)}\n{done.stderr.strip()}")
    runs = json.loads(done.stdout)["benchmarks"]
    return {run["run_name"]: run["images/s"] for run in runs if run["aggregate_name"] == "median"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds per side; the sides take turns (default 5)")
    parser.add_argument("--bench", type=Path, default=ROOT / "build/default/images_bench", metavar="FILE",
                        help="path of images_bench (default build/default/images_bench)")
    parser.add_argument("--shard", type=Path, metavar="FILE",
                        default=DATA / "tfrecord_imagenet_photos/train-00000-of-00002")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw the medians to FILE (SVG)")
    arguments = parser.parse_args()
    for file in (arguments.bench, arguments.shard):
        if not file.is_file():
            stop(f"{file} does not exist")
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [core])
    print(f"core {core} of {os.cpu_count()}; load average before: {os.getloadavg()[0]:.1f}")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    photos = read_photos(arguments.shard)
    pillow_rate(photos[:5])
    rounds = []
    for i in range(max(arguments.rounds, 1)):
        rounds.append({**our_rates(arguments.bench, arguments.shard), "Pillow": pillow_rate(photos)})
        print(f"round {i + 1}: " + ", ".join(f"{n} {r:.0f}" for n, r in rounds[-1].items()), flush=True)
    bars = [(OURS, BOX, 0.85), (OURS, WHOLE, 1.15), (OURS, "Pillow", 2.5), (TORCH, "Pillow", None)]
    missed = False
    for ours, other, bar in bars:
        ratio = statistics.median(r[ours] / r[other] for r in rounds)
        missed = missed or (bar is not None and ratio < bar)
        verdict = "no bar" if bar is None else f"{bar} {'met' if ratio >= bar else 'missed'}"
        print(f"{ours:14} : {other:14} {ratio:5.2f}  {verdict}")
    if arguments.draw:
        arguments.draw.write_text(draw({n: statistics.median(r[n] for r in rounds) for n in rounds[0]}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
