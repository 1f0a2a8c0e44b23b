// Lines over one axis: what both kinds of chart of the report share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/cli/eval/statistics.h"
#include "server/cli/svg.h"

namespace ziggurat::eval {

/// A value of one x; x and y in the units of the axes.
struct ChartPoint {
  double x = 0;
  double y = 0;
  Interval interval = {1, 0};  ///< drawn as a bar unless high < low
  std::string tip = {};
};

struct ChartSeries {
  std::string name = {};                ///< for the legend
  size_t color = 0;                     ///< index
  size_t shape = 0;                     ///< index of a marker
  size_t dash = 0;                      ///< index of one of kChartDashes patterns; 0: solid
  std::vector<ChartPoint> points = {};  ///< ascending in x; where y is not a number: a gap
};
constexpr size_t kChartDashes = 4;

struct ChartTick {
  double x = 0;
  std::string label = {};
  std::string second_label = {};  ///< below the first
};

struct ChartAxes {
  double low = 0;  ///< of x
  double high = 1;
  bool logarithmic = false;
  std::vector<ChartTick> ticks = {};
  std::string x_title = {};
  std::string y_title = {};
  double reference = -1;  ///< a dashed line at this y; below 0: none
};

/// Draws frame, grid, lines and markers into this rectangle of the picture; y goes from 0 to 1.
/// Labels of the axes stand left of it and up to kChartBottom below.
constexpr double kChartLeft = 58;
constexpr double kChartBottom = 52;
void DrawChart(Svg& svg, const ChartAxes& axes, const std::vector<ChartSeries>& series, double left,
               double top, double width, double height);

/// A legend in as many columns as fit into `width`.
void DrawLegend(Svg& svg, const std::vector<ChartSeries>& series, double left, double top,
                double width);
double LegendHeight(const std::vector<ChartSeries>& series, double width);

}  // namespace ziggurat::eval
