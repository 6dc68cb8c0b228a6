# SPDX-License-Identifier: Apache-2.0
"""compare_weights.py MILLRACE FOLDER: networks of torchvision and timm go through millrace and back.

For each network a file of torch.save with random weights is imported, and exported as safetensors
and ONNX; the logits of both must be those of PyTorch. Exits with 77 if a library is missing.
"""
import pathlib
import subprocess
import sys

try:
    import numpy
    import onnx
    import onnxruntime
    import timm
    import torch
    import torchvision
    from safetensors.torch import load_file
except ImportError:
    sys.exit(77)

NETWORKS = {
    "torchvision": ["resnet18", "resnet50", "resnext50_32x4d", "squeezenet1_0", "efficientnet_b0"],
    "timm": ["resnet34", "seresnext50_32x4d", "efficientnet_b0"],
}


def fresh(library, name):
    network = getattr(torchvision.models, name)() if library == "torchvision" else \
        timm.create_model(name)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.8, 1.2)
            torch.nn.init.uniform_(module.weight, 0.3, 0.6)
            torch.nn.init.normal_(module.bias, 0, 0.1)
    return network.eval()


def millrace(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)


def logits(network, images):
    with torch.no_grad():
        return network(images).numpy()


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.manual_seed(1)
    images = torch.randn(2, 3, 224, 224)
    worst = 0.0
    for library, names in NETWORKS.items():
        for name in names:
            place = folder / f"{library}-{name}"
            network = fresh(library, name)
            torch.save({"epoch": 1, "state_dict": network.state_dict()}, f"{place}.pth")
            expected = logits(network, images)
            millrace(program, "import", f"{place}.pth", place)
            millrace(program, "export", place, "--to", "onnx", "--output", f"{place}.onnx")
            millrace(program, "export", place, "--like", library, "--output", f"{place}.safetensors")
            onnx.checker.check_model(onnx.load(f"{place}.onnx"), full_check=True)
            session = onnxruntime.InferenceSession(f"{place}.onnx")
            graph = session.run(None, {"images": images.numpy()})[0]
            tensors = load_file(f"{place}.safetensors")
            counters = {k: v for k, v in network.state_dict().items() if k.endswith("tracked")}
            network.load_state_dict({**counters, **tensors}, strict=True)
            scale = max(1.0, numpy.abs(expected).max())
            errors = [numpy.abs(graph - expected).max() / scale,
                      numpy.abs(logits(network, images) - expected).max() / scale]
            print(f"{library} {name}: ONNX {errors[0]:.1e}, safetensors {errors[1]:.1e}")
            worst = max(worst, *errors)
    sys.exit(0 if worst < 1e-5 else 1)


main()
