// SPDX-License-Identifier: Apache-2.0
#include "cli/option_rows.hpp"

namespace millrace::cli {
namespace {

using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table

void add_command(OptionTable& table) {
  Rows rows(table, Section::Command, set_of(Command::DataConvert), kMayChange);
  rows.path("config", "FILE", "IPU 2.0",
            "TOML file of options, or the name of a recipe in configs/")
      .commands(kTrain | kBench | kPlan | set_of(Command::Import) | set_of(Command::Validate));
  rows.choice("dialect", "ipu|nvidia|habana|surfsara", "millrace",
              "also accept the option names, and use the defaults, of this trainer")
      .default_text("none")
      .commands(kTrain | kBench | kPlan | set_of(Command::Validate));
  rows.flag("smoke", "millrace",
            "run a reduced recipe to see that it works: one replica, a total batch of at most 16, "
            "64 pixels, a few weight updates; prints each reduction")
      .commands(kTrain);
  rows.flag("compile-only", "IPU 2.0", "check everything and print what would run, but run nothing")
      .commands(kTrain);
  rows.path("run-dir", "DIR", "millrace",
            "directory to create for the run, instead of one below --log-dir")
      .environment("MILLRACE_RUN_DIR")
      .commands(kPlacesRun);
  rows.flag("no-logs", "IPU", "create no run directory: no logs, no checkpoints")
      .commands(kPlacesRun);
}

void add_continuing(OptionTable& table) {
  Rows rows(table, Section::Command, set_of(Command::DataConvert), kMayChange);
  rows.integer("stop-after", "N", at_least(1), "millrace",
               "stop after N weight updates as if pre-empted: save a checkpoint, exit with code 75")
      .unit("weight updates")
      .commands(kContinues);
  rows.path("restore-path", "DIR", "IPU",
            "run directory to continue (train, restore) or to validate; validate also takes a "
            "single checkpoint and uses untrained weights without this option")
      .commands(kReads | kTrain);
  rows.integer("repeat", "N", at_least(1), "IPU", "number of times to validate, to measure speed")
      .by_default(std::int64_t{1})
      .commands(set_of(Command::Validate));
  rows.flag("no-launch", "millrace",
            "start no ranks on this machine; expect that a launcher has started them")
      .default_text("")
      .commands(kContinues | kBench);
}

void add_measuring(OptionTable& table) {
  Rows rows(table, Section::Command, set_of(Command::DataConvert), kMayChange);
  rows.path("trace", "FILE", "millrace",
            "write a trace of every device for Perfetto or chrome://tracing; if the name ends with "
            ".svg, draw the last step beside the simulated one")
      .commands(kContinues);
  rows.choice("gc-profile", "NO_PROFILE|DEVICE_PROFILE|IPU_PROFILE|TILE_PROFILE", "IPU",
              "any value except NO_PROFILE writes a trace to trace.json in the run directory")
      .default_text("NO_PROFILE; IPU_PROFILE if given without a value")
      .bare("IPU_PROFILE")
      .commands(kContinues);
  rows.text("profile-steps", "A,B", "Habana", "first and last weight update to trace")
      .needs("--trace or --gc-profile")
      .commands(kContinues);
  rows.path("plan", "FILE", "millrace",
            "take splits and devices from a file written by millrace plan")
      .commands(kContinues | kBench | kPlan);
  rows.choice("cost-model", "analytic|profile", "millrace",
              "estimate the time of every op, or measure it on this machine")
      .by_default("analytic")
      .commands(kPlan);
  rows.choice("format", "text|json|svg|csv", "millrace",
              "output: readable text, a file for --plan, a drawing, or the schedule")
      .by_default("text")
      .commands(kPlan);
  rows.integer("steps", "N", at_least(1), "millrace", "weight updates to measure")
      .by_default(std::int64_t{50})
      .unit("weight updates")
      .commands(kBench);
  rows.integer("warmup-steps", "N", at_least(0), "NVIDIA",
               "weight updates before the measurement starts")
      .by_default(std::int64_t{10})
      .unit("weight updates")
      .commands(kBench);
}

void add_inspecting(OptionTable& table) {
  Rows rows(table, Section::Command, set_of(Command::DataConvert), kMayChange);
  rows.flag("digest", "millrace",
            "print one SHA-256 over parameters, statistics and optimizer state in name order")
      .default_text("")
      .commands(set_of(Command::Inspect));
  rows.flag("verify", "millrace", "read and check every tensor")
      .default_text("")
      .commands(set_of(Command::Inspect));
  rows.flag("pipeline", "IPU 1.4",
            "train: run --shards as a pipeline (always the case with more than one micro-batch); "
            "bench: also show how each device spent its time")
      .default_text("")
      .commands(kTrain | kBench);
  rows.flag("json", "millrace", "print JSON")
      .default_text("")
      .commands(set_of(Command::Inspect) | set_of(Command::Validate) | kBench |
                set_of(Command::DataStats));
  rows.integer("train-images", "N", between(1, 500000), "millrace",
               "number of training images to generate")
      .by_default(std::int64_t{10000})
      .unit("images")
      .commands(set_of(Command::Generate));
  rows.integer("test-images", "N", between(1, 100000), "millrace",
               "number of test images to generate")
      .by_default(std::int64_t{2000})
      .unit("images")
      .commands(set_of(Command::Generate));
}

void add_averaging(OptionTable& table) {
  Rows rows(table, Section::Command, set_of(Command::DataConvert), kMayChange);
  rows.text("filename", "NAME", "IPU 2.0",
            "name of the average below RUN_DIR/averages; replaces an existing one")
      .default_text("mean-of-<count> or exponential-<decay>")
      .commands(set_of(Command::Average));
  rows.integer("count", "N", at_least(1), "IPU 2.0", "average the last N checkpoints")
      .default_text("all")
      .alias("N")
      .unit("checkpoints")
      .commands(set_of(Command::Average));
  rows.choice("mode", "mean|exponential", "IPU 2.0",
              "plain mean, or decay x old + (1 - decay) x new starting with the oldest")
      .by_default("mean")
      .commands(set_of(Command::Average));
  rows.real("decay", "D", between_zero_and_one(), "IPU 2.0", "decay of --mode exponential")
      .by_default(0.99)
      .commands(set_of(Command::Average));
  rows.integer("discard-last", "N", at_least(0), "IPU 2.0", "leave out the newest N checkpoints")
      .by_default(std::int64_t{0})
      .unit("checkpoints")
      .commands(set_of(Command::Average));
}

void add_data_tools(OptionTable& table) {
  Rows rows(table, Section::Command, set_of(Command::DataConvert), kMayChange);
  rows.choice("split", "train|validation|both", "millrace",
              "images to read; both: whichever of the two exist")
      .by_default("both")
      .commands(kDataTools);
  rows.integer("data-classes", "N", between(1, 1'000'000), "millrace",
               "number of classes that the labels of TFRecord files may name")
      .by_default(std::int64_t{1000})
      .commands(kDataTools);
  rows.integer("threads", "N", between(1, 1024), "millrace", "threads that read, check or convert")
      .default_text("one per core")
      .commands(kDataTools);
  rows.path("raw-dir", "DIR", "Habana",
            "raw images: train/ with a folder or .tar archive per class, or those folders "
            "themselves; validation/ with image files; synset_labels.txt beside it");
  rows.path("validation-labels", "FILE", "millrace",
            "file with the class of each validation image, one per line, in the order of the file "
            "names")
      .default_text("RAW_DIR/synset_labels.txt");
  rows.integer("train-shards", "N", between(1, 99999), "millrace",
               "number of TFRecord files to write for training images")
      .by_default(std::int64_t{1024});
  rows.integer("validation-shards", "N", between(1, 99999), "millrace",
               "number of TFRecord files to write for validation images")
      .by_default(std::int64_t{128});
  rows.flag("packed", "millrace",
            "instead write OUT/train.packed and OUT/validation.packed: the images of --data-dir, "
            "decoded and scaled down once");
  rows.integer("shorter-side", "N", between(1, 4096), "millrace",
               "length of the shorter side of packed images")
      .by_default(std::int64_t{256})
      .unit("pixels")
      .needs("--packed");
}

}  // namespace

void add_command_options(OptionTable& table) {
  add_command(table);
  add_continuing(table);
  add_measuring(table);
  add_inspecting(table);
  add_averaging(table);
  add_data_tools(table);
}

}  // namespace millrace::cli
