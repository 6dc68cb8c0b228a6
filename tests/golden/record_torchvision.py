#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what torchvision's augmentation gives for the pictures of make_image (test_images.cpp).

Usage: record_torchvision.py [--check FILE]

Writes tests/golden/torchvision/augment.json: for each operation of RandAugment the strengths of all
31 magnitudes, and the pixels that torchvision and Pillow make at some of them; the same for the
functions of color jitter. Pixels are stored as a sum of 32 bits (crc32) and as the first row.
With --check it records into FILE instead.

Needs torchvision and Pillow.
"""
from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path

import PIL
import torchvision
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import autoaugment
from torchvision.transforms import functional

from record_pillow import picture

PLACE = Path(__file__).resolve().parent / "torchvision" / "augment.json"
SIZES = [(32, 32), (57, 41), (224, 224)]  # width, height
MAGNITUDES = [0, 1, 5, 9, 14, 15, 16, 22, 30]
FACTORS = [0.0, 0.3, 0.6, 1.0, 1.27, 1.4, 1.9]
TURNS = [-0.5, -0.21, -0.003, 0.0, 0.1, 0.37, 0.5]


def recorded(image: Image.Image) -> dict:
    data = image.tobytes()
    return {"crc32": zlib.crc32(data), "row": data[: 3 * image.width][-48:].hex()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", type=Path, default=PLACE)
    place = parser.parse_args().check
    strengths, cases, jitters = {}, [], []
    for width, height in SIZES:
        image = picture(width, height)
        space = autoaugment.RandAugment()._augmentation_space(31, (height, width))
        for name, (values, signed) in space.items():
            listed = [float(v) for v in values] if values.ndim else [0.0] * 31
            strengths[f"{name} {width} {height}"] = listed
            for magnitude in MAGNITUDES if values.ndim else [0]:
                for sign in (1.0, -1.0) if signed else (1.0,):
                    strength = sign * listed[magnitude]
                    result = autoaugment._apply_op(image, name, strength, InterpolationMode.NEAREST, None)
                    cases.append({"op": name, "width": width, "height": height, "magnitude": magnitude,
                                  "sign": sign, **recorded(result)})
        for what, values in (("brightness", FACTORS), ("contrast", FACTORS), ("saturation", FACTORS),
                             ("hue", TURNS)):
            for value in values:
                result = getattr(functional, f"adjust_{what}")(image, value)
                jitters.append({"what": what, "width": width, "height": height, "value": value,
                                **recorded(result)})
    place.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case) for case in cases)
    more = ",\n".join(json.dumps(case) for case in jitters)
    head = json.dumps({"torchvision": torchvision.__version__, "pillow": PIL.__version__})[1:-1]
    listed = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in strengths.items())
    place.write_text(f'{{{head},\n"strengths": {{\n{listed}}},\n"cases": [\n{lines}],\n"jitters": [\n{more}]}}\n')


if __name__ == "__main__":
    main()
