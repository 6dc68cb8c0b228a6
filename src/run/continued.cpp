// SPDX-License-Identifier: Apache-2.0
//
// What a new command line may change in the options of a run that was recorded.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "run/complete.hpp"

namespace millrace::run {
namespace {

/// Whether a command line asks for another number or place of stages.
bool moves_stages(const Patch& given) {
  return std::ranges::any_of(
      std::to_array({"shards", "chunks", "device-mapping", "pipeline-schedule", "plan"}),
      [&](const char* name) { return given.find(name) != nullptr; });
}

/// Applies another number or place of stages, which needs new cuts. `given` are the options of the
/// new command line.
Patch with_stages(const Patch& given, Patch merged) {
  const auto relays = [&](std::string_view name) { return given.find(name) != nullptr; };
  const bool other_stages = moves_stages(given);
  if (relays("ranks") && !relays("pipeline-splits")) impose(merged, "spread", true);
  if (relays("ranks") && !relays("speeds-of-ranks")) merged.erase("speeds-of-ranks");
  if (!relays("ranks") && (other_stages || relays("replicas"))) merged.erase("ranks");
  if (!other_stages) return merged;
  if (!relays("device-mapping")) merged.erase("device-mapping");
  if (!relays("chunks")) merged.erase("chunks");
  if (!relays("shards") && (relays("device-mapping") || relays("plan"))) merged.erase("shards");
  if (!relays("pipeline-warmup")) merged.erase("pipeline-warmup");
  if (!relays("pipeline-schedule")) merged.erase("pipeline-schedule");
  if (!relays("pipeline-splits")) {
    merged.erase("pipeline-splits");
    if (merged.integer("shards").value_or(1) > 1 || relays("device-mapping") || relays("chunks"))
      impose(merged, "pipeline-splits", std::string("auto"));
  }
  return merged;
}

/// Applies a new layout to the options of a restored run. The total batch must stay the same, so
/// the number of micro-batches follows the number of replicas. `given` are the options of the new
/// command line. Errors: Usage, naming both batches.
Patch relaid(const Patch& given, const Patch& recorded, Patch merged) {
  const auto replicas_of = [](const Patch& o) { return o.integer("replicas").value_or(1); };
  const std::int64_t before = micro_batches_of(recorded) * replicas_of(recorded);
  const bool depth_given =
      given.find("pipeline-depth") != nullptr || given.find("gradients-to-accumulate") != nullptr;
  if (!depth_given && before % replicas_of(merged) == 0) {
    merged.erase("pipeline-depth");
    impose(merged, "gradients-to-accumulate", before / replicas_of(merged));
  }
  const std::int64_t now = micro_batches_of(merged) * replicas_of(merged);
  if (now != before)
    fail(ErrorKind::Usage,
         "micro-batches x replicas would be {} x {} and change the total batch of the run, which "
         "started with {} x {}: {}",
         micro_batches_of(merged), replicas_of(merged), micro_batches_of(recorded),
         replicas_of(recorded),
         before == 1 ? std::string("with one micro-batch in all, it has one replica")
                     : fmt::format("keep the product at {}", before));
  return with_stages(given, std::move(merged));
}

/// Options that nothing but a training with its backward passes needs.
constexpr auto kOfTraining = std::to_array<std::string_view>(
    {"pipeline-warmup", "spread", "speeds-of-ranks", "device-memory", "recompute", "xla-recompute",
     "recompute-layers", "BN-span", "epochs", "max-iterations", "warmup", "warmup-epochs",
     "warmup-iterations", "lr-horizon", "lr-horizon-epochs", "no-validation",
     "epochs-between-evals", "iterations-between-evals"});
/// The device of each stage under a schedule that maps them itself.
std::string mapping_of(const pipeline::ScheduleRule& rule, std::int64_t devices,
                       std::int64_t chunks) {
  std::vector<std::int64_t> device_of;
  for (std::int64_t s = 0; s < devices * chunks; ++s)
    device_of.push_back(rule.placement == pipeline::StagePlacement::V && s >= devices
                            ? 2 * devices - 1 - s
                            : s % devices);
  return join(device_of, " ");
}

/// Forward passes of one micro-batch at a time, on the devices that hold the stages in the
/// training.
void run_forward(Patch& options) {
  // A file with a schedule says where the stages are, for its number of micro-batches.
  if (options.find("pipeline-schedule-file") != nullptr) return;
  const std::string name = options.text("pipeline-schedule").value_or("Sequential");
  const pipeline::ScheduleRule& rule = pipeline::placing_rule(name);
  const bool placed = rule.placement != pipeline::StagePlacement::Free;
  const std::int64_t chunks = options.integer("chunks").value_or(placed ? 2 : 1);
  if (chunks > 1 && options.find("device-mapping") == nullptr)
    impose(options, "device-mapping",
           mapping_of(rule, options.integer("shards").value_or(1), chunks));
  for (const char* other :
       {"pipeline-schedule", "chunks", "pipeline-depth", "gradients-to-accumulate"})
    options.erase(other);
}

double number_of(const Setting& setting) {
  const auto* whole = std::get_if<std::int64_t>(&setting.value);
  return whole != nullptr ? static_cast<double>(*whole) : std::get<double>(setting.value);
}

bool raises(const Patch& given, const Patch& recorded, std::string_view name) {
  const Setting* const now = given.find(name);
  const Setting* const before = recorded.find(name);
  return now != nullptr && before != nullptr && number_of(*now) > number_of(*before);
}

/// The option that gave the length of a run, or empty if none did.
std::string_view length_of(const Patch& recorded) {
  for (const char* const own : {"iterations", "epochs"})
    if (recorded.find(own) != nullptr) return own;
  return {};
}

/// Whether an option makes the run longer. With `epochs` and `max-iterations`, whichever ends first
/// ends the run, so that each may be raised; a limit may come with more epochs, and fewer epochs
/// with a higher limit.
bool extends(std::string_view name, const Patch& given, const Patch& recorded) {
  const std::string_view own = length_of(recorded);
  if (!is_length(name) || own.empty()) return false;
  if (raises(given, recorded, name)) return true;
  const bool limit = name == "max-iterations";
  const bool bounded = own == "epochs" && name != "iterations";
  return bounded && raises(given, recorded, limit ? "epochs" : "max-iterations") &&
         (!limit || recorded.find(name) == nullptr);
}

/// Whether an option keeps the learning rates of an extended run as they were: its horizon is then
/// the recorded length.
bool keeps_rates(std::string_view name, const Setting& given, const Patch& recorded) {
  const std::string_view length = name == "lr-horizon-epochs" ? "epochs" : "iterations";
  const Setting* const before = recorded.find(length);
  return (name == "lr-horizon-epochs" || name == "lr-horizon") && before != nullptr &&
         number_of(given) == number_of(*before);
}

/// Fewer epochs, with a higher limit, only end the run: its learning rates remain those of the
/// recorded ones.
void keep_horizon(Patch& options, const Patch& recorded) {
  if (!raises(recorded, options, "epochs")) return;
  for (const char* name : {"lr-horizon", "lr-horizon-epochs"})
    if (options.find(name) != nullptr) return;
  impose(options, "lr-horizon-epochs", *recorded.real("epochs"));
}

/// Where the learning rates remain, so does a default warm-up that was cut to the recorded length;
/// elsewhere it is the default again, also in a dialect, which cuts none.
void keep_warmup(Patch& options, const Patch& recorded) {
  const std::optional<double> before = recorded.real("epochs");
  const double usual = std::get<double>(find_field("warmup-epochs")->by_default.value());
  const bool was_cut = before && *before < usual && recorded.find("warmup-epochs") == nullptr &&
                       recorded.find("warmup-iterations") == nullptr &&
                       recorded.text("lr-schedule") != "polynomial_decay_lr";
  if (!was_cut) return;
  if (options.find("lr-horizon-epochs") != nullptr)
    impose(options, "warmup-epochs", *before);
  else if (options.find("dialect") != nullptr)
    impose(options, "warmup-epochs", std::min(usual, *options.real("epochs")));
}

/// The interval of reports that a command line sets, by whichever option, takes the place of the
/// recorded one.
void keep_interval(Patch& options, const Patch& command_line) {
  constexpr auto kIntervals = std::to_array({"log-freq", "logs-per-epoch", "batches-per-step"});
  const auto typed = [&](const char* name) { return command_line.find(name) != nullptr; };
  if (std::ranges::none_of(kIntervals, typed)) return;
  for (const char* name : kIntervals)
    if (!typed(name)) options.erase(name);
}

/// Whether a warm-up is that of the line that began the run, where it was cut to the run's length.
bool was_cut(std::string_view name, const Setting& given, const Patch& recorded) {
  const std::string_view length = name == "warmup-epochs" ? "epochs" : "iterations";
  const Setting* const before = recorded.find(name);
  const Setting* const run = recorded.find(length);
  return (name == "warmup-epochs" || name == "warmup-iterations") && before != nullptr &&
         run != nullptr && before->value == run->value && number_of(given) > number_of(*before);
}

/// Whether an option that the run did not record had no effect on it, and has none now.
bool is_idle(const Field& spec, const Setting& given, const Patch& recorded) {
  if (recorded.find(spec.name) != nullptr) return false;
  return given.origin == Origin::Dialect || spec.harmless ||
         (spec.name == "warmup-epochs" && recorded.find("iterations") != nullptr);
}

/// What a value on a command line follows from: only what was typed, or also what a dialect makes
/// of other values.
enum class Follows { Typed, Translated, Default };
Follows follows(const Patch& given, std::string_view name) {
  const Setting& setting = *given.find(name);
  if (setting.origin == Origin::Dialect) return Follows::Default;
  return setting.translated ? Follows::Translated : Follows::Typed;
}

/// Whether a dialect may derive a value from the number of replicas.
bool follows_from_replicas(const Patch& given, std::string_view name) {
  return follows(given, name) != Follows::Typed &&
         (find_field(name)->section == Section::Rate || name == "batch-size" || is_length(name));
}

/// Errors: Usage, naming both numbers.
void require_same_replicas(const Patch& given, const Patch& recorded) {
  if (given.find("replicas") == nullptr) return;
  const std::int64_t now = *given.integer("replicas");
  const std::int64_t before = recorded.integer("replicas").value_or(1);
  if (now == before) return;
  const std::int64_t ranks = before * recorded.integer("shards").value_or(1);
  fail(ErrorKind::Usage,
       "this line has {} replica(s), and the run was started with {}, from which rates and batches "
       "follow: {}, or continue it with millrace restore `restore-path` alone",
       now, before,
       ranks == 1
           ? "start it without a launcher"
           : fmt::format("start it under mpirun -np {} or say `replicas` {}", ranks, before));
}

/// Errors: Usage for an option that changes the run, naming both values and what to do.
[[noreturn]] void refuse_change(std::string_view name, const Patch& given, const Patch& recorded) {
  if (follows_from_replicas(given, name)) require_same_replicas(given, recorded);
  const Setting& now = *given.find(name);
  const Setting* const before = recorded.find(name);
  const std::string_view own = length_of(recorded);
  const bool length = is_length(name) && !own.empty();
  std::string remedy = "leave the option out, or start a new run";
  if (length)
    remedy = before != nullptr ? "give more to extend the run, or leave the option out"
                               : "give more of these to extend it";
  else if (now.origin == Origin::Dialect)
    remedy =
        "give the options that the run was started with, or continue it with millrace restore "
        "`restore-path` alone";
  const std::string was =
      length && before == nullptr
          ? fmt::format("whose length was given with `{}` {}", own,
                        to_string(recorded.find(own)->value))
          : fmt::format("which started with{}",
                        before != nullptr ? " " + to_string(before->value) : "out it");
  // What was typed may be another number: a rate for 256 images, say.
  const bool translated = follows(given, name) == Follows::Translated;
  fail(ErrorKind::Usage, "{} {}{} would change the mathematics of the run, {}: {}", now.where,
       translated ? "is here " : "", to_string(now.value) + (translated ? ", which" : ""), was,
       remedy);
}

/// The options of a command line over those of a recorded run.
struct Merged {
  Patch command_line;
  Patch all;
};

/// Errors: Usage for an option that would change the mathematics of the run.
Merged merged_options(const Patch& given, const Patch& recorded) {
  Patch command_line;
  Patch weaker;  // the environment, and what a dialect has where nothing is said
  for (const auto& [name, setting] : given.settings()) {
    const Field& spec = *find_field(name);
    const bool may_change = spec.decides != Decides::Mathematics;
    // The number of replicas follows from the processes that were started.
    const bool is_default = setting.origin == Origin::Dialect && name != "replicas";
    if (setting.origin == Origin::Environment ||
        (may_change ? is_default : is_idle(spec, setting, recorded)))
      weaker.set(spec, setting);
    else if (!was_cut(name, setting, recorded))
      command_line.set(spec, setting);
  }
  std::vector<std::string> changed;
  for (const auto& [field, before, now] : difference(recorded, command_line)) {
    if (now == nullptr || field->decides != Decides::Mathematics) continue;
    const bool keeps = before == nullptr && keeps_rates(field->name, *now, recorded);
    if (!keeps && !extends(field->name, given, recorded)) changed.emplace_back(field->name);
  }
  if (!changed.empty())
    refuse_change(*std::ranges::min_element(
                      changed, {}, [&](const std::string& name) { return follows(given, name); }),
                  given, recorded);
  Patch all = merge(merge(command_line, recorded), weaker);
  keep_horizon(all, recorded);
  keep_interval(all, command_line);
  all.network = recorded.network;  // the file may be another one by now
  keep_warmup(all, recorded);
  return {.command_line = std::move(command_line), .all = std::move(all)};
}

/// Files take the place of the random images of a training, unless these are asked for again.
void drop_random_images(const Patch& given, Patch& merged) {
  for (const char* name : {"synthetic-data", "generated-data"})
    if (given.find(name) == nullptr) merged.erase(name);
}

/// The devices of one pipeline, as far as the options tell.
std::int64_t devices_of(const Patch& options) {
  std::int64_t devices = options.integer("shards").value_or(1);
  for (const std::string& word : split_list(options.text("device-mapping").value_or(""), ' '))
    devices = std::max(devices, parse_number<std::int32_t>(word).value_or(0) + std::int64_t{1});
  return devices;
}

}  // namespace

bool is_length(std::string_view name) {
  return name == "max-iterations" || name == "epochs" || name == "iterations";
}

Patch continued_options(const Patch& given, const Patch& recorded) {
  Patch before = recorded;
  // Earlier versions recorded the name of a schedule beside its file.
  if (before.find("pipeline-schedule-file") != nullptr) before.erase("pipeline-schedule");
  Merged merged = merged_options(given, before);
  return relaid(merged.command_line, before, std::move(merged.all));
}

Patch located_options(const Patch& given, const Patch& recorded) {
  Patch typed;
  for (const auto& [name, setting] : given.settings())
    if (setting.origin == Origin::CommandLine) typed.set(*find_field(name), setting);
  return merge(std::move(typed), recorded);
}

Patch validated_options(const Patch& given, const Patch& recorded) {
  Patch whole = recorded;
  whole.erase("max-eval-steps");  // it saves a training time
  Merged merged = merged_options(given, whole);
  if (given.typed("data-dir") != nullptr) drop_random_images(given, merged.all);
  Patch options = with_stages(merged.command_line, std::move(merged.all));
  if (moves_stages(merged.command_line)) {
    options.erase("pipeline-schedule-file");
    if (split_list(options.text("available-memory-proportion").value_or(""), ' ').size() > 1)
      options.erase("available-memory-proportion");  // a number for each stage
  }
  return validated_options(std::move(options));
}

void drop_replicas(Patch& options, const Patch& given, std::int64_t started) {
  if (given.typed("replicas") != nullptr) return;
  const std::int64_t before = options.integer("replicas").value_or(1);
  options.erase("replicas");
  const bool typed = given.typed("ranks") != nullptr;
  std::int64_t ranks = options.integer("ranks").value_or(0);
  if (!typed && ranks > 0 && before > 1) {  // those of all replicas
    options.erase("ranks");
    if (ranks % before == 0 || ranks < before)
      impose(options, "ranks", std::max<std::int64_t>(ranks / before, 1));
  }
  if (!typed) ranks = started;
  const std::int64_t devices = devices_of(options);
  // Fewer processes than the devices of a single replica share these, or are refused.
  const bool occupied = before > 1 ? ranks > 0 : ranks > devices;
  if (occupied && options.find("plan") == nullptr)
    impose(options, "replicas", ranks / std::gcd(ranks, devices));
}

Patch validated_options(Patch options) {
  for (const std::string_view name : kOfTraining) options.erase(name);
  for (const std::string_view name : kOptionsOfReplicas) options.erase(name);
  run_forward(options);
  impose(options, "iterations", std::int64_t{1});
  impose(options, "validation-mode", std::string("all"));
  return options;
}

}  // namespace millrace::run
