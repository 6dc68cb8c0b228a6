// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace {

/// How the smoothing s is distributed: s / (K - 1) to each other class (the IPU trainer), or s / K
/// to each class (NVIDIA, Habana). K is the number of logits.
enum class SmoothingForm { OtherClasses, AllClasses };

/// Smoothing s, the weight taken from the label's class; 0 disables smoothing.
struct LabelSmoothing {
  float share = 0.0f;
  SmoothingForm form = SmoothingForm::OtherClasses;
};

}  // namespace millrace
