// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/field_rows.hpp"

namespace millrace::run {
namespace {

using namespace field_words;  // NOLINT(google-build-using-namespace): the words of the table

bool in_epochs(const Run& c) { return c.length.epochs.has_value(); }
bool has_16_bits(const Run& c) { return c.precision.activations != DType::F32; }
bool rounds_weights(const Run& c) { return c.precision.master != DType::F32; }

/// "128" or "dynamic".
void set_loss_scaling(const Setting& given, Run& c) {
  constexpr double kMost = 16777216.0;
  constexpr double kDynamicStart = 32768.0;
  const auto& text = text_of(given);
  const bool dynamic = to_lower(text) == "dynamic";
  const std::optional<double> value = dynamic ? kDynamicStart : parse_number<double>(text);
  if (!value || !(*value > 0.0) || *value > kMost)
    fail(ErrorKind::Usage, "{}: '{}' is neither dynamic nor a number above 0 and at most {:.0f}",
         given.where, text, kMost);
  c.loss_scaling.kind = dynamic ? ScalingKind::Dynamic : ScalingKind::Static;
  c.loss_scaling.initial = *value;
}
Value loss_scaling_of(const Run& c) {
  return c.loss_scaling.kind == ScalingKind::Dynamic ? "dynamic"
                                                     : fmt::format("{}", c.loss_scaling.initial);
}

/// The kind of 16 bits is another option's.
void set_precision(const Setting& given, Run& c) {
  const auto& bits = text_of(given);
  c.precision.activations = bits == "32.32" ? DType::F32 : DType::BF16;
  c.precision.master = bits == "16.16" ? DType::BF16 : DType::F32;
}
Value precision_of(const Run& c) {
  return std::string(rounds_weights(c) ? "16.16" : has_16_bits(c) ? "16.32" : "32.32");
}
void set_half(const Setting& given, Run& c) {
  const DType half = text_of(given) == "fp16" ? DType::F16 : DType::BF16;
  c.precision.activations = half;
  if (rounds_weights(c)) c.precision.master = half;
}

bool smooths_labels(const Run& c) { return c.label_smoothing > 0.0; }
bool has_initial_weights(const Run& c) { return !c.initial_weights().empty(); }

void add_train(FieldTable& table) {
  const Rows row(table, Section::Train, kRuns, kMathematics);
  row("batch-size", integer(at_least(1)), "IPU", "images per micro-batch",
      default_text("ResNet 4, ResNeXt 1, SqueezeNet 2, EfficientNet 4; for CIFAR 32, 8, 128, 8"),
      unit("images"), commands(kRunsAndValidate | kPredict), sets<&Run::batch_size>(),
      main_option());
  row("gradients-to-accumulate", integer(at_least(1)), "IPU",
      "micro-batches per weight update and replica", alias("gradient-accumulation-count"),
      unit("micro-batches"), layout(), sets<&Run::micro_batches>(),
      records([](const Run& c) -> std::optional<Value> {
        if (c.layout.depth_is_of_pipeline) return std::nullopt;
        return Value(c.micro_batches);
      }));
  row("epochs", real(above_zero()), "IPU", "length of the training",
      default_text("100; 160 for CIFAR; EfficientNet 350, for CIFAR 300"), unit("epochs"),
      commands(kTrainings), main_option(), sets<&LengthRequest::epochs>(),
      yields<&Run::iterations, &Run::iterations_per_epoch>());
  row("iterations", integer(between(1, 1e15)), "IPU",
      "length of the training, instead of `epochs`; no warm-up without `warmup-iterations`",
      unit("weight updates"), commands(kTrainings), main_option(),
      sets<&LengthRequest::iterations>());
  row("max-iterations", integer(between(1, 1e15)), "Habana",
      "stop after N weight updates at the latest; the learning rates remain those of `epochs`",
      unit("weight updates"), needs("`epochs`"), commands(kTrainings), when(in_epochs),
      sets<&LengthRequest::max_iterations>());
}

void add_numerics(FieldTable& table) {
  const Rows row(table, Section::Train, kRuns, kMathematics);
  row("label-smoothing", real(from_zero_below(1.0)), "IPU",
      "share of the label that is distributed over the classes",
      default_text("0; 0.1 for EfficientNet on ImageNet"), sets<&Run::label_smoothing>());
  row("label-smoothing-form", choice("other-classes|all-classes"), "all",
      "classes that receive this share: the other classes (IPU), or all classes (NVIDIA, Habana)",
      needs("`label-smoothing`"), when(smooths_labels), sets<&Run::smoothing>());
  row("loss-scaling", text("X|dynamic"), "IPU, NVIDIA",
      "factor of the loss in the backward pass; dynamic adjusts it during training",
      records(loss_scaling_of), changes(set_loss_scaling),
      says<&LossScaling::kind, &LossScaling::initial, &LossScaling::growth_interval>());
  row("precision", choice("16.16|16.32|32.32"), "IPU", "bits of activations and of master weights",
      default_text("16.32; 16.16 with `dialect` ipu"), commands(kRunsAndValidate | kPredict),
      lists(kBench), main_option(), records(precision_of), changes(set_precision),
      says<&Precision::activations, &Precision::master>());
  row("half", choice("bf16|fp16"), "millrace", "16-bit data type", needs("16 bits in `precision`"),
      commands(kRunsAndValidate | kPredict), when(has_16_bits), records([](const Run& c) {
        return Value(std::string(c.precision.activations == DType::F16 ? "fp16" : "bf16"));
      }),
      changes(set_half), says<&Precision::activations>());
  row("reduce-precision", choice("f32|bf16"), "millrace",
      "type in which replicas send gradients; they are added up in float32, and bf16 halves the "
      "bytes of messages",
      needs("`replicas`"), when(has_replicas), records([](const Run& c) {
        return Value(std::string(c.reduced_as == DType::BF16 ? "bf16" : "f32"));
      }),
      changes([](const Setting& given, Run& c) {
        c.reduced_as = text_of(given) == "bf16" ? DType::BF16 : DType::F32;
      }),
      says<&Run::reduced_as>());
  row("no-stochastic-rounding", flag(), "IPU",
      "round 16-bit weights to the nearest number instead of stochastically",
      needs("`precision` 16.16"), harmless(), when(rounds_weights),
      chooses<true, false, &Run::stochastic_rounding>());
  row("ema-decay", real(between_zero_and_one()), "EfficientNet",
      "also keep a moving average of the weights with this decay: updated with them, validated "
      "beside them, saved in averages/ at the end",
      default_text("none"), alias("moving-average-decay"), commands(kContinues | kBench | kPlan),
      sets<&AveragingConfig::ema_decay>(), if_given());
  row("fp-exceptions", flag(), "IPU",
      "stop at the first number that is not finite and name the op that produced it", output(),
      sets<&Run::check_exceptions>());
  row("seed", integer(between(0.0, kMaxSeed)), "IPU",
      "seed of all random numbers: weights, order of the data, augmentation",
      commands(kRunsAndValidate | set_of(Command::Generate) | set_of(Command::DataConvert)),
      sets<&Run::seed>(), main_option());
  row("init-path", path("DIR"), "IPU",
      "start with the weights of this run, checkpoint or ONNX file, and train its network unless "
      "options say otherwise",
      commands(kTrain | set_of(Command::Restore)), sets<&Run::init_path>(), if_given());
  row("init-fresh", names("NAME .."), "millrace",
      "initialize parameters whose names contain one of these instead of loading them",
      needs("`init-path` or the weights of an ONNX file"),
      commands(kTrain | set_of(Command::Restore)), when(has_initial_weights),
      sets<&Run::init_fresh>(), if_given());
  row("variable-filter", names("NAME .."), "IPU",
      "train only parameters whose names contain one of these", default_text("all parameters"),
      sets<&Run::trained_filters>(), if_given());
}

}  // namespace

void add_train_fields(FieldTable& table) {
  add_train(table);
  add_numerics(table);
}

}  // namespace millrace::run
