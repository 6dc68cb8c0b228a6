// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/error.hpp"
#include "core/text.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "run/field_rows.hpp"

namespace millrace::run {
namespace {

using namespace field_words;  // NOLINT(google-build-using-namespace): the words of the table
using pipeline::RankMap;

/// Numbers from `least` on; `problem` says what another word is not.
std::vector<std::int32_t> parse_numbers(const Setting& given, std::int32_t least,
                                        std::string_view problem) {
  std::vector<std::int32_t> numbers;
  for (const std::string& word : split_list(text_of(given), ' ')) {
    const std::optional<std::int32_t> number = parse_number<std::int32_t>(word);
    if (!number || *number < least)
      fail(ErrorKind::Usage, "{}: '{}' is not {}", given.where, word, problem);
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<std::int32_t> parse_mapping(const Setting& given) {
  return parse_numbers(given, 0, "a device; devices are numbered from 0");
}

std::vector<std::int32_t> parse_rank_shares(const Setting& given) {
  return parse_numbers(given, 1, "a number of devices; a rank without a device has nothing to do");
}

/// Numbers above 0, of which 1 is the whole or the usual one.
std::vector<double> parse_shares(const Setting& given) {
  std::vector<double> shares;
  for (const std::string& word : split_list(text_of(given), ' ')) {
    const std::optional<double> share = parse_number<double>(word);
    if (!share || !(*share > 0.0) || *share > 1.0)
      fail(ErrorKind::Usage, "{}: '{}' is not a number above 0 and at most 1", given.where, word);
    shares.push_back(*share);
  }
  return shares;
}

/// A list of numbers or names; nothing if it is empty.
constexpr auto kPrintList = [](const auto& list) -> std::optional<Value> {
  if (list.empty()) return std::nullopt;
  return Value(join(list, " "));
};

bool is_elastic(const Run& c) { return c.layout.elastic; }

bool is_cut_by_memory(const Run& c) { return c.layout.cut_by_memory; }

std::string_view schedule_names() {
  static const std::string names =
      choices_of(pipeline::schedule_rules(), &pipeline::ScheduleRule::name) + "|auto";
  return names;
}

void add_pipeline(FieldTable& table) {
  const Rows row(table, Section::Pipeline, kRuns, kLayout);
  row("shards", integer(between(1, 4096)), "IPU",
      "devices per replica, across which the network is split", by_default(1), unit("devices"),
      commands(kRunsAndValidate), main_option(), sets<&LayoutRequest::shards>(),
      yields<&RankMap::devices, &pipeline::PipelinePlan::ranges, &pipeline::PipelinePlan::schedule,
             &pipeline::PipelinePlan::joint>());
  row("pipeline-splits", names("NAME .."), "IPU",
      "first layer or op of every stage except the first; auto selects them",
      needs("more than one stage"), commands(kRunsAndValidate), main_option(),
      sets<&LayoutRequest::splits>(), if_given(),
      yields<&Run::splits, &LayoutRequest::pipelined, &LayoutRequest::cut_by_memory>());
  row("pipeline-depth", integer(at_least(1)), "IPU",
      "micro-batches per weight update and replica; same as `gradients-to-accumulate`",
      by_default(1), unit("micro-batches"), main_option(),
      records([](const Run& c) -> std::optional<Value> {
        if (!c.layout.depth_is_of_pipeline) return std::nullopt;
        return Value(c.micro_batches);
      }),
      changes([](const Setting& given, Run& c) {
        c.micro_batches = std::get<std::int64_t>(given.value);
        c.layout.depth_is_of_pipeline = true;
      }),
      says<&Run::micro_batches, &LayoutRequest::depth_is_of_pipeline>());
  row("pipeline-schedule", choice(schedule_names()), "IPU",
      "order of forward and backward passes; auto takes the fastest with cuts of its own, or for "
      "given cuts lists one for the costs of the stages",
      default_text("Interleaved (same as 1F1B)"), main_option(), sets<&LayoutRequest::schedule>());
  row("pipeline-schedule-file", path("CSV"), "millrace",
      "file with a schedule: one row per device, actions such as 0F0, 0B0, 0I0, 0W0",
      sets<&LayoutRequest::schedule_file>(), if_given());
  row("pipeline-warmup", integer(between(0, 4096)), "millrace",
      "micro-batches that a stage takes in beyond those that fill the pipeline: uses more memory "
      "to hide the latency of links",
      by_default(0), unit("micro-batches"), needs("`pipeline-schedule` 1F1B or Interleaved"),
      sets<&LayoutRequest::extra_warmup>());
  row("chunks", integer(between(1, 64)), "millrace", "number of stages on each device",
      default_text("1; 2 for Looped and V schedules"), unit("stages per device"),
      needs("`pipeline-schedule` Looped or Looped-ZB"), commands(kRunsAndValidate),
      sets<&LayoutRequest::chunks>());
  row("device-mapping", names("N .."), "millrace", "device of each stage",
      default_text("stage s on device s"), commands(kRunsAndValidate),
      written<&LayoutRequest::device_of>(parse_mapping, kPrintList));
}

void add_sharding(FieldTable& table) {
  const Rows row(table, Section::Pipeline, kRuns, kLayout);
  row("device-memory", text("SIZE"), "millrace",
      "memory that a device may use; on cores with its share of what its process needs besides. "
      "Automatic splits and `recompute` auto stay within it, and what does not fit is refused",
      alias("memory"), default_text("no limit"), unit("bytes; examples: 512MiB, 8GiB"),
      sets<&LayoutRequest::device_memory>(), if_given(), yields<&Run::device_memory>());
  row("sharding-include-filter", names("NAME .."), "IPU",
      "parts of layer names; automatic sharding cuts only at these layers",
      default_text("all layers"), needs("`shards` with one micro-batch and no splits"), harmless(),
      when(is_cut_by_memory), set_first(), sets<&LayoutRequest::include>(), if_given());
  row("sharding-exclude-filter", names("NAME .."), "IPU",
      "parts of layer names; automatic sharding does not cut at these layers",
      default_text("no layers"), needs("`shards` with one micro-batch and no splits"), harmless(),
      when(is_cut_by_memory), set_first(), sets<&LayoutRequest::exclude>(), if_given());
}

void add_ranks(FieldTable& table) {
  const Rows row(table, Section::Pipeline, kRuns, kLayout);
  row("replicas", integer(between(1, 4096)), "IPU",
      "number of copies of the pipeline; they train on different images and average their "
      "gradients",
      commands(kRunsAndValidate), sets<&RankMap::replicas>(), main_option());
  row("max-cross-replica-buffer-size", integer(at_least(1)), "IPU",
      "gradients that replicas add up at once, more only if one op has more; each such bucket is "
      "added up as soon as the last micro-batch has computed it",
      default_text("an eighth of those of the stage, at least 1 MiB"), unit("bytes"),
      needs("`replicas`"), harmless(), when(has_replicas), sets<&Run::reduced_at_once>(),
      if_given());
  row("ranks", integer(between(1, 16384)), "millrace",
      "number of processes among which the devices are divided",
      default_text("shards x replicas, or the number that a launcher started"), unit("processes"),
      commands(kRunsAndValidate), lists(kBench), sets<&LayoutRequest::ranks>(),
      yields<&RankMap::ranks>());
  row("devices-of-ranks", names("N .."), "millrace",
      "number of devices of each rank, where some ranks are faster than others",
      default_text("as equal as possible"), unit("devices"), commands(kRunsAndValidate),
      written<&LayoutRequest::rank_shares>(parse_rank_shares, kPrintList),
      yields<&RankMap::shares>());
  row("spread", flag(), "millrace",
      "where `ranks` cannot have equally many devices, cut the stages further, so that all have "
      "equal work; this is done without being asked for automatic cuts, for replicas of one stage, "
      "with `elastic`, and when a run is restored with other `ranks`",
      sets<&LayoutRequest::spread>(), if_given());
  row("speeds-of-ranks", names("X .."), "millrace",
      "speed of each rank, where some are slower than others: 1 0.6 1 1. Stages are cut further, "
      "and each rank gets as much of the work as it is fast, as with `spread`",
      default_text("all equally fast"), unit("fraction of the fastest"),
      written<&LayoutRequest::rank_speeds>(parse_shares, kPrintList));
  row("hosts", names("NAME[:N] .."), "Habana",
      "machines on which to start ranks, N ranks on each; or a file with a line for each",
      default_text("this machine"), environment("MULTI_HLS_IPS"),
      commands(kContinues | kBench | set_of(Command::Validate)));
  row("ssh-port", integer(between(1, 65535)), "millrace",
      "SSH port on which the launcher reaches other machines", by_default(22), needs("`hosts`"),
      commands(kContinues | kBench | set_of(Command::Validate)));
  row("interface", text("NAME"), "Habana",
      "network interface, or subnet such as 10.0.0.0/8, for messages between machines",
      default_text("the launcher's choice"), environment("MPI_TCP_INCLUDE"), needs("`hosts`"),
      commands(kContinues | kBench | set_of(Command::Validate)));
  row("elastic", flag(), "millrace",
      "when a rank or host is lost, go on from the newest checkpoint with the hosts that answer, "
      "and take a host in again when it is back; the result stays the same, bit for bit",
      commands(kContinues), changes([](const Setting&, Run& c) { c.layout.elastic = true; }),
      says<&LayoutRequest::elastic>());
  row("min-ranks", integer(between(1, 16384)), "millrace",
      "wait until the hosts that answer have room for as many ranks", by_default(1),
      unit("processes"), needs("`elastic`"), when(is_elastic), commands(kContinues));
  row("restarts", integer(between(0, 1000000)), "millrace",
      "losses in a row, without a checkpoint between them, after which the run is given up",
      by_default(10), needs("`elastic`"), when(is_elastic), commands(kContinues));
  row("probe-every", integer(between(1, 86400)), "millrace",
      "time between two questions to lost hosts whether they are back", by_default(60),
      unit("seconds"), needs("`elastic`"), when(is_elastic), commands(kContinues));
  row("distributed", flag(), "IPU",
      "run on the workers in TF_CONFIG, with `replicas` on each; task 0 starts all ranks",
      commands(kContinues));
  row("weight-check-every", integer(at_least(1)), "millrace",
      "weight updates between comparisons of the replicas' weights", by_default(100),
      unit("weight updates"), needs("`replicas`"), commands(kTrainings), when(has_replicas),
      sets<&Run::weight_check_every>());
  row("hang-timeout", integer(between(0, 1000000)), "millrace",
      "time without progress after which the run ends and reports which rank waits for which; 0 "
      "disables it",
      by_default(600), unit("seconds"), commands(kTrainings | kPlan | set_of(Command::Validate)),
      sets<&Run::hang_timeout>(), if_given());
}

void add_device(FieldTable& table) {
  const Rows row(table, Section::Device, kRuns, kLayout);
  row("threads-per-device", integer(between(1, kMostThreads)), "millrace",
      "compute threads per device; results are bit-identical only for equal numbers",
      default_text("the rank's share of the cores"), unit("threads"),
      commands(kRunsAndValidate | kPredict | set_of(Command::Doctor)), main_option(),
      sets<&LayoutRequest::threads>(),
      records([](const Run& c) { return Value(std::int64_t{c.threads}); }),
      yields<&Run::threads>());
  row("recompute", choice("none|segments|auto"), "millrace",
      "recompute activations in the backward pass instead of keeping them: segments of every stage "
      "in turn, or with auto those that cost the least time so that `device-memory` suffices",
      default_text("none"), sets<&LayoutRequest::recompute>(),
      yields<&Run::recompute, &Run::chosen_segments>());
  row("xla-recompute", flag(), "IPU", "same as `recompute` segments",
      sets<&LayoutRequest::recomputes_stages>(), records([](const Run& c) -> std::optional<Value> {
        if (c.layout.recompute == RecomputeRequest::Segments) return std::nullopt;
        return Value(c.layout.recomputes_stages);
      }));
  row("recompute-layers", names("NAME .."), "millrace",
      "recompute only these layers; b2 means all of b2/0, b2/1, ..", sets<&Run::recompute_layers>(),
      if_given());
  row("batches-per-step", integer(at_least(1)), "IPU",
      "weight updates between reports, if neither `log-freq` nor `logs-per-epoch` is given",
      unit("weight updates"), output(), sets<&LogRequest::per_report>(),
      records([](const Run& c) -> std::optional<Value> {
        if (c.logging.per_epoch || c.logging.every) return std::nullopt;
        return c.logging.per_report;
      }));
  row("available-memory-proportion", names("X .."), "IPU",
      "maximum scratch memory of a kernel, of our own ones in each thread; one number, or two per "
      "stage of a pipeline (convolutions, matrix products). If no kernel fits, the one with the "
      "least "
      "scratch memory is used. Runs with different limits agree to rounding only. With one number, "
      "every layout gives the same bits; with numbers per stage, the bits depend on the cuts",
      default_text("no limit"),
      unit("fraction of `device-memory`, or else of the memory of the GPU, or of the machine"),
      written<&LayoutRequest::scratch_shares>(parse_shares, kPrintList),
      yields<&Run::scratch_caps>());
  row("allow-nondeterministic", flag(), "millrace",
      "let cuDNN take kernels whose sums have another order from run to run or from layout to "
      "layout: faster, but results repeat to rounding only, not bit for bit; without effect where "
      "cuDNN does not compute",
      commands(kRunsAndValidate | kPredict), sets<&Run::allow_nondeterministic>(), if_given());
  row("select-ipus", names("N .."), "IPU",
      "numbers of the devices to use: one per device of the run, replica by replica, or the first "
      "of consecutive ones. Number n is GPU n of the machine or, without GPUs, its n-th set of "
      "`threads-per-device` cores. For a single device, a second number names that of validation, "
      "which runs on the first here",
      default_text("AUTO"), commands(kRunsAndValidate | kPredict),
      changes([](const Setting& given, Run& c) { c.layout.devices = text_of(given); }),
      says<&LayoutRequest::devices>(), yields<&Run::device_numbers>());
}

/// What only an IPU has, or does otherwise.
void add_idle(FieldTable& table) {
  const Rows row(table, Section::Device, kRuns, kLayout);
  row("enable-half-partials", flag(), "IPU", "accumulate products in 16 bits",
      idle("products are always accumulated in float32"));
  row("disable-variable-offloading", flag(), "IPU", "keep the optimizer state on the device",
      idle("the optimizer state never leaves the device"));
  row("enable-conv-dithering", flag(), "IPU",
      "start convolutions on different tiles of an IPU in turn", idle("there are no tiles"));
  row("internal-exchange-optimisation-target", choice("balanced|cycles|memory"), "IPU",
      "goal of the data exchange between the tiles of an IPU", idle("there are no tiles"));
}

}  // namespace

void add_pipeline_fields(FieldTable& table) {
  add_pipeline(table);
  add_sharding(table);
  add_ranks(table);
  add_device(table);
  add_idle(table);
}

}  // namespace millrace::run
