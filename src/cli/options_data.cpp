// SPDX-License-Identifier: Apache-2.0
#include "cli/option_rows.hpp"

namespace millrace::cli {
namespace {

using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table
using io::MixingConfig;
using train::DataConfig;

void add_data(OptionTable& table) {
  const Rows row(table, Section::Data, kRunsAndValidate, kFixed);
  row("dataset", choice("cifar-10|cifar-100|imagenet"), "IPU", "data set",
      default_text("derived from --data-dir"), main_option());
  row("data-dir", path("DIR"), "IPU", "directory of the data set, or one above it",
      environment("DATA_DIR"), needs("real data (no --synthetic-data or --generated-data)"),
      may_change(), commands(kRunsAndValidate | kPredict | set_of(Command::DataConvert)),
      main_option());
  row("synthetic-data", flag(), "IPU",
      "use one random image, which training keeps on the device, to measure the device alone; "
      "needs --dataset",
      main_option());
  row("generated-data", flag(), "IPU 2.0",
      "use random images, made on the host and sent with every micro-batch; needs --dataset");
  row("image-size", integer(between(1, 4096)), "IPU",
      "height and width of the images that the network sees",
      default_text("32 for CIFAR; 224 for ImageNet; 224 to 600 for EfficientNet, by size"),
      unit("pixels"));
  row("normalise", choice("standardise|dataset|imagenet"), "millrace",
      "CIFAR: normalize by the mean and deviation of each image, of the training set, or of "
      "ImageNet",
      by_default("standardise"), needs("a CIFAR data set"));
  row("normalise-input", flag(), "IPU",
      "ImageNet: also divide by the deviation of each channel; otherwise only the mean is "
      "subtracted",
      needs("--dataset imagenet"), harmless());
  row("no-hostside-norm", flag(), "IPU",
      "send images as bytes and normalize them on the device, as devices with memory of their own "
      "do by default; the tensors are the same",
      may_change());
  row("hostside-norm", flag(), "IPU 2.0",
      "normalize images before they are sent (the default on cores)", default_text("on cores"),
      may_change());
  row("eight-bit-io", flag(), "IPU 2.0", "send images as bytes; same as --no-hostside-norm",
      may_change());
  row("data-loader-image-type", choice("uint8|float32|bfloat16|float16"), "Habana",
      "data type in which images are sent to the device; uint8 is --no-hostside-norm",
      default_text("the type of the activations"));
  row("train-with-valid-preprocessing", flag(), "IPU",
      "train on images prepared as for validation, without augmentation",
      chooses<&DataConfig::augment, true, false>());
}

void add_augmentation(OptionTable& table) {
  const Rows row(table, Section::Data, kRuns, kFixed,
                 {needs("images from files, with augmentation")});
  row("randaugment", text("N,M"), "torchvision, timm",
      "RandAugment: N operations of magnitude M (0 to 30) on every training image; torchvision's "
      "recipes use 2,9",
      default_text("off"));
  row("color-jitter", text("B,C,S[,H]"), "torchvision, timm",
      "change brightness, contrast and saturation of training images by factors from 1 - X to "
      "1 + X, and turn their hue by up to H of the circle, in a random order; a single X stands "
      "for B, C and S",
      default_text("off"));
  row("random-erasing", real(between(0.0, 1.0), "P"), "torchvision, timm",
      "probability that a box of a training image, 2 to 33 % of it, is erased after normalization",
      by_default(0.0));
}

void add_mixing(OptionTable& table) {
  const Rows row(table, Section::Data, kRuns, kFixed);
  row("mixup-alpha", real(between(0.0, 100.0)), "IPU 2.0, NVIDIA",
      "mix every image with another one, with a share drawn from Beta(X, X); 0 disables mixup",
      sets<&MixingConfig::mixup_alpha>());
  row("cutmix-lambda", real(above_zero_to(1.0)), "IPU 2.0",
      "share of an image that remains when a box of another one is pasted into it; 1 disables "
      "cutmix",
      sets<&MixingConfig::cutmix_lambda>());
  row("mixing-form", choice("rolled|reversed"), "IPU 2.0, NVIDIA",
      "partner and share: the previous image in the micro-batch, at most half (IPU), or the "
      "reversed micro-batch (NVIDIA)",
      by_default("rolled"), needs("--mixup-alpha or --cutmix-lambda"));
}

void add_image_files(OptionTable& table) {
  const Rows row(table, Section::Data, kRunsAndValidate, kFixed);
  row("image-preset", choice("tf|nvidia|dali2019|tpu|torch"), "all",
      "cropping, resampling and normalization of TensorFlow's recipes (IPU, Habana), NVIDIA's DALI "
      "(now or in 2019), the TPU guide (SURFsara) or torchvision",
      by_default("tf"), needs("--dataset imagenet from files"));
  row("image-normalisation", choice("mean|torch|nvidia2019|dali2019|nvidia"), "all",
      "conversion of image bytes to floats: subtract the mean, or use the mean and deviation of "
      "torchvision or NVIDIA",
      default_text("set by --image-preset"), needs("--dataset imagenet from files"));
  row("image-mean", text("R,G,B"), "millrace",
      "what is subtracted from the bytes of red, green and blue, 0 to 255, in place of the mean of "
      "--image-normalisation, such as 123.675,116.28,103.53",
      default_text("set by --image-normalisation"), needs("--dataset imagenet from files"));
  row("image-deviation", text("R,G,B"), "millrace",
      "what the differences are divided by, in place of the deviation of --image-normalisation",
      default_text("set by --image-normalisation"), needs("--dataset imagenet from files"));
  row("crop-area", reals("A,B", {.low = 0.0, .high = 1.0, .low_excluded = true}), "NVIDIA, Habana",
      "smallest and largest share of an image that a crop for training covers, such as 0.08 1",
      default_text("set by --image-preset"), needs("--dataset imagenet from files"));
  const Trait from_files = needs("--dataset imagenet from files");
  const Trait reads_files = commands(kRunsAndValidate | kDataTools);
  row("train-annotations", path("FILE"), "millrace",
      "file with the path and the class of each training image, separated by a comma or a tab",
      default_text(
          "train.csv, train.tsv or train.txt in --data-dir, if there are no class folders"),
      from_files, may_change(), reads_files);
  row("validation-annotations", path("FILE"), "millrace", "the same for the validation images",
      default_text("val/val_annotations.txt, or val.csv and the like in --data-dir"), from_files,
      may_change(), reads_files);
  row("class-list", path("FILE"), "millrace",
      "names of the classes by number, one per line; the name for people may follow behind a tab",
      default_text("the sorted names of class folders, or of the classes that files name"),
      from_files, may_change(), reads_files);
  row("label-offset", integer(between(0, 1000)), "millrace",
      "label of the first class in TFRecord files", by_default(1),
      commands(kRunsAndValidate | kDataTools));
  row("max-bad-fraction", real(between(0.0, 1.0)), "millrace",
      "share of records or images that may be bad; more end the run. Unless it is 0, one of "
      "several may always be bad. Bad records are left out. An image that cannot be decoded is "
      "replaced by the next one of its class, or left out when converting or packing",
      by_default(0.001), may_change(),
      commands(kRunsAndValidate | (kDataTools & ~set_of(Command::DataCheck))));
  row("allow-missing-shards", flag(), "millrace",
      "accept a set of TFRecord files or WebDataset archives with missing shards",
      commands(kRunsAndValidate | (kDataTools & ~set_of(Command::DataCheck))));
}

void add_loading(OptionTable& table) {
  const Rows row(table, Section::Data, kRunsAndValidate, kFixed);
  row("pipeline-num-parallel", integer(between(1, 1024)), "IPU",
      "threads that read and prepare images for a stage; the number does not change the pixels",
      default_text("1; for ImageNet files and a GPU: the rank's share of the cores, at most 16"),
      unit("threads"), may_change(), commands(kRunsAndValidate | kPredict),
      sets<&DataConfig::loader_threads>());
  row("max-cpus", integer(between(1, 1024)), "Habana",
      "maximum number of threads that read and prepare images in one process",
      default_text("no limit"), unit("threads"), may_change(),
      commands(kRunsAndValidate | kPredict), sets<&DataConfig::max_cpus>(), if_given());
  row("dataset-cache", text("SIZE|all"), "IPU, Habana",
      "keep image files in memory, still encoded, after they are first read, up to this size",
      default_text("off"), unit("bytes of this machine's memory; examples: 512MiB, 8GiB"),
      needs("--dataset imagenet from files"), harmless(), may_change());
  row("standard-imagenet", flag(), "IPU", "read ImageNet in its plain order",
      idle("there is only one order, a permutation keyed by seed and epoch"), may_change());
  row("no-dataset-cache", flag(), "IPU",
      "keep no files of the data set in memory (the default here)", default_text("on"),
      needs("--dataset imagenet from files"), harmless(), may_change());
  row("hostside-image-mixing", flag(), "IPU 2.0", "mix images before they are sent",
      idle("mixed images are the same wherever they are mixed"), may_change());
  row("dataset-benchmark", flag(), "IPU 2.0",
      "measure the loaders alone, the devices alone and both together; report which of them limits",
      may_change(), commands(kTrain | kBench));
}

}  // namespace

void add_data_options(OptionTable& table) {
  add_data(table);
  add_augmentation(table);
  add_mixing(table);
  add_image_files(table);
  add_loading(table);
}

}  // namespace millrace::cli
