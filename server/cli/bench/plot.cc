#include "server/cli/bench/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/cli/svg.h"

namespace ziggurat::bench {
namespace {

constexpr double kWidth = 820;
constexpr double kLeft = 78;
constexpr double kRight = 24;
constexpr double kHeader = 78;        // of the picture: title and subtitle
constexpr double kPanelHeader = 30;   // title and legend
constexpr double kPanelHeight = 190;  // of the plotting area
constexpr double kPanelFooter = 48;   // tick labels and title of x
constexpr double kPanel = kPanelHeader + kPanelHeight + kPanelFooter;

// "12,500"
std::string WithCommas(std::string text) {
  size_t end = std::min(text.find('.'), text.size());
  while (end > 3 && text[end - 4] != '-') {
    end -= 3;
    text.insert(end, 1, ',');
  }
  return text;
}

// With as many digits as tell ticks apart that lie `step` apart.
std::string Tick(double value, double step) {
  int digits = 0;
  for (double scaled = step; digits < 9; ++digits, scaled *= 10) {
    if (scaled >= 1 && std::abs(scaled - std::round(scaled)) < 1e-6 * scaled) break;
  }
  return absl::StrFormat("%.*f", digits, value);
}

/// The ticks of an axis with their labels.
std::vector<std::pair<double, std::string>> LabelledTicks(const PlotAxis& axis) {
  const std::vector<double> ticks = PlotTicks(axis);
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
  const auto label = [&](double value) -> std::string {
    switch (axis.unit) {
      case PlotUnit::kPercent:
        return Tick(100 * value, 100 * step) + " %";
      case PlotUnit::kNumber:
        return WithCommas(axis.logarithmic ? SvgNumber(value) : Tick(value, step));
      case PlotUnit::kSeconds:
        break;
    }
    if (value == 0) return "0";
    if (value < 0.9995e-3) return SvgNumber(1e6 * value) + " µs";
    if (value < 0.9995) return SvgNumber(1e3 * value) + " ms";
    return WithCommas(SvgNumber(value)) + " s";
  };
  std::vector<std::pair<double, std::string>> labelled;
  labelled.reserve(ticks.size());
  for (const double tick : ticks) labelled.emplace_back(tick, label(tick));
  return labelled;
}

class Panel {
 public:
  Panel(const PlotPanel& panel, double top) : panel_(panel), top_(top + kPanelHeader) {}

  void Draw(Svg& svg) const {
    DrawAxes(svg);
    for (const PlotMark& mark : panel_.marks) DrawMark(svg, mark);
    for (const PlotSeries& series : panel_.series) DrawSeries(svg, series);
    DrawLegend(svg);
  }

 private:
  static double Share(const PlotAxis& axis, double value) {
    const auto scale = [&](double v) { return axis.logarithmic ? std::log(v) : v; };
    if (axis.logarithmic) value = std::max(value, axis.low);
    return std::clamp((scale(value) - scale(axis.low)) / (scale(axis.high) - scale(axis.low)), 0.0,
                      1.0);
  }
  double X(double x) const { return kLeft + (kWidth - kLeft - kRight) * Share(panel_.x, x); }
  double Y(double y) const { return top_ + kPanelHeight * (1 - Share(panel_.y, y)); }

  void DrawAxes(Svg& svg) const {
    const double bottom = top_ + kPanelHeight;
    for (const auto& [tick, label] : LabelledTicks(panel_.y)) {
      svg.Line(kLeft, Y(tick), kWidth - kRight, Y(tick), "grid");
      svg.Text(kLeft - 6, Y(tick) + 4, label, "small", Svg::Anchor::kEnd);
    }
    double free_from = 0;  // the labels of a narrow axis must not touch
    for (const auto& [tick, label] : LabelledTicks(panel_.x)) {
      svg.Line(X(tick), top_, X(tick), bottom + 4, "grid");
      const double half = TextWidth(label, 10) / 2;
      if (X(tick) - half < free_from) continue;
      free_from = X(tick) + half + 6;
      svg.Text(X(tick), bottom + 16, label, "small", Svg::Anchor::kMiddle);
    }
    svg.Line(kLeft, top_, kLeft, bottom, "axis");
    svg.Line(kLeft, bottom, kWidth - kRight, bottom, "axis");
    svg.Text((kLeft + kWidth - kRight) / 2, bottom + 34, panel_.x.title, "faint",
             Svg::Anchor::kMiddle);
    svg.Text(16, top_ - 12, panel_.title, "heading");
  }

  void DrawMark(Svg& svg, const PlotMark& mark) const {
    if (mark.x < panel_.x.low || mark.x > panel_.x.high) return;
    svg.Line(X(mark.x), top_, X(mark.x), top_ + kPanelHeight, "reference");
    // Below the labels of the axis, where no line can cross it.
    const double half = TextWidth(mark.label, 11) / 2;
    svg.Text(std::clamp(X(mark.x), kLeft + half, kWidth - kRight - half), top_ + kPanelHeight + 34,
             mark.label, "faint", Svg::Anchor::kMiddle);
  }

  void DrawSeries(Svg& svg, const PlotSeries& series) const {
    std::string points;
    for (const PlotPoint& point : series.points) {
      absl::StrAppend(&points, points.empty() ? "" : " ", SvgNumber(X(point.x)), ",",
                      SvgNumber(Y(point.y)));
    }
    if (series.points.size() > 1) {
      svg.Polyline(points, SeriesColor(series.color), series.dashed ? "5 4" : "");
    } else if (series.points.size() == 1) {
      const PlotPoint& only = series.points.front();
      svg.Marker(X(only.x), Y(only.y), /*shape=*/0, SeriesColor(series.color));
    }
  }

  // Right-aligned, on the line of the title.
  void DrawLegend(Svg& svg) const {
    double x = kWidth - kRight;
    for (auto one = panel_.series.rbegin(); one != panel_.series.rend(); ++one) {
      x -= TextWidth(one->name, 12);
      svg.Text(x, top_ - 12, one->name, "label");
      const double y = top_ - 16;
      svg.Polyline(absl::StrCat(SvgNumber(x - 30), ",", SvgNumber(y), " ", SvgNumber(x - 7), ",",
                                SvgNumber(y)),
                   SeriesColor(one->color), one->dashed ? "5 4" : "");
      x -= 48;
    }
  }

  const PlotPanel& panel_;
  const double top_;
};

}  // namespace

double RoundUp(double value) {
  if (!(value > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= value * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::vector<double> PlotTicks(const PlotAxis& axis) {
  constexpr double kSlack = 1e-9;  // for what rounding takes from a bound
  std::vector<double> ticks;
  if (!axis.logarithmic) {
    const double step = RoundUp((axis.high - axis.low) / 8);
    const int64_t first = std::llround(std::ceil(axis.low / step - kSlack));
    const int64_t last = std::llround(std::floor(axis.high / step + kSlack));
    for (int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
    return ticks;
  }
  const bool has_room = axis.high / axis.low < 2e4;
  const int64_t first = std::llround(std::floor(std::log10(axis.low) + kSlack));
  const int64_t last = std::llround(std::floor(std::log10(axis.high) + kSlack));
  for (int64_t exponent = first; exponent <= last; ++exponent) {
    for (const int factor : {1, 2, 5}) {
      const double tick = factor * std::pow(10, static_cast<double>(exponent));
      if (factor > 1 && !has_room) continue;
      if (tick < axis.low * (1 - kSlack) || tick > axis.high * (1 + kSlack)) continue;
      ticks.push_back(tick);
    }
  }
  return ticks;
}

std::string DrawPlot(std::string_view title, std::string_view subtitle,
                     const std::vector<PlotPanel>& panels) {
  Svg svg(kWidth, kHeader + kPanel * static_cast<double>(panels.size()), title);
  svg.Text(16, 26, title, "title");
  double y = 45;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(subtitle.data(), subtitle.size()), '\n')) {
    svg.Text(16, y, CutToWidth({line.data(), line.size()}, 11, kWidth - 32), "faint");
    y += 16;
  }
  for (size_t i = 0; i < panels.size(); ++i) {
    Panel(panels[i], kHeader + kPanel * static_cast<double>(i)).Draw(svg);
  }
  return svg.ToString();
}

}  // namespace ziggurat::bench
