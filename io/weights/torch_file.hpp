// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "io/weights/tensor_file.hpp"

namespace millrace::io {

/// The tensors of a file of torch.save: an archive with a pickle `data.pkl` and a file for each
/// storage, or before PyTorch 1.6 what torch_legacy.hpp describes. They are those of its
/// dictionary, or of the entry state_dict, model_state_dict, model or net of it. No code of the
/// pickle is run. Errors: Data, with the path; Io.
[[nodiscard]] TensorFile read_torch_file(const std::filesystem::path& path);

}  // namespace millrace::io
