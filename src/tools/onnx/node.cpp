// SPDX-License-Identifier: Apache-2.0
#include "tools/onnx/node.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::io {
namespace {

constexpr std::string_view kScopes = "pkg.torch.onnx.name_scopes";

/// The texts between single quotes of "['', 'se', 'se.a', 'conv2d_2']".
std::vector<std::string_view> quoted_in(std::string_view list) {
  std::vector<std::string_view> texts;
  for (std::size_t at = list.find('\''); at != std::string_view::npos; at = list.find('\'', at)) {
    const std::size_t end = list.find('\'', at + 1);
    if (end == std::string_view::npos) break;
    texts.push_back(list.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return texts;
}

/// What PyTorch's exporter notes of a node: the module, and the name of the call within it.
std::string scope_of(const onnx::NodeProto& node) {
  for (const onnx::StringStringEntryProto& entry : node.metadata_props()) {
    if (entry.key() != kScopes) continue;
    const std::vector<std::string_view> scopes = quoted_in(entry.value());
    if (scopes.size() < 2) return {};
    std::string module(scopes[scopes.size() - 2]);
    for (char& c : module)
      if (c == '.') c = '/';
    return module.empty() ? std::string(scopes.back())
                          : fmt::format("{}/{}", module, scopes.back());
  }
  return {};
}

/// Checkpoints keep the tensors of a layer below its name.
bool is_role(std::string_view part) {
  constexpr std::array<std::string_view, 6> kRoles = {"kernel", "bias",        "gamma",
                                                      "beta",   "moving_mean", "moving_variance"};
  return std::find(kRoles.begin(), kRoles.end(), part) != kRoles.end();
}

/// Letters, digits, and . _ - : within parts that slashes separate; others become _.
std::string as_layer_name(std::string_view name) {
  constexpr std::size_t kMostLetters = 160;
  std::string result;
  for (const std::string& part : split_list(name.substr(0, kMostLetters), '/')) {
    std::string plain;
    for (const char c : part) {
      const bool keeps = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '.' || c == '-' || c == ':';
      plain += keeps ? c : '_';
    }
    if (plain == "." || plain == ".." || is_role(plain)) plain += '_';
    result += (result.empty() ? "" : "/") + plain;
  }
  return result;
}

}  // namespace

std::string OnnxNode::type() const {
  const std::string& domain = proto_->domain();
  if (domain.empty() || domain == "ai.onnx") return proto_->op_type();
  return fmt::format("{}.{}", domain, proto_->op_type());
}

std::string OnnxNode::name() const {
  if (!proto_->name().empty()) return proto_->name();
  return proto_->output_size() > 0 ? fmt::format("the node that makes '{}'", proto_->output(0))
                                   : "a node without a name";
}

std::string OnnxNode::layer_name() const {
  const std::string scope = scope_of(*proto_);
  return as_layer_name(scope.empty() ? proto_->name() : scope);
}

const std::string& OnnxNode::input(int i) const {
  static const std::string none;
  return i < proto_->input_size() ? proto_->input(i) : none;
}

const onnx::AttributeProto* OnnxNode::find(std::string_view attribute) const {
  for (const onnx::AttributeProto& one : proto_->attribute())
    if (one.name() == attribute) return &one;
  return nullptr;
}

const onnx::AttributeProto* OnnxNode::find(std::string_view attribute,
                                           onnx::AttributeProto::AttributeType type) const {
  const onnx::AttributeProto* const found = find(attribute);
  // Files of the first versions leave the type out.
  if (found != nullptr && found->has_type() && found->type() != type)
    damaged(fmt::format("has an attribute '{}' of type {}, not {}", attribute,
                        static_cast<int>(found->type()), static_cast<int>(type)));
  return found;
}

std::int64_t OnnxNode::checked(std::string_view attribute, std::int64_t value) const {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (value < -kMost || value > kMost)
    damaged(fmt::format("has {} in its attribute '{}'", value, attribute));
  return value;
}

std::int64_t OnnxNode::integer(std::string_view attribute, std::int64_t otherwise) const {
  const auto* const found = find(attribute, onnx::AttributeProto::INT);
  return found == nullptr ? otherwise : checked(attribute, found->i());
}

Integers OnnxNode::integers(std::string_view attribute, Integers otherwise) const {
  const auto* const found = find(attribute, onnx::AttributeProto::INTS);
  if (found == nullptr) return otherwise;
  Integers result;
  for (const std::int64_t value : found->ints()) result.push_back(checked(attribute, value));
  return result;
}

double OnnxNode::real(std::string_view attribute, double otherwise) const {
  const auto* const found = find(attribute, onnx::AttributeProto::FLOAT);
  return found == nullptr ? otherwise : decimal_of(found->f());
}

std::vector<double> OnnxNode::reals(std::string_view attribute) const {
  std::vector<double> result;
  if (const auto* const found = find(attribute, onnx::AttributeProto::FLOATS))
    for (const float value : found->floats()) result.push_back(decimal_of(value));
  return result;
}

std::string OnnxNode::text(std::string_view attribute, std::string_view otherwise) const {
  const auto* const found = find(attribute, onnx::AttributeProto::STRING);
  return found == nullptr ? std::string(otherwise) : found->s();
}

const onnx::TensorProto* OnnxNode::tensor(std::string_view attribute) const {
  const auto* const found = find(attribute, onnx::AttributeProto::TENSOR);
  return found == nullptr || !found->has_t() ? nullptr : &found->t();
}

void OnnxNode::damaged(const std::string& what) const {
  fail(ErrorKind::Data, "{}: {} ({}) {}: the file is damaged: export it again", place_->label,
       name(), type(), what);
}

double decimal_of(float value) {
  return parse_number<double>(fmt::format("{}", value)).value_or(static_cast<double>(value));
}

}  // namespace millrace::io
