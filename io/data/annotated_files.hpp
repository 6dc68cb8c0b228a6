// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "io/data/folder_index.hpp"

namespace millrace::io {

/// What an index of annotated images depends on besides the images: the annotation file and where
/// the search for them begins.
[[nodiscard]] std::vector<IndexSourceFile> sources_of_annotated(
    const std::filesystem::path& annotations, const std::filesystem::path& directory);

/// A new index; see index_annotated.
[[nodiscard]] FolderIndex list_annotated(const std::filesystem::path& annotations,
                                         const std::filesystem::path& directory,
                                         const IndexOptions& options);

}  // namespace millrace::io
