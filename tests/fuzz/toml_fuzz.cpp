// SPDX-License-Identifier: Apache-2.0
//
// Configurations: files of users, and configurations stored in checkpoints.
#include <string_view>

#include "core/error.hpp"
#include "run/patch.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace millrace::fuzz {

void run_one(std::span<const std::byte> input) {
  const std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  try {
    (void)run::parse_config(text, "input");
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::Config, "bad texts are bad configurations");
    require(std::string_view(error.what()).find('\n') == std::string_view::npos,
            "messages have one line");
  }
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> inputs;
  for (const std::string_view text :
       {"[model]\nmodel = \"resnet\"\nmodel-size = 20\n\n[train]\nbatch-size = 32\nepoch = 1.5e1\n",
        "# a comment\n[pipeline]\nshards = 2\npipeline-splits = 'b1/0,b2/0'\n[data]\n"
        "dataset = \"cifar-10\" # and another\nno-such = [1, 2.5, {a = \"b\"}]\n",
        "[learning-rate]\nlearning-rate-decay = [0.1, 0.01]\nlr-drops = \"\"\"\na\\u00e9\"\"\"\n",
        "a.b.c = 1979-05-27T07:32:00Z\n[[list]]\nx = true\n[list.sub]\ny = 0x1f\n"})
    inputs.push_back(bytes_of(text));
  return inputs;
}

}  // namespace millrace::fuzz
