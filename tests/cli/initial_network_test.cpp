// SPDX-License-Identifier: Apache-2.0
#include "train/initial_network.hpp"

#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

/// torchvision's ResNet-18 as an import records it, with another epsilon and size.
InitialNetwork torchvision() {
  return {.recorded = parse_config("[model]\nmodel = \"resnet\"\nmodel-size = \"18\"\n"
                                   "classes = 1000\npadding = \"torch\"\nbatch-norm = true\n"
                                   "group-norm = false\nnorm-epsilon = 2e-05\nblock = \"basic\"\n"
                                   "shortcut = \"B\"\nstage-one-shortcut = \"identity\"\n"
                                   "[data]\ndataset = \"imagenet\"\nimage-size = 192\n"
                                   "normalise-input = false\nimage-preset = \"torch\"\n"
                                   "image-normalisation = \"torch\"\n"
                                   "[train]\nepochs = 100\n"
                                   "[lr]\nbase-learning-rate = -8\nlr-schedule = \"stepped\"\n",
                                   "config.toml"),
          .outputs = 1000,
          .last_layer = "fc1"};
}

/// A training on photos of three classes.
Patch photos(const std::string& more) {
  return train_options("--dataset imagenet --data-dir photos --init-path runs/r18 " + more);
}

Resolution resolved(const Patch& given) {
  const Patch options = with_initial_network(given, torchvision());
  DatasetFacts facts = published_facts(options);
  facts.train_size = 60;
  facts.validation_size = 12;
  facts.classes = 3;
  return resolve(options, facts, {.cores = 2});
}

TEST(InitialNetworkTest, TheNetworkIsThatOfTheWeights) {
  const models::ModelOptions model = resolved(photos("--init-fresh fc1")).config.model;
  EXPECT_EQ(model.size, "18");
  EXPECT_EQ(model.norm, models::NormKind::Batch);
  EXPECT_EQ(model.norm_epsilon, 2e-5);
  EXPECT_EQ(model.shortcut, 'B');
  EXPECT_EQ(model.residual.stage_one, models::StageOneShortcut::Identity);
  EXPECT_EQ(model.padding, models::PaddingRule::Torch);
  EXPECT_EQ(model.image.h, 192);
  const Patch options = with_initial_network(photos(""), torchvision());
  EXPECT_EQ(options.text("image-preset"), "torch");
  EXPECT_EQ(options.text("image-normalisation"), "torch");
  EXPECT_EQ(options.text("dataset"), "imagenet");
  EXPECT_FALSE(options.real("epochs")) << "how that run was trained is its own matter";
}

TEST(InitialNetworkTest, AFreshLastLayerHasAsManyOutputsAsTheDataHaveClasses) {
  const std::string spare = "resnet-18 has 1000 outputs for the 3 classes of the data set";
  const auto says = [&](const Resolution& run) {
    return std::ranges::find(run.notices, spare) != run.notices.end();
  };
  const Resolution fresh = resolved(photos("--init-fresh fc1"));
  EXPECT_EQ(fresh.config.model.classes, 3);
  EXPECT_FALSE(says(fresh));
  const Resolution kept = resolved(photos(""));
  EXPECT_EQ(kept.config.model.classes, 1000);
  EXPECT_TRUE(says(kept));
  const Resolution other = resolved(photos("--init-fresh layer1"));
  EXPECT_EQ(other.config.model.classes, 1000);
  const Resolution typed = resolved(photos("--init-fresh fc1 --classes 1000"));
  EXPECT_EQ(typed.config.model.classes, 1000);
  EXPECT_TRUE(says(typed));
}

// `--config runs/r18/config.toml` repeats what the checkpoint says anyway.
TEST(InitialNetworkTest, AFileThatRepeatsTheRecordSaysNothingNew) {
  const Patch given = merge(photos("--init-fresh fc1"), torchvision().recorded);
  EXPECT_EQ(resolved(given).config.model.classes, 3);
  EXPECT_EQ(asking_for_another(given, torchvision(), "imagenet"), "");
  EXPECT_NE(rates_to_propose(given, torchvision().recorded, resolved(given).config), "");
}

TEST(InitialNetworkTest, OptionsComeBeforeTheRecord) {
  const models::ModelOptions group = resolved(photos("--group-norm --padding ipu")).config.model;
  EXPECT_EQ(group.norm, models::NormKind::Group);
  EXPECT_EQ(group.group_norm_epsilon, models::ModelOptions{}.group_norm_epsilon)
      << "2e-5 is that of batch norm";
  EXPECT_EQ(group.padding, models::PaddingRule::Ipu);
  const Patch preset = with_initial_network(photos("--image-preset tf"), torchvision());
  EXPECT_FALSE(preset.text("image-normalisation")) << "it belongs to the other preset";
  const Patch normalised = with_initial_network(photos("--normalise-input"), torchvision());
  EXPECT_FALSE(normalised.text("image-normalisation")) << "both would contradict each other";
  const Patch larger = with_initial_network(photos("--model-size 50"), torchvision());
  EXPECT_FALSE(larger.text("block")) << "it is that of the other size";
  const Patch other = with_initial_network(photos("--model squeezenet"), torchvision());
  EXPECT_EQ(other.find("model-size"), nullptr);
}

TEST(InitialNetworkTest, OtherDataKeepTheirOwnPreparation) {
  const Patch options = with_initial_network(
      train_options("--dataset cifar-10 --data-dir c --init-path runs/r18 --model-size 20"),
      torchvision());
  EXPECT_EQ(options.find("image-size"), nullptr);
  EXPECT_EQ(options.text("padding"), "torch");
}

TEST(InitialNetworkTest, ANetworkWithoutAFormForTheDataNamesAWay) {
  const InitialNetwork small{
      .recorded = parse_config("[model]\nmodel = \"resnet\"\nmodel-size = \"8\"\n"
                               "[data]\ndataset = \"cifar-10\"\n",
                               "config.toml"),
      .outputs = 10,
      .last_layer = "fc1"};
  const Failure failure =
      failure_of([&] { (void)with_initial_network(photos("--init-fresh fc1"), small); });
  EXPECT_EQ(failure.kind, ErrorKind::Config);
  EXPECT_EQ(failure.text,
            "--init-path runs/r18: resnet-8 is a network for cifar-10 and has no form for "
            "imagenet: to train it on photos scaled to the size of its images, run millrace export "
            "runs/r18 --to onnx, and give that file with --model in place of --init-path");
  EXPECT_EQ(with_initial_network(photos("--model-size 18"), small).text("model-size"), "18");
  const Failure other = failure_of([] {
    (void)with_initial_network(
        train_options("--dataset cifar-10 --data-dir c --init-path runs/r18"), torchvision());
  });
  EXPECT_TRUE(contains(other.text,
                       "resnet-18 is a network for imagenet and has no form for "
                       "cifar-10: train it on these images in class folders"))
      << other.text;
}

TEST(InitialNetworkTest, WhatAsksForAnotherNetworkIsNamed) {
  const auto asks = [](const std::string& more, std::string_view dataset = "imagenet") {
    return asking_for_another(photos(more), torchvision(), dataset);
  };
  EXPECT_EQ(asks("--init-fresh fc1 --batch-norm --model-size 18"), "");
  EXPECT_EQ(asks("--group-norm --model-size 50"), "--group-norm, --model-size 50");
  EXPECT_EQ(asks("--classes 5"), "--classes 5");
  EXPECT_EQ(asks("--classes 5 --init-fresh fc1"), "");
  EXPECT_EQ(asks("", "cifar-10"), "the data set cifar-10");
}

TEST(InitialNetworkTest, RatesAreProposedWhereNobodyChoseThem) {
  const auto propose = [](const std::string& more) {
    const Patch given = photos("--init-fresh fc1 --batch-size 4 " + more);
    return respelled(rates_to_propose(given, torchvision().recorded, resolved(given).config),
                     Patch());
  };
  // The IPU trainer's 2^-8 x 4.
  EXPECT_EQ(propose(""),
            "no option sets the learning rate: 0.01562, stepped, is for random weights; for those "
            "of --init-path try a tenth, --abs-learning-rate 0.0016 --lr-schedule cosine");
  for (const char* chosen : {"--lr 0.1", "--base-learning-rate -9", "--lr-schedule cosine"})
    EXPECT_EQ(propose(chosen), "") << chosen;
}

TEST(InitialNetworkTest, ALastLayerThatLearnedOtherClassesIsToldOf) {
  InitialNetwork initial = torchvision();
  initial.class_names = {"cheetah", "dalmatian (dog)", "hound"};
  const auto line = [&](const std::string& options, const std::vector<std::string>& names) {
    return other_classes(photos(options), initial, names);
  };
  EXPECT_EQ(line("", {"cheetah", "dalmatian", "hound"}), "");
  EXPECT_EQ(line("", {}), "");
  const std::vector<std::string> others = {"dalmatian", "hound", "zcheetah"};
  EXPECT_EQ(
      line("", others),
      "class 0 is dalmatian here, but cheetah for the weights of `init-path`: `init-fresh` fc1 "
      "begins with a last layer of its own");
  EXPECT_EQ(line("--init-fresh fc1", others), "");
}

}  // namespace
}  // namespace millrace::cli
