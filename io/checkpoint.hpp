// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint is a directory `ckpt-<iteration>`. It does not depend on the layout that wrote it:
//
//   manifest.json     format version, header, and for every part file its size, its CRC-32C and the
//                     name, type, shape and CRC-32C of each tensor in it; sealed by a CRC of its
//                     own
//   part-000.h5       tensors of one stage owner (serial HDF5, chunked, Fletcher32), as
//                     /parameters/<name>, /state/<name>, /slots/<name>
//
// Attributes tell h5py what such a file is; millrace itself reads them in the manifest:
//
//   of the file       format, format_version, model, iteration, epoch, layout of kernels; of its
//                     images: classes, image (height, width, channels), preset, mean, deviation,
//                     by_image, and how they are resized (CheckpointHeader's `network`)
//   of a kernel       layout: OHWI (outputs, rows, columns, inputs) or OI
//
// and /class_names are the names of the classes, if known.
//
// Everything is written into `.ckpt-<iteration>.tmp.<pid>`, closed, read back and compared, synced,
// and only then renamed; the parent directory is synced after the rename. An existing checkpoint of
// the same iteration is first renamed to `ckpt-<iteration>.replaced`, which is valid while its
// successor is missing. So a kill at any time leaves the old or the new one. A directory without a
// manifest, or with any other name, is not a checkpoint. A reader verifies sizes and CRCs before
// the HDF5 library opens a part, because it is not safe on damaged files; verify() reads damaged
// parts in a child process. Files that the manifest does not name are ignored.
//
// One run at a time writes to a directory (RunLock); others may read it meanwhile.
//
// checkpoint_write, checkpoint_read and checkpoint_list (newest, retention) implement this header;
// manifest is the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "io/hdf5.hpp"

namespace millrace::io {

/// The purpose of a tensor. `inspect` and the digest distinguish them.
enum class TensorRole { Parameter, State, Slot };

struct TensorInfo {
  std::string name;  ///< parameter name; slots are `<parameter name>/momentum` and so on
  TensorRole role = TensorRole::Parameter;
  DType type = DType::F32;
  std::vector<std::int64_t> shape;
  [[nodiscard]] std::int64_t elements() const noexcept;
  [[nodiscard]] std::int64_t bytes() const noexcept { return elements() * size_of(type); }
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

struct NamedTensor {
  TensorInfo info;
  std::span<const std::byte> data;  ///< row-major, host memory
};

/// Everything that a restored run needs besides tensors.
struct CheckpointHeader {
  std::int64_t iteration = 0;
  double epoch = 0.0;
  std::int64_t next_position = 0;  ///< first sample of the run that has not been trained on
  std::string model;               ///< name of the graph, e.g. "resnet-20-cifar"
  std::string config_toml;         ///< resolved configuration of the run
  std::string environment;  ///< threads, instruction set, library versions; needed for equal bits
  std::string data = {};    ///< description of the training data, to detect other data; "" if none
  std::string log_state = {};       ///< values of the run's log since its last row (JSON), or ""
  std::string scaling_state = {};   ///< state of the loss scaling (JSON), or ""
  std::int64_t stand_ins = 0;       ///< samples of this epoch so far that were replaced by others
  std::int64_t skipped_in_row = 0;  ///< updates skipped just before it, as not finite
  std::string network = {};         ///< what the network reads and says (JSON), or ""
  friend bool operator==(const CheckpointHeader&, const CheckpointHeader&) = default;
};

/// Writes `checkpoints_directory/ckpt-<iteration>` with one part; returns its path. The directory
/// is created if it is missing; an older checkpoint of the same name is replaced. Names of tensors
/// must be unique over all roles. On error (Io, with the path), the old checkpoint stays and no new
/// files are left.
std::filesystem::path write_checkpoint(const std::filesystem::path& checkpoints_directory,
                                       const CheckpointHeader& header,
                                       std::span<const NamedTensor> tensors);

/// The same with several processes: one creates the staging directory, each writes its part, and
/// one commits the descriptions of all parts if together they form the network. An uncommitted
/// staging directory is removed with the object.
class CheckpointStaging {
 public:
  /// Creates the temporary directory. Errors: Io.
  CheckpointStaging(std::filesystem::path checkpoints_directory, CheckpointHeader header);
  ~CheckpointStaging();
  CheckpointStaging(const CheckpointStaging&) = delete;
  CheckpointStaging& operator=(const CheckpointStaging&) = delete;

  /// The directory for the parts.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return temporary_; }
  /// Writes the manifest for `parts`, reads everything back, and renames the checkpoint; returns
  /// its path. Errors: Checkpoint, naming part and tensor, if the parts do not contain each tensor
  /// of `expected` exactly once, or if a part was written at a different step than the header's;
  /// Io.
  std::filesystem::path commit(std::span<const std::string> parts,
                               std::span<const TensorInfo> expected);

 private:
  std::filesystem::path directory_;
  CheckpointHeader header_;
  std::filesystem::path temporary_;
};
/// Writes part `number` into a staging directory; returns its description for commit(), which
/// includes the step of this process. Without tensors it writes no file and returns "". Errors: Io.
[[nodiscard]] std::string write_checkpoint_part(const std::filesystem::path& staging, int number,
                                                const CheckpointHeader& header,
                                                std::span<const NamedTensor> tensors);

/// A verified checkpoint. Errors of open and read: Checkpoint, naming file, tensor and difference.
/// Parts stay open, so the object can still be read after the checkpoint is removed.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& directory);
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const CheckpointHeader& header() const noexcept { return header_; }
  /// CRC-32C of the manifest, which contains the CRCs of everything else. Checkpoints with equal
  /// seals are equal.
  [[nodiscard]] std::uint32_t seal() const noexcept { return seal_; }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }
  /// nullptr if there is no such tensor.
  [[nodiscard]] const TensorInfo* find(const std::string& name) const;
  /// Reads one tensor (its CRC is checked again); `out` must have info.bytes().
  void read(const std::string& name, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  CheckpointHeader header_;
  std::uint32_t seal_ = 0;
  struct Stored {
    std::size_t part;
    std::uint32_t crc32c;
  };
  std::vector<TensorInfo> tensors_;  ///< in name order
  std::vector<Stored> stored_;       ///< for each tensor
  std::vector<Hdf5Reader> parts_;
};

/// Writes all tensors of a checkpoint into one new file with these attributes, and /config with the
/// configuration of its run. Replaces an older file at `path`. Errors: Io, Checkpoint.
void write_merged(const CheckpointReader& checkpoint, const std::filesystem::path& path);

/// All problems of the checkpoint in `directory`, one line each, by file and then by tensor; empty
/// if every tensor matches its checksum.
[[nodiscard]] std::vector<std::string> verify(const std::filesystem::path& directory);

/// The tensors with unusable values, one line each: weights and running statistics that are not
/// finite, and negative variances. Errors: Checkpoint.
[[nodiscard]] std::vector<std::string> bad_values(const CheckpointReader& checkpoint);

/// One SHA-256 over name, role, type, shape and bytes of the tensors in name order (the role breaks
/// ties), independent of the order given: 64 hexadecimal digits. It does not include the header.
[[nodiscard]] std::string digest(std::span<const NamedTensor> tensors);
[[nodiscard]] std::string digest(const CheckpointReader& checkpoint);

/// Readable text: header, one line per tensor (name, role, type, shape, bytes) and totals by role.
[[nodiscard]] std::string describe(const CheckpointReader& checkpoint);

/// The same as JSON: {"path", "iteration", "epoch", "next_position", "model", "environment",
/// "tensors":
/// [{"name", "role", "dtype", "shape", "bytes"}], "totals": {role: {"tensors", "elements",
/// "bytes"}}}.
[[nodiscard]] std::string describe_json(const CheckpointReader& checkpoint);

/// Requires a directory where a run or a checkpoint is asked for. Every command that takes one asks
/// here, before it looks for more. Errors: Usage for another path, with what to give instead.
void require_recorded_directory(const std::filesystem::path& path);

/// Whether a folder of checkpoints contains only unfinished checkpoints of killed processes.
[[nodiscard]] bool holds_leftovers_alone(const std::filesystem::path& checkpoints);

/// Paths of the checkpoints below `directory` (a run directory, its `checkpoints` folder, or one
/// checkpoint), by iteration. They are not verified. Errors: Io, if it cannot be listed.
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& directory);

/// Those of the `paths` that verify. The others get one line each in `complaints`.
[[nodiscard]] std::vector<std::filesystem::path> sound_checkpoints(
    std::vector<std::filesystem::path> paths, std::vector<std::string>& complaints);

/// Opens the newest checkpoint that verifies. Damaged ones are skipped, each with one line in
/// `complaints`. Error(Checkpoint) if none verifies. The run may still be training: if a checkpoint
/// is removed meanwhile, the directory is listed again.
[[nodiscard]] CheckpointReader open_newest(const std::filesystem::path& directory,
                                           std::vector<std::string>& complaints);

/// Opens every checkpoint below a directory, in order of iteration. Checkpoints that a running
/// training removes meanwhile are skipped.
class CheckpointWalk {
 public:
  explicit CheckpointWalk(std::filesystem::path directory) : directory_(std::move(directory)) {}
  /// The next checkpoint; nothing after the last. Errors: Checkpoint if there is none, and, after
  /// all others, if some are damaged.
  [[nodiscard]] std::optional<CheckpointReader> next();

 private:
  std::filesystem::path directory_;
  std::vector<std::filesystem::path> found_;
  std::size_t at_ = 0;      ///< of those found, the next one to open
  int listings_ = 0;        ///< of the directory, so far
  bool any_ = false;        ///< whether one was opened
  std::string complaints_;  ///< about damaged ones
};

/// Which checkpoints of a run are kept.
struct Retention {
  int keep = 0;  ///< number of newest verified checkpoints; 0: all
  /// Accuracy by iteration, of validated checkpoints with a finite loss.
  std::map<std::int64_t, double> validated = {};
  bool keep_best = false;  ///< also keep the checkpoint with the highest accuracy
};

/// Removes the other checkpoints and leftovers of killed writers. Regardless of `keep`, three
/// checkpoints stay in case the training is about to diverge: the newest that verifies, the newest
/// of these that was not written while updates were skipped, and the newest that was validated.
/// Errors: Io.
void retire_checkpoints(const std::filesystem::path& checkpoints_directory,
                        const Retention& retention);

}  // namespace millrace::io
