// SPDX-License-Identifier: Apache-2.0
//
// What HDF5 files of weights say of themselves, so that h5py alone is enough to use them:
//
//   attributes of the file   format, format_version, model, iteration, epoch, layout of kernels; of
//                            its images: classes, image (height, width, channels), preset, mean,
//                            deviation, by_image, and how they are resized (CheckpointHeader's
//                            `network`)
//   /class_names             the names of the classes, if known
//   attribute of a kernel    layout: OHWI (outputs, rows, columns, inputs) or OI
//
// millrace itself reads none of this: the manifest has it, too.
#pragma once

#include "io/checkpoint.hpp"

namespace millrace::io {

/// Describes a file for which no dataset has been written yet.
void describe_file(Hdf5Writer& file, const CheckpointHeader& header);
/// Describes the dataset of a tensor that was written.
void describe_tensor(Hdf5Writer& file, const TensorInfo& info);

/// Writes all tensors of a checkpoint into one new file with these attributes, and /config with the
/// configuration of its run. Replaces an older file at `path`. Errors: Io, Checkpoint.
void write_merged(const CheckpointReader& checkpoint, const std::filesystem::path& path);

}  // namespace millrace::io
