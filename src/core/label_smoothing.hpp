// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace {

/// Where a smoothed label's share goes: to the other classes, s / (K - 1) each (the IPU trainer),
/// or to all, s / K each (NVIDIA, Habana). K counts the logits.
enum class SmoothingForm { OtherClasses, AllClasses };

/// How much of a label's weight is taken from its class; 0: the plain label.
struct LabelSmoothing {
  float share = 0.0f;
  SmoothingForm form = SmoothingForm::OtherClasses;
};

}  // namespace millrace
