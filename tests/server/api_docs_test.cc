// docs/api.md names every field that a request may set and that a result brings.
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "gtest/gtest.h"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat {
namespace {

TEST(ApiDocsTest, NameEveryFieldOfRequestsAndReports) {
  std::ifstream file(ZIGGURAT_SOURCE_DIR "/docs/api.md");
  const std::string docs{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(docs.empty());
  int documented = 0;
  for (const google::protobuf::Descriptor* message :
       {v1::GenerateRequest::descriptor(), v1::SamplingParameters::descriptor(),
        v1::GenerateChunk::descriptor(), v1::CacheReport::descriptor(),
        v1::LayerCacheReport::descriptor()}) {
    for (int i = 0; i < message->field_count(); ++i) {
      // In backquotes, perhaps behind the field that it is a part of.
      const std::string& name = message->field(i)->name();
      EXPECT_TRUE(std::regex_search(docs, std::regex("`([a-z_]+(\\[\\])?\\.)?" + name + "[`.\\[]")))
          << message->name() << "." << name;
      ++documented;
    }
  }
  EXPECT_GE(documented, 50);
}

}  // namespace
}  // namespace ziggurat
