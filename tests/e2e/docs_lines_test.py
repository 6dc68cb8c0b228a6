#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every command line of millrace in README.md, docs/ and the pages of configs/, as it is written there. Of
docs/guides.md it runs the whole lines without mpirun; tests/tools/dialects/guides_test.cpp resolves all of them.

The lines find what they name (data, runs, photos, a plan) in a folder of small stand-ins. Trainings end before their
first update (--compile-only), benchmarks measure one step of a smaller network, and launchers of other machines print
what they would start. A line that fails, also one in a sentence, or names something that is not there, is to be mended,
in the documents or below: SMALLER, WHOLE or NOT_RUN. One whose sentence says that it is refused must be.

Usage: docs_lines_test.py MILLRACE [-v] [PART ..]    only lines that contain one of the parts
"""
from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "configs/README.md", ROOT / "configs/launch/README.md",
         *sorted((ROOT / "docs").glob("*.md"))]

# Lines that do not run here, and why.
NOT_RUN = {
    "millrace train OPTIONS..": "the reader fills in the options; tests/e2e/supervise.sh runs such lines",
    "sbatch ": "needs Slurm; the script is tested by tests/e2e/supervise.sh",
}

# Words of documents, and smaller ones that take their place, in lines that contain a part.
SMALLER = [
    ("", "build/default/millrace", "millrace"),
    ("", "build/fake-device/millrace", "millrace"),
    ("", "ckpt-500", "ckpt-100"),
    ("train ...", "train ...", "train --dataset imagenet --data-dir pets --model-size 18"),
    ("--model-size 8 ...", "...", "--dataset cifar-10"),
    ("", "layer3/0/conv1/Conv", "b2/0"),
    ("bench ...", "bench ...", "bench --dataset imagenet --data-dir OUT --model-size 50"),
    ("--dialect NAME", "NAME", "nvidia"),
    ("data generate DIR", "DIR", "NEW"),
    ("train", "--run-dir runs/pets", "--run-dir runs/new"),
    ("predict", "IMAGE", "photo.jpg"),
    ("--dataset cifar-10", "--data-dir DIR", "--data-dir data"),
    ("--devices", "--devices 64 --total-batch 8192", "--devices 2 --total-batch 64"),
    ("benchmark", "--data_dir=DIR", "--data_dir=pets"),
    ("--data_dir=DIR", "--data_dir=DIR", "--data_dir=DIR --smoke"),
    ("--config ipu-resnet50", "--data-dir path/to/imagenet", "--data-dir path/to/imagenet --smoke"),
    ("bench", "--dataset imagenet --model-size 50", "--dataset cifar-10 --model-size 8 --steps 1 --warmup-steps 0"),
    ("bench", "--model-size 50", "--model-size 18 --image-size 32 --steps 1 --warmup-steps 0"),
    ("import resnet50.pth", "millrace import", "rm -r runs/resnet50; millrace import"),
    ("benchmark", "--warmup_steps 200 --batch_size 8", "--warmup_steps 1 --batch_size 1 --steps 1"),
    ("benchmark", "--warmup_steps 20 --train_iter 100", "--warmup_steps 1 --train_iter 2"),
    ("bench", "1,2,4,8,16,32,64,128,256", "1,2"),
    ("bench", "--batch-size 256", "--batch-size 8"),
    ("bench", "--warmup-steps 2 --steps 10", "--warmup-steps 0 --steps 1"),
    ("bench", " --warmup-steps 1 --steps 4", ""),
    ("bench --config", "--config nvidia-resnet50-50epochs", "--config nvidia-resnet50-50epochs --image-size 32 "
     "--batch-size 2 --steps 1 --warmup-steps 0"),
    ("--dialect ipu", "--restore-path D", "--restore-path RUN_DIR"),
    ("data check D", "data check D", "data check imagenet"),
    ("--config surfsara-resnet50-8k", "--data-dir imagenet", "--data-dir imagenet --smoke"),
    ("--dialect ipu", "--model-size 20", "--model-size 8"),
    ("--elastic", "--replicas 4", "--replicas 2"),
    ("--elastic", "--hosts hosts.txt ", ""),  # nobody could ask them here
    ("--repeat 10", "--repeat 10", "--image-size 32 --max-eval-steps 1 --repeat 2"),
]

# Commands in sentences, which leave out what is not their point, and whole ones.
WHOLE = {
    "millrace train --config FILE": "millrace train --config resnet20-cifar10",
    "millrace train --shards S --replicas R OPTIONS..": "millrace train --shards 2 --replicas 1 --pipeline-depth 2 "
                                                        "--pipeline-splits auto --dataset cifar-10 --model-size 8",
    "millrace train --hosts node1:4 node2:4 OPTIONS..": "millrace train --hosts a:1 b:1 --replicas 2 "
                                                        "--dataset cifar-10 --model-size 8",
    "millrace train --hosts HOSTFILE --elastic OPTIONS..": "millrace train --elastic --replicas 2 "
                                                           "--dataset cifar-10 --model-size 8",
    "millrace train --elastic --run-dir RUN_DIR OPTIONS..": "millrace train --elastic --run-dir NEW2 "
                                                            "--dataset cifar-10 --model-size 8",
    "millrace data convert": "millrace data convert NEW --raw-dir RAW",
    "millrace bench --steps 2": "millrace bench --steps 2 --warmup-steps 0 --dataset cifar-10 --model-size 8",
    "millrace bench --kernels": "millrace bench --kernels --steps 1 --warmup-steps 0 --dataset cifar-10 --model-size 8",
    "millrace bench --pipeline": "millrace bench --pipeline --steps 1 --warmup-steps 0 --dataset cifar-10 --model-size 8 "
                                 "--shards 2 --pipeline-depth 2 --pipeline-splits auto",
    "millrace plan --cost-model profile": "millrace plan --cost-model profile --dataset cifar-10 --model-size 8 "
                                          "--shards 2 --pipeline-depth 2 --pipeline-splits auto",
}

# What a sentence says of a command that ends with code 2 or 3.
REFUSED = "(is|are) refused"

# What says that a command or an option is not there.
NO_SUCH = "unknown (command|option)|is not an option|is ambiguous|unexpected argument"

# Measuring a machine takes minutes.
UNTIL_IT_MEASURES = """{} >said 2>&1 & until grep -q '^Measuring ' said || ! kill -0 $!; do sleep 0.1; done
kill -INT $!; wait; cat said; grep -q '^Measuring ' said"""

# Makes the rest of the stand-ins with millrace itself.
PREPARE = """set -e
millrace data generate path/to/cifar-10-batches-bin --train-images 2560 --test-images 100
millrace data generate data --train-images 320 --test-images 100
small="--threads-per-device 1 -q"
millrace train --dataset cifar-10 --data-dir data --model-size 8 --batch-size 32 --epochs 10 --checkpoint-every 4 \\
  --max-ckpts-to-keep 6 --warmup-epochs 0 --validation-mode none --run-dir RUN_DIR $small
millrace average RUN_DIR --count 5
mkdir -p logs build/demo
for run in RUN build/demo/straight logs/RN20_bs32_BN_16.32_v0.2.0_3S9 logs/first logs/second; do cp -r RUN_DIR $run; done
millrace data convert OUT --raw-dir RAW
millrace train --dataset imagenet --data-dir pets --model-size 18 --image-size 32 --batch-norm --iterations 1 \\
  --no-validation --run-dir imagenet-run $small
millrace export imagenet-run --to safetensors --output resnet50.pth
mkdir runs && cp -r imagenet-run runs/pets && millrace import resnet50.pth runs/resnet50 --image-size 32
millrace export RUN_DIR --to onnx --output net.onnx
cp -r imagenet-run D
cp -r path/to/cifar-10-batches-bin path-to/
millrace plan --dataset cifar-10 --model-size 20 --shards 2 --pipeline-depth 16 --format json > plan.json
sed 's/float32/bfloat16/' configs/machines/skylake-8160-opa.toml >node.toml
"""


@dataclass
class Line:
    place: str
    text: str
    exports: str = ""  # what the lines before it in its block exported
    refused: bool = False  # as its sentence says

    @property
    def name(self) -> str:
        return f"{self.place}: {self.text}"


def lines_of(page: Path) -> list[Line]:
    """The lines in blocks with a command of millrace, continued lines as one, without prompt and comment; and the
    commands with arguments in sentences."""
    found, inside, exports, text, begin = [], False, "", "", 0
    for number, row in enumerate(page.read_text().splitlines(), 1):
        if row.startswith("```"):
            inside, exports = not inside, ""
        elif inside:
            text, begin = (text + row.strip(), begin) if text else (row.strip(), number)
            if text.endswith("\\"):
                text = text[:-1]
                continue
            text = re.sub(r"\s+#.*", "", text.removeprefix("$ "))
            if text.startswith("export "):
                exports += text + "; "
            elif re.search(r"(^|[\s/])millrace [a-z]|configs/launch/", text):
                found.append(Line(f"{page.relative_to(ROOT)}:{begin}", re.sub(r"\s+", " ", text), exports))
            text = ""
        elif page.name == "guides.md":
            found += [Line(f"{page.relative_to(ROOT)}:{number}", said) for said in re.findall("`([^`]+)`", row)
                      if row.startswith("| ") and re.match(r"(\w+=\S+ )*millrace [a-z]+ ", said)]
        else:
            found += [Line(f"{page.relative_to(ROOT)}:{number}", said, refused=bool(re.search(REFUSED, row)))
                      for said in re.findall(r"`(millrace [a-z]+ [^`]+)`", row)]
    return found


def write_png(path: Path, width: int, height: int, seed: int) -> None:
    rows = b"".join(b"\0" + bytes((x * seed + 3 * y + 50 * c) % 256 for x in range(width) for c in range(3))
                    for y in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class Documents:
    """The folder of stand-ins, and runs of lines in copies of it."""

    def __init__(self, millrace: Path, folder: Path) -> None:
        self.folder = folder
        self.standins = folder / "stand-ins"
        tools = folder / "tools"
        tools.mkdir()
        (tools / "millrace").symlink_to(millrace)
        mpiexec = tools / "other-machines"
        mpiexec.write_text('#!/bin/sh\necho "would start: $*"\n')
        mpiexec.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(folder),
                            "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1",
                            "OMP_WAIT_POLICY": "passive", "OTHER_MACHINES": str(mpiexec)}
        for name in ("DATA_DIR", "MILLRACE_RUN_DIR", "MILLRACE_MPIEXEC"):
            self.environment.pop(name, None)

    def bash(self, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-c", f"set -o pipefail; {text}"], cwd=folder, env=self.environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=250)

    def prepare(self) -> None:
        """Everything that the documents name, small."""
        here = self.standins
        here.mkdir()
        for number, (split, name) in enumerate((s, n) for s in ("train",) * 4 + ("val",) * 2
                                               for n in ("cat", "dog", "horse")):
            write_png(here / "pets" / split / name / f"{number}.png", 40 + number, 60, 1 + number)
        tiny = here / "tiny-imagenet-200"
        for number, name in enumerate(("n01", "n02") * 3):
            write_png(tiny / f"train/{name}/images/{name}_{number}.JPEG", 64, 64, 1 + number)
            write_png(tiny / f"val/{name}/val_{number}.JPEG", 64, 64, 9 + number)
        (tiny / "wnids.txt").write_text("n01\nn02\n")
        for name, images in (("train", 320), ("test", 20)):
            file = here / f"path-to/cifar-100-binary/{name}.bin"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"".join(bytes((i % 20, i % 100)) + bytes((i + x) % 256 for x in range(3072))
                                      for i in range(images)))
        for name in ("photo.jpg", "image.jpg", "more-photos/a.jpg", "photos/b.jpg", "figures/1.png"):
            write_png(here / name, 50, 40, 7)
        for name in ("RAW", "path/to/imagenet", "path-to/imagenet", "imagenet", "imagenet-data", "IMAGENET_HOME", "DIR"):
            shutil.copytree(here / "pets", here / name)
        (here / "configs").symlink_to(ROOT / "configs")
        done = self.bash(PREPARE, here)
        if done.returncode != 0:
            sys.exit(f"the stand-ins of the documents cannot be made:\n{done.stdout}")

    def run(self, line: Line) -> tuple[str, str, float]:
        """What ran, what is wrong with it, if anything, and the seconds that it took."""
        begin = time.monotonic()
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        shutil.copytree(self.standins, folder, symlinks=True, dirs_exist_ok=True, copy_function=copy)
        text = runnable(line.text)
        try:
            done = self.bash(line.exports + text, folder)
        except subprocess.TimeoutExpired:
            return text, "it takes too long", time.monotonic() - begin
        finally:
            shutil.rmtree(folder)
        failed = done.returncode not in ((2, 3) if line.refused else (0, 75))
        failed |= re.search(NO_SUCH, done.stdout) is not None
        wrong = f"exit code {done.returncode}:\n{done.stdout[-2000:]}" if failed else ""
        return text, wrong, time.monotonic() - begin


def copy(source: str, target: str) -> None:
    """Large files are read only, and shared."""
    if os.path.getsize(source) > 1 << 18:
        os.link(source, target)
    else:
        shutil.copy(source, target)


def runnable(text: str) -> str:
    """The line with small sizes, up to its first step."""
    text = WHOLE.get(text, text)
    for part, words, smaller in SMALLER:
        if part in text:
            text = text.replace(words, smaller)
    if "cifar" in text:
        text = f"export DATA_DIR=path/to/cifar-10-batches-bin; {text}"  # as docs/data.md says
    if "millrace train --dialect" in text and not re.search("--help|benchmark|compile-only", text):
        trains = not re.search("validation.py|restore.py|EVAL.sh|predict", text)
        return text + " --smoke --compile-only" * trains
    if "--hosts" in text:
        return f"export MILLRACE_MPIEXEC=$OTHER_MACHINES; {text} | grep 'would start: .*-H a:1,b:1 '"
    if "--machine-file" in text:
        return UNTIL_IT_MEASURES.format(text)
    if "--help" in text or "benchmark" in text or "compile-only" in text:
        return text
    if "millrace bench" in text and "--threads-per-device" not in text:
        return text + " --threads-per-device 1"
    # Code 75 says that the second kind stopped as it was told to.
    return re.sub(r"(millrace train .*?)($| [>|] )", r"\1 --compile-only\2",
                  re.sub(r"(millrace restore .*?)($| [>|] )", r"\1 --stop-after 1\2", text))


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "-v"]
    if not words:
        sys.exit(__doc__)
    lines = [line for page in PAGES for line in lines_of(page)]
    chosen = [line for line in lines if not any(part in line.text for part in NOT_RUN)
              and (not words[1:] or any(part in line.name for part in words[1:]))]
    unused = [part for part in NOT_RUN if not any(part in line.text for line in lines)]
    failed = [f"NOT_RUN names '{part}', which no document has" for part in unused]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as workers:
        documents = Documents(Path(words[0]).resolve(), Path(folder))
        documents.prepare()
        for line, (ran, wrong, seconds) in zip(chosen, workers.map(documents.run, chosen)):
            if "-v" in sys.argv or wrong:
                print(f"{line.name}\n  ran in {seconds:.1f} s: {ran}\n{wrong}", flush=True)
            failed += [line.name] * bool(wrong)
    print("\n".join([f"{len(chosen)} of {len(lines)} lines ran; wrong: {len(failed)}", *failed]))
    return 1 if failed or len(lines) < 60 else 0


if __name__ == "__main__":
    sys.exit(main())
