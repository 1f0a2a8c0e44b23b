#include "server/settings_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "model/input_file.h"

namespace ziggurat {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

absl::Status WrongAt(const std::string& path, const YAML::Mark& mark, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ":", mark.line + 1, ": ", what));
}

absl::StatusOr<std::vector<std::string>> ReadValues(const YAML::Node& node, const YAML::Node& name,
                                                    const std::string& path) {
  const std::string& key = name.Scalar();
  std::vector<std::string> values;
  if (node.IsScalar()) {
    values.push_back(node.Scalar());
  } else if (node.IsSequence()) {
    for (const YAML::Node& element : node) {
      if (!element.IsScalar()) {
        return WrongAt(path, element.Mark(),
                       absl::StrCat("'", key, "' is no list of plain values"));
      }
      values.push_back(element.Scalar());
    }
  } else {
    // What is not there has its place behind it.
    return WrongAt(path, name.Mark(),
                   absl::StrCat("'", key, "' ",
                                node.IsMap() ? "holds keys of its own: it must be a value or a list"
                                             : "has no value"));
  }
  return values;
}

absl::StatusOr<std::vector<FileSetting>> ReadMapping(const YAML::Node& root,
                                                     const std::string& path) {
  std::vector<FileSetting> settings;
  if (root.IsNull()) return settings;
  if (!root.IsMap()) {
    return WrongAt(path, root.Mark(), "this is no mapping: lines are `name: value`");
  }
  for (const auto& entry : root) {
    if (!entry.first.IsScalar()) return WrongAt(path, entry.first.Mark(), "this is no name");
    FileSetting setting{
        .key = entry.first.Scalar(), .line = entry.first.Mark().line + 1, .values = {}};
    const auto before = std::find_if(settings.begin(), settings.end(),
                                     [&](const auto& other) { return other.key == setting.key; });
    if (before != settings.end()) {
      return WrongAt(path, entry.first.Mark(),
                     absl::StrCat("'", setting.key, "' stands in line ", before->line, " already"));
    }
    auto values = ReadValues(entry.second, entry.first, path);
    if (!values.ok()) return values.status();
    setting.values = *std::move(values);
    settings.push_back(std::move(setting));
  }
  return settings;
}

/// Notes where documents begin, and keys and values.
class DocumentMarks : public YAML::EventHandler {
 public:
  const std::vector<YAML::Mark>& marks() const { return marks_; }
  const std::vector<YAML::Mark>& scalars() const { return scalars_; }

  void OnDocumentStart(const YAML::Mark& mark) override { marks_.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnAlias(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnScalar(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                const std::string& /*value*/) override {
    scalars_.push_back(mark);
  }
  void OnSequenceStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/,
                       YAML::anchor_t /*anchor*/, YAML::EmitterStyle::value /*style*/) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                  YAML::EmitterStyle::value /*style*/) override {}
  void OnMapEnd() override {}

 private:
  std::vector<YAML::Mark> marks_, scalars_;
};

/// The first document, and the second. Asked one by one: of a comma outside of brackets the library
/// makes documents without end.
DocumentMarks FirstDocuments(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentMarks documents;
  while (documents.marks().size() < 2 && parser.HandleNextDocument(documents)) {
  }
  return documents;
}

/// Whether anything closes the quote of what stands at `mark`, if it is in quotes: the library
/// takes the end of the file for it.
bool IsClosed(std::string_view text, const YAML::Mark& mark) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  text.remove_prefix(std::min(static_cast<size_t>(mark.pos), text.size()));
  while (text.starts_with('&') || text.starts_with('!')) {  // an anchor, a tag
    text.remove_prefix(std::min(text.find_first_of(" \t\r\n"), text.size()));
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  }
  if (!text.starts_with('"') && !text.starts_with('\'')) return true;
  const char quote = text[0];
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '"' || !text.substr(i + 1).starts_with('\'')) return true;
      ++i;  // a doubled one stands for itself
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<std::vector<FileSetting>> ParseSettingsFile(std::string_view text,
                                                           const std::string& path) {
  try {
    const std::string whole(text);
    const DocumentMarks marks = FirstDocuments(whole);
    const std::vector<YAML::Mark>& documents = marks.marks();
    if (documents.empty()) return std::vector<FileSetting>();
    for (const YAML::Mark& scalar : marks.scalars()) {
      if (!IsClosed(whole, scalar)) {
        return WrongAt(path, scalar, "no YAML: a quote that never ends");
      }
    }
    if (documents.size() > 1) {
      const size_t at = static_cast<size_t>(documents[1].pos);
      return WrongAt(path, documents[1],
                     at < whole.size() && whole[at] == ','
                         ? "no YAML: a comma outside of brackets"
                         : "a second document begins: there must be one");
    }
    return ReadMapping(YAML::Load(whole), path);
  } catch (const YAML::Exception& error) {
    return WrongAt(path, error.mark, absl::StrCat("no YAML: ", error.msg));
  }
}

absl::StatusOr<std::vector<FileSetting>> ReadSettingsFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadGivenFile(path, kMaxFileBytes);
  if (!text.ok()) {
    return absl::NotFoundError(absl::StrCat("cannot read ", text.status().message()));
  }
  return ParseSettingsFile(*text, path);
}

std::string WriteSettingValue(const std::vector<std::string>& values) {
  YAML::Emitter out;
  if (values.size() == 1) {
    out << values[0];
  } else {
    out << YAML::Flow << values;
  }
  return out.c_str();
}

}  // namespace ziggurat
