# SPDX-License-Identifier: Apache-2.0
"""train_onnx.py MILLRACE FOLDER: networks that PyTorch exports train in millrace as in PyTorch.

The networks are exported by both of PyTorch's exporters. Each trains for ten steps in float32, with SGD
and momentum, from the weights in its file; an update reads all 64 images of the data set, so that both
sides see the same images whatever their order. The losses must be those of PyTorch, and the same in three
stages to the last bit of the checkpoint. Exits with 77 if a library is missing.
"""
import csv
import pathlib
import subprocess
import sys
import warnings

try:
    import numpy
    import onnx  # noqa: F401  the exporters need it
    import onnxscript  # noqa: F401
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    sys.exit(77)

IMAGES = 64
STEPS = 10
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def conv_norm(inputs, outputs, size=3, stride=1, groups=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
                         nn.BatchNorm2d(outputs))


class Plain(nn.Module):
    """Dense ops behind a flattened image; a pool that rounds its size up."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(conv_norm(3, 8), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True),
                                  nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU())
        self.hidden = nn.Linear(12 * 8 * 8, 16)
        self.last = nn.Linear(16, 10)

    def forward(self, x):
        return self.last(F.relu(self.hidden(torch.flatten(self.body(x), 1))))


class Dense(nn.Module):
    """Each convolution reads what all before it made."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 + 4 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(8 + 4 * i, 4, 3, 1, 1, bias=False) for i in range(3))
        self.transition = nn.Conv2d(20, 10, 1)
        self.last = nn.Linear(10, 10)

    def forward(self, x):
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs):
            x = torch.cat((x, conv(F.relu(norm(x)))), 1)
        x = F.avg_pool2d(self.transition(x), 2)
        return self.last(F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1))


class Depthwise(nn.Module):
    """Inverted residual with squeeze and excite, once by convolutions and once by dense ops."""

    def __init__(self):
        super().__init__()
        self.stem = conv_norm(3, 8, stride=2)
        self.depthwise = conv_norm(8, 8, groups=8)
        self.reduce, self.expand = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.squeeze, self.excite = nn.Linear(8, 4), nn.Linear(4, 8)
        self.project = conv_norm(8, 8, 1)
        self.last = nn.Linear(8, 10)

    def forward(self, x):
        x = F.silu(self.stem(x))
        y = F.silu(self.depthwise(x))
        y = y * torch.sigmoid(self.expand(F.relu(self.reduce(F.adaptive_avg_pool2d(y, 1)))))
        s = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3))))))
        x = x + self.project(y * s.view(s.size(0), -1, 1, 1))
        return self.last(x.mean((2, 3)))


class Gated(nn.Module):
    """Scales that become images in steps, maxima of images, and normalizations without or in groups."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8, affine=False), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.GroupNorm(4, 8), nn.ReLU(), nn.AvgPool2d(2))
        self.gates = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        largest = x.amax((2, 3))
        x = self.body(x)
        a, b, c = (torch.sigmoid(gate(x.mean((2, 3)))) for gate in self.gates)
        x = x * a.unsqueeze(-1).unsqueeze(-1)
        x = x * b[:, :, None, None]
        x = x * c.unsqueeze(-1).unsqueeze(-1).expand_as(x)
        return self.last(torch.cat((x.mean((2, 3)), largest), 1))


class Mobile(nn.Module):
    """The activations of MobileNets and Darknet."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, 8, stride=2), nn.Hardswish())
        self.body = nn.Sequential(conv_norm(8, 16, 1), nn.ReLU6(), conv_norm(16, 16, groups=16), nn.LeakyReLU(0.1))
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1),
                                  nn.Hardsigmoid())
        self.project = nn.Sequential(conv_norm(16, 8, 1), nn.Hardtanh(-1.5, 2))
        self.last = nn.Linear(8, 10)

    def forward(self, x):
        x = self.stem(x)
        y = self.body(x)
        return self.last((x + self.project(y * self.gate(y))).mean((2, 3)))


def export(network, path, newer):
    images = (torch.zeros(1, 3, 32, 32),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if newer:
            torch.onnx.export(network.train(), images, str(path), dynamo=True, optimize=False,
                              external_data=True, verbose=False)
        else:
            torch.onnx.export(network.train(), images, str(path), dynamo=False, do_constant_folding=False,
                              training=torch.onnx.TrainingMode.TRAINING, input_names=["images"],
                              dynamic_axes={"images": {0: "N"}})


def millrace(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def read_images(folder):
    records = numpy.concatenate([numpy.fromfile(f, numpy.uint8).reshape(-1, 3073)
                                 for f in sorted(folder.glob("data_batch_*.bin"))])
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).astype(numpy.float32) / 255
    mean, deviation = (numpy.float32(v).reshape(3, 1, 1) for v in (MEAN, DEVIATION))
    return torch.from_numpy((pixels - mean) / deviation), torch.from_numpy(records[:, 0].astype(numpy.int64))


def losses_of(network, images, labels, rate):
    optimizer = torch.optim.SGD(network.train().parameters(), lr=rate, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained(program, file, data, run, rate, *more):
    millrace(program, "train", "--model", file, "--dataset", "cifar-10", "--data-dir", data, "--normalise", "imagenet",
             "--train-with-valid-preprocessing", "--batch-size", IMAGES, "--iterations", STEPS, "--optimiser", "momentum",
             "--abs-learning-rate", rate, "--lr-schedule", "stepped", "--learning-rate-schedule", "1", "--weight-decay", 0,
             "--precision", "32.32", "--no-validation", "--threads-per-device", 1, "--log-freq", 1, "--run-dir", run,
             *more)
    with open(run / "training.csv", newline="") as file:
        losses = [float(row["loss_batch"]) for row in csv.DictReader(file)]
    return losses, millrace(program, "inspect", run, "--digest")


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    data = folder / "cifar-10-batches-bin"
    millrace(program, "data", "generate", data, "--train-images", IMAGES, "--test-images", 16)
    images, labels = read_images(data)
    failed = False
    for network, rate in ((Plain, 0.05), (Dense, 0.2), (Depthwise, 0.2), (Gated, 0.1), (Mobile, 0.2)):
        for newer in (False, True):
            torch.manual_seed(1)
            net = network()
            name = f"{network.__name__}-{'newer' if newer else 'older'}"
            file = folder / f"{name}.onnx"
            export(net, file, newer)
            one, digest = trained(program, file, data, folder / name, rate)
            _, other = trained(program, file, data, folder / f"{name}-stages", rate, "--shards", 3, "--ranks", 1,
                               "--pipeline-splits", "auto")
            expected = losses_of(net, images, labels, rate)
            errors = [abs(a - b) / b for a, b in zip(one, expected)]
            print(f"{name}: losses {expected[0]:.4f} to {expected[-1]:.4f}, largest relative error "
                  f"{max(errors[:3]):.1e} in 3 steps, {max(errors):.1e} in {STEPS}; "
                  f"{'equal' if digest == other else 'DIFFERENT'} digests in 3 stages")
            failed |= len(one) != STEPS or max(errors[:3]) > 2e-6 or max(errors) > 1e-4 or digest != other
    sys.exit(1 if failed else 0)


main()
