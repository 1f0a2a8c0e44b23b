// A picture in SVG, drawn by hand: shapes, text, and colours for light and for dark pages.
#pragma once

#include <string>
#include <string_view>

namespace ziggurat {

/// What a picture leaves free at its sides.
inline constexpr double kPictureMargin = 16;

/// Distances are pixels, from the upper left corner. Classes are those of the style sheet that
/// every picture carries: "title", "label", "small", "grid", "axis", "empty", ... Text is escaped.
class Svg {
 public:
  enum class Anchor { kStart, kMiddle, kEnd };

  /// `description` is what a screen reader says.
  Svg(double width, double height, std::string_view description);

  void Text(double x, double y, std::string_view text, std::string_view css_class = "label",
            Anchor anchor = Anchor::kStart, std::string_view fill = "");
  /// An empty `fill` leaves the colour to the class. `tip` is shown under the mouse.
  void Rectangle(double x, double y, double width, double height, std::string_view css_class,
                 std::string_view fill = "", std::string_view tip = "");
  void Line(double x1, double y1, double x2, double y2, std::string_view css_class,
            std::string_view stroke = "");
  /// `points`: "x,y x,y ...". `dash` as in stroke-dasharray; empty: solid.
  void Polyline(std::string_view points, std::string_view stroke, std::string_view dash = "");
  /// One of kMarkers shapes, told apart without colour.
  void Marker(double x, double y, size_t shape, std::string_view fill, std::string_view tip = "");

  std::string ToString() const;

  static constexpr size_t kMarkers = 6;

 private:
  double width_;
  double height_;
  std::string description_;
  std::string body_;
};

/// "12.5": two decimals at most.
std::string SvgNumber(double value);
std::string EscapeXml(std::string_view text);

/// About how wide a text is at this font size; generous.
double TextWidth(std::string_view text, double font_size);
/// The text, cut to a width with an ellipsis at its end.
std::string CutToWidth(std::string_view text, double font_size, double width);

/// Colours of lines, readable on white and on black; by index, again and again.
std::string_view SeriesColor(size_t index);

/// Of a share from 0 (dark violet) to 1 (yellow), readable with any colour vision.
std::string HeatColor(double share);
/// Black or white, what is readable on that.
std::string_view HeatTextColor(double share);

}  // namespace ziggurat
