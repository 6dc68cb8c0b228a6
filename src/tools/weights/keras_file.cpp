// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/json.hpp"
#include "io/hdf5.hpp"
#include "io/hdf5_handles.hpp"
#include "io/tensor_checks.hpp"
#include "tools/weights/archive.hpp"
#include "tools/weights/keras.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::io {
namespace {

constexpr std::string_view kWeightsInArchive = "model.weights.h5";
constexpr const char* kConfigInArchive = "config.json";
constexpr const char* kConfig = "model_config";

/// Datasets of a file by their paths.
using Paths = std::vector<std::string>;

extern "C" herr_t millrace_note_dataset(hid_t, const char* name, const H5O_info_t* info,
                                        void* paths) {
  if (info->type == H5O_TYPE_DATASET) static_cast<Paths*>(paths)->emplace_back(name);
  return 0;
}

/// "conv1_conv/kernel:0" of "model_weights/conv1_conv/conv1_conv/kernel:0": layer and variable.
std::string layer_and_variable(const std::string& path) {
  const std::size_t variable = path.rfind('/');
  if (variable == std::string::npos || variable == 0) return path;
  const std::size_t layer = path.rfind('/', variable - 1);
  return layer == std::string::npos ? path : path.substr(layer + 1);
}

/// The name of Keras 1 and 2. Keras 3 writes no ":0", and "kernel" for that of a depthwise
/// convolution, too.
std::string older_name(std::string name) {
  constexpr std::string_view kKernel = "/kernel";
  if (name.ends_with(":0")) return name;
  if (name.ends_with(kKernel) && name.find("dwconv") != std::string::npos)
    name.replace(name.size() - kKernel.size(), kKernel.size(), "/depthwise_kernel");
  return name + ":0";
}

/// The group of "layers/conv2d_1/vars/0", of which the last part is a number; empty for others.
std::string numbered_group(const std::string& path) {
  constexpr std::string_view kVariables = "/vars";
  const std::string group = path.substr(0, path.rfind('/'));
  return group.ends_with(kVariables) ? group : std::string();
}

class KerasFile {
 public:
  explicit KerasFile(const std::filesystem::path& path) : result_(path) {
    open(path, PropertyHandle(H5Pcreate(H5P_FILE_ACCESS)),
         fmt::format("its {} bytes are", std::filesystem::file_size(path)));
  }
  /// A file within `path`, whose bytes these are.
  KerasFile(const std::filesystem::path& path, std::span<const std::byte> bytes) : result_(path) {
    const PropertyHandle access(H5Pcreate(H5P_FILE_ACCESS));
    constexpr std::size_t kIncrement = 1 << 20;
    if (H5Pset_fapl_core(access.get(), kIncrement, 0) < 0 ||
        H5Pset_file_image(access.get(), const_cast<std::byte*>(bytes.data()), bytes.size()) < 0)
      refuse("its weights cannot be held in memory");
    // HDF5 wants a name that no file has.
    open(path / kWeightsInArchive, access, fmt::format("its {} is", kWeightsInArchive));
  }

  /// The tensors and the configuration of the network, as safetensors.
  std::string read() && {
    if (is_own())
      refuse(
          "holds a checkpoint of millrace, with other names than Keras: give the run that it came "
          "from to restore, validate or --init-path, or export that with --to safetensors");
    Paths paths;
#if H5_VERSION_GE(1, 12, 0)
    const herr_t seen =
        H5Ovisit1(handle_.get(), H5_INDEX_NAME, H5_ITER_INC, millrace_note_dataset, &paths);
#else
    const herr_t seen =
        H5Ovisit(handle_.get(), H5_INDEX_NAME, H5_ITER_INC, millrace_note_dataset, &paths);
#endif
    if (seen < 0) refuse_damaged("its groups cannot be read");
    for (const std::string& path : paths)
      if (!path.starts_with("optimizer_weights/") && !path.starts_with("optimizer/")) add(path);
    if (result_.tensors().empty()) refuse("it has no weights: save the model with them");
    std::map<std::string, std::string> metadata;
    if (std::string config = text_attribute(".", kConfig, "its configuration"); !config.empty())
      metadata.emplace(kConfig, std::move(config));
    try {
      return format_safetensors(result_.tensors(), metadata);
    } catch (const JsonError&) {
      refuse("a name or its configuration is not UTF-8");
    }
  }

 private:
  void open(const std::filesystem::path& path, const PropertyHandle& access,
            const std::string& what) {
    handle_ = FileHandle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()));
    if (handle_.get() < 0) refuse(what + " no whole HDF5 file: fetch the file again");
  }

  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorKind::Data, "{}: {}", result_.path().string(), what);
  }

  [[noreturn]] void refuse_damaged(const std::string& what) const {
    refuse(what + ": the file is damaged: fetch it again");
  }

  /// Whether write_merged has described the file.
  [[nodiscard]] bool is_own() const {
    return H5Aexists(handle_.get(), "format_version") > 0 &&
           H5Lexists(handle_.get(), "parameters", H5P_DEFAULT) > 0;
  }

  /// The text of an attribute, or nothing. `what` is said of one that is none.
  [[nodiscard]] std::string text_attribute(const std::string& object, const char* name,
                                           const std::string& what) const {
    if (H5Aexists_by_name(handle_.get(), object.c_str(), name, H5P_DEFAULT) <= 0) return {};
    const AttributeHandle attribute(
        H5Aopen_by_name(handle_.get(), object.c_str(), name, H5P_DEFAULT, H5P_DEFAULT));
    const TypeHandle type(H5Aget_type(attribute.get()));
    const SpaceHandle space(H5Aget_space(attribute.get()));
    char* text = nullptr;
    if (H5Tis_variable_str(type.get()) <= 0 || H5Sget_simple_extent_npoints(space.get()) != 1 ||
        H5Aread(attribute.get(), type.get(), &text) < 0 || text == nullptr)
      refuse_damaged(what + " cannot be read");
    std::string result = text;
    H5free_memory(text);
    return result;
  }

  /// `conv1_conv/kernel:0`, or, if the layer has no name, `conv2d/vars/0`.
  [[nodiscard]] std::string name_of(const std::string& path) const {
    const std::string group = numbered_group(path);
    if (group.empty()) return older_name(layer_and_variable(path));
    const std::string numbered = layer_and_variable(group);  // "conv2d/vars"
    const std::string number = path.substr(group.size() + 1);
    const std::string layer = text_attribute(group, "name", group + " has a name that");
    if (layer.empty()) return numbered + '/' + number;
    const std::string_view variable =
        keras_variable(std::string_view(numbered).substr(0, numbered.find('/')), number);
    return layer + '/' + (variable.empty() ? "vars/" + number : std::string(variable));
  }

  void add(const std::string& path) {
    const DatasetHandle set(H5Dopen2(handle_.get(), path.c_str(), H5P_DEFAULT));
    const TypeHandle type(H5Dget_type(set.get()));
    const SpaceHandle space(H5Dget_space(set.get()));
    if (H5Tget_class(type.get()) != H5T_FLOAT) return;
    const int rank = H5Sget_simple_extent_ndims(space.get());
    std::array<hsize_t, kMaxRank> extents{};
    if (rank < 0 || rank > static_cast<int>(kMaxRank) ||
        H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr) != rank)
      refuse_damaged(path + " has no shape that can be read");
    const std::vector<std::int64_t> shape(extents.begin(), extents.begin() + rank);
    const auto elements = checked_elements(shape, sizeof(float));
    if (!elements || static_cast<hsize_t>(*elements) * H5Tget_size(type.get()) >
                         16 * H5Dget_storage_size(set.get()) + 4096)
      refuse_damaged(path + " has fewer bytes than its shape " + shape_text(shape) + " needs");
    std::vector<std::byte> bytes(static_cast<std::size_t>(*elements) * sizeof(float));
    if (H5Dread(set.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0)
      refuse_damaged(path + " cannot be read");
    result_.add(name_of(path), {"F32", shape, result_.keep(std::move(bytes))});
  }

  Hdf5Session session_;
  TensorFile result_;
  FileHandle handle_;
};

/// A child process runs `read`, which gives safetensors.
TensorFile read_in_child(const std::filesystem::path& path,
                         const std::function<std::string()>& read) {
  const std::string told = hdf5_in_child(path, ErrorKind::Data, read);
  const auto bytes = std::as_bytes(std::span(told));
  TensorFile file = parse_safetensors({bytes.begin(), bytes.end()}, path);
  if (has_numbers(file))
    file.add_notice(
        path.string() +
        ": its layers have no names, as Keras 3 wrote before 3.6: they are taken to be in the "
        "order of the network in keras.applications; if yours has another, save it with "
        "model.save(\"NAME.h5\")");
  return file;
}

}  // namespace

TensorFile read_keras_file(const std::filesystem::path& path) {
  return read_in_child(path, [&path] { return KerasFile(path).read(); });
}

bool is_keras_archive(const std::filesystem::path& path) {
  return !Archive(path).find(kWeightsInArchive).empty();
}

TensorFile read_keras_archive(const std::filesystem::path& path) {
  Archive archive(path);
  // Before the fork, which would share the position in the archive.
  const std::vector<std::byte> weights =
      archive.read(archive.find(kWeightsInArchive), std::numeric_limits<std::uint64_t>::max());
  TensorFile file = read_in_child(path, [&] { return KerasFile(path, weights).read(); });
  constexpr std::uint64_t kMostConfig = 16'000'000;
  if (!archive.find(kConfigInArchive).empty()) {
    const std::vector<std::byte> config = archive.read(kConfigInArchive, kMostConfig);
    file.set_metadata(
        {{kConfig, std::string(reinterpret_cast<const char*>(config.data()), config.size())}});
  }
  return file;
}

}  // namespace millrace::io
