# SPDX-License-Identifier: Apache-2.0
"""compare_keras.py MILLRACE FOLDER: networks of Keras go through millrace.

EfficientNets are also compared on the bytes of an image, which they prepare themselves: with the
mean 0 and the variance 1 of weights=None, with those of ImageNet, and with its deviations in the
place of variances, with and without a second rescaling. Bases with a last layer of one's own follow.

Each network has random weights and is saved in every way of Keras, and as Keras 3 before 3.6 did,
without names of layers. Each file is imported and exported as ONNX, whose logits in ONNX Runtime
must be those of Keras. Exits with 77 if a library is missing.
"""
import json
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


def prepared(bytes_of_image, run):
    """The image as the imported run prepares it."""
    manifest = json.loads(next(pathlib.Path(run).glob("checkpoints/*/manifest.json")).read_text())
    how = json.loads(manifest["network"])["preparation"]
    return ((bytes_of_image - numpy.array(how["mean"])) / how["deviation"]).astype(numpy.float32)


def logits_of_bytes(program, file, image):
    """The logits of the bytes of an image after an import."""
    with tempfile.TemporaryDirectory(dir=pathlib.Path(file).parent) as place:
        run, graph = f"{place}/run", f"{place}/graph.onnx"
        millrace(program, "import", file, run)
        millrace(program, "export", run, "--to", "onnx", "--output", graph)
        session = onnxruntime.InferenceSession(graph)
        return session.run(None, {"images": prepared(image, run).transpose(0, 3, 1, 2)})[0]


def with_moments(network, mean, variance, again=None):
    """The network with these moments, and after them with a second rescaling."""
    layers = {layer.name.split("_")[0]: layer for layer in network.layers}
    layers["normalization"].set_weights([numpy.array(mean), numpy.array(variance), numpy.array(0)])
    if again is None:
        return network

    def copied(layer):
        return layer

    def called(layer, *inputs, **more):
        result = layer(*inputs, **more)
        if layer is layers["normalization"]:
            result = keras.layers.Rescaling(again)(result)
        return result

    return keras.models.clone_model(network, clone_function=copied, call_function=called)


def own_head(network):
    """The base of a network, nested, with a dense layer of another name."""
    image = keras.Input(network.input_shape[1:])
    base = keras.Model(network.input, network.layers[-2].output)
    return keras.Model(image, keras.layers.Dense(5, name="photos")(base(image)))


def prepared_inside():
    """Networks that prepare images themselves."""
    mean, deviation = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    roots = [d ** -0.5 for d in deviation]
    network = fresh("EfficientNetB0", 224)
    yield "none", network
    yield "own_head", own_head(network)
    yield "variances", with_moments(network, mean, [d * d for d in deviation])
    yield "deviations", with_moments(network, mean, deviation)
    yield "again", with_moments(network, mean, deviation, roots)


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
    image = numbers.integers(0, 256, (1, 224, 224, 3)).astype(numpy.float32)
    for name, network in prepared_inside():
        expected = network.predict(image, verbose=0)
        for end in (".h5", ".keras"):
            file = f"{folder / name}{end}"
            network.save(file)
            found = logits_of_bytes(program, file, image)
            os.remove(file)
            error = numpy.abs(found - expected).max() / max(1.0, numpy.abs(expected).max())
            print(f"Keras {pathlib.Path(file).name}: bytes {error:.1e}")
            worst = max(worst, error)
    sys.exit(0 if worst < 1e-5 else 1)


main()
