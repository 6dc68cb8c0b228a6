// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "onnx.pb.h"

namespace millrace::io {

using Integers = std::vector<std::int64_t>;

// ---- tensors

/// Where a file of ONNX came from: what begins messages about it, and the folder in which its
/// tensors may lie.
struct OnnxPlace {
  std::string label;
  std::filesystem::path folder;  ///< empty: no tensor may lie outside the file
};

/// The extents of a tensor. Errors: Data for extents and counts that no file has.
[[nodiscard]] Integers extents_of(const onnx::TensorProto& tensor, const OnnxPlace& place);

/// Whether the file, or the file beside it that it names, has the tensor's elements.
[[nodiscard]] bool has_elements(const onnx::TensorProto& tensor);

/// The elements as float32, from float, double, half and bfloat16. Errors: Data for other types,
/// and if their number is not that of the extents; Config if they lie outside the folder of the
/// file; Io.
[[nodiscard]] std::vector<float> floats_of(const onnx::TensorProto& tensor, const OnnxPlace& place);

/// Whether the elements are integers of 32 or 64 bits.
[[nodiscard]] bool has_integers(const onnx::TensorProto& tensor);

/// The elements of a small tensor that has integers, such as a shape. Errors: Data.
[[nodiscard]] Integers integers_of(const onnx::TensorProto& tensor, const OnnxPlace& place);

// ---- nodes

/// A node of a file with its attributes. Errors of the attributes: Data, if one has another type
/// than the format says, or a number that no network has.
class OnnxNode {
 public:
  OnnxNode(const onnx::NodeProto& proto, const OnnxPlace& place) : proto_(&proto), place_(&place) {}

  [[nodiscard]] const onnx::NodeProto& proto() const { return *proto_; }
  /// The op type, with the domain if it is not ONNX' own.
  [[nodiscard]] std::string type() const;
  /// The name for messages: nodes may have none.
  [[nodiscard]] std::string name() const;
  /// The place in the network by which layers are named, in characters that names of layers can
  /// have: the path of the module in PyTorch if the file has it, else the name of the node; "" if
  /// it has neither.
  [[nodiscard]] std::string layer_name() const;

  [[nodiscard]] const std::string& output() const { return proto_->output(0); }
  /// The name of the i-th input, "" if it is left out.
  [[nodiscard]] const std::string& input(int i) const;

  [[nodiscard]] bool has(std::string_view attribute) const { return find(attribute) != nullptr; }
  [[nodiscard]] std::int64_t integer(std::string_view attribute, std::int64_t otherwise) const;
  [[nodiscard]] Integers integers(std::string_view attribute, Integers otherwise) const;
  [[nodiscard]] double real(std::string_view attribute, double otherwise) const;
  /// Empty if there is none.
  [[nodiscard]] std::vector<double> reals(std::string_view attribute) const;
  [[nodiscard]] std::string text(std::string_view attribute, std::string_view otherwise) const;
  /// nullptr if there is none.
  [[nodiscard]] const onnx::TensorProto* tensor(std::string_view attribute) const;

  [[noreturn]] void damaged(const std::string& what) const;

 private:
  [[nodiscard]] const onnx::AttributeProto* find(std::string_view attribute) const;
  [[nodiscard]] const onnx::AttributeProto* find(std::string_view attribute,
                                                 onnx::AttributeProto::AttributeType type) const;
  [[nodiscard]] std::int64_t checked(std::string_view attribute, std::int64_t value) const;

  const onnx::NodeProto* proto_;
  const OnnxPlace* place_;
};

/// A float as the double that its shortest decimal form names: 1e-5 rather than 9.99999974e-06.
[[nodiscard]] double decimal_of(float value);

}  // namespace millrace::io
