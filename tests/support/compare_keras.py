# SPDX-License-Identifier: Apache-2.0
"""compare_keras.py MILLRACE FOLDER: networks of Keras go through millrace.

Each network has random weights and is saved in every way of Keras, and as Keras 3 before 3.6 did,
without names of layers. Each file is imported and exported as ONNX, whose logits in ONNX Runtime
must be those of Keras. Exits with 77 if a library is missing.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
try:
    import h5py
    import keras
    import numpy
    import onnxruntime
except ImportError:
    sys.exit(77)

NETWORKS = {"ResNet50": 224, "ResNet101": 224, "EfficientNetB0": 224, "EfficientNetB1": 240}


def fresh(name, size):
    """A network without softmax, its weights and running statistics random."""
    network = getattr(keras.applications, name)(weights=None, classifier_activation=None,
                                                input_shape=(size, size, 3))
    numbers = numpy.random.default_rng(1)
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            n = layer.gamma.shape
            layer.set_weights([numbers.uniform(0.5, 1.0, n), numbers.normal(0, 0.1, n),
                               numbers.normal(0, 0.1, n), numbers.uniform(0.8, 1.2, n)])
        elif getattr(layer, "bias", None) is not None:
            layer.bias.assign(numbers.normal(0, 0.1, layer.bias.shape))
    return network


def logits(network, images):
    """Those of images that are prepared already. Keras' ResNets read blue, green, red."""
    first = next((layer for layer in network.layers if layer.name == "stem_conv_pad"), None)
    if first is None:
        return network.predict(images[..., ::-1], verbose=0)
    return keras.Model(first.input, network.output).predict(images, verbose=0)


def millrace(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)


def saved(network, place):
    """The files of a network."""
    files = [f"{place}{end}" for end in (".h5", ".keras", ".weights.h5", ".numbers.h5")]
    network.save(files[0])
    network.save(files[1])
    network.save_weights(files[2])
    shutil.copy(files[2], files[3])
    with h5py.File(files[3], "a") as file:
        file.visititems(lambda _, item: item.attrs.pop("name", None) and None)
    return files


def imported(program, file, images):
    """The logits of a file after its import."""
    with tempfile.TemporaryDirectory(dir=pathlib.Path(file).parent) as place:
        run, graph = f"{place}/run", f"{place}/graph.onnx"
        millrace(program, "import", file, run)
        millrace(program, "export", run, "--to", "onnx", "--output", graph)
        session = onnxruntime.InferenceSession(graph)
        return session.run(None, {"images": images.transpose(0, 3, 1, 2)})[0]


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    numbers = numpy.random.default_rng(2)
    worst = 0.0
    for name, size in NETWORKS.items():
        images = numbers.normal(size=(2, size, size, 3)).astype(numpy.float32)
        network = fresh(name, size)
        expected = logits(network, images)
        for file in saved(network, folder / name):
            found = imported(program, file, images)
            os.remove(file)
            error = numpy.abs(found - expected).max() / max(1.0, numpy.abs(expected).max())
            print(f"Keras {pathlib.Path(file).name}: ONNX {error:.1e}")
            worst = max(worst, error)
    sys.exit(0 if worst < 1e-5 else 1)


main()
