// Lines over two axes of numbers, in panels one below the other.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ziggurat::bench {

struct PlotPoint {
  double x = 0;
  double y = 0;
};

struct PlotSeries {
  std::string name = {};  ///< for the legend
  size_t color = 0;       ///< index, as of SeriesColor
  bool dashed = false;
  std::vector<PlotPoint> points = {};  ///< ascending in x
};

/// How the labels of an axis are written.
enum class PlotUnit { kNumber, kPercent, kSeconds };

struct PlotAxis {
  std::string title = {};
  double low = 0;
  double high = 1;
  bool logarithmic = false;  ///< then both bounds are above 0
  PlotUnit unit = PlotUnit::kNumber;
};

/// A dashed line across the panel at one x; its label stands where the title of x would.
struct PlotMark {
  double x = 0;
  std::string label = {};
};

struct PlotPanel {
  std::string title = {};
  PlotAxis x;
  PlotAxis y;
  std::vector<PlotSeries> series = {};
  std::vector<PlotMark> marks = {};
};

/// An SVG picture. A subtitle has up to two lines.
std::string DrawPlot(std::string_view title, std::string_view subtitle,
                     const std::vector<PlotPanel>& panels);

/// Round values of an axis, about every 1/8 of it, or the decades of a logarithmic one with their
/// halves and fifths where there is room.
std::vector<double> PlotTicks(const PlotAxis& axis);

/// The next round number (1, 2, 5, times a power of ten) that is not below.
double RoundUp(double value);

}  // namespace ziggurat::bench
