# SPDX-License-Identifier: Apache-2.0
"""Whether two programs trained the same: each says what it trained, and a comparison stops where they differ.

A side is a dictionary: "parameters" (trainable numbers), "products" (convolutions and dense layers), "BatchNorm" and
"GroupNorm" (their numbers), "type" of the activations, "images" of a step, "stages", "replicas", "micro-batches" of a
replica, and "schedule" where there are several stages.
"""
from collections import Counter

KINDS = {"Conv2d": "products", "Linear": "products", "BatchNorm2d": "BatchNorm", "GroupNorm": "GroupNorm"}


def torch_network(modules):
    """What networks of PyTorch say of themselves; several are the stages of one."""
    counts = Counter(KINDS.get(type(part).__name__) for module in modules for part in module.modules())
    return {"parameters": sum(p.numel() for module in modules for p in module.parameters()),
            **{kind: counts[kind] for kind in ("products", "BatchNorm", "GroupNorm")}}


def millrace_side(result):
    """What `millrace bench --format json` says of what it measured."""
    ops = result["ops"]
    side = {"parameters": result["parameters"], "products": ops.get("Conv", 0) + ops.get("Dense", 0),
            "BatchNorm": ops.get("BatchNorm", 0), "GroupNorm": ops.get("GroupNorm", 0), "type": result["type"],
            "images": result["images_per_step"], "stages": result["stages"], "replicas": result["replicas"],
            "micro-batches": result["micro_batches"]}
    return {**side, "schedule": result["schedule"]} if result["stages"] > 1 else side


def differences(names, first, second):
    """A line for all that the sides say differently; "" if they are alike."""
    keys = [key for key in dict.fromkeys([*first, *second]) if first.get(key) != second.get(key)]
    if not keys:
        return ""
    said = ", ".join(f"{key} {first.get(key, 'unsaid')} and {second.get(key, 'unsaid')}" for key in keys)
    return f"{names[0]} and {names[1]} trained different things: {said}"


def in_words(side):
    """For the output of a comparison."""
    return ", ".join(f"{value} {key}" if isinstance(value, int) else f"{key} {value}" for key, value in side.items())
