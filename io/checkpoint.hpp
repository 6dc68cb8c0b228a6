// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint is a directory `ckpt-<iteration>` that knows nothing of the layout that wrote it:
//
//   manifest.json     format version, header, and for every part file its size, its CRC-32C and the
//                     name, type, shape and CRC-32C of each tensor in it; sealed by a CRC of its
//                     own
//   part-000.h5       tensors of one stage owner (serial HDF5, chunked, Fletcher32), as
//                     /parameters/<name>, /state/<name>, /slots/<name>
//
// Everything is written into `.ckpt-<iteration>.tmp.<pid>`, closed, read back and compared, synced,
// and only then renamed; the parent directory is synced after the rename. When a checkpoint of the
// same iteration is there already, it is called `ckpt-<iteration>.replaced` between two renames,
// and counts while its successor is missing: a kill at any instant leaves the old or the new one. A
// directory without a manifest, or with any other name, is not a checkpoint. A reader verifies
// sizes and CRCs first, and reads without the HDF5 library, which is no safe parser. Files that the
// manifest does not name are ignored.
//
// One process writes to a directory at a time (run_lock.hpp); reading is possible all the while.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "io/hdf5.hpp"

namespace millrace::io {

/// What a tensor is for; `inspect` and the digest tell them apart.
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

/// What continues besides tensors.
struct CheckpointHeader {
  std::int64_t iteration = 0;
  double epoch = 0.0;
  std::int64_t next_position = 0;  ///< first sample of the run that has not been trained on
  std::string model;               ///< name of the graph, e.g. "resnet-20-cifar"
  std::string config_toml;         ///< resolved configuration of the run
  std::string environment;  ///< threads, instruction set, library versions: what equal bits need
  std::string data = {};  ///< what was trained on, to be told from other images; "" if nothing was
  std::string log_state = {};  ///< what the run's log has gathered since its last row (JSON), or ""
  std::string scaling_state = {};  ///< how far the loss scaling has come (JSON), or ""
  std::int64_t stand_ins = 0;      ///< samples of this epoch so far that others had to stand in for
  std::int64_t skipped_in_row = 0;  ///< updates just before it that were not finite, and left out
  friend bool operator==(const CheckpointHeader&, const CheckpointHeader&) = default;
};

/// Writes `checkpoints_directory/ckpt-<iteration>` with one part; returns its path. The directory
/// is made when it is missing; an older checkpoint of the same name is replaced. Names of tensors
/// must be unique over all roles. Errors: Io, with the path; what was there before stays, and
/// nothing new is left.
std::filesystem::path write_checkpoint(const std::filesystem::path& checkpoints_directory,
                                       const CheckpointHeader& header,
                                       std::span<const NamedTensor> tensors);

/// The same by several processes: one stages, each writes its part, one commits what the others
/// tell it of their parts, if that is what the network consists of. A staging that is never
/// committed is removed with the object.
class CheckpointStaging {
 public:
  /// Makes the temporary directory. Errors: Io.
  CheckpointStaging(std::filesystem::path checkpoints_directory, CheckpointHeader header);
  ~CheckpointStaging();
  CheckpointStaging(const CheckpointStaging&) = delete;
  CheckpointStaging& operator=(const CheckpointStaging&) = delete;

  /// Where the parts go.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return temporary_; }
  /// Writes the manifest over `parts`, reads everything back, and gives the checkpoint its name;
  /// returns its path. Errors: Checkpoint, naming part and tensor, when the parts together are not
  /// `expected`, each tensor once, or one was written at another step than this header's; Io.
  std::filesystem::path commit(std::span<const std::string> parts,
                               std::span<const TensorInfo> expected);

 private:
  std::filesystem::path directory_;
  CheckpointHeader header_;
  std::filesystem::path temporary_;
};
/// Writes part `number` into a staging's directory; returns what commit() needs to know of it, with
/// the step that this process is at. Without tensors there is no file and nothing to know. Errors:
/// Io.
[[nodiscard]] std::string write_checkpoint_part(const std::filesystem::path& staging, int number,
                                                const CheckpointHeader& header,
                                                std::span<const NamedTensor> tensors);

/// A verified checkpoint. Errors of open and read: Checkpoint, naming file, tensor and what
/// differs. Parts stay open, so the object reads on when the checkpoint is retired meanwhile.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& directory);
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const CheckpointHeader& header() const noexcept { return header_; }
  /// CRC-32C of its manifest, which holds those of everything else: two checkpoints of one seal are
  /// the same.
  [[nodiscard]] std::uint32_t seal() const noexcept { return seal_; }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }
  /// nullptr when there is no such tensor.
  [[nodiscard]] const TensorInfo* find(const std::string& name) const;
  /// Reads one tensor (its CRC is checked again); `out` must have info.bytes().
  void read(const std::string& name, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  CheckpointHeader header_;
  std::uint32_t seal_ = 0;
  std::vector<TensorInfo> tensors_;   ///< in name order
  std::vector<std::size_t> part_of_;  ///< index into parts_, for each tensor
  std::vector<std::uint32_t> crc_of_;
  std::vector<Hdf5Reader> parts_;
};

/// Everything that is wrong with the checkpoint in `directory`, one line each, by file and then by
/// tensor; empty when every tensor reads back with its checksum.
[[nodiscard]] std::vector<std::string> verify(const std::filesystem::path& directory);

/// The tensors with values that no network can compute with, a line each: weights and running
/// statistics that are not finite, and negative variances. Errors: Checkpoint.
[[nodiscard]] std::vector<std::string> bad_values(const CheckpointReader& checkpoint);

/// One SHA-256 over name, role, type, shape and bytes of the tensors in name order (the role breaks
/// ties), whatever their order here: 64 hexadecimal digits. The header has no part in it.
[[nodiscard]] std::string digest(std::span<const NamedTensor> tensors);
[[nodiscard]] std::string digest(const CheckpointReader& checkpoint);

/// Whether a folder of checkpoints holds nothing but what killed processes left unfinished.
[[nodiscard]] bool holds_leftovers_alone(const std::filesystem::path& checkpoints);

/// Paths of the complete-looking checkpoints below `directory` (a run directory, its `checkpoints`
/// folder, or one checkpoint), by iteration. Errors: Io, when it cannot be listed.
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& directory);

/// Opens the newest checkpoint that verifies. Damaged ones are passed over, each with one line in
/// `complaints`; none left ends with Error(Checkpoint). The run may be in training: when a
/// checkpoint is retired under the reader's eyes, the directory is listed again.
[[nodiscard]] CheckpointReader open_newest(const std::filesystem::path& directory,
                                           std::vector<std::string>& complaints);

/// Opens every checkpoint below `directory` in order of iteration and shows it to `visit`. One that
/// its training retires meanwhile is passed over. Errors: Checkpoint when none is there, and behind
/// the sound ones when some are damaged.
void visit_checkpoints(const std::filesystem::path& directory,
                       const std::function<void(const CheckpointReader&)>& visit);

/// Which checkpoints of a run stay.
struct Retention {
  int keep = 0;  ///< the newest so many that verify; 0: all
  /// Accuracy by iteration of what was validated and gave a finite loss.
  std::map<std::int64_t, double> validated = {};
  bool keep_best = false;  ///< the one of the highest accuracy, too
};

/// Removes the checkpoints that do not stay, and what killed writers left. Whatever `keep` says,
/// the newest that verifies stays; so does the newest that does and was not written while updates
/// were left out, and the newest that was validated: the training may be about to diverge. Errors:
/// Io.
void retire_checkpoints(const std::filesystem::path& checkpoints_directory,
                        const Retention& retention);

}  // namespace millrace::io
