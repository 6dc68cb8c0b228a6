// SPDX-License-Identifier: Apache-2.0
//
// Tables of measured kernels: for each pass of each linear op, the fastest kernel of a vendor's
// library on one device. `millrace bench `tune`` measures and writes one; a run reads it with
// `kernel-table`. A table is a value: what it chooses never depends on a clock during training.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"

namespace millrace {

enum class LinearPass { Forward, BackwardInput, BackwardWeight };
/// "forward", "backward-input", "backward-weight".
[[nodiscard]] std::string_view name_of(LinearPass pass);

/// A kernel by what its library builds it from: a family of kernels, and its settings.
struct EngineChoice {
  struct Knob {
    std::int64_t type = 0;  ///< the library's number
    std::int64_t value = 0;
    friend bool operator==(const Knob&, const Knob&) = default;  // nvcc wants it by name
    friend auto operator<=>(const Knob&, const Knob&) = default;
  };
  std::int64_t engine = 0;
  std::vector<Knob> knobs;  ///< by type, ascending
  friend bool operator==(const EngineChoice&, const EngineChoice&) = default;
};

struct MeasuredKernel {
  EngineChoice choice;
  std::int64_t scratch = 0;   ///< bytes
  bool deterministic = true;  ///< its sums have the same order in every run
  double microseconds = 0.0;
  friend bool operator==(const MeasuredKernel&, const MeasuredKernel&) = default;
};

/// What was measured for one pass of one shape.
struct TableRow {
  MeasuredKernel best;
  MeasuredKernel usual;  ///< what the library proposes
  friend bool operator==(const TableRow&, const TableRow&) = default;
};

struct PassKey {
  std::string shape;  ///< as ops::describe() writes it
  DType type = DType::F32;
  LinearPass pass = LinearPass::Forward;
  friend bool operator==(const PassKey&, const PassKey&) = default;
  friend auto operator<=>(const PassKey&, const PassKey&) = default;  // NOLINT(*-nullptr)
};

struct KernelTable {
  std::string device;   ///< where it was measured
  std::string library;  ///< name and version
  std::map<PassKey, TableRow> rows;

  /// The kernel that was fastest; nullptr: this pass was not measured.
  [[nodiscard]] const MeasuredKernel* find(const PassKey& key) const {
    const auto found = rows.find(key);
    return found == rows.end() ? nullptr : &found->second.best;
  }
  friend bool operator==(const KernelTable&, const KernelTable&) = default;
};

/// Why a table does not hold for a device and library, as text that continues "is not used: "; ""
/// if it does. Numbers of kernels mean something else in another version.
[[nodiscard]] std::string why_unfit(const KernelTable& table, std::string_view device,
                                    std::string_view library);

/// Twelve digits that stand for everything that a table changes in a run: device, library and
/// kernels, not their times.
[[nodiscard]] std::string identity(const KernelTable& table);

/// The text of a table's file, in JSON.
[[nodiscard]] std::string to_text(const KernelTable& table);
/// The inverse. Errors: Config, naming the file and what is wrong.
[[nodiscard]] KernelTable parse_kernel_table(std::string_view text, std::string_view file);
/// Maximum size of a table's file.
inline constexpr std::uint64_t kMaxTableBytes = 16 << 20;

/// What the options of a run say about the choice of a vendor's kernels.
struct KernelRules {
  /// Kernels whose sums may have another order from run to run: faster, and against law 1.
  bool allow_nondeterministic = false;
  std::shared_ptr<const KernelTable> table;  ///< null: the library proposes all kernels

  friend bool operator==(const KernelRules& a, const KernelRules& b) {
    const bool both = a.table && b.table;
    return a.allow_nondeterministic == b.allow_nondeterministic &&
           (both ? *a.table == *b.table : a.table == b.table);
  }
};

}  // namespace millrace
