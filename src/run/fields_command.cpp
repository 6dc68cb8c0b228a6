// SPDX-License-Identifier: Apache-2.0
#include "run/field_rows.hpp"

namespace millrace::run {
namespace {

using namespace field_words;  // NOLINT(google-build-using-namespace): the words of the table

constexpr CommandSet kTells = kContinues | kForward | kDataTools | kBench | kPlan;

void add_command(FieldTable& table) {
  const Rows row(table, Section::Command, kTrain, kOutput);
  row("config", path("FILE"), "IPU 2.0",
      "TOML file of options, or the name of a recipe; list shows the recipes",
      commands(kTrain | kBench | kPlan | set_of(Command::Import) | set_of(Command::Validate)),
      main_option());
  row("dialect", choice("ipu|nvidia|habana|surfsara"), "millrace",
      "also accept the option names, and use the defaults, of this trainer", default_text("none"),
      commands(kContinues | kBench | kPlan | set_of(Command::Validate)));
  row("smoke", flag(), "millrace",
      "run a reduced recipe to see that it works: one replica, a total batch of at most 16, 64 "
      "pixels, a few weight updates; prints each reduction",
      main_option());
  row("compile-only", flag(), "IPU 2.0",
      "check everything and print what would run, but run nothing");
  row("run-dir", path("DIR"), "millrace",
      "directory to create for the run, instead of one below `log-dir`",
      environment("MILLRACE_RUN_DIR"), main_option(), says<&LogRequest::place>(),
      yields<&Run::run_directory>());
  row("no-logs", flag(), "IPU", "create no run directory: no logs, no checkpoints",
      commands(kTrain | kPlan), says<&LogRequest::keeps>(),
      changes([](const Setting& given, Run& c) { c.logging.keeps = !flag_of(given); }));
  row("quiet", flag(), "millrace",
      "print only warnings, errors and the closing summary; log.txt still gets all; also -q",
      commands(kTells), says<&Run::verbosity>());
  row("verbose", flag(), "millrace",
      "also print the trainable variables, what was taken from environment variables, and the "
      "command that starts the ranks; also -v",
      commands(kTells), says<&Run::verbosity>());
}

void add_continuing(FieldTable& table) {
  const Rows row(table, Section::Command, kContinues, kOutput);
  row("stop-after", integer(at_least(1)), "millrace",
      "stop after N weight updates as if pre-empted: save a checkpoint, exit with code 75",
      unit("weight updates"), says<&Run::stop_after>());
  row("restore-path", path("DIR"), "IPU",
      "run directory to continue (train, restore) or to validate; validate also takes a single "
      "checkpoint and uses untrained weights without this option; predict takes it in place of its "
      "first argument",
      commands(kReads | kTrain | kPredict), main_option(kReads));
  row("class-names", path("FILE"), "millrace",
      "text file with the names of the classes, one per line in the order of their numbers",
      default_text("those in the checkpoint"), commands(set_of(Command::Import) | kPredict));
  row("top-k", integer(between(0, 1e6)), "millrace",
      "number of classes to show for each image, the likeliest first; 0 shows none", by_default(5),
      unit("classes"), commands(kPredict));
  row("logits", path("FILE"), "millrace",
      "file for numpy to write the logits of all images to: float32, images x classes; those of a "
      "bad image are NaN",
      default_text(""), commands(kPredict));
  row("repeat", integer(at_least(1)), "IPU", "number of times to validate, to measure speed",
      by_default(1), commands(set_of(Command::Validate)));
  row("per-class", path("FILE"), "millrace",
      "write a CSV file with the images of every class and how many of them were right",
      commands(set_of(Command::Validate)));
  row("to", choice("safetensors|onnx|hdf5"), "millrace",
      "format: tensors with the names of `like`, a network that any program for ONNX runs, or all "
      "tensors of the checkpoint for h5py",
      by_default("safetensors"), commands(set_of(Command::Export)));
  row("like", choice("torchvision|timm|akamaster|keras"), "millrace",
      "library whose names and order of elements hold; import takes padding, epsilon and "
      "preparation of images from it, too",
      default_text("by names and shapes; export: torchvision, or akamaster for ResNets on CIFAR"),
      commands(set_of(Command::Import) | set_of(Command::Export)));
  row("no-launch", flag(), "millrace",
      "start no ranks on this machine; expect that a launcher has started them", default_text(""),
      commands(kContinues | kBench | kPlan | set_of(Command::Validate)));
}

void add_measuring(FieldTable& table) {
  const Rows row(table, Section::Command, kContinues, kOutput);
  row("trace", path("FILE"), "millrace",
      "write a trace of every device for Perfetto or chrome://tracing; if the name ends with .svg, "
      "draw the last step beside the simulated one; plan counts the memory that this takes",
      commands(kContinues | kPlan), says<&Run::trace>());
  row("gc-profile", choice("NO_PROFILE|DEVICE_PROFILE|IPU_PROFILE|TILE_PROFILE"), "IPU",
      "write a trace to trace.json in the run directory: DEVICE_PROFILE of weight updates as a "
      "whole, IPU_PROFILE of every action of each device, TILE_PROFILE also of every kernel; of "
      "the first weight update unless `profile-steps` is given",
      default_text("NO_PROFILE; IPU_PROFILE if given without a value"), bare("IPU_PROFILE"),
      commands(kContinues | kPlan));
  row("profile-steps", text("A,B"), "Habana", "first and last weight update to trace",
      needs("`trace` or `gc-profile`"), commands(kContinues | kPlan),
      says<&Run::trace_first, &Run::trace_last>());
  row("trace-kernels", flag(), "millrace",
      "also trace every kernel, on a track below the forward and backward passes",
      needs("`trace` or `gc-profile`"), commands(kContinues | kPlan), says<&Run::trace_detail>());
  row("plan", path("FILE"), "millrace",
      "take splits and devices from a file written by millrace plan",
      commands(kContinues | kBench | kPlan | set_of(Command::Validate)),
      says<&LayoutRequest::plan>());
  row("cost-model", choice("analytic|profile"), "millrace",
      "estimate the time of every op, or measure it on this machine; plan also measures the stages "
      "of the layout, each rank at work on its own",
      by_default("analytic"), commands(kPlan | set_of(Command::Report)));
  row("device", path("FILE"), "millrace", "machine file whose devices the plan is for",
      default_text("a core of a fixed kind, a Xeon with AVX-512"), commands(kPlan));
  row("link", path("FILE"), "millrace", "machine file whose link carries the messages",
      default_text("memory that ranks of one machine share"), commands(kPlan));
  row("devices", integer(between(1, 65536)), "millrace",
      "search for the best layout on this number of devices: stages, replicas, micro-batches, "
      "schedule, recomputation",
      unit("devices"), needs("`total-batch`"), commands(kPlan));
  row("total-batch", integer(at_least(1)), "millrace", "images per weight update of that layout",
      unit("images"), needs("`devices`"), commands(kPlan));
  row("machine-file", path("FILE"), "millrace",
      "measure this machine instead of a training and write what plans need to know of it",
      default_text(""), commands(kBench));
  row("format", choice("text|json|svg|csv|html"), "millrace",
      "plan: readable text, a file for `plan`, a drawing, or the schedule; report: html alone; "
      "bench: text, json, or csv with a line for each run",
      default_text("text; html for report"), commands(kPlan | kBench | set_of(Command::Report)));
  row("output", path("FILE"), "millrace", "file to write the page or the weights to",
      default_text(
          "in the run directory, report.html (of several runs: here) or the network's name"),
      commands(set_of(Command::Report) | set_of(Command::Export)));
}

void add_failures(FieldTable& table) {
  const Rows row(table, Section::Command, kPlan, kOutput, {needs("`failures-per-day`")});
  row("failures-per-day", real(above_zero_to(1e6)), "millrace",
      "how often a host fails; plan then says what failures leave of the run by the interval "
      "between checkpoints, and which interval is the best",
      unit("failures of a host in a day"), default_text("no failures"), needs(""));
  row("devices-per-host", integer(between(1, 1024)), "millrace",
      "devices that are lost when a host fails", by_default(1), unit("devices"));
  row("repair-hours", real(between(0.0, 1e6)), "millrace",
      "time until a lost host is back; 0: a spare takes its place at once", by_default(4.0),
      unit("hours"));
  row("restart-time", real(between(0.0, 1e6)), "millrace",
      "time from the choice of hosts to the first update", by_default(60.0), unit("seconds"));
  row("checkpoint-stall", real(between(0.0, 1e6)), "millrace",
      "time for which the run waits for a checkpoint; a run prints it at its end",
      default_text("for what a device saves at 0.5 GB/s"), unit("seconds"));
  row("partner-interval", real(above_zero_to(1e9)), "millrace",
      "work between snapshots that hosts keep in the memory of a partner",
      default_text("no snapshots"), unit("seconds"));
}

void add_benchmark(FieldTable& table) {
  const Rows row(table, Section::Command, kBench, kOutput);
  row("training", flag(), "NVIDIA", "measure weight updates, which is the default",
      default_text(""));
  row("inference", flag(), "NVIDIA",
      "measure forward passes with running statistics, on validation images", default_text(""));
  row("kernels", flag(), "millrace",
      "print every kernel of a weight update, with its share of what the cores can do at most",
      default_text(""));
  row("batch-sizes", kind(ValueType::Integer, "N,..", at_least(1)), "NVIDIA",
      "measure several batch sizes, each in a run of its own, and print tables. `precision` takes "
      "a list, too, and so does `ranks`: then there are as many replicas as ranks, or one for each "
      "`shards` of them",
      default_text(""), unit("images"), lists(kBench));
  row("steps", integer(at_least(1)), "millrace", "weight updates or forward passes to measure",
      default_text("50; with `inference` 80, with `kernels` 10"), unit("steps"));
  row("measured-epochs", real(above_zero()), "NVIDIA",
      "measure until N epochs are over, warm-up included, instead of `steps`", default_text(""),
      unit("epochs"));
  row("warmup-steps", integer(at_least(0)), "NVIDIA", "steps before the measurement starts",
      default_text("10; with `inference` 20, with `kernels` 2"), unit("steps"));
  row("display-every", integer(at_least(1)), "NVIDIA",
      "print the rate of every Nth measured step, and the averages, in lines of NVIDIA's logger; "
      "only in text",
      default_text(""), unit("steps"));
  row("results-file", path("FILE"), "NVIDIA",
      "write the rates of these steps, or of all, as a file that NVIDIA's scripts read: "
      "iter.total_ips",
      default_text(""));
  row("log-filename", path("FILE"), "NVIDIA",
      "write every measured step and the averages in lines of NVIDIA's DLLogger: DLLL {..}",
      default_text(""));
}

void add_inspecting(FieldTable& table) {
  const Rows row(table, Section::Command, set_of(Command::Inspect), kOutput);
  row("digest", flag(), "millrace",
      "print one SHA-256 over parameters, statistics and optimizer state in name order",
      default_text(""));
  row("verify", flag(), "millrace", "read and check every tensor", default_text(""));
  row("pipeline", flag(), "IPU 1.4",
      "train: run `shards` as a pipeline (always the case with more than one micro-batch); bench: "
      "also show how each device spent its time",
      default_text(""), commands(kTrain | kBench));
  row("json", flag(), "millrace", "print JSON", default_text(""),
      commands(set_of(Command::Inspect) | kForward | kBench | set_of(Command::DataStats)));
  row("train-images", integer(between(1, 500000)), "millrace",
      "number of training images to generate", by_default(10000), unit("images"),
      commands(set_of(Command::Generate)));
  row("test-images", integer(between(1, 100000)), "millrace", "number of test images to generate",
      by_default(2000), unit("images"), commands(set_of(Command::Generate)));
}

void add_averaging(FieldTable& table) {
  const Rows row(table, Section::Command, set_of(Command::Average), kOutput);
  row("filename", text("NAME"), "IPU 2.0",
      "name of the average below RUN_DIR/averages; replaces an existing one",
      default_text("mean-of-<count> or exponential-<decay>"));
  row("count", integer(at_least(1)), "IPU 2.0", "average the last N checkpoints",
      default_text("all"), alias("N"), unit("checkpoints"));
  row("mode", choice("mean|exponential"), "IPU 2.0",
      "plain mean, or decay x old + (1 - decay) x new starting with the oldest",
      by_default("mean"));
  row("decay", real(between_zero_and_one(), "D"), "IPU 2.0", "decay of `mode` exponential",
      by_default(0.99));
  row("discard-last", integer(at_least(0)), "IPU 2.0", "leave out the newest N checkpoints",
      by_default(0), unit("checkpoints"));
}

void add_data_tools(FieldTable& table) {
  const Rows row(table, Section::Command, kDataTools, kOutput);
  row("split", choice("train|validation|both"), "millrace",
      "images to read; both: whichever of the two exist", by_default("both"));
  row("data-classes", integer(between(1, 1'000'000)), "millrace",
      "number of classes that the labels of TFRecord files or archives may name", by_default(1000));
  row("threads", integer(between(1, 1024)), "millrace", "threads that read, check or convert",
      default_text("one per core"));
}

void add_converting(FieldTable& table) {
  const Rows row(table, Section::Command, set_of(Command::DataConvert), kOutput);
  row("raw-dir", path("DIR"), "Habana",
      "raw images: train/ with a folder or .tar archive per class, or those folders themselves; "
      "validation/ with image files; synset_labels.txt beside it");
  row("validation-labels", path("FILE"), "millrace",
      "file with the class of each validation image, one per line, in the order of the file names",
      default_text("RAW_DIR/synset_labels.txt"));
  row("train-shards", integer(between(1, 99999)), "millrace",
      "number of TFRecord files to write for training images", by_default(1024));
  row("validation-shards", integer(between(1, 99999)), "millrace",
      "number of TFRecord files to write for validation images", by_default(128));
  row("packed", flag(), "millrace",
      "instead write OUT/train.packed and OUT/validation.packed: the images of `data-dir`, decoded "
      "and scaled down once");
  row("shorter-side", integer(between(1, 4096)), "millrace",
      "length of the shorter side of packed images", by_default(256), unit("pixels"),
      needs("`packed`"));
}

}  // namespace

void add_command_fields(FieldTable& table) {
  add_command(table);
  add_continuing(table);
  add_measuring(table);
  add_failures(table);
  add_benchmark(table);
  add_inspecting(table);
  add_averaging(table);
  add_data_tools(table);
  add_converting(table);
}

}  // namespace millrace::run
