// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"
#include "run/field_rows.hpp"

namespace millrace::run {
namespace {

using namespace field_words;  // NOLINT(google-build-using-namespace): the words of the table
using namespace models;       // NOLINT(google-build-using-namespace): the options of the networks

// Far above every published network, so that larger numbers are typing errors. The builder's own
// bounds (models/graph.hpp) hold even when all options have their largest values.
constexpr double kMaxClasses = 1'000'000.0;
constexpr double kMaxGroups = 4096.0;

/// The families of these names.
Trait of(std::initializer_list<std::string_view> names) {
  FamilySet set = 0;
  for (const std::string_view name : names) set |= family_named(name);
  return trait(&Field::families, set);
}
/// Those with normalizations of a kind to choose, and with `given` networks in files.
Trait of_normed(bool given = false) {
  FamilySet set = given ? family_named(kGivenModel) : 0;
  for (const models::Family& family : models::families())
    if (family.normed) set |= family_named(family.name);
  return trait(&Field::families, set);
}

/// Whether a family builds the network.
bool is_built(const Run& c) { return !c.model.given.graph; }
/// Whether the number of outputs that was asked for is one that the network can have. Recipes ask
/// for more than some files have, which is meant for other networks.
bool has_outputs(const Run& c) {
  return is_built(c) || !c.outputs || *c.outputs <= c.model.given.graph->classes;
}
bool starts_from_file(const Run& c) { return c.model.given.graph && c.init_path.empty(); }
bool is_normed(const Run& c) { return is_built(c) && find_family(c.model.model).normed; }
bool has_batch_norm(const Run& c) { return c.model.norm == NormKind::Batch; }
bool has_group_norm(const Run& c) { return c.model.norm == NormKind::Group; }
bool pads_shortcuts(const Run& c) { return c.model.shortcut == 'A'; }
bool projects_shortcuts(const Run& c) { return c.model.shortcut == 'B'; }

/// The member that holds the epsilon of the network's norms.
template <class Config>
auto& norm_epsilon(Config& c) {
  if (c.model.model == "efficientnet") return c.model.efficientnet.norm_epsilon;
  return c.model.norm == NormKind::Group ? c.model.group_norm_epsilon : c.model.norm_epsilon;
}
template <class Config>
auto& group_dim(Config& c) {
  return c.model.model == "resnext" ? c.model.resnext.group_dim : c.model.efficientnet.group_dim;
}

std::string_view family_names() {
  static const std::string names = choices_of(models::families(), &models::Family::name);
  return names;
}

void add_model(FieldTable& table) {
  const Rows row(table, Section::Model, kRunsAndValidate, kMathematics);
  row("model", choice_or_file(family_names(), ".onnx"), "IPU",
      "family of networks, or an ONNX file with a network of your own",
      records([](const Run& c) { return Value(c.network); }), says<&Run::network>(),
      yields<&ModelOptions::model>(), main_option());
  row("init-weights", choice("file|fresh"), "millrace",
      "weights that the network of an ONNX file starts with: those of the file, or random ones",
      needs("no `init-path`"), of({kGivenModel}), when(starts_from_file), records([](const Run& c) {
        return Value(std::string(c.weights_of_file ? "file" : "fresh"));
      }),
      changes([](const Setting& given, Run& c) { c.weights_of_file = text_of(given) == "file"; }),
      says<&Run::weights_of_file>());
  row("model-size", text("SIZE"), "IPU",
      "size of the network, one of the published sizes of its family",
      default_text("ResNet 18, ResNeXt 14, EfficientNet B0; for CIFAR 20, 11, cifar"),
      when(is_built), records([](const Run& c) { return Value(c.model.size); }),
      says<&ModelOptions::size>(), main_option());
  row("classes", integer(between(1, kMaxClasses)), "NVIDIA, Habana",
      "number of outputs; networks of NVIDIA and Habana have one more than ImageNet has classes",
      default_text("the classes of the data set"), when(has_outputs), sets<&Run::outputs>(),
      yields<&ModelOptions::classes>());
  row("padding", choice("ipu|torch|same|keras"), "all",
      "padding of strided windows, as in the IPU trainer, torchvision, TensorFlow (SAME), or "
      "Habana's Keras model (ResNet and ResNeXt; others have SAME but for torch)",
      when(is_built), sets<&ModelOptions::padding>());
}

void add_norm(FieldTable& table) {
  const Rows row(table, Section::Model, kRunsAndValidate, kMathematics, {of_normed()});
  row("batch-norm", flag(), "IPU", "use batch normalization",
      default_text("on for ResNet and ResNeXt on CIFAR"),
      picks<&ModelOptions::norm, NormKind::Batch>());
  row("group-norm", flag(), "IPU", "use group normalization, for small micro-batches",
      default_text("on, except for ResNet and ResNeXt on CIFAR"),
      picks<&ModelOptions::norm, NormKind::Group>());
  row("groups", integer(between(1, kMaxGroups)), "IPU", "number of groups of group normalization",
      default_text("32; 16 for CIFAR; 4 for EfficientNet"), needs("`group-norm`"), harmless(),
      when(has_group_norm), sets<&ModelOptions::groups>());
  row("groups-order", choice("contiguous|strided"), "millrace",
      "channels of a group: consecutive ones, or those with equal index modulo `groups` (IPU)",
      needs("`group-norm`"), when(has_group_norm), sets<&ModelOptions::group_order>());
  row("norm-epsilon", real(above_zero()), "IPU",
      "value added to the variance before its square root is taken",
      default_text("1e-5 for batch norm; 1.53e-5 for group norm; 1e-3 for EfficientNet"),
      when(is_normed), records([](const Run& c) { return Value(norm_epsilon(c)); }),
      changes(
          [](const Setting& given, Run& c) { norm_epsilon(c) = std::get<double>(given.value); }),
      says<&ModelOptions::norm_epsilon, &ModelOptions::group_norm_epsilon,
           &EfficientNetOptions::norm_epsilon>());
  row("BN-decay", real(from_zero_below(1.0)), "IPU",
      "decay of the running statistics of batch normalization", needs("`batch-norm`"), harmless(),
      when(has_batch_norm), sets<&ModelOptions::batch_norm_decay>());
  row("BN-span", integer(between(1, 4096)), "millrace",
      "number of replicas that share the statistics of batch normalization", unit("replicas"),
      needs("`batch-norm` and `replicas`"), when(has_batch_norm),
      sets<&ModelOptions::batch_norm_span>(), if_given(), of_normed(true));
  row("stable-norm", flag(), "IPU", "compute mean and variance in two passes",
      idle("mean and variance are always as accurate as with two passes"), of({}));
}

void add_residual(FieldTable& table) {
  const Rows row(table, Section::Model, kRunsAndValidate, kMathematics,
                 {heading("ResNet and ResNeXt"), of({"resnet", "resnext"})});
  row("block", choice("auto|basic|bottleneck"), "millrace",
      "type of residual block; auto: the type of the published size (56: bottleneck)",
      sets<&ModelOptions::block>());
  row("shortcut", choice("A|B"), "IPU",
      "shortcut where shapes change: A subsamples and adds zero channels, B projects",
      default_text("A for CIFAR, B for ImageNet"), sets<&ModelOptions::shortcut>());
  row("shortcut-pad", choice("end|both"), "millrace", "side on which shortcut A adds zero channels",
      needs("`shortcut` A"), when(pads_shortcuts), sets<&ModelOptions::shortcut_pad>());
  row("stage-one-shortcut", choice("project|identity"), "millrace",
      "shortcut of the first block of stage 1, whose shapes match: project (IPU), or add the input "
      "(torchvision)",
      needs("`shortcut` B"), when(projects_shortcuts), sets<&ResidualOptions::stage_one>());
  row("initialisers",
      choice("ipu|nvidia|nvidia-fan-in|habana|habana-keras|surfsara|keras-applications"), "all",
      "trainer or library whose weight initialization is used",
      sets<&ResidualOptions::initialisers>());
  row("resnet-version", choice("1.5|2|1"), "Habana",
      "order inside the blocks: 1.5 normalizes after each convolution, 2 before it, 1 is 1.5 with "
      "the stride in the first convolution of bottleneck blocks",
      of({"resnet"}), sets<&ResidualOptions::version>());
}

void add_resnext(FieldTable& table) {
  const Rows row(table, Section::Model, kRunsAndValidate, kMathematics,
                 {heading("ResNeXt"), of({"resnext"})});
  row("convolution-groups", integer(between(1, kMaxGroups)), "IPU",
      "number of groups of the 3x3 convolutions", sets<&ResNeXtOptions::groups>());
  row("group-dim", integer(between(1, kMaxGroups)), "IPU",
      "channels per group: of the 3x3 convolutions in ResNeXt's stage 1, of the kxk convolutions "
      "in EfficientNet (1: depthwise)",
      default_text("4; 1 for EfficientNet"), unit("channels"), of({"resnext", "efficientnet"}),
      records([](const Run& c) { return Value(group_dim(c)); }),
      changes(
          [](const Setting& given, Run& c) { group_dim(c) = std::get<std::int64_t>(given.value); }),
      says<&ResNeXtOptions::group_dim, &EfficientNetOptions::group_dim>());
  row("widenet", flag(), "IPU", "use 64 channels after the stem of a CIFAR network",
      sets<&ResNeXtOptions::widening>());
  row("squeeze-excitation", flag(), "NVIDIA", "use squeeze-and-excitation in every block",
      sets<&ResNeXtOptions::squeeze_excitation>());
}

void add_squeezenet(FieldTable& table) {
  const Rows row(table, Section::Model, kRunsAndValidate, kMathematics,
                 {heading("SqueezeNet"), of({"squeezenet"})});
  row("use-bypass", flag(), "IPU", "add the input of every other fire module to its output",
      sets<&SqueezeNetOptions::bypass>());
  row("conv-bias", flag(), "millrace", "give the convolutions biases, as torchvision does",
      sets<&SqueezeNetOptions::bias>());
}

void add_efficientnet(FieldTable& table) {
  const Rows row(table, Section::Model, kRunsAndValidate, kMathematics,
                 {heading("EfficientNet"), of({"efficientnet"})});
  row("dropout-rate", real(from_zero_below(1.0)), "IPU",
      "dropout rate before the logits; 0 disables dropout",
      default_text("0.2 to 0.5 by size; 0 for size cifar"),
      sets<&EfficientNetOptions::dropout_rate>(), if_given());
  row("block-survival-prob", real(above_zero_to(1.0)), "IPU",
      "probability that an image passes through the last block; 1 disables drop-connect",
      sets<&EfficientNetOptions::block_survival>());
  row("no-se", flag(), "IPU", "leave out squeeze-and-excitation",
      chooses<SqueezeExcitation::On, SqueezeExcitation::Off,
              &EfficientNetOptions::squeeze_excitation>());
  row("use-relu", flag(), "IPU", "use ReLU instead of swish",
      chooses<Activation::Swish, Activation::Relu, &EfficientNetOptions::activation>());
  row("expand-ratio", integer(between(1, 64)), "IPU",
      "channels inside a block, as a multiple of its input channels",
      sets<&EfficientNetOptions::expand_ratio>());
  row("depth-divisor", integer(between(1, 1024)), "IPU",
      "round channel counts to multiples of this number",
      sets<&EfficientNetOptions::depth_divisor>());
  row("top-width", integer(between(0, 65536)), "IPU",
      "channels before the logits at width coefficient 1; 0 omits that layer", unit("channels"),
      sets<&EfficientNetOptions::top_width>());
  row("width-coefficient", real(above_zero_to(16.0)), "IPU", "multiplier of all channel counts",
      default_text("by size"), sets<&EfficientNetOptions::width>(), if_given());
  row("depth-coefficient", real(above_zero_to(16.0)), "IPU",
      "multiplier of the number of blocks in a stage", default_text("by size"),
      sets<&EfficientNetOptions::depth>(), if_given());
}

}  // namespace

void add_model_fields(FieldTable& table) {
  add_model(table);
  add_norm(table);
  add_residual(table);
  add_resnext(table);
  add_squeezenet(table);
  add_efficientnet(table);
}

}  // namespace millrace::run
