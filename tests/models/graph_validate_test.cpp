// SPDX-License-Identifier: Apache-2.0
//
// Each test damages a valid graph in one place. The damage must be rejected with its reason.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "models/graph.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::models {
namespace {

/// Ops 0 b0/conv, 1 b0/norm, 2 b0/relu, 3 mean, 4 fc1, 5 loss; values 0 .. 5; op i makes value
/// i + 1.
Graph valid_graph() {
  GraphBuilder b("g", {8, 8, 3}, 10);
  b.begin_layer("b0");
  ValueId x = b.conv("conv", b.input(), {.out_channels = 4});
  x = b.batch_norm("norm", x, {});
  x = b.activation("relu", x, {});
  b.begin_layer("mean");
  x = b.global_average_pool("", x);
  b.begin_layer("fc1");
  x = b.dense("", x, {.units = 10});
  b.begin_layer("loss");
  b.softmax_loss("", x);
  return std::move(b).build();
}

struct Damage {
  std::string name;
  std::string message;  ///< after "graph g: "
  std::function<void(Graph&)> inflict;
};

class ValidateRefuses : public testing::TestWithParam<Damage> {};

TEST_P(ValidateRefuses, DamagedGraph) {
  Graph graph = valid_graph();
  ASSERT_NO_THROW(validate(graph));
  GetParam().inflict(graph);
  expect_error(ErrorKind::Internal, "graph g: " + GetParam().message, [&] { validate(graph); });
}

const Damage kInput[] = {
    {"EmptyInput", "input: shape 8x0x3 is empty", [](Graph& g) { g.input_shape.w = 0; }},
    {"NoClasses", "classes: 0 is less than 1", [](Graph& g) { g.classes = 0; }},
    {"NoValues", "input: has no value", [](Graph& g) { g.values.clear(); }},
    {"InputIsMade", "input: is made by op number 2",
     [](Graph& g) { g.values[0].producer = OpId{2}; }},
    {"InputShape", "input: its value has shape 8x8x3, expected 8x8x4",
     [](Graph& g) {
       g.input_shape = {8, 8, 4};
     }},
};

const Damage kLayers[] = {
    {"NoOps", "ops: the list is empty", [](Graph& g) { g.ops.clear(); }},
    {"NoLayers", "layers: the list is empty", [](Graph& g) { g.layers.clear(); }},
    {"OpsBeforeTheFirstLayer", "layer b0: cannot begin at op number 1 of 6",
     [](Graph& g) { g.layers[0].first_op = OpId{1}; }},
    {"LayerWithoutOps", "layer fc1: cannot begin at op number 3 of 6",
     [](Graph& g) { g.layers[2].first_op = OpId{3}; }},
    {"LayerAfterTheEnd", "layer loss: cannot begin at op number 6 of 6",
     [](Graph& g) { g.layers[3].first_op = OpId{6}; }},
    {"LayerTwice", "layer b0: name is used twice",
     [](Graph& g) {
       g.layers[1].name = "b0";
       g.ops[3].name = "b0";
     }},
    {"LayerWithoutName", "op mean: name does not begin with its layer's name ",
     [](Graph& g) { g.layers[1].name.clear(); }},
    {"NothingHasAName", "layers: a layer has no name",
     [](Graph& g) {
       g.layers[1].name.clear();
       g.ops[3].name.clear();
     }},
};

const Damage kPlaces[] = {
    {"UnknownLayer", "op b0/norm: layer number 9 does not exist",
     [](Graph& g) { g.ops[1].layer = LayerId{9}; }},
    {"ForeignLayer", "op b0/norm: has number 1, but layer mean holds ops 3 to 3",
     [](Graph& g) { g.ops[1].layer = LayerId{1}; }},
    {"ForeignName", "op b1/norm: name does not begin with its layer's name b0",
     [](Graph& g) { g.ops[1].name = "b1/norm"; }},
    {"NameContinuesTheLayers", "op b00: name does not begin with its layer's name b0",
     [](Graph& g) { g.ops[1].name = "b00"; }},
    {"NameIsEmptyBelowTheLayer", "op b0/: name does not begin with its layer's name b0",
     [](Graph& g) { g.ops[1].name = "b0/"; }},
    {"LayersNameForALaterOp", "op b0: has its layer's name but is not its first op",
     [](Graph& g) { g.ops[2].name = "b0"; }},
    {"OpTwice", "op b0/relu: name is used twice",
     [](Graph& g) {
       g.ops[1].name = "b0/relu";
       for (const ParameterId id : g.ops[1].parameters) {
         std::string& name = g.parameters[id.at()].name;
         name.replace(0, std::string("b0/norm").size(), "b0/relu");
       }
     }},
    {"OpNamedAsAnotherLayer", "op b0/relu: has the name of another layer",
     [](Graph& g) {
       g.layers[1].name = "b0/relu";
       g.ops[3].name = "b0/relu/mean";
     }},
};

const Damage kValues[] = {
    {"ReadsUnknown", "op b0/norm: reads value 17 of 6",
     [](Graph& g) { g.ops[1].inputs[0] = ValueId{17}; }},
    {"ReadsInvalid", "op b0/norm: reads value -1 of 6",
     [](Graph& g) { g.ops[1].inputs[0] = ValueId{}; }},
    {"ReadsItsOwnOutput", "op b0/norm: reads value 2, which no earlier op makes",
     [](Graph& g) { g.ops[1].inputs[0] = ValueId{2}; }},
    {"ReadsLaterValue", "op b0/norm: reads value 3, which no earlier op makes",
     [](Graph& g) { g.ops[1].inputs[0] = ValueId{3}; }},
    {"MakesUnknown", "op b0/norm: makes value 17 of 6",
     [](Graph& g) { g.ops[1].output = ValueId{17}; }},
    {"MakesNothing", "op b0/norm: makes value -1 of 6", [](Graph& g) { g.ops[1].output = {}; }},
    {"ForeignProducer", "value 2: op number 0 does not make it",
     [](Graph& g) { g.values[2].producer = OpId{0}; }},
    {"SecondInput", "value 2: op number -1 does not make it",
     [](Graph& g) { g.values[2].producer = OpId{}; }},
    {"Unread", "value 3: is the output of b0/relu and no op reads it",
     [](Graph& g) { g.ops[3].inputs[0] = ValueId{2}; }},
    {"InputUnread", "value 0: is the input and no op reads it",
     [](Graph& g) {  // a second input of the same shape, made by no op, hides the first
       g.values.push_back({.shape = g.input_shape, .producer = {}});
       g.ops[0].inputs[0] = ValueId{6};
     }},
};

const Damage kLosses[] = {
    {"EarlyLoss", "op b0/relu: is a loss but not the last op",
     [](Graph& g) { g.ops[2].kind = SoftmaxLoss{}; }},
    {"NoLoss", "op loss: is the last op but not a loss",
     [](Graph& g) { g.ops[5].kind = Activate{}; }},
    {"LossWithOutput", "op loss: is the loss but has an output",
     [](Graph& g) { g.ops[5].output = ValueId{1}; }},
    {"Logits", "op loss: logits must be 1x1x11, one per class, not 1x1x10",
     [](Graph& g) { g.classes = 11; }},
};

const Damage kShapes[] = {
    {"Output", "op b0/norm: makes 8x8x4, but its value has shape 8x8x5",
     [](Graph& g) { g.values[2].shape.c = 5; }},
    {"TwoInputsForOne", "op b0/relu: Activation takes 1 inputs, not 2",
     [](Graph& g) { g.ops[2].inputs.push_back(ValueId{1}); }},
    {"NoInput", "op b0/relu: Activation takes 1 inputs, not 0",
     [](Graph& g) { g.ops[2].inputs.clear(); }},
    {"Misfit", "op b0/conv: a window of 9x9 pixels does not fit into input 8x8x3 padded to 8x8",
     [](Graph& g) {
       std::get<Conv>(g.ops[0].kind).kernel = {9, 9};
     }},
};

const Damage kParameters[] = {
    {"Missing", "op b0/norm: has 3 parameters, expected 4",
     [](Graph& g) { g.ops[1].parameters.pop_back(); }},
    {"Unknown", "op b0/norm: owns parameter 70 of 7",
     [](Graph& g) { g.ops[1].parameters[1] = ParameterId{70}; }},
    {"Owner", "parameter b0/norm/beta: is owned by op b0/norm but refers to another",
     [](Graph& g) { g.parameters[2].op = OpId{0}; }},
    {"Name", "parameter b0/norm/shift: must be named b0/norm/beta",
     [](Graph& g) { g.parameters[2].name = "b0/norm/shift"; }},
    {"Order", "parameter b0/norm/beta: must be named b0/norm/gamma",
     [](Graph& g) { std::swap(g.ops[1].parameters[0], g.ops[1].parameters[1]); }},
    {"Role", "parameter b0/norm/beta: role, shape or initializer does not match BatchNorm",
     [](Graph& g) { g.parameters[2].role = ParameterRole::Bias; }},
    {"Shape", "parameter b0/conv/kernel: role, shape or initializer does not match Conv 1x1",
     [](Graph& g) { g.parameters[0].shape[3] = 4; }},
    {"Initialiser", "parameter b0/norm/gamma: role, shape or initializer does not match BatchNorm",
     [](Graph& g) { g.parameters[1].init.kind = Initialiser::Kind::Zero; }},
    {"NotOwned", "parameter fc1/extra: no op owns it",
     [](Graph& g) {
       g.parameters.push_back(g.parameters.back());
       g.parameters.back().name = "fc1/extra";
     }},
};

std::string damage_name(const testing::TestParamInfo<Damage>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Input, ValidateRefuses, testing::ValuesIn(kInput), damage_name);
INSTANTIATE_TEST_SUITE_P(Layers, ValidateRefuses, testing::ValuesIn(kLayers), damage_name);
INSTANTIATE_TEST_SUITE_P(Places, ValidateRefuses, testing::ValuesIn(kPlaces), damage_name);
INSTANTIATE_TEST_SUITE_P(Values, ValidateRefuses, testing::ValuesIn(kValues), damage_name);
INSTANTIATE_TEST_SUITE_P(Losses, ValidateRefuses, testing::ValuesIn(kLosses), damage_name);
INSTANTIATE_TEST_SUITE_P(Shapes, ValidateRefuses, testing::ValuesIn(kShapes), damage_name);
INSTANTIATE_TEST_SUITE_P(Parameters, ValidateRefuses, testing::ValuesIn(kParameters), damage_name);

}  // namespace
}  // namespace millrace::models
