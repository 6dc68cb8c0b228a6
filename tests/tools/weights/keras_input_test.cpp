// SPDX-License-Identifier: Apache-2.0
//
// The layers are as Keras 3.15 and TensorFlow's Keras 2 write them into a file.
#include "tools/weights/keras.hpp"

#include "core/error.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::io {
namespace {

using Colours = std::array<double, 3>;
constexpr Colours kMean = {0.485, 0.456, 0.406};
constexpr Colours kDeviation = {0.229, 0.224, 0.225};
constexpr Colours kVariance = {0.229 * 0.229, 0.224 * 0.224, 0.225 * 0.225};

void add(TensorFile& file, const std::string& name, const Colours& values) {
  const std::vector<float> floats(values.begin(), values.end());
  const auto bytes = std::as_bytes(std::span(floats));
  file.add(name, {"F32", {3}, file.keep({bytes.begin(), bytes.end()})});
}

std::string layer(const std::string& kind, const std::string& name, const std::string& more = "",
                  const std::string& nodes = "[]") {
  return R"({"class_name":")" + kind + R"(","config":{"name":")" + name + '"' +
         (more.empty() ? "" : "," + more) + R"(},"inbound_nodes":)" + nodes + "}";
}
std::string network(const std::string& kind, const std::string& layers) {
  return layer(kind, "net", R"("layers":[)" + layers + "]");
}
const std::string kRescaling =
    layer("Rescaling", "rescaling", R"("scale":0.00392156862745098,"offset":0.0)");
const std::string kNormalization = layer(
    "Normalization", "normalization", R"("axis":[3],"invert":false,"mean":null,"variance":null)");
const std::string kBegin = layer("InputLayer", "input_1") + ",";
const std::string kEnd = "," + layer("ZeroPadding2D", "stem_conv_pad") + "," +
                         layer("Conv2D", "stem_conv") + "," +
                         layer("GlobalAveragePooling2D", "avg_pool");
const std::string kPrepared = kBegin + kRescaling + "," + kNormalization;
const std::string kSecond = "," + layer("Rescaling", "rescaling_1",
                                        R"("scale":[2.0896918976428642,2.1128856368212916,)"
                                        R"(2.1081851067789197],"offset":0.0)");
const std::string kSecondOfTensorFlow =
    "," + layer("TFOpLambda", "tf.math.multiply", R"("function":"math.multiply")",
                R"([["normalization",0,0,{"y":[[[[2.0896918773651123,2.1128857135772705,)"
                R"(2.108185052871704]]]]}]])");

models::ModelOptions model(const char* family) {
  models::ModelOptions options;
  options.model = family;
  return options;
}

/// A file with such a configuration, if any.
TensorFile configured(const std::string& config) {
  TensorFile file("net.h5");
  if (!config.empty()) file.set_metadata({{"model_config", config}});
  return file;
}

struct Case {
  const char* what;
  std::string config;  ///< "": weights alone
  Colours mean;        ///< in the file
  Colours variance;    ///< in the file, or what is in its place
  Colours expected_mean;
  Colours expected_deviation;
};

const Colours kBytes = {255 * 0.485, 255 * 0.456, 255 * 0.406};
const Colours kByDeviation = {255 * 0.229, 255 * 0.224, 255 * 0.225};
const Colours kByItsRoot = {255 * std::sqrt(0.229), 255 * std::sqrt(0.224), 255 * std::sqrt(0.225)};

TEST(KerasInputTest, IsWhatTheLayersBeforeTheFirstConvolutionCompute) {
  const std::string effnet = network("Functional", kPrepared + kEnd);
  const std::string again = network("Functional", kPrepared + kSecond + kEnd);
  const std::string flips = network("Sequential", layer("RandomFlip", "random_flip"));
  for (const Case& one :
       {Case{"weights=None", effnet, {}, {1, 1, 1}, {}, {255, 255, 255}},
        Case{"variances", effnet, kMean, kVariance, kBytes, kByDeviation},
        Case{"deviations in their place", effnet, kMean, kDeviation, kBytes, kByItsRoot},
        Case{"and a second rescaling", again, kMean, kDeviation, kBytes, kByDeviation},
        Case{"and a product of TensorFlow",
             network("Functional", kPrepared + kSecondOfTensorFlow + kEnd), kMean, kDeviation,
             kBytes, kByDeviation},
        Case{"a nested base behind augmentation",
             network("Functional", kBegin + flips + "," + effnet), kMean, kVariance, kBytes,
             kByDeviation},
        Case{"no normalization",
             network("Functional",
                     kBegin + layer("Rescaling", "r", R"("scale":0.5,"offset":-1)") + kEnd),
             {},
             {},
             {2, 2, 2},
             {2, 2, 2}},
        Case{"weights alone", "", kMean, kVariance, kBytes, kByDeviation},
        Case{"weights alone, as published", "", kMean, kDeviation, kBytes, kByDeviation},
        Case{"weights alone of weights=None", "", {}, {1, 1, 1}, {}, {255, 255, 255}}})
    for (const auto& [mean, variance] :
         {std::pair("normalization_1/mean:0", "normalization_1/variance:0"),
          std::pair("normalization/vars/0", "normalization/vars/1")}) {
      SCOPED_TRACE(one.what);
      TensorFile file = configured(one.config);
      add(file, mean, one.mean);
      add(file, variance, one.variance);
      const KerasInput input = keras_input(file, model("efficientnet"));
      ASSERT_TRUE(input.statistics);
      for (std::size_t c = 0; c < 3; ++c) {
        EXPECT_NEAR(input.statistics->mean[c], one.expected_mean[c], 1e-4);
        EXPECT_NEAR(input.statistics->deviation[c], one.expected_deviation[c], 1e-4);
      }
    }
}

TEST(KerasInputTest, IsTheLibrarysWhereTheFileHasNone) {
  EXPECT_FALSE(keras_input(configured(""), model("efficientnet")).statistics);
  const TensorFile prepared = configured(
      network("Functional", kBegin + layer("SlicingOpLambda", "tf.__operators__.getitem") + "," +
                                layer("TFOpLambda", "tf.nn.bias_add") + kEnd));
  EXPECT_FALSE(keras_input(prepared, model("resnet")).statistics);
}

// Keras 2 calls the shape batch_input_shape, Keras 3 batch_shape; null is any size.
TEST(KerasInputTest, TheSizeOfImagesIsThatOfTheFirstInput) {
  const auto side = [](const std::string& config) {
    return keras_input(configured(config), model("resnet")).image_side;
  };
  const auto reads = [](const std::string& shape, const std::string& inner = "") {
    return network("Functional", layer("InputLayer", "input_1", shape) + inner + kEnd);
  };
  EXPECT_EQ(side(reads(R"("batch_shape":[null,160,160,3])")), 160);
  EXPECT_EQ(side(reads(R"("batch_input_shape":[8,64,64,3])")), 64);
  EXPECT_EQ(side(reads(R"("batch_shape":[null,128,128,3])",
                       "," + reads(R"("batch_shape":[null,96,96,3])"))),
            128);
  EXPECT_EQ(side(reads(R"("batch_shape":[null,null,null,3])")), std::nullopt);
  EXPECT_EQ(side(reads("")), std::nullopt);
  EXPECT_EQ(side(""), std::nullopt);
  expect_error(ErrorKind::Data, {"its layer input_1 reads images of 160 x 96"},
               [&] { (void)side(reads(R"("batch_shape":[null,160,96,3])")); });
}

TEST(KerasInputTest, RefusesWhatNoOptionExpresses) {
  struct Bad {
    const char* family;
    std::string config;
    const char* message;
    Colours variance = {1, 1, 1};
  };
  const char* const effnet = "efficientnet";
  const auto prepared = [](const std::string& layers) { return network("Functional", layers); };
  for (const Bad& bad : std::vector<Bad>{
           {effnet, prepared(kBegin + layer("Lambda", "mine") + kEnd),
            "its layer mine (Lambda) changes images before the first convolution"},
           {"resnet", prepared(kBegin + kRescaling + kEnd),
            "its layer rescaling (Rescaling) changes images"},
           {effnet,
            prepared(kPrepared + kEnd),
            "do not scale images by a positive number",
            {1, 0, 1}},
           {effnet, prepared(kPrepared + kEnd + "," + layer("GlobalMaxPooling2D", "top_max")),
            "its layer top_max takes the largest values"},
           {effnet, R"({"config":{"layers":[7]}})", "its configuration cannot be read"},
           {effnet, "{", "its configuration cannot be read"}}) {
    TensorFile file = configured(bad.config);
    add(file, "normalization/mean:0", {});
    add(file, "normalization/variance:0", bad.variance);
    expect_error(ErrorKind::Data, {"net.h5: ", bad.message, "export the network as ONNX"},
                 [&] { (void)keras_input(file, model(bad.family)); });
  }
}

}  // namespace
}  // namespace millrace::io
