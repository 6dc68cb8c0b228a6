#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of compare.py, stages.py, variants.py, results.py and instructions.py, with programs that print what the test
wants, and of the groups and options of run.sh."""
import argparse
import contextlib
import io
import json
import os
import re
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
import profile_kernels
import results
import stages
import variants

ROOT = Path(__file__).resolve().parents[2]

# Milliseconds of three steps of one stage, two stages and two processes, and what was measured.
PROGRAM = r"""#!/bin/sh
echo "$*" >>"$0.calls"
stages=2
case "$*" in
  *"--ranks 2"*) steps="30, 31, 29" ;;
  *"--ranks 1"*) steps="10, 11, 13" ;;
  *) steps="10, 9, 12"; stages=1 ;;
esac
norm=GroupNorm
case "$*" in *"--batch-norm"*) norm=BatchNorm ;; esac
env | sed -n "s/^\(MILLRACE_VARIANT_[A-Z_]*\)=/\1 is /p" | grep -v OTHER >&2
case "$MILLRACE_VARIANT_FAST$MILLRACE_VARIANT_SLOW" in 1) steps="5, 5, 5" ;; 2) steps="20, 20, 20" ;; esac
schedule=Sequential
case "$*" in *"--pipeline-schedule 1F1B"*) schedule=1F1B ;; esac
printf 'a line for people\n{"images_per_step": 512, "step_ms": [%s], "gflop_per_second": 250000,' "$steps"
printf '"ops": {"Conv": 53, "%s": 53, "Dense": 1}, "parameters": 25557032, "type": "bfloat16",' $norm
printf '"stages": %s, "replicas": 1, "micro_batches": 1, "schedule": "%s"}\n' $stages $schedule
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

    def assertRefused(self, said, call):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as end:
            call()
        self.assertEqual((end.exception.code, err.getvalue().count("\n")), (2, 1))
        self.assertIn(said, err.getvalue())

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


    def test_results_are_kept_from_the_beginning(self):
        file = self.folder / "results.json"
        with mock.patch.object(compare, "set_up", side_effect=RuntimeError("stopped")):
            with self.assertRaisesRegex(RuntimeError, "stopped"):
                self.compared("--json", str(file))
        known = json.loads(file.read_text())
        self.assertEqual(known["millrace"], {"ms": 10.0, "p10": 9.0, "p90": 12.0, "times": 3})
        self.assertNotIn("pytorch", known)
        self.compared("--json", str(file), "--rounds", "1")
        known = json.loads(file.read_text())
        self.assertEqual({mode: of["ms"] for mode, of in known["pytorch"].items()}, Steps.MILLISECONDS)
        self.assertEqual((known["network"], known["batch"], known["type"]), ("resnet50", 512, "bfloat16"))

    def test_files_are_looked_at_before_anything_runs(self):
        (self.folder / "bad.toml").write_text("[[variant]]")
        for words, said in ((["--json", "/no/x"], "/no/x cannot be written (No such file or directory)"),
                            (["--variants", str(self.folder / "bad.toml")], "needs name")):
            self.assertRefused(said, lambda: self.compared(*words))
        words = ["resnet50", "--millrace", self.program(), "--json", "/no/x"]
        self.assertRefused("/no/x cannot be written", lambda: self.printed(stages.main, *words))
        self.assertFalse((self.folder / "millrace.calls").exists())

    def test_choices_are_also_set_back(self):
        rows = VARIANT.format(name="a", setting="SLOW = 2", before="true", network="resnet50")
        rows += VARIANT.format(name="b", setting="FAST = 1", before="false", network="resnet50")
        rows += VARIANT.format(name="c", setting="FAST = 1", before="true", network="resnet20")
        file = self.folder / "variants.toml"
        words = ["--variants", str(file), "--rounds", "1", "--json", str(self.folder / "results.json")]
        file.write_text(rows)
        self.assertIn("SLOW set back: 20.00 ms (20.00 to 20.00)", self.compared(*words))
        known = json.loads((self.folder / "results.json").read_text())["set_back"]
        self.assertEqual((known["ms"], known["set"]), (20.0, {"SLOW": 2}))
        file.write_text(rows.replace("SLOW", "OTHER"))
        self.assertIn("OTHER set back: this build, or resnet50, has no MILLRACE_VARIANT_OTHER",
                      self.compared(*words))
        file.write_text(rows.replace("true", "false"))
        self.assertFalse(any("set back" in line for line in self.compared(*words)))

    def test_a_comparison_stands_without_times_of_kernels(self):
        with mock.patch.object(profile_kernels, "bench", side_effect=SystemExit("failed")):
            lines = self.compared("--rounds", "1", "--profile", "library.so")
        self.assertIn("no times of the kernels of millrace: failed", lines)
        self.assertTrue(lines[-1].startswith("51200 img/s; PyTorch 64000"), lines)


# Kernels; ~ is a namespace that no other file sees, and @ the one that all do.
OWN_KERNELS = {
    "convolutions": "~DepthwisePixels<~ForwardTaps> ~PartialRuns<float,5> ~JoinChunks ~JoinWeights ~WidenRow<float> ~NarrowRow @JoinParts "
                    "@one_pixel::Rows<float> @one_pixel::Gradients<float> @TileProduct<@GradientRows<float>> ~Turn ~ChannelSums "
                    "cutlass::device_kernel<~Epilogue<~Moments<float>>> cutlass::device_kernel<~Epilogue<~Gradients<float>>>",
    "norms": "@NormTeams<~ChunkMoments,~EachSet> ~Apply<(millrace::Activation)1> ~BackwardApply @Coefficients @norm_join_sums() "
             "@tiles::SumTiles<@tiles::GradientsInMemory<(millrace::Activation)0>> @tiles::JoinTiles<@tiles::JoinGradients>",
    "pools": "~MaxForward<@Normalized<>> ~AverageForward<float,2> ~BlockGradients<~MaxGradient<float>> ~GlobalAverageBackward<float> "
             "~PixelGradients<~AverageGradient<float>> @PixelSums<~GlobalAverageForward<@Normalized<>>>",
    "elementwise": "~Blocks<~ActivationForward> @PixelSums<~ScaleBackward<@Normalized<>>> ~ShortcutForward<float> ~ShortcutBackward "
                   "~DropSamples ~Pixels<~ConcatForward> ~Accumulate<float> @dropout<float>()",
    "optimiser": "@Pieces<@UpdatePiece<@Nearest<float>>> @Pieces<@RefreshPiece> @SquaresOf<~GradientsOfSpan> ~FlagNonFinite @begin_step()",
    "images": "~PreparePieces<@ByteImages> ~MixPieces", "loss": "~LossByTeam<float> ~GradientByTeam<float>", "other": "~Clear",
}


class ProfileTest(Case):
    def test_kernels_have_kinds(self):
        for name, kind in (
            ("sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32", "convolutions"),
            ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "convolutions"),
            ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop>", "convolutions"),
            ("void at::native::batch_norm_collect_statistics_channels_last_kernel<at::native::Var>", "norms"),
            ("void at::native::(anonymous namespace)::max_pool_backward_nhwc<c10::BFloat16, float>", "pools"),
            ("void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add>", "elementwise"),
            ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<>", "optimiser"),
            ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native::MeanOps<float>>>", "pools"),
            ("void cudnn::bn_fw_tr_1C11_kernel_NHWC<__nv_bfloat16, float>", "norms"),
            ("memset", "other"),
        ):
            self.assertEqual(profile_kernels.kind_of(name), kind, name)

    def test_own_kernels_have_kinds(self):
        for kind, names in OWN_KERNELS.items():
            for name in names.split():
                name = name.replace("~", "@(anonymous namespace)::").replace("@", "millrace::ops::")
                self.assertEqual(profile_kernels.kind_of(f"void Kokkos::launch<ParallelFor<{name}>>"), kind, name)
        code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.?pp"))
        for name in profile_kernels.OUR_KINDS:
            self.assertTrue(re.search(rf"\b(struct|class|void|namespace) (millrace::ops::)?{name}\b", code), name)

    def test_times_of_both_sides_are_of_one_step(self):
        program = self.program("#!/bin/sh\n[ \"$CUDA_INJECTION64_PATH\" = lib.so ] || exit 1\n"
                               "printf '20000000 40 batch_norm\\n4000000 10 a b\\n1000000 10 f<millrace::LossByTeam>\\n' "
                               ">$MILLRACE_KERNEL_TIMES\n"
                               + PROGRAM.split("\n", 1)[1])
        ours = profile_kernels.of_millrace("lib.so", program, "resnet50", [])
        self.assertEqual(ours["kinds"], {"norms": {"ms": 2.0, "launches": 4.0}, "other": {"ms": 0.4, "launches": 1.0},
                                         "loss": {"ms": 0.1, "launches": 1.0}})
        self.assertEqual((ours["ms"], ours["launches"], ours["top"][1]["kernel"]), (2.5, 6.0, "a b"))
        theirs = {"kinds": {"pools": {"ms": 1, "launches": 1}}, "ms": 1, "launches": 1}
        lines = profile_kernels.table({"millrace": ours, "pytorch": theirs})
        self.assertEqual(lines[0].split(), ["kernels", "of", "a", "step", "millrace", "pytorch"])
        self.assertEqual(profile_kernels.table({}), [])
        self.assertEqual(lines[1].split(), ["norms", "2.00", "ms", "4", "x"])
        self.assertEqual(lines[-1].split(), ["all", "2.50", "ms", "6", "x", "1.00", "ms", "1", "x"])


VARIANT = """[[variant]]
name = "{name}"
set = {{ {setting} }}
networks = ["{network} 128"]
expect = "something"
before = {before}
"""


class VariantsTest(Case):
    def measured(self, text, *words):
        file = self.folder / "variants.toml"
        file.write_text(text)
        json_file = self.folder / "variants.json"
        lines = self.printed(variants.main, str(file), "--millrace", self.program(), "--json", str(json_file), *words)
        return lines, {row["name"]: row for row in json.loads(json_file.read_text())["variants"]}

    def row(self, name, setting, network="resnet50"):
        return VARIANT.format(name=name, setting=setting, network=network, before="false")

    def test_what_is_faster_is_to_be_kept(self):
        lines, rows = self.measured(self.row("a", "FAST = 1") + self.row("b", "SLOW = 2") + self.row("c", "NOTHING = 7"))
        self.assertEqual({name: row["verdict"] for name, row in rows.items()},
                         {"a": "keep", "b": "slower", "c": "no difference"})
        self.assertEqual(rows["a"]["ms"], {"resnet50 128": 5.0})
        self.assertEqual(rows["a"]["as_it_is"], {"resnet50 128": 10.0})
        self.assertEqual(lines[-1], "keep: a; mixed: none; not measured: none")
        self.assertEqual(len(self.calls()), 5)  # as it is at the beginning and at the end

    def test_options_and_variables_make_variants_too(self):
        other = self.row("a", "X = 1").replace("set = { X = 1 }", 'options = "--faster"\nenvironment = { FASTER = "yes" }')
        program = self.program(PROGRAM.replace('echo "$*"', 'echo "$* $FASTER"'))
        with mock.patch.object(self, "program", return_value=program):
            _, rows = self.measured(other)
        self.assertEqual(rows["a"]["verdict"], "no difference")
        self.assertEqual([call.endswith("--faster yes") for call in self.calls()], [False, True, False])

    def test_a_choice_that_the_build_has_not_is_named(self):
        lines, rows = self.measured(self.row("a", "FAST = 1") + self.row("b", "OTHER = 1"))
        self.assertEqual(rows["b"]["verdict"], "not measured")
        self.assertIn("b: this build, or resnet50, has no MILLRACE_VARIANT_OTHER", lines)
        with self.assertRaises(SystemExit) as end:
            self.measured(self.row("b", "OTHER = 1"))
        self.assertEqual(end.exception.code, 77)

    def test_time_ends_the_measurement(self):
        clock = iter([0, 30, 30, 60, 60, 90, 90, 120, 120, 150, 150])
        with mock.patch.object(variants, "time_left", side_effect=lambda seconds: seconds - next(clock)):
            lines, rows = self.measured(self.row("a", "FAST = 1") + self.row("b", "FAST = 1"), "--seconds", "80")
        self.assertEqual([row["verdict"] for row in rows.values()], ["keep", "not measured"])
        self.assertIn("b: no time is left", lines)
        self.assertTrue(any("as it is    10.00 ms (once: noise is taken as 1 %): +100.0 %" in line for line in lines), lines)

    def test_a_network_that_fails_costs_only_its_variants(self):
        rows = self.row("a", "FAST = 1") + self.row("b", "FAST = 1", "resnext101")
        program = self.program(PROGRAM.replace("stages=2", 'stages=2; case "$*" in *resnext*) exit 3 ;; esac', 1))
        with mock.patch.object(self, "program", return_value=program):
            lines, known = self.measured(rows)
        self.assertEqual([row["verdict"] for row in known.values()], ["keep", "not measured"])
        self.assertTrue(any(line.startswith("resnext101 128 as it is: failed with exit code 3") for line in lines), lines)

    def test_results_are_kept_after_every_variant(self):
        for times, end, verdicts in (([10, 5, KeyboardInterrupt], KeyboardInterrupt, [("keep", ["resnet50 128"])]),
                                     (TimeoutError("no time is left"), SystemExit, [("not measured", [])] * 2)):
            with mock.patch.object(variants.Measurement, "milliseconds", side_effect=times), self.assertRaises(end):
                self.measured(self.row("a", "FAST = 1") + self.row("b", "FAST = 1"))
            known = json.loads((self.folder / "variants.json").read_text())["variants"]
            self.assertEqual([(row["verdict"], row["as_it_is_once"]) for row in known], verdicts)

    def test_what_it_cannot_work_with_is_refused_before_anything_runs(self):
        row = self.row("a", "FAST = 1")
        for text, words, said in (
            ("", [], "has no [[variant]]"), ("a = [", [], "is not TOML"), (row, ["--json", "/no/x"], "/no/x cannot be written"),
            (row.replace("networks", "other"), [], "needs networks"), (row.replace(" 128", ""), [], "the network 'resnet50'"),
            (row + "options = 3", [], "has options = 3; it needs a text"), (row + "other = 3", [], "has other; there are only name, "),
            (row + "environment = { A = 3 }", [], "has environment = {'A': 3}; it needs names with texts"),
            (row.replace("{ FAST = 1 }", "3"), [], "has set = 3; it needs names with numbers"),
            (row.replace("FAST = 1", "FAST = true"), [], "it needs names with numbers"),
            (row.replace("set = { FAST = 1 }", ""), [], "needs set or environment or options"), (row + row, [], "variant 2, a, has the name of another"),
            (row.replace("set = { FAST = 1 }", 'options = "-x"').replace("false", "true"), [], "needs set, as it is marked before"),
        ):
            self.assertRefused(said, lambda: self.measured(text, *words))
        self.assertRefused("/no/x cannot be read", lambda: measure.variants_in("/no/x"))
        self.assertFalse((self.folder / "millrace.calls").exists())

    def test_verdicts(self):
        noise = {"x": 0.01, "y": 0.03}
        for gains, said in (({"x": 0.02, "y": 0.0}, "keep"), ({"x": 0.005, "y": 0.02}, "no difference"),
                            ({"x": 0.02, "y": -0.04}, "mixed"), ({"x": 0.0, "y": -0.04}, "slower")):
            self.assertEqual(variants.verdict(gains, noise), said)

    def test_every_choice_of_the_code_is_listed_fits_and_has_a_way_back(self):
        calls = re.compile(r'\bvariant\(\s*"(\w+)"')
        sources = [path for folder in ("src", "pipeline") for path in (ROOT / folder).rglob("*.?pp")]
        in_code = {name for path in sources if path.name != "variants.hpp" for name in calls.findall(path.read_text())}
        rows = measure.variants_in(Path(__file__).with_name("variants.toml"))
        self.assertEqual({name for row in rows for name in row.get("set", {})}, in_code)
        self.assertIn("MILLRACE_PRODUCTS", rows[0]["environment"])  # what decides most comes first
        runs = sum(len(row["networks"]) for row in rows) + 2 * len({case for row in rows for case in row["networks"]})
        self.assertLessEqual(7 * runs, 228)  # seconds
        for network, back in (("resnet50", 2), ("resnext101", 2), ("efficientnet-b0", 3), ("resnet20", 1)):
            self.assertEqual(len([row for row in rows if row.get("before") and f"{network} " in " ".join(row["networks"])]), back)


class ResultsTest(Case):
    def run_of(self, name, machine="an H100", **files):
        folder = self.folder / name
        folder.mkdir()
        (folder / "machine").write_text(machine + "\n")
        for step, text in files.items():
            (folder / (f"{step}.json" if text.startswith("{") and step != "ceilings" else step)).write_text(text)
        (folder / "steps.tsv").write_text("".join(f"{step}\tpassed\t2\tfine\n" for step in files))
        return folder

    def compared(self, ms, **modes):
        return json.dumps({"network": "resnet50", "batch": 256, "type": "bfloat16", "options": "",
                           "millrace": {"ms": ms}, "pytorch": {mode: {"ms": of} for mode, of in modes.items()}})

    def test_one_file_has_everything(self):
        streaming = "bfloat16 relu forward   822.084   2989.0   98.9 %\nsmallest share 4.2 %: bfloat16 average pool backward"
        folder = self.run_of("out", first=self.compared(40, eager=60, graph=50), broken="{", streaming=streaming,
                             ceilings='{"copy_gb_per_second": 3031}')
        with open(folder / "steps.tsv", "a") as file:
            file.write("ops\tfailed (1)\t9\tbad\n")
        (folder / "of_another_run.json").write_text(self.compared(20))
        lines = self.printed(results.main, str(folder))
        written = json.loads((folder / "results.json").read_text())
        self.assertEqual(written["steps"][-1], {"name": "ops", "result": "failed (1)", "seconds": 9, "said": "bad"})
        self.assertEqual(written["streaming"], {"bfloat16 relu forward": 98.9})
        self.assertEqual(written["ceilings"]["copy_gb_per_second"], 3031)
        self.assertEqual(list(written["measured"]), ["first"])
        self.assertEqual(lines[1].split(), "resnet50 256 bfloat16 40.00 ms 6400 50.00 ms graph 1.25 1.6".split())

    def test_modes_of_several_runs_are_compared(self):
        earlier = self.run_of("earlier", compiled=self.compared(41, compiled=44), first=self.compared(45, eager=70))
        self.printed(results.main, str(earlier))
        now = self.run_of("now", first=self.compared(40, eager=60, graph=50))
        lines = self.printed(results.main, str(now), str(earlier / "results.json"))
        written = json.loads((now / "results.json").read_text())
        self.assertEqual(sorted(written["measured"]), ["compiled", "first"])
        self.assertEqual(written["measured"]["first"]["millrace"]["ms"], 40)
        self.assertIn(" compiled ", lines[1])
        other = self.run_of("other", machine="an H200", first=self.compared(40))
        with self.assertRaisesRegex(SystemExit, "different machines: an H100 and an H200"):
            self.printed(results.main, str(other), str(earlier / "results.json"))


    def test_files_that_no_step_wrote_are_refused(self):
        for name, text, said in (("a", '{"millrace": 3}', "a.json is not what run.sh writes"), ("b", '{"millrace": {"ms": 3}}', "b.json is"),
                                 ("c", '{"variants": [{}]}', "c.json"), ("a\tpassed\tx\t", "", "steps.tsv: line 1 is not")):
            self.assertRefused(said, lambda: self.printed(results.main, str(self.run_of(f"of{name}", **{name: text}))))
        words = [str(self.run_of("now")), str(self.folder / "ofa" / "a.json")]
        self.assertRefused("a.json has no results of run.sh", lambda: self.printed(results.main, *words))


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
            done = self.run_step("racecheck", HOW=how, MILLRACE_STEP_SECONDS="1")
            self.assertEqual(done.returncode, code, done.stdout)
            self.assertIn(said, done.stdout)
            self.assertIn("--tool racecheck", self.calls()[-1])

    def test_unknown_steps_are_refused_before_anything_runs(self):
        for words in (["quick full"], ["driver doctor"], [""]):
            done = self.run_step(*words)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))
        done = self.run_step("memcheck", "nothing")
        self.assertEqual(done.returncode, 2)
        self.assertTrue(done.stderr.startswith("there is no step 'nothing', only quick, full and driver doctor "), done.stderr)
        self.assertFalse((self.folder / "out").exists())
        self.assertFalse((self.folder / "millrace.calls").exists())

    def dry(self, *words):
        """Limits by step, those of steps side by side, and the last line."""
        done = self.run_step("--dry-run", *words)
        self.assertEqual(done.returncode, 0, done.stdout)
        rows = [re.match(r"(\S+) +(\d+) s( \|)?", line) for line in done.stdout.splitlines()]
        alone = {row[1]: int(row[2]) for row in rows if row and not row[3]}
        return alone, {row[1]: int(row[2]) for row in rows if row and row[3]}, done.stdout

    def test_groups_keep_to_their_time(self):
        for words, most in ((["quick"], 240), (["full"], 480)):
            alone, together, text = self.dry(*words)
            more = 8 + (len(alone) + 2) // 2  # half a second to kill each, and what is around the steps
            total = sum(alone.values()) + max(together.values()) + more
            self.assertEqual(text.splitlines()[-1], f"{total} s at most, {more} of them to kill steps and around them")
            self.assertLessEqual(total, most)
            self.assertLessEqual({"doctor", "ops", "stages", "layouts-b16", "moved"}, set(together))
            self.assertLessEqual({"ceilings", "streaming", "resnet50-256", "resnet50-32", "resnext101-128",
                                  "efficientnet-128", "resnet20-128"}, set(alone))
        self.assertEqual(set(together) - set(self.dry("quick")[1]), {"cifar", "memcheck", "racecheck"})

    def test_groups_and_steps_add_up(self):
        quick, together, _ = self.dry("quick")
        both = self.dry("quick", "variants")
        self.assertEqual(both[0], {**quick, "variants": 231})
        self.assertEqual(both[1], together)
        self.assertEqual(self.dry("doctor", "ceilings")[2].splitlines()[-1].split(",")[0], "34 s at most")

    def test_some_steps_run_only_when_they_are_named(self):
        text = self.run_step("--dry-run").stdout
        by_themselves, named = text.split(" around them\nonly if named:\n")
        for name in ("variants", "resnet50-float16", "resnext101-compiled", "efficientnet-compiled"):
            self.assertNotIn(f"\n{name} ", by_themselves)
            self.assertIn(f"{name} ", named)
            self.assertTrue(self.run_step("--dry-run", name).stdout.startswith(f"{name} "))

    def build(self, **programs):
        folder = self.folder / "build"
        folder.mkdir(exist_ok=True)
        for name, text in programs.items():
            (folder / name).write_text(f"#!/bin/sh\ncd {self.folder}\n{text}\n")
            (folder / name).chmod(0o755)
        return ["--build", "build"]

    def test_steps_that_measure_nothing_run_at_the_same_time(self):
        meet = "touch {}; for i in 1 2 3 4 5 6 7 8 9; do [ ! -e {} ] || exit 0; sleep 1; done; exit 1"
        words = self.build(millrace=meet.format("a", "b"), device_test=meet.format("b", "a"))
        (self.folder / "out").mkdir()
        (self.folder / "out" / "device.json").write_text('{"of": "an earlier run"}')
        done = self.run_step(*words, "doctor", "device")
        self.assertEqual(done.returncode, 0, done.stdout)
        known = json.loads((self.folder / "out" / "results.json").read_text())
        self.assertEqual({step["name"]: step["result"] for step in known["steps"]}, {"doctor": "passed", "device": "passed"})
        self.assertNotIn("measured", known)

    def test_tests_run_in_several_processes(self):
        words = self.build(ops_test='echo "[       OK ] A.$GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS"')
        done = self.run_step(*words, "ops")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("8 tests passed\n", done.stdout)
        self.build(ops_test='[ "$GTEST_SHARD_INDEX" != 5 ] || { echo "[  FAILED  ] A.B"; exit 1; }')
        done = self.run_step(*words, "ops")
        self.assertEqual(done.returncode, 1)
        self.assertIn("process 5 of 8: exit code 1, its last output", done.stdout)
        self.assertIn("[  FAILED  ] A.B", (self.folder / "out" / "ops").read_text())

    def test_a_test_that_hangs_fails_its_step(self):
        words = self.build(ops_test='echo "[       OK ] A.B"; echo "[ RUN      ] A.C"; exec sleep 9')
        done = self.run_step(*words, "ops", MILLRACE_STEP_SECONDS="3")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("[ RUN      ] A.C", (self.folder / "out" / "ops").read_text())

    def test_wrong_options_are_named(self):
        for words, said in (
            (["--bogus"], "there is no option --bogus\nUsage: tests/gpu/run.sh "),
            (["--out"], "--out needs a folder\n"),
            (["--pack"], "--pack needs FILE.tar.xz or a folder\n"),
        ):
            done = subprocess.run(["bash", self.script, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertTrue(done.stderr.startswith(said), done.stderr)

    def test_what_cannot_be_packed_is_one_line(self):
        for target, mb, said in (
            ("x.tar.gz", "25", "x.tar.gz is no folder, and archives are FILE.tar.xz"), ("/no/x.tar.xz", "25", "x.tar.xz cannot be written"),
            ("/dev/null", "25", "/dev/null cannot be written: name a folder"), ("x.tar.xz", "abc", "MILLRACE_PACK_MB is 'abc': set it"),
        ):
            done = self.run_step("--build", "nowhere", "--pack", target, MILLRACE_PACK_MB=mb)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
            self.assertIn(said, done.stderr)


# What cuobjdump prints of a norm with a loop over rows, whose slow path is left out, and of a swish without one.
LISTING = """
\t\tFunction : _5ApplyI8bfloat16ActivationE1E4SkipE0ELb0EE
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
 Function _5ApplyI8bfloat16ActivationE1E4SkipE0ELb0EE:
  REG:48 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:696 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _17ActivationForwardI8bfloat16ActivationE2E:
  REG:25 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:696 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


class InstructionsTest(Case):
    def test_counts_the_shortest_way_past_all_wide_accesses(self):
        listing = f"#!/bin/sh\ncase $1 in -sass) cat <<'END'\n{LISTING}END\n;; *) cat <<'END'\n{USAGE}END\n;; esac\n"
        self.assertEqual(
            self.printed(instructions.main, __file__, "--cuobjdump", self.program(listing)),
            [
                "| kernel | instructions | registers | threads |",
                "|---|---|---|---|",
                "| norm + ReLU | 0.4 | 48 | 1280 |",
                "| swish | 0.6 | 25 | 2048 |",
            ],
        )

    def test_files_and_tools_that_do_not_do_are_refused(self):
        none = self.program("#!/bin/sh\necho 'does not contain device code' >&2\nexit 255\n")
        for file, tool, said in (("/no/a.o", none, "no file /no/a.o"), (none, none, "contain device code"),
                                 (none, "/no/tool", "/no/tool does not start")):
            self.assertRefused(said, lambda: self.printed(instructions.main, file, "--cuobjdump", tool))

    def test_threads_are_bounded_by_registers_and_by_the_multiprocessor(self):
        for registers, threads in ((16, 2048), (32, 2048), (33, 1536), (64, 1024), (255, 256)):
            self.assertEqual(instructions.threads_of(registers), threads)


if __name__ == "__main__":
    unittest.main()
