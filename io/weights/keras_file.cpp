// SPDX-License-Identifier: Apache-2.0
#include "io/weights/keras_file.hpp"

#include <array>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "io/hdf5_handles.hpp"
#include "io/tensor_checks.hpp"

namespace millrace::io {
namespace {

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

class KerasFile {
 public:
  explicit KerasFile(const std::filesystem::path& path) : result_(path) {
    handle_ = FileHandle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
    if (handle_.get() < 0) refuse("it is no HDF5 file that can be read");
  }

  TensorFile read() && {
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
    if (seen < 0) refuse("its groups cannot be read");
    for (const std::string& path : paths)
      if (!path.starts_with("optimizer_weights")) add(path);
    if (result_.tensors().empty()) refuse("it has no weights");
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorKind::Data, "{}: {}", result_.path().string(), what);
  }

  /// Whether describe_file in checkpoint_attributes.hpp has described the file.
  [[nodiscard]] bool is_own() const {
    return H5Aexists(handle_.get(), "format_version") > 0 &&
           H5Lexists(handle_.get(), "parameters", H5P_DEFAULT) > 0;
  }

  void add(const std::string& path) {
    if (path.find("/vars/") != std::string::npos)
      refuse(path +
             " has a number instead of a name, as save_weights of Keras 3 writes it: save the "
             "whole model with model.save(\"NAME.h5\")");
    const DatasetHandle set(H5Dopen2(handle_.get(), path.c_str(), H5P_DEFAULT));
    const TypeHandle type(H5Dget_type(set.get()));
    const SpaceHandle space(H5Dget_space(set.get()));
    if (H5Tget_class(type.get()) != H5T_FLOAT) return;
    const int rank = H5Sget_simple_extent_ndims(space.get());
    std::array<hsize_t, kMaxRank> extents{};
    if (rank < 0 || rank > static_cast<int>(kMaxRank) ||
        H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr) != rank)
      refuse(path + " has no shape that can be read");
    const std::vector<std::int64_t> shape(extents.begin(), extents.begin() + rank);
    const auto elements = checked_elements(shape, sizeof(float));
    if (!elements || static_cast<hsize_t>(*elements) * H5Tget_size(type.get()) >
                         16 * H5Dget_storage_size(set.get()) + 4096)
      refuse(path + " has fewer bytes than its shape " + shape_text(shape) + " needs");
    std::vector<std::byte> bytes(static_cast<std::size_t>(*elements) * sizeof(float));
    if (H5Dread(set.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0)
      refuse(path + " cannot be read");
    result_.add(older_name(layer_and_variable(path)), "F32", shape, std::move(bytes));
  }

  Hdf5Session session_;
  TensorFile result_;
  FileHandle handle_;
};

}  // namespace

TensorFile read_keras_file(const std::filesystem::path& path) { return KerasFile(path).read(); }

}  // namespace millrace::io
