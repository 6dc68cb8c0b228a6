#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the example of docs/checkpoints.md and compares what it reads with safetensors.

read_hdf5.py DOCS FOLDER: FOLDER holds resnet-8.h5 and resnet-8.safetensors of one checkpoint and
part.h5, a part of it. Ends with code 77 if a library is missing.
"""
import os
import re
import sys

try:
    import h5py
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(error)
    sys.exit(77)

docs, folder = sys.argv[1:]
with open(docs, encoding="utf-8") as file:
    example = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL).group(1)
os.chdir(folder)
scope = {}
exec(example, scope)  # pylint: disable=exec-used
theirs = load_file("resnet-8.safetensors")
assert torch.equal(scope["weight"], theirs["conv1.weight"]), "the example turns the kernel wrongly"
assert list(scope["names"]) == "disc ring square frame triangle cross plus rows columns checkers".split()

for path in ("resnet-8.h5", "part.h5"):
    with h5py.File(path) as file:
        about = dict(file.attrs)
        assert about["format"] == "millrace checkpoint" and about["format_version"] == 1, about
        assert about["model"] == "resnet-8" and about["layout"] == "OHWI", about
        assert about["classes"] == 10 and list(about["image"]) == [32, 32, 3], about
        assert all(40 < x < 216 for x in about["mean"]), about
        assert all(20 < x < 128 for x in about["deviation"]), about
        kernels, values = [], 0

        def look(name, item):
            global values
            if isinstance(item, h5py.Dataset):
                values += item.size
                if "/kernel" in name:
                    kernels.append(item.attrs["layout"])
                    assert len(item.shape) == len(item.attrs["layout"]), name

        file["parameters"].visititems(look)
        assert sorted(set(kernels)) == ["OHWI", "OI"], kernels
        trained = [t for n, t in theirs.items() if "running" not in n and "num_batches" not in n]
        assert values == sum(t.numel() for t in trained), (path, values)
with h5py.File("resnet-8.h5") as file:
    assert "model-size" in file["config"].asstr()[0]
print("the example reads what safetensors hold")
