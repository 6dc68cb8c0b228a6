# SPDX-License-Identifier: Apache-2.0
"""compare_keras.py MILLRACE FOLDER: networks of Keras go through millrace.

For each network an HDF5 file of Keras with random weights is imported and exported as ONNX, whose
logits in ONNX Runtime must be those of Keras. Exits with 77 if a library is missing.
"""
import os
import pathlib
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
try:
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


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    numbers = numpy.random.default_rng(2)
    worst = 0.0
    for name, size in NETWORKS.items():
        place = folder / name
        images = numbers.normal(size=(2, size, size, 3)).astype(numpy.float32)
        network = fresh(name, size)
        network.save(f"{place}.h5")
        millrace(program, "import", f"{place}.h5", place)
        millrace(program, "export", place, "--to", "onnx", "--output", f"{place}.onnx")
        session = onnxruntime.InferenceSession(f"{place}.onnx")
        found = session.run(None, {"images": images.transpose(0, 3, 1, 2)})[0]
        expected = logits(network, images)
        error = numpy.abs(found - expected).max() / max(1.0, numpy.abs(expected).max())
        print(f"Keras {name}: ONNX {error:.1e}")
        worst = max(worst, error)
    sys.exit(0 if worst < 1e-5 else 1)


main()
