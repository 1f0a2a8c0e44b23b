#include "server/cli/svg.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

// A background of its own, so that the text is readable on whatever page shows the picture.
constexpr std::string_view kStyle = R"(<style>
text { font-family: -apple-system, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; fill: #1f2328; }
.background { fill: #ffffff; }
.title { font-size: 16px; font-weight: 600; }
.heading { font-size: 12px; font-weight: 600; }
.label { font-size: 12px; }
.small { font-size: 10px; }
.cell { font-size: 10px; }
.faint { font-size: 11px; fill: #59636e; }
.grid { stroke: #d8dee4; stroke-width: 1; }
.axis { stroke: #59636e; stroke-width: 1; }
.reference { stroke: #59636e; stroke-width: 1; stroke-dasharray: 5 4; }
.bar { stroke-width: 1.2; }
.empty { fill: #e3e7eb; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.background { fill: #0d1117; }
.faint { fill: #9198a1; }
.grid { stroke: #2d333b; }
.axis, .reference { stroke: #9198a1; }
.empty { fill: #262c36; }
}
</style>)";

struct Color {
  double red, green, blue;
};

// Viridis at 0, 1/4, ..., 1; its dark end a little lighter, to be seen on a dark page.
constexpr std::array<Color, 5> kHeat = {
    {{88, 24, 120}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}}};

constexpr std::array<std::string_view, 10> kSeries = {"#4e79a7", "#e8762c", "#2f9e6e", "#d6455d",
                                                      "#9467bd", "#b8860b", "#17a2b8", "#d45fa6",
                                                      "#8c6d5a", "#7a8a99"};

Color HeatAt(double share) {
  const double at = std::clamp(share, 0.0, 1.0) * (kHeat.size() - 1);
  const auto low = std::min(static_cast<size_t>(at), kHeat.size() - 2);
  const double part = at - static_cast<double>(low);
  const auto mix = [&](double a, double b) { return a + (b - a) * part; };
  return {mix(kHeat[low].red, kHeat[low + 1].red), mix(kHeat[low].green, kHeat[low + 1].green),
          mix(kHeat[low].blue, kHeat[low + 1].blue)};
}

std::string Attribute(std::string_view name, std::string_view value) {
  if (value.empty()) return "";
  return std::string(" ").append(name).append("=\"").append(EscapeXml(value)).append("\"");
}

// An element with a tip, or without.
std::string Element(const std::string& name, const std::string& attributes, std::string_view tip) {
  std::string text = "<" + name + attributes;
  if (tip.empty()) return text + "/>\n";
  return text + "><title>" + EscapeXml(tip) + "</title></" + name + ">\n";
}

}  // namespace

std::string SvgNumber(double value) {
  std::string text = absl::StrFormat("%.2f", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string EscapeXml(std::string_view text) {
  constexpr std::string_view kReplacement = "\uFFFD";
  std::string escaped;
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    const std::string_view bytes = text.substr(0, step.length);
    text.remove_prefix(step.length);
    // What no XML may hold: broken UTF-8, and two characters of Unicode.
    if (step.kind != Utf8Kind::kCharacter || bytes == "\uFFFE" || bytes == "\uFFFF") {
      escaped += kReplacement;
      continue;
    }
    const char c = bytes.front();
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        // XML has no way to write most control characters.
        escaped += static_cast<unsigned char>(c) < ' ' ? std::string_view(" ") : bytes;
    }
  }
  return escaped;
}

Svg::Svg(double width, double height, std::string_view description)
    : width_(width), height_(height), description_(description) {}

void Svg::Text(double x, double y, std::string_view text, std::string_view css_class, Anchor anchor,
               std::string_view fill) {
  const std::string_view anchors[] = {"", "middle", "end"};
  // The style sheet outweighs an attribute, so a colour of its own must be a style.
  const std::string style = fill.empty() ? "" : "fill:" + std::string(fill);
  absl::StrAppend(&body_, "<text x=\"", SvgNumber(x), "\" y=\"", SvgNumber(y), "\"",
                  Attribute("class", css_class),
                  Attribute("text-anchor", anchors[static_cast<int>(anchor)]),
                  Attribute("style", style), ">", EscapeXml(text), "</text>\n");
}

void Svg::Rectangle(double x, double y, double width, double height, std::string_view css_class,
                    std::string_view fill, std::string_view tip) {
  body_ += Element("rect",
                   absl::StrCat(" x=\"", SvgNumber(x), "\" y=\"", SvgNumber(y), "\" width=\"",
                                SvgNumber(width), "\" height=\"", SvgNumber(height), "\"",
                                Attribute("class", css_class), Attribute("fill", fill)),
                   tip);
}

void Svg::Line(double x1, double y1, double x2, double y2, std::string_view css_class,
               std::string_view stroke) {
  body_ += Element("line",
                   absl::StrCat(" x1=\"", SvgNumber(x1), "\" y1=\"", SvgNumber(y1), "\" x2=\"",
                                SvgNumber(x2), "\" y2=\"", SvgNumber(y2), "\"",
                                Attribute("class", css_class), Attribute("stroke", stroke)),
                   "");
}

void Svg::Polyline(std::string_view points, std::string_view stroke, std::string_view dash) {
  body_ += Element("polyline",
                   absl::StrCat(Attribute("points", points),
                                " fill=\"none\" stroke-width=\"1.8\" stroke-linejoin=\"round\"",
                                Attribute("stroke", stroke), Attribute("stroke-dasharray", dash)),
                   "");
}

void Svg::Marker(double x, double y, size_t shape, std::string_view fill, std::string_view tip) {
  constexpr double kSize = 4.5;
  if (shape % kMarkers == 0) {
    body_ += Element("circle",
                     absl::StrCat(" cx=\"", SvgNumber(x), "\" cy=\"", SvgNumber(y), "\" r=\"",
                                  SvgNumber(kSize - 0.5), "\"", Attribute("fill", fill)),
                     tip);
    return;
  }
  // Square, diamond, triangle up, triangle down, cross.
  static constexpr std::array<std::string_view, kMarkers - 1> kPaths = {
      "M-4-4H4V4H-4Z", "M0-5.5L5.5 0L0 5.5L-5.5 0Z", "M0-5L5 4H-5Z", "M0 5L5-4H-5Z",
      "M-1.5-5H1.5V-1.5H5V1.5H1.5V5H-1.5V1.5H-5V-1.5H-1.5Z"};
  body_ +=
      Element("path",
              absl::StrCat(Attribute("d", kPaths[shape % kMarkers - 1]), " transform=\"translate(",
                           SvgNumber(x), " ", SvgNumber(y), ")\"", Attribute("fill", fill)),
              tip);
}

std::string Svg::ToString() const {
  const std::string width = SvgNumber(std::ceil(width_));
  const std::string height = SvgNumber(std::ceil(height_));
  return absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height,
      "\" viewBox=\"0 0 ", width, " ", height, "\" role=\"img\"",
      Attribute("aria-label", description_), ">\n", absl::string_view(kStyle.data(), kStyle.size()),
      "\n<rect class=\"background\" width=\"100%\" height=\"100%\"/>\n", body_, "</svg>\n");
}

double TextWidth(std::string_view text, double font_size) {
  // Bytes that continue a UTF-8 character have no width.
  const auto characters =
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  return 0.58 * font_size * static_cast<double>(characters);
}

std::string CutToWidth(std::string_view text, double font_size, double width) {
  if (TextWidth(text, font_size) <= width) return std::string(text);
  std::string cut(text);
  while (!cut.empty() && TextWidth(cut, font_size) + font_size > width) {
    cut.resize(CharacterBegin(cut, cut.size() - 1));
  }
  return cut + "…";
}

std::string_view SeriesColor(size_t index) { return kSeries[index % kSeries.size()]; }

std::string HeatColor(double share) {
  const Color color = HeatAt(share);
  return absl::StrFormat("#%02x%02x%02x", static_cast<int>(std::lround(color.red)),
                         static_cast<int>(std::lround(color.green)),
                         static_cast<int>(std::lround(color.blue)));
}

std::string_view HeatTextColor(double share) {
  const Color color = HeatAt(share);
  const double light = (0.299 * color.red + 0.587 * color.green + 0.114 * color.blue) / 255;
  return light > 0.5 ? "#000000" : "#ffffff";
}

}  // namespace ziggurat
