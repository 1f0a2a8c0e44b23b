#include "server/cli/eval/line_chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace ziggurat::eval {
namespace {

constexpr double kLegendRow = 20;
constexpr double kLegendSign = 38;
constexpr std::array<std::string_view, kChartDashes> kDashes = {"", "7 4", "2 3", "9 3 2 3"};

class Frame {
 public:
  Frame(const ChartAxes& axes, double left, double top, double width, double height)
      : axes_(axes), left_(left), top_(top), width_(width), height_(height) {}

  double X(double x) const {
    const auto scale = [&](double v) { return axes_.logarithmic ? std::log(v) : v; };
    return left_ + width_ * (scale(x) - scale(axes_.low)) / (scale(axes_.high) - scale(axes_.low));
  }
  double Y(double y) const { return top_ + height_ * (1 - std::clamp(y, 0.0, 1.0)); }

  void Draw(Svg& svg) const {
    const double bottom = top_ + height_;
    for (const int percent : {0, 25, 50, 75, 100}) {
      const double y = Y(percent / 100.0);
      svg.Line(left_, y, left_ + width_, y, percent == 0 ? "axis" : "grid");
      svg.Text(left_ - 6, y + 4, absl::StrCat(percent, " %"), "small", Svg::Anchor::kEnd);
    }
    const size_t step = LabelStep();
    for (size_t i = 0; i < axes_.ticks.size(); ++i) {
      const ChartTick& tick = axes_.ticks[i];
      svg.Line(X(tick.x), top_, X(tick.x), bottom + 4, "grid");
      if (i % step != 0) continue;
      svg.Text(X(tick.x), bottom + 16, tick.label, "small", Svg::Anchor::kMiddle);
      svg.Text(X(tick.x), bottom + 29, tick.second_label, "small", Svg::Anchor::kMiddle);
    }
    svg.Line(left_, top_, left_, bottom, "axis");
    svg.Text(left_ + width_ / 2, bottom + kChartBottom - 8, axes_.x_title, "faint",
             Svg::Anchor::kMiddle);
    svg.Text(left_ - kChartLeft + 12, top_ - 10, axes_.y_title, "faint");
    if (axes_.reference >= 0) {
      svg.Line(left_, Y(axes_.reference), left_ + width_, Y(axes_.reference), "reference");
    }
  }

 private:
  // Every how many ticks there is room for a label.
  size_t LabelStep() const {
    if (axes_.ticks.size() < 2) return 1;
    const double gap = std::abs(X(axes_.ticks[1].x) - X(axes_.ticks[0].x));
    double widest = 0;
    for (const ChartTick& tick : axes_.ticks) {
      widest = std::max({widest, TextWidth(tick.label, 10), TextWidth(tick.second_label, 10)});
    }
    return std::max<size_t>(1, static_cast<size_t>(std::ceil((widest + 4) / gap)));
  }

  const ChartAxes& axes_;
  double left_, top_, width_, height_;
};

// Of the legend: columns of equal width, as many as fit.
size_t LegendColumns(const std::vector<ChartSeries>& series, double width, double& column_width) {
  column_width = 120;
  for (const ChartSeries& one : series) {
    column_width = std::max(column_width, TextWidth(one.name, 12) + kLegendSign + 20);
  }
  column_width = std::min(column_width, width);
  return std::max<size_t>(1, static_cast<size_t>(width / column_width));
}

}  // namespace

void DrawChart(Svg& svg, const ChartAxes& axes, const std::vector<ChartSeries>& series, double left,
               double top, double width, double height) {
  const Frame frame(axes, left, top, width, height);
  frame.Draw(svg);
  for (const ChartSeries& one : series) {
    const std::string_view color = SeriesColor(one.color);
    const std::string_view dashes = kDashes[one.dash % kDashes.size()];
    std::string points;
    int joined = 0;
    const auto end_line = [&] {
      if (joined > 1) svg.Polyline(points, color, dashes);
      points.clear();
      joined = 0;
    };
    for (const ChartPoint& point : one.points) {
      if (std::isnan(point.y)) {
        end_line();
        continue;
      }
      absl::StrAppend(&points, points.empty() ? "" : " ", SvgNumber(frame.X(point.x)), ",",
                      SvgNumber(frame.Y(point.y)));
      ++joined;
      if (point.interval.high < point.interval.low) continue;
      svg.Line(frame.X(point.x), frame.Y(point.interval.low), frame.X(point.x),
               frame.Y(point.interval.high), "bar", color);
    }
    end_line();
  }
  // Above all lines, and the first series, which is the one to compare with, above all others.
  for (auto one = series.rbegin(); one != series.rend(); ++one) {
    for (const ChartPoint& point : one->points) {
      if (std::isnan(point.y)) continue;
      svg.Marker(frame.X(point.x), frame.Y(point.y), one->shape, SeriesColor(one->color),
                 point.tip);
    }
  }
}

void DrawLegend(Svg& svg, const std::vector<ChartSeries>& series, double left, double top,
                double width) {
  double column_width = 0;
  const size_t columns = LegendColumns(series, width, column_width);
  for (size_t i = 0; i < series.size(); ++i) {
    const ChartSeries& one = series[i];
    const double x = left + column_width * static_cast<double>(i % columns);
    const size_t row = i / columns;
    const double y = top + kLegendRow * (static_cast<double>(row) + 0.5);
    svg.Polyline(
        absl::StrCat(SvgNumber(x), ",", SvgNumber(y), " ", SvgNumber(x + 28), ",", SvgNumber(y)),
        SeriesColor(one.color), kDashes[one.dash % kDashes.size()]);
    svg.Marker(x + 14, y, one.shape, SeriesColor(one.color));
    svg.Text(x + kLegendSign, y + 4, CutToWidth(one.name, 12, column_width - kLegendSign), "label");
  }
}

double LegendHeight(const std::vector<ChartSeries>& series, double width) {
  double column_width = 0;
  const size_t columns = LegendColumns(series, width, column_width);
  const size_t rows = (series.size() + columns - 1) / columns;
  return kLegendRow * static_cast<double>(rows);
}

}  // namespace ziggurat::eval
