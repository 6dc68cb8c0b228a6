// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/svg.hpp"
#include "pipeline/schedule/render.hpp"

namespace millrace::pipeline {
namespace {

using svg::kInk;
using svg::kLetter;

/// Pixels.
constexpr double kMargin = 10.0;
constexpr double kLine = 24.0;  ///< height of a line of text
constexpr double kRow = 26.0;   ///< height of a device's row
constexpr double kBox = 20.0;   ///< height of a box in it
constexpr double kLeastWidth = 300.0;
constexpr double kFont = 12.0;
constexpr double kLeastFont = 6.0;

/// Size of the letters with which a text fits into a box: at most the usual one, 0 if below the
/// least.
double font_for(std::string_view text, double width) {
  const double fits = kFont * (width - 2.0) / (kLetter * static_cast<double>(text.size()));
  return fits < kLeastFont ? 0.0 : std::min(fits, kFont);
}

class Svg {
 public:
  Svg(std::span<const SvgPanel> panels, const SvgOptions& options)
      : panels_(panels), options_(options) {
    if (!(options.width >= kLeastWidth))
      fail(ErrorKind::Config, "an SVG of width {} is too narrow; at least {} is required",
           options.width, kLeastWidth);
    std::size_t devices = 0;
    for (const SvgPanel& panel : panels) {
      MILLRACE_ASSERT(panel.line != nullptr);
      seconds_ = std::max(seconds_, end_of(*panel.line));
      devices = std::max(devices, panel.line->devices.size());
    }
    left_ = kMargin + kLetter * static_cast<double>(name_width(devices));
    if (seconds_ > 0.0) scale_ = (options.width - 2.0 * kMargin - left_) / seconds_;
  }

  svg::Drawing draw() && {
    legend();
    const double top = y_;
    for (const SvgPanel& panel : panels_) draw_panel(panel);
    const std::string panels = std::move(body_);
    body_.clear();
    axis(top);
    return {options_.width, y_, markers() + legend_ + body_ + panels};
  }

 private:
  [[nodiscard]] double x(double seconds) const { return left_ + scale_ * seconds; }

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    body_ += fmt::format(format, std::forward<Args>(args)...);
  }

  [[nodiscard]] std::string markers() const {
    if (!options_.arrows) return "";
    return fmt::format(
        "<defs><marker id=\"millrace-arrow\" viewBox=\"0 0 6 6\" refX=\"6\" refY=\"3\" "
        "markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\">"
        "<path d=\"M0 0L6 3L0 6z\" fill=\"{}\"/></marker></defs>\n",
        kInk);
  }

  /// One entry for every kind of action that is drawn.
  void legend() {
    std::set<ActionKind> kinds;
    for (const SvgPanel& panel : panels_)
      for (const std::vector<Interval>& device : panel.line->devices)
        for (const Interval& i : device)
          if (is_shown(i)) kinds.insert(i.action.kind);
    add("<g class=\"legend\" fill=\"{}\">\n", kInk);
    double left = left_;
    for (const ActionKind kind : kinds) {
      const std::string text = fmt::format("{} {}", look_of(kind).letter, look_of(kind).meaning);
      add("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"14\" height=\"14\" fill=\"{}\"/>"
          "<text x=\"{:.2f}\" y=\"{:.2f}\">{}</text>\n",
          left, y_ + 3.0, look_of(kind).colour, left + 19.0, y_ + 14.0, text);
      left += 19.0 + kLetter * static_cast<double>(text.size()) + 12.0;
    }
    add("</g>\n");
    y_ += kLine;
    legend_ = std::move(body_);
    body_.clear();
  }

  void draw_panel(const SvgPanel& panel) {
    add("<g class=\"panel\">\n");
    if (!panel.title.empty()) {
      add("<text class=\"title\" x=\"{:.2f}\" y=\"{:.2f}\" font-weight=\"bold\" "
          "fill=\"{}\">{}</text>\n",
          left_, y_ + 17.0, kInk, svg::escaped(panel.title));
      y_ += kLine;
    }
    const Labels labels(*panel.line);
    const double top = y_;
    for (std::size_t d = 0; d < panel.line->devices.size(); ++d, y_ += kRow) {
      add("<g class=\"device\">\n<text x=\"{:.2f}\" y=\"{:.2f}\" fill=\"{}\">device {}</text>\n",
          kMargin, y_ + 17.0, kInk, d);
      for (const Interval& i : panel.line->devices[d])
        if (is_shown(i)) draw_box(i, labels.of(i.action));
      add("</g>\n");
    }
    if (options_.arrows) draw_arrows(*panel.line, top);
    add("</g>\n");
    y_ += kMargin;
  }

  void draw_box(const Interval& i, const std::string& label) {
    const double left = x(i.begin);
    const double width = std::max(0.0, x(i.end) - left);
    add("<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{}\" "
        "fill=\"{}\" stroke=\"{}\" stroke-width=\"0.5\">"
        "<title>{}: {:.6g} ms, from {:.6g} ms to {:.6g} ms</title></rect>\n",
        look_of(i.action.kind).letter, left, y_ + 3.0, width, kBox, look_of(i.action.kind).colour,
        kInk, to_string(i.action), 1e3 * (i.end - i.begin), 1e3 * i.begin, 1e3 * i.end);
    // If only the number fits, the color shows the kind.
    const std::string number =
        i.action.micro_batch >= 0 ? fmt::format("{}", i.action.micro_batch) : label;
    const bool whole = font_for(label, width) >= kFont;
    const double font = whole ? kFont : font_for(number, width);
    if (font <= 0.0) return;
    add("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"middle\"{} "
        "fill=\"#000000\">{}</text>\n",
        left + width / 2.0, y_ + 13.0 + font / 3.0,
        font < kFont ? fmt::format(" font-size=\"{:.1f}\"", font) : "", whole ? label : number);
  }

  /// Place of the box of a forward or input gradient.
  struct Place {
    const Interval* interval;
    double y;
  };
  using Places = std::map<std::tuple<bool, std::int32_t, std::int32_t>, Place>;

  static Places places_of(const TimeLine& line, double top) {
    Places places;
    for (std::size_t d = 0; d < line.devices.size(); ++d) {
      for (const Interval& i : line.devices[d]) {
        const bool forward = i.action.kind == ActionKind::Forward;
        if (!forward && !makes_input_gradient(i.action.kind)) continue;
        places[{forward, i.action.stage, i.action.micro_batch}] = {
            &i, top + kRow * static_cast<double>(d) + 3.0 + kBox / 2.0};
      }
    }
    return places;
  }

  void draw_arrows(const TimeLine& line, double top) {
    const Places places = places_of(line, top);
    add("<g class=\"arrows\" stroke=\"{}\">\n", kInk);
    for (const std::vector<Interval>& device : line.devices) {
      for (const Interval& i : device) {
        if (!is_send(i.action.kind)) continue;
        const bool forward = i.action.kind == ActionKind::SendActivation;
        const auto from = places.find({forward, i.action.stage, i.action.micro_batch});
        const auto to = places.find({forward, i.action.peer, i.action.micro_batch});
        if (from == places.end() || to == places.end()) continue;
        add("<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" "
            "marker-end=\"url(#millrace-arrow)\"/>\n",
            x(from->second.interval->end), from->second.y, x(to->second.interval->begin),
            to->second.y);
      }
    }
    add("</g>\n");
  }

  /// Below all panels, with faint lines up through them.
  void axis(double top) {
    add("<g class=\"axis\" fill=\"{0}\" stroke=\"none\" text-anchor=\"middle\">\n", kInk);
    if (seconds_ > 0.0) {
      const double tick = svg::tick_of(seconds_, 10.0);
      for (int k = 0; k * tick <= seconds_ * (1.0 + 1e-9); ++k) {
        add("<line x1=\"{0:.2f}\" y1=\"{1:.2f}\" x2=\"{0:.2f}\" y2=\"{2:.2f}\" stroke=\"{3}\" "
            "stroke-opacity=\"0.4\"/><text x=\"{0:.2f}\" y=\"{4:.2f}\">{5:.6g}</text>\n",
            x(k * tick), top, y_, kInk, y_ + 14.0, 1e3 * k * tick);
      }
    }
    add("<text x=\"{:.2f}\" y=\"{:.2f}\">milliseconds</text>\n</g>\n",
        (left_ + options_.width - kMargin) / 2.0, y_ + 14.0 + kLine * 0.75);
    y_ += 2.0 * kLine;
  }

  std::span<const SvgPanel> panels_;
  const SvgOptions& options_;
  double seconds_ = 0.0;
  double left_ = 0.0;
  double scale_ = 0.0;  ///< pixels per second
  double y_ = kMargin;  ///< where the next element is drawn
  std::string legend_;
  std::string body_;
};

}  // namespace

svg::Drawing draw(std::span<const SvgPanel> panels, const SvgOptions& options) {
  return Svg(panels, options).draw();
}

std::string to_svg(std::span<const SvgPanel> panels, const SvgOptions& options) {
  return svg::document(draw(panels, options));
}

}  // namespace millrace::pipeline
