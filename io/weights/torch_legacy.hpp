// SPDX-License-Identifier: Apache-2.0
//
// Files of torch.save from before PyTorch 1.6, and of today's with
// _use_new_zipfile_serialization=False: five pickles (a magic number, a version, facts about the
// machine, the object, the keys of its storages in order), then for each storage the number of its
// elements and these.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "io/weights/pickle.hpp"

namespace millrace::io {

/// Whether a file that begins like this, with at least 9 bytes, is one of these.
[[nodiscard]] bool is_legacy_torch(std::string_view first);

struct LegacyTorch {
  Pickle pickle;                                               ///< the object
  std::map<std::string, std::span<const std::byte>> storages;  ///< by key; refer to the bytes
};
/// The parts of a file, whose bytes are untrusted. No code of the pickles is run. Errors: Data;
/// messages begin with `label`.
[[nodiscard]] LegacyTorch parse_legacy_torch(std::span<const std::byte> bytes,
                                             std::string_view label);

}  // namespace millrace::io
