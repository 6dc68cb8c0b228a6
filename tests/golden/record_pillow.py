#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Records what Pillow's resize gives for the pictures of tests/io/images/resample_test.cpp.

Usage: record_pillow.py

Writes tests/golden/pillow/resize.json. The pictures are a closed formula of their size, which
tes../io/images/test_images.cpp computes as well, so that only results are stored: as torchvision does with
a picture of Pillow's, a box is cut out, resized to a square, and mirrored or not.

Needs Pillow (scripts/setup --with-bench installs Debian's for /usr/bin/python3).
"""
from __future__ import annotations

import json
from pathlib import Path

import PIL
from PIL import Image, ImageOps

PLACE = Path(__file__).resolve().parent / "pillow" / "resize.json"
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
# width, height, (left, top, right, bottom), side, mirrored
CASES = [
    (40, 30, (0, 0, 40, 30), 12, False),
    (40, 30, (3, 5, 37, 28), 12, True),
    (200, 150, (0, 0, 200, 150), 12, False),
    (200, 150, (17, 30, 190, 149), 9, True),
    (31, 17, (2, 1, 30, 8), 13, False),
    (12, 9, (0, 0, 12, 9), 16, False),
    (12, 9, (1, 2, 8, 7), 16, True),
    (5, 4, (1, 1, 2, 3), 8, False),
    (20, 20, (2, 2, 18, 18), 16, False),
]


def picture(width: int, height: int) -> Image.Image:
    data = bytearray()
    for y in range(height):
        for x in range(width):
            for c in range(3):
                slope = (3 * x + 2 * y) * (c + 1)
                edge = (x // 5 + y // 7) % 2 * 90
                mixed = x * 2654435761 ^ y * 2246822519 ^ c * 3266489917
                data.append((slope % 131 + edge + ((mixed & 0xFFFFFFFF) >> 27)) & 255)
    return Image.frombytes("RGB", (width, height), bytes(data))


def main() -> None:
    cases = []
    for width, height, box, side, mirror in CASES:
        for name, resampling in FILTERS.items():
            result = picture(width, height).crop(box).resize((side, side), resampling)
            result = ImageOps.mirror(result) if mirror else result
            cases.append({"width": width, "height": height, "box": box, "side": side, "mirror": mirror,
                          "filter": name, "rgb": result.tobytes().hex()})
    lines = ",\n".join(json.dumps(case) for case in cases)
    PLACE.parent.mkdir(exist_ok=True)
    PLACE.write_text(f'{{"pillow": "{PIL.__version__}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
