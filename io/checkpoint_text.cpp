// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "io/manifest.hpp"
#include "io/tensor_checks.hpp"

namespace millrace::io {
namespace {

struct Total {
  std::int64_t tensors = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
};

std::map<TensorRole, Total> totals_of(const CheckpointReader& checkpoint) {
  std::map<TensorRole, Total> totals;
  for (const TensorInfo& info : checkpoint.tensors()) {
    Total& total = totals[info.role];
    total.tensors += 1;
    total.elements += info.elements();
    total.bytes += info.bytes();
  }
  return totals;
}

}  // namespace

std::string describe(const CheckpointReader& checkpoint) {
  const CheckpointHeader& header = checkpoint.header();
  std::string text =
      fmt::format("{}\nmodel {}, iteration {}, epoch {}, next position {}\n{}\n\n",
                  printable(checkpoint.path().string()), printable(header.model), header.iteration,
                  header.epoch, header.next_position, printable(header.environment));
  std::size_t width = 4;
  for (const TensorInfo& info : checkpoint.tensors())
    width = std::max(width, printable(info.name).size());
  const auto row = [&](auto name, auto role, auto type, auto shape, auto bytes) {
    text += fmt::format("{:<{}}  {:<9}  {:<8}  {:<20}  {:>13}\n", name, width, role, type, shape,
                        bytes);
  };
  row("name", "role", "type", "shape", "bytes");
  for (const TensorInfo& info : checkpoint.tensors())
    row(printable(info.name), name_of(info.role), name_of(info.type), shape_text(info.shape),
        with_commas(info.bytes()));
  text += '\n';
  for (const auto& [role, total] : totals_of(checkpoint))
    text += fmt::format("{:<9}  {} tensors, {} elements, {}\n", name_of(role), total.tensors,
                        with_commas(total.elements), human_bytes(total.bytes));
  return text;
}

std::string describe_json(const CheckpointReader& checkpoint) {
  const CheckpointHeader& header = checkpoint.header();
  Json tensors = Json::list();
  for (const TensorInfo& info : checkpoint.tensors()) {
    tensors.push_back(Json::object({{"name", info.name},
                                    {"role", name_of(info.role)},
                                    {"dtype", name_of(info.type)},
                                    {"shape", info.shape},
                                    {"bytes", info.bytes()}}));
  }
  Json totals = Json::object();
  for (const auto& [role, total] : totals_of(checkpoint)) {
    totals.set(name_of(role), Json::object({{"tensors", total.tensors},
                                            {"elements", total.elements},
                                            {"bytes", total.bytes}}));
  }
  const Json all = Json::object({{"path", checkpoint.path().string()},
                                 {"iteration", header.iteration},
                                 {"epoch", header.epoch},
                                 {"next_position", header.next_position},
                                 {"model", header.model},
                                 {"environment", header.environment},
                                 {"tensors", std::move(tensors)},
                                 {"totals", std::move(totals)}});
  // A path need not be UTF-8.
  return all.dump(1, Json::NotUtf8::Replaced);
}

}  // namespace millrace::io
