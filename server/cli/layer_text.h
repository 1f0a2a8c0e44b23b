// What the layers of a request hold, in words: lazy layers, merged pairs, shared keys, formats.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/repeated_ptr_field.h"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat {

using LayerReports = google::protobuf::RepeatedPtrField<v1::LayerCacheReport>;

/// "merged with layer 5, bf16-merged 1900 + bf16 148, 1900 merged, recall 0.987". What is zero is
/// left out.
std::string DescribeLayer(const v1::LayerCacheReport& layer);

/// A line for each run of neighbouring layers that the same can be said of, the last layer on top:
/// "layers 4-7  lazy, bf16 1024, 976 evicted". ASCII, every line at most `columns` wide; longer
/// ones go on below, indented.
std::string DescribeLayers(const LayerReports& layers, int columns);

/// All layers in a few words, for one of many requests: "lazy 0-2 5; merged 4+5 6+7; keys of 0 in
/// 1-3; int4 1200 + bf16 300 blocks; evicted 12-976". Empty where every layer holds all its tokens
/// in one plain format.
std::string SummarizeLayers(const LayerReports& layers);

/// A line for each run of neighbouring layers with the same text, the last layer on top, as in
/// DescribeLayers; of empty texts none. `texts`: one for each layer, from 0 on.
std::string WrapRuns(const std::vector<std::string>& texts, int columns);

/// Breaks `text` after ", " or "; " so that no line is wider than `columns`; all but the first
/// begin with `indent` spaces. Ends with a line break. A part that is wider than a line is broken
/// after ',' or '+', as policies have them, or anywhere.
std::string WrapParts(const std::string& text, int columns, int indent);

}  // namespace ziggurat
