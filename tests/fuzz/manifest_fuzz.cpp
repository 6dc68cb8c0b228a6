// SPDX-License-Identifier: Apache-2.0
//
// Manifests of checkpoints. The first byte of an input selects whether the seal is corrected first.
#include <string>

#include "io/manifest.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "train/metrics_log.hpp"

namespace millrace::fuzz {

void run_one(std::span<const std::byte> input) {
  if (input.empty()) return;
  std::string text(reinterpret_cast<const char*>(input.data()) + 1, input.size() - 1);
  if (input[0] != std::byte{0}) text = io::seal_manifest(" " + text + "\n}\n");
  fails_only_as(ErrorKind::Checkpoint, [&] {
    const io::Manifest manifest = io::parse_manifest(text, "input");
    require(io::parse_manifest(io::to_text(manifest), "input") == manifest,
            "a manifest reads back as written");
    (void)training::parse_partial_row(manifest.header.log_state, manifest.header.iteration);
  });
}

std::vector<Bytes> seeds() {
  io::Manifest manifest{{.iteration = 7,
                         .epoch = 0.5,
                         .next_position = 56,
                         .model = "resnet-8",
                         .config_toml = "[train]\nbatch-size = 8\n",
                         .environment = "threads 2",
                         .data = "cifar-10, 20 images",
                         .log_state = training::to_json(training::PartialRow{3, 1.5, 4, 5})},
                        {{"part-000.h5", {4000, 7}, {}}}};
  manifest.parts[0].tensors.push_back(
      {{"a/kernel", io::TensorRole::Parameter, DType::F32, {3, 4}}, 9});
  const std::string sealed = io::to_text(manifest);
  const std::string body = sealed.substr(0, sealed.rfind(",\n \"crc32c\""));
  return {tagged(0, bytes_of(sealed)), tagged(1, bytes_of(body))};
}

}  // namespace millrace::fuzz
