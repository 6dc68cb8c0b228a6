// SPDX-License-Identifier: Apache-2.0
#include "cli/option_rows.hpp"

namespace millrace::cli {
namespace {

using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table
using train::TrainConfig;
using namespace models;  // NOLINT(google-build-using-namespace): the options of the networks

// Far above every published network, so that larger numbers are typing errors. The builder's own
// bounds (models/limits.hpp) hold even when all options have their largest values.
constexpr double kMaxClasses = 1'000'000.0;
constexpr double kMaxGroups = 4096.0;

bool has_batch_norm(const TrainConfig& c) { return c.model.norm == NormKind::Batch; }
bool has_group_norm(const TrainConfig& c) { return c.model.norm == NormKind::Group; }
bool pads_shortcuts(const TrainConfig& c) { return c.model.shortcut == 'A'; }
bool projects_shortcuts(const TrainConfig& c) { return c.model.shortcut == 'B'; }

void add_model(OptionTable& table) {
  Rows rows(table, Section::Model, kRunsAndValidate, kFixed);
  rows.choice("model", "resnet|resnext|squeezenet|efficientnet", "IPU", "family of networks")
      .by_default("resnet");
  rows.text("model-size", "SIZE", "IPU",
            "size of the network, one of the published sizes of its family")
      .default_text("ResNet 18, ResNeXt 14, EfficientNet B0; for CIFAR 20, 11, cifar");
  rows.integer("classes", "N", between(1, kMaxClasses), "NVIDIA, Habana",
               "number of outputs; networks of NVIDIA and Habana have one more than ImageNet has "
               "classes")
      .default_text("the classes of the data set");
  rows.flag("batch-norm", "IPU", "use batch normalization")
      .default_text("on for ResNet and ResNeXt on CIFAR")
      .families(kNormed);
  rows.flag("group-norm", "IPU", "use group normalization, for small micro-batches")
      .default_text("on, except for ResNet and ResNeXt on CIFAR")
      .families(kNormed);
}

void add_norm(OptionTable& table) {
  Rows rows(table, Section::Model, kRunsAndValidate, kFixed);
  rows.integer("groups", "N", between(1, kMaxGroups), "IPU",
               "number of groups of group normalization")
      .default_text("32; 16 for CIFAR; 4 for EfficientNet")
      .needs("--group-norm")
      .families(kNormed)
      .when(has_group_norm)
      .sets<&ModelOptions::groups>();
  rows.choice(
          "groups-order", "contiguous|strided", "millrace",
          "channels of a group: consecutive ones, or those with equal index modulo --groups (IPU)")
      .needs("--group-norm")
      .families(kNormed)
      .when(has_group_norm)
      .sets<&ModelOptions::group_order>();
  rows.real("norm-epsilon", "X", above_zero(), "IPU",
            "value added to the variance before its square root is taken")
      .default_text("1e-5 for batch norm; 1.53e-5 for group norm; 1e-3 for EfficientNet")
      .families(kNormed);
  rows.real("BN-decay", "X", from_zero_below(1.0), "IPU",
            "decay of the running statistics of batch normalization")
      .needs("--batch-norm")
      .families(kNormed)
      .when(has_batch_norm)
      .sets<&ModelOptions::batch_norm_decay>();
  rows.integer("BN-span", "N", between(1, 4096), "millrace",
               "number of replicas that share the statistics of batch normalization")
      .by_default(std::int64_t{1})
      .unit("replicas")
      .needs("--batch-norm and --replicas")
      .families(kNormed)
      .when(has_batch_norm)
      .sets<&ModelOptions::batch_norm_span>()
      .if_given();
  rows.flag("stable-norm", "IPU", "compute mean and variance in two passes")
      .idle("mean and variance are always as accurate as with two passes");
}

void add_residual(OptionTable& table) {
  Rows rows(table, Section::Residual, kRunsAndValidate, kFixed);
  rows.choice("block", "auto|basic|bottleneck", "millrace",
              "type of residual block; auto: the type of the published size (56: bottleneck)")
      .families(kResidual)
      .sets<&ModelOptions::block>();
  rows.choice("shortcut", "A|B", "IPU",
              "shortcut where shapes change: A subsamples and adds zero channels, B projects")
      .default_text("A for CIFAR, B for ImageNet")
      .families(kResidual)
      .sets<&ModelOptions::shortcut>();
  rows.choice("shortcut-pad", "end|both", "millrace", "side on which shortcut A adds zero channels")
      .needs("--shortcut A")
      .families(kResidual)
      .when(pads_shortcuts)
      .sets<&ModelOptions::shortcut_pad>();
  rows.choice("stage-one-shortcut", "project|identity", "millrace",
              "shortcut of the first block of stage 1, whose shapes match: project (IPU), or add "
              "the input (torchvision)")
      .needs("--shortcut B")
      .families(kResidual)
      .when(projects_shortcuts)
      .sets<&ResidualOptions::stage_one>();
  rows.choice("padding", "ipu|torch|same|keras", "all",
              "padding of strided windows, as in the IPU trainer, torchvision, TensorFlow (SAME), "
              "or Habana's Keras model")
      .families(kResidual)
      .sets<&ResidualOptions::padding>();
  rows.choice("initialisers",
              "ipu|nvidia|nvidia-fan-in|habana|habana-keras|surfsara|keras-applications", "all",
              "trainer or library whose weight initialization is used")
      .families(kResidual)
      .sets<&ResidualOptions::initialisers>();
  rows.choice("resnet-version", "1.5|2", "Habana",
              "order inside the blocks: 1.5 normalizes after each convolution, 2 before it")
      .families(kResNet)
      .sets<&ResidualOptions::version>();
}

void add_resnext(OptionTable& table) {
  Rows rows(table, Section::ResNeXt, kRunsAndValidate, kFixed);
  rows.integer("convolution-groups", "N", between(1, kMaxGroups), "IPU",
               "number of groups of the 3x3 convolutions")
      .families(kResNeXt)
      .sets<&ResNeXtOptions::groups>();
  rows.integer("group-dim", "N", between(1, kMaxGroups), "IPU",
               "channels per group: of the 3x3 convolutions in ResNeXt's stage 1, of the kxk "
               "convolutions in EfficientNet (1: depthwise)")
      .default_text("4; 1 for EfficientNet")
      .unit("channels")
      .families(kResNeXt | kEfficientNet);
  rows.flag("widenet", "IPU", "use 64 channels after the stem of a CIFAR network")
      .families(kResNeXt)
      .sets<&ResNeXtOptions::widening>();
  rows.flag("squeeze-excitation", "NVIDIA", "use squeeze-and-excitation in every block")
      .families(kResNeXt)
      .sets<&ResNeXtOptions::squeeze_excitation>();
}

void add_squeezenet(OptionTable& table) {
  Rows rows(table, Section::SqueezeNet, kRunsAndValidate, kFixed);
  rows.flag("use-bypass", "IPU", "add the input of every other fire module to its output")
      .families(kSqueezeNet)
      .sets<&SqueezeNetOptions::bypass>();
}

void add_efficientnet(OptionTable& table) {
  Rows rows(table, Section::EfficientNet, kRunsAndValidate, kFixed);
  rows.real("dropout-rate", "X", from_zero_below(1.0), "IPU",
            "dropout rate before the logits; 0 disables dropout")
      .default_text("0.2 to 0.5 by size; 0 for size cifar")
      .families(kEfficientNet)
      .sets<&EfficientNetOptions::dropout_rate>()
      .if_given();
  rows.real("block-survival-prob", "X", above_zero_to(1.0), "IPU",
            "probability that an image passes through the last block; 1 disables drop-connect")
      .families(kEfficientNet)
      .sets<&EfficientNetOptions::block_survival>();
  rows.flag("no-se", "IPU", "leave out squeeze-and-excitation")
      .families(kEfficientNet)
      .clears<&EfficientNetOptions::squeeze_excitation>();
  rows.flag("use-relu", "IPU", "use ReLU instead of swish")
      .families(kEfficientNet)
      .chooses<&EfficientNetOptions::activation, Activation::Swish, Activation::Relu>();
  rows.integer("expand-ratio", "N", between(1, 64), "IPU",
               "channels inside a block, as a multiple of its input channels")
      .families(kEfficientNet)
      .sets<&EfficientNetOptions::expand_ratio>();
  rows.integer("depth-divisor", "N", between(1, 1024), "IPU",
               "round channel counts to multiples of this number")
      .families(kEfficientNet)
      .sets<&EfficientNetOptions::depth_divisor>();
  rows.integer("top-width", "N", between(0, 65536), "IPU",
               "channels before the logits at width coefficient 1; 0 omits that layer")
      .unit("channels")
      .families(kEfficientNet)
      .sets<&EfficientNetOptions::top_width>();
  rows.real("width-coefficient", "X", above_zero_to(16.0), "IPU",
            "multiplier of all channel counts")
      .default_text("by size")
      .families(kEfficientNet)
      .sets<&EfficientNetOptions::width>()
      .if_given();
  rows.real("depth-coefficient", "X", above_zero_to(16.0), "IPU",
            "multiplier of the number of blocks in a stage")
      .default_text("by size")
      .families(kEfficientNet)
      .sets<&EfficientNetOptions::depth>()
      .if_given();
}

}  // namespace

void add_model_options(OptionTable& table) {
  add_model(table);
  add_norm(table);
  add_residual(table);
  add_resnext(table);
  add_squeezenet(table);
  add_efficientnet(table);
}

}  // namespace millrace::cli
