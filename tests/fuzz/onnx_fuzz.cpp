// SPDX-License-Identifier: Apache-2.0
//
// Networks in ONNX. What is read must come back from a file that was written here.
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/onnx_bytes.hpp"
#include "tools/onnx/onnx_file.hpp"

namespace millrace::fuzz {
namespace {

/// Small enough to be written in no time.
constexpr std::int64_t kMostElements = 100'000;

void expect_round_trip(const io::NetworkFile& file) {
  const models::Graph& graph = file.graph;
  std::vector<std::vector<float>> values;
  std::int64_t elements = 0;
  for (const models::Parameter& parameter : graph.parameters) elements += parameter.elements();
  if (elements > kMostElements) return;
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    values.push_back(file.values({static_cast<std::int32_t>(i)}));
    require(std::ssize(values.back()) == graph.parameters[i].elements(),
            "a parameter has the elements of its shape");
  }
  const std::string bytes =
      io::to_onnx(graph,
                  [&](const models::Parameter& parameter) -> std::span<const float> {
                    return values[static_cast<std::size_t>(&parameter - graph.parameters.data())];
                  },
                  {});
  const io::NetworkFile back = io::parse_onnx(bytes, "written", "network");
  require(back.graph == graph, "a graph comes back from the file that was written");
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  try {
    const io::NetworkFile file = io::parse_onnx(
        {reinterpret_cast<const char*>(input.data()), input.size()}, "input", "network");
    expect_round_trip(file);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::Data || error.kind() == ErrorKind::Config,
            "bad bytes are bad data or a network that cannot be trained");
  }
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (const test::OnnxBytes& network :
       {test::plain_network(), test::dense_network(), test::depthwise_network()})
    all.push_back(bytes_of(network.bytes()));
  return all;
}

}  // namespace millrace::fuzz
