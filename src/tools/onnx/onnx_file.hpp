// SPDX-License-Identifier: Apache-2.0
//
// onnx: networks in files that other programs write and run.
//
// A graph of ours and one of ONNX (https://onnx.ai/onnx/operators) differ in three things. Values
// are NHWC here and NCHW there, so kernels and flattened values change their order. A group
// normalization, a shortcut that subsamples and a swish take several nodes there. And the loss is
// no part of a file: its input is the output `logits`. Nodes, tensors and parameters keep their
// names, so that a file shows where a network can be cut.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "io/foreign_files.hpp"

namespace millrace::io {

/// The network in a file of ONNX that any program wrote, of at most 2 GiB, and in tensors that it
/// has put into files beside it. Its nodes become ops, each a layer with the name of the node; what
/// only passes values on, such as Identity or Flatten, becomes none. A file that was written here
/// gives the graph it was written from, dropout and layers included, if its nodes are still those
/// of that graph. The file is untrusted. Errors: Config, in one line, with all nodes that have no
/// counterpart here; Data if the file is damaged or contradicts itself; Io.
[[nodiscard]] NetworkFile read_onnx(const std::filesystem::path& path);
/// The same from the bytes of a file, whose tensors all lie in it. Messages begin with `label`; the
/// graph has the name `name`.
[[nodiscard]] NetworkFile parse_onnx(std::string_view bytes, const std::string& label,
                                     const std::string& name);

/// The bytes of an ONNX file (opset 13) that computes the logits of any number of images: input
/// `images` [N, C, H, W] in float32, prepared as in training; output `logits` [N, classes].
/// `notes` become its metadata. Dropout and drop-connect, which only training has, are left out.
[[nodiscard]] std::string to_onnx(const models::Graph& graph, const ParameterValues& values,
                                  const ExportNotes& notes);

}  // namespace millrace::io
