#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of compare_pytorch_pipeline.py with tiny sizes and the program in MILLRACE: that both sides train the same.

PyTorch's side is measured where this Python has PyTorch. Elsewhere a stand-in says what PyTorch 2.15 said, and
millrace's side is measured all the same.
"""
import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

HAS_TORCH = importlib.util.find_spec("torch") is not None
SCRIPT = Path(__file__).resolve().with_name("compare_pytorch_pipeline.py")
WORDS = ["--cases", "resnet20", "--rounds", "1", "--batch", "2", "--micro-batches", "4", "--steps", "1", "--millrace",
         os.environ.get("MILLRACE", "build/default/millrace")]

# ResNet-20 for CIFAR-10: 19 convolutions and a dense layer.
RESNET20 = {"parameters": 269722, "products": 20, "BatchNorm": 19, "GroupNorm": 0, "type": "bfloat16", "images": 8}
LAYOUTS = {"one": {"stages": 1, "replicas": 1, "micro-batches": 4},
           "pipeline": {"stages": 2, "replicas": 1, "micro-batches": 4, "schedule": "1F1B"},
           "replicas": {"stages": 1, "replicas": 2, "micro-batches": 2}}


def expect_table(test, text):
    for way in LAYOUTS:
        test.assertRegex(text, f"{way} +both: 269722 parameters, 20 products, 19 BatchNorm, 0 GroupNorm, type bfloat16")
        test.assertRegex(text, rf"{way} +PyTorch +\d+ ms, millrace +\d+ ms, ratio [0-9.]+")
    test.assertRegex(text, "pipeline +both: .*2 stages, 1 replicas, 4 micro-batches, schedule 1F1B")
    test.assertRegex(text, "replicas +both: .*1 stages, 2 replicas, 2 micro-batches")


@unittest.skipIf(HAS_TORCH, "PyTorch is here, and measured")
class StandInTest(unittest.TestCase):
    def compared(self, **differs):
        modules = {name: mock.MagicMock() for name in ("torch", "torch.nn", "torch.nn.functional", "torch.distributed")}
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.dict(sys.modules, modules), mock.patch.object(sys, "argv", ["script", *WORDS]):
            import compare_pytorch_pipeline as script
            side = lambda case, way, *rest: (0.5, {**RESNET20, **LAYOUTS[way], **differs})
            with mock.patch.object(script, "measure_torch", side), mock.patch.object(script, "describe_torch"):
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    try:
                        code = script.main()
                    except SystemExit as end:
                        code = end.code
        return code, out.getvalue(), err.getvalue()

    def test_sides_are_alike(self):
        code, text, said = self.compared()
        self.assertEqual(code, 0, said)
        expect_table(self, text)

    def test_unlike_sides_are_refused(self):
        code, _, said = self.compared(BatchNorm=0, GroupNorm=19)
        self.assertEqual(code, 2)
        self.assertIn("resnet20, one: PyTorch and millrace trained different things: "
                      "BatchNorm 0 and 19, GroupNorm 19 and 0", said)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed: its side is not measured")
class PyTorchTest(unittest.TestCase):
    def test_both_sides_train_the_same(self):
        done = subprocess.run([sys.executable, "-B", SCRIPT, *WORDS], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        expect_table(self, done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
