// SPDX-License-Identifier: Apache-2.0
#include "models/squeeze_excite.hpp"

#include <string>

namespace millrace::models {

ValueId squeeze_excite(GraphBuilder& builder, std::string_view name, ValueId x,
                       const SqueezeExcite& squeeze) {
  const auto below = [name](std::string_view op) {
    return name.empty() ? std::string(op) : fmt::format("{}/{}", name, op);
  };
  ValueId s = builder.global_average_pool(name, x);
  s = builder.conv(below("reduce"), s,
                   {.out_channels = squeeze.squeezed, .bias = true, .init = squeeze.init});
  s = builder.activation(below("act"), s, {squeeze.activation});
  s = builder.conv(below("expand"), s,
                   {.out_channels = builder.shape(x).c, .bias = true, .init = squeeze.init});
  s = builder.activation(below("sigmoid"), s, {Activation::Sigmoid});
  return builder.scale_channels(below("scale"), x, s);
}

}  // namespace millrace::models
