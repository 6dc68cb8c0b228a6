// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint_attributes.hpp"

#include <optional>
#include <system_error>

#include "core/error.hpp"
#include "core/json.hpp"
#include "io/atomic_file.hpp"
#include "io/manifest.hpp"

namespace millrace::io {
namespace {

constexpr const char* kFile = "/";

/// The facts about the network, whose texts in lists are the names of the classes. Those of an
/// object within them become attributes like the others.
void describe_network(Hdf5Writer& file, const Json& facts) {
  for (const auto& [key, value] : facts.members()) {
    if (key == "graph") continue;  // of a network that was given: too long for an attribute
    if (value.is_object()) {
      describe_network(file, value);
    } else if (key == "class_names") {
      std::vector<std::string> names;
      for (const Json& name : value.items()) names.push_back(name.text());
      if (!names.empty()) file.write_texts("/class_names", names);
    } else {
      file.describe(kFile, key, value);
    }
  }
}

/// How the extents of a kernel are ordered; "" for other tensors. Its slots have the same order.
std::string_view layout_of(const TensorInfo& info) {
  constexpr std::string_view kKernel = "/kernel";
  const std::size_t at = info.name.rfind(kKernel);
  if (at == std::string::npos) return "";
  const std::size_t end = at + kKernel.size();
  if (end != info.name.size() && info.name[end] != '/') return "";
  return info.shape.size() == 4 ? "OHWI" : info.shape.size() == 2 ? "OI" : "";
}

/// A file that becomes `path` when it is complete, and is removed if it does not.
class Staged {
 public:
  explicit Staged(std::filesystem::path path)
      : path_(std::move(path)), temporary_(temporary_for(path_)) {}
  ~Staged() {
    std::error_code ignored;
    if (!temporary_.empty()) std::filesystem::remove(temporary_, ignored);
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  [[nodiscard]] const std::filesystem::path& temporary() const { return temporary_; }
  void commit() {
    std::error_code error;
    std::filesystem::rename(temporary_, path_, error);
    if (error) fail_io("rename a file to", path_, error.value());
    temporary_.clear();
    sync_directory(std::filesystem::absolute(path_).parent_path());
  }

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
};

}  // namespace

void describe_file(Hdf5Writer& file, const CheckpointHeader& header) {
  file.describe(kFile, "format", "millrace checkpoint");
  file.describe(kFile, "format_version", kCheckpointFormatVersion);
  file.describe(kFile, "model", header.model);
  file.describe(kFile, "iteration", header.iteration);
  file.describe(kFile, "epoch", header.epoch);
  file.describe(kFile, "layout", "OHWI");
  if (const std::optional<Json> facts = Json::try_parse(header.network);
      facts && facts->is_object())
    describe_network(file, *facts);
}

void describe_tensor(Hdf5Writer& file, const TensorInfo& info) {
  file.describe(dataset_path(info), "layout", layout_of(info));
}

void write_merged(const CheckpointReader& checkpoint, const std::filesystem::path& path) {
  Staged staged(path);
  Hdf5Writer file(staged.temporary());
  describe_file(file, checkpoint.header());
  file.write_texts("/config", {&checkpoint.header().config_toml, 1});
  std::vector<std::byte> bytes;
  for (const TensorInfo& info : checkpoint.tensors()) {
    bytes.resize(static_cast<std::size_t>(info.bytes()));
    checkpoint.read(info.name, bytes);
    file.write(dataset_path(info), info.type, info.shape, bytes);
    describe_tensor(file, info);
  }
  file.close();
  staged.commit();
}

}  // namespace millrace::io
