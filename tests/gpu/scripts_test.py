#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of compare.py, stages.py and instructions.py, with programs that print what the test wants, and of the
options of run.sh."""
import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import compare
import instructions
import measure
import stages

# Milliseconds of three steps of one stage, two stages and two processes, and what was measured.
PROGRAM = """#!/bin/sh
echo "$*" >>"$0.calls"
stages=2
case "$*" in
  *"--ranks 2"*) steps="30, 31, 29" ;;
  *"--ranks 1"*) steps="10, 11, 13" ;;
  *) steps="10, 9, 12"; stages=1 ;;
esac
norm=GroupNorm
case "$*" in *"--batch-norm"*) norm=BatchNorm ;; esac
schedule=Sequential
case "$*" in *"--pipeline-schedule 1F1B"*) schedule=1F1B ;; esac
printf 'a line for people\\n{"images_per_step": 512, "step_ms": [%s], "gflop_per_second": 250000,' "$steps"
printf '"ops": {"Conv": 53, "%s": 53, "Dense": 1}, "parameters": 25557032, "type": "bfloat16",' $norm
printf '"stages": %s, "replicas": 1, "micro_batches": 1, "schedule": "%s"}\\n' $stages $schedule
"""


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name)

    def program(self, text=PROGRAM):
        path = self.folder / "millrace"
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def printed(self, function, *words):
        """What function prints when it is called as a program."""
        out = io.StringIO()
        with mock.patch.object(sys, "argv", ["script", *words]), contextlib.redirect_stdout(out):
            function()
        return out.getvalue().splitlines()

    def calls(self):
        return (self.folder / "millrace.calls").read_text().splitlines()


class StagesTest(Case):
    def test_ratio_is_that_of_the_medians(self):
        lines = self.printed(stages.main, "resnet50", "--millrace", self.program(), "--steps", "3")
        self.assertEqual(lines[:2], ["one stage: 10.00 ms", "two stages: 11.00 ms"])
        self.assertEqual(
            lines[7:],
            [
                "one stage: 10.00 ms (9.00 to 12.00), median of 9 steps",
                "two stages: 11.00 ms (10.00 to 13.00), median of 9 steps",
                "two processes: 30.00 ms (29.00 to 31.00), median of 3 steps",
                "two stages take 1.100 times one stage (bar: 1.10), two processes 3.000; 8 x 64 images",
            ],
        )

    def test_layouts_take_turns_with_the_same_micro_batches(self):
        self.printed(stages.main, "resnet50", "--millrace", self.program(), "--steps", "3")
        kinds = ["2" if "--ranks 2" in c else "1" if "--ranks 1" in c else "0" for c in self.calls()]
        self.assertEqual("".join(kinds), "0101012")
        for call in self.calls():
            self.assertIn("--batch-size 64 --precision 16.32", call)
            self.assertRegex(call, "--(pipeline-depth|gradients-to-accumulate) 8 ")
            self.assertIn("--model-size 50", call)

    def test_time_ends_the_rounds(self):
        words = ["resnet50", "--millrace", self.program(), "--steps", "3", "--seconds", "0.001"]
        lines = self.printed(stages.main, *words)
        self.assertEqual(len(self.calls()), 2)
        self.assertEqual(lines[2], "1 of 3 rounds, because 0 s are over")
        self.assertIn("two processes not measured", lines[-1])

    def test_other_steps_than_asked_for_are_refused(self):
        for words in (["--steps", "4"], ["--steps", "3", "--depth", "4"]):
            with self.assertRaisesRegex(SystemExit, "bench measured other steps"):
                self.printed(stages.main, "resnet50", "--millrace", self.program(), *words)

    def test_other_schedules_than_asked_for_are_refused(self):
        program = self.program(PROGRAM.replace("schedule=1F1B", "schedule=GPipe"))
        with self.assertRaisesRegex(SystemExit, "different things: schedule 1F1B and GPipe"):
            self.printed(stages.main, "resnet50", "--millrace", program, "--steps", "3")

    def test_one_gpu_is_visible(self):
        for given, seen in (("", "0"), ("3", "3"), ("2,1", "2")):
            with mock.patch.dict("os.environ", CUDA_VISIBLE_DEVICES=given):
                self.assertEqual(stages.one_gpu()["CUDA_VISIBLE_DEVICES"], seen)

    def test_failures_of_the_program_are_one_line(self):
        for text, said in (
            ("#!/bin/sh\nexit 3\n", "failed with exit code 3: "),
            ("#!/bin/sh\necho rubbish\n", "printed no JSON: "),
            ("#!/bin/sh\n", "printed no JSON: "),
            ("#!/bin/sh\necho '{}'\n", "does not say what it measured .KeyError.'ops'.*: "),
        ):
            with self.assertRaisesRegex(SystemExit, said):
                measure.bench(self.program(text), "resnet50", [])
        with self.assertRaisesRegex(SystemExit, "/nowhere/millrace does not start: No such file"):
            measure.bench("/nowhere/millrace", "resnet50", [])


class Steps:
    """In place of a training with PyTorch."""

    MILLISECONDS = {"eager": 20.0, "graph": 16.0, "compiled": 8.0}
    side = {"parameters": 25557032, "products": 54, "BatchNorm": 53, "GroupNorm": 0, "type": "bfloat16",
            "images": 512, "stages": 1, "replicas": 1, "micro-batches": 1}

    def __init__(self, _torch, _options, mode):
        self.mode = mode

    def milliseconds(self, steps):
        return [self.MILLISECONDS[self.mode]] * steps


class CompareTest(Case):
    def compared(self, *words):
        torch = mock.MagicMock(__version__="2.9")
        with mock.patch.dict(sys.modules, torch=torch), mock.patch.object(compare, "Training", Steps):
            line = ["resnet50", "--batch", "512", "--millrace", self.program(), *words]
            return self.printed(compare.main, *line)

    def ceilings(self, text):
        path = self.folder / "ceilings"
        path.write_text(text)
        return ["--ceilings", str(path)]

    def test_best_mode_counts(self):
        words = self.ceilings(json.dumps({"bfloat16_tflop_per_second": 500, "float16_tflop_per_second": 1}))
        self.assertEqual(
            self.compared(*words)[-1],
            "51200 img/s, 50 % of the GEMM ceiling; PyTorch 64000 (compiled): 0.80 times, 2.00 times eager",
        )

    def test_modes_that_were_not_measured_are_named(self):
        self.assertEqual(
            self.compared("--modes", "eager,graph")[-1],
            "51200 img/s; PyTorch 32000 (graph; compiled not measured): 1.60 times, 2.00 times eager",
        )
        self.assertIn("(graph; eager and compiled not measured)", self.compared("--modes", "graph")[-1])

    def test_unlike_sides_are_refused(self):
        self.assertTrue(any(line.startswith("both: 25557032 parameters, 54 products, 53 BatchNorm, 0 GroupNorm, type")
                            for line in self.compared()))
        with mock.patch.dict(measure.NETWORKS, resnet50="--dataset imagenet --model-size 50"):
            with self.assertRaisesRegex(SystemExit, "PyTorch, eager, and millrace trained different things: "
                                                    "BatchNorm 53 and 0, GroupNorm 0 and 53"):
                self.compared()

    def test_unknown_modes_are_refused(self):
        for modes, named in (("foo", "foo"), ("eager,fast", "fast"), ("", ""), ("eager,", "")):
            err = io.StringIO()
            with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as end:
                self.compared("--modes", modes)
            self.assertEqual(end.exception.code, 2)
            self.assertIn(f"there is no mode '{named}', only eager, graph, compiled", err.getvalue())
        self.assertEqual(compare.modes_of("graph,eager,graph"), ["graph", "eager"])

    def test_more_options_reach_the_program_and_the_line(self):
        lines = self.compared("--options=--allow-nondeterministic", "--type", "float16")
        self.assertTrue(any(line.startswith("millrace --allow-nondeterministic: 10.00 ms") for line in lines))
        for call in self.calls():
            self.assertTrue(call.endswith("--precision 16.32 --half fp16 --allow-nondeterministic"), call)

    def test_slow_set_up_is_given_up(self):
        class Slow(Steps):
            def __init__(self, torch, options, mode):
                super().__init__(torch, options, mode)
                if mode == "compiled":
                    time.sleep(60)

        with mock.patch.object(sys.modules[__name__], "Steps", Slow):
            lines = self.compared("--set-up", "0.05")
        self.assertIn("PyTorch, compiled: not ready after 0 s", lines)
        self.assertIn("(graph; compiled not measured)", lines[-1])

    def test_ceilings_that_are_missing_or_broken_leave_out_the_share(self):
        missing = ["--ceilings", str(self.folder / "nothing")]
        empty = self.ceilings("")
        for words in (missing, empty):
            lines = self.compared(*words)
            self.assertTrue(lines[-1].startswith("51200 img/s; PyTorch 64000 (compiled): 0.80"), lines)
            self.assertIn(f"{words[1]} does not say it", lines[-2])
        for text in ("ceilings: no device", "{}", "[]", "3", '{"bfloat16_tflop_per_second": "x"}',
                     '{"bfloat16_tflop_per_second": 0}', '{"bfloat16_tflop_per_second": null}'):
            words = self.ceilings(text)
            lines = self.compared(*words)
            self.assertTrue(lines[-1].startswith("51200 img/s; PyTorch"), (text, lines))
            self.assertIn(f"{words[1]} does not say it", lines[-2])


class TrainingTest(unittest.TestCase):
    """What compare.py asks of PyTorch, by a stand-in that notes the calls."""

    def training(self, mode):
        torch = mock.MagicMock()
        options = argparse.Namespace(network="resnet50", batch=4, type="bfloat16")
        with mock.patch.object(compare, "make_network"):
            training = compare.Training(torch, options, mode)
        torch.optim.SGD.return_value.step.side_effect = lambda: torch.updated()
        torch.optim.SGD.return_value.zero_grad.side_effect = lambda **words: torch.cleared(**words)
        return torch, training

    def calls(self, torch):
        """The calls that matter here, by the last part of their names."""
        names = ("synchronize", "updated", "cleared", "empty_cache", "replay", "graph")
        short = [call[0].split(".")[-1] for call in torch.mock_calls]
        return [name for name in short if name in names]

    def test_waits_only_around_a_group_of_steps(self):
        torch, training = self.training("eager")
        self.assertEqual(len(training.milliseconds(30)), 3)
        step = ["cleared", "updated"]
        group = ["synchronize", *step * 10, "synchronize"]
        self.assertEqual(self.calls(torch), step * 5 + group * 3 + ["cleared", "empty_cache"])
        self.assertEqual(len(training.milliseconds(1)), 1)
        self.assertEqual({call.kwargs["set_to_none"] for call in torch.cleared.mock_calls}, {True})

    def test_graph_is_captured_without_gradients_and_given_back(self):
        torch, training = self.training("graph")
        replay = torch.cuda.CUDAGraph.return_value.replay
        self.assertEqual(len(training.milliseconds(20)), 2)
        self.assertEqual(replay.call_count, 25)
        calls = self.calls(torch)
        before = ["cleared", "updated"] * 3 + ["cleared", "empty_cache", "graph", "updated"]
        self.assertEqual(calls[: len(before)], before)
        self.assertEqual(calls.count("updated"), 4)  # replays update
        self.assertEqual(calls[-2:], ["cleared", "empty_cache"])

    def test_images_have_the_type_of_autocast(self):
        torch, training = self.training("compiled")
        made = torch.randn.return_value.to
        made.assert_called_once_with(torch.bfloat16, memory_format=torch.channels_last)
        self.assertIs(training.images, made.return_value)
        training.milliseconds(10)
        self.assertIs(torch.autocast.call_args.kwargs["dtype"], torch.bfloat16)


# A driver, and a sanitizer that does what HOW says after some tests.
DRIVER = "#!/bin/sh\necho GPU\n"
SANITIZER = """#!/bin/sh
echo "$PWD $*" >>"$CALLS"
echo '[       OK ] A.A'; echo '[       OK ] A.B'
case $HOW in
  race) echo '========= Error: Race reported between Write access'; exit 1 ;;
  slow) sleep 60 ;;
  slow-race) echo '========= Error: Race reported between Write access'; sleep 60 ;;
esac
"""


class RunTest(Case):
    script = str(Path(__file__).with_name("run.sh"))

    def run_step(self, *words, **variables):
        for name, text in (("nvidia-smi", DRIVER), ("compute-sanitizer", SANITIZER)):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        environment.update(variables, CALLS=str(self.folder / "millrace.calls"))
        return subprocess.run(
            ["bash", self.script, "--out", "out", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=self.folder, env=environment,
        )

    def test_folders_are_those_of_the_user(self):
        done = self.run_step("--build", "built here", "memcheck", "driver")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.folder / "out" / "table.txt").is_file())
        self.assertIn(f" {self.folder.resolve()}/built here/ops_test --gtest_filter=*Linear*/", self.calls()[0])
        shown = self.run_step("--dry-run", "--build", "/else where", "memcheck")
        self.assertIn(" /else where/ops_test ", shown.stdout)

    def test_sanitizer_is_judged_by_what_it_reached(self):
        for how, code, said in (
            ("all", 0, "racecheck: all 2 tests without an error"),
            ("slow", 0, "racecheck: 2 tests without an error; the others were not reached in 1 s"),
            ("race", 1, "failed (1)"),
            ("slow-race", 1, "failed (1)"),
        ):
            done = self.run_step("racecheck", HOW=how, MILLRACE_SANITIZER_SECONDS="1")
            self.assertEqual(done.returncode, code, done.stdout)
            self.assertIn(said, done.stdout)
            self.assertIn("--tool racecheck", self.calls()[-1])

    def test_unknown_steps_are_refused_before_anything_runs(self):
        done = self.run_step("memcheck", "nothing")
        self.assertEqual(done.returncode, 2)
        self.assertTrue(done.stderr.startswith("there is no step nothing, only driver doctor "), done.stderr)
        self.assertFalse((self.folder / "out").exists())
        self.assertFalse((self.folder / "millrace.calls").exists())

    def test_some_steps_run_only_when_they_are_named(self):
        text = self.run_step("--dry-run").stdout
        by_themselves, named = text.split(" s at most\nonly if named:\n")
        for name in ("resnet50-float16", "resnext101-compiled", "efficientnet-compiled"):
            self.assertNotIn(f"\n{name} ", by_themselves)
            self.assertIn(f"{name} ", named)
            self.assertTrue(self.run_step("--dry-run", name).stdout.startswith(f"{name} "))
        self.assertLessEqual(int(by_themselves.splitlines()[-1]), 470)

    def test_wrong_options_are_named(self):
        for words, said in (
            (["--bogus"], "there is no option --bogus\nUsage: tests/gpu/run.sh "),
            (["--out"], "--out needs a folder\n"),
        ):
            done = subprocess.run(["bash", self.script, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertTrue(done.stderr.startswith(said), done.stderr)


# What cuobjdump prints of a norm with a loop over rows, whose slow path is left out, and of a swish without one.
LISTING = """
\t\tFunction : _5ApplyI8bfloat16ActivationE1ELb0EE
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   S2R R0, SR_TID.X ;              /* 0x0000000000007919 */
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/               @P0 BRA 0x40 ;
        /*0030*/                   CALL.REL.NOINC 0x90 ;
        /*0040*/                   FMUL R4, R4, R8 ;
        /*0050*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0060*/                   LDG.E.128 R4, desc[UR4][R2.64+0x10] ;
        /*0070*/              @!P1 BRA 0x10 ;
        /*0080*/                   EXIT ;
        /*0090*/                   RET.REL.NODEC R2 0x0 ;
\t\tFunction : _17ActivationForwardI8bfloat16ActivationE2E
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/               @P0 BRA 0x50 ;
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0040*/                   EXIT ;
        /*0050*/                   STG.E.U16 desc[UR4][R2.64], R4 ;
        /*0060*/                   EXIT ;
        /*0070*/                   BRA 0x70;
"""
USAGE = """
 Function _5ApplyI8bfloat16ActivationE1ELb0EE:
  REG:48 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:696 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _17ActivationForwardI8bfloat16ActivationE2E:
  REG:25 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:696 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


class InstructionsTest(Case):
    def test_counts_the_shortest_way_past_all_wide_accesses(self):
        listing = f"#!/bin/sh\ncase $1 in -sass) cat <<'END'\n{LISTING}END\n;; *) cat <<'END'\n{USAGE}END\n;; esac\n"
        self.assertEqual(
            self.printed(instructions.main, "a.o", "--cuobjdump", self.program(listing)),
            [
                "| kernel | instructions | registers | threads |",
                "|---|---|---|---|",
                "| norm + ReLU | 0.4 | 48 | 1280 |",
                "| swish | 0.6 | 25 | 2048 |",
            ],
        )

    def test_threads_are_bounded_by_registers_and_by_the_multiprocessor(self):
        for registers, threads in ((16, 2048), (32, 2048), (33, 1536), (64, 1024), (255, 256)):
            self.assertEqual(instructions.threads_of(registers), threads)


if __name__ == "__main__":
    unittest.main()
