#include "server/cli/bench/load/request_record.h"

namespace ziggurat::bench {

int64_t RequestRecord::arrived_tokens() const {
  int64_t tokens = 0;
  for (const TokenArrival& arrival : arrivals) tokens += arrival.tokens;
  return tokens;
}

std::vector<double> RequestRecord::InterTokenGaps() const {
  std::vector<double> gaps;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    if (i > 0) gaps.push_back(arrivals[i].seconds - arrivals[i - 1].seconds);
    gaps.insert(gaps.end(), static_cast<size_t>(arrivals[i].tokens - 1), 0.0);
  }
  return gaps;
}

double RequestRecord::MeanGap() const {
  const int64_t tokens = arrived_tokens();
  if (tokens < 2) return 0;
  return (arrivals.back().seconds - arrivals.front().seconds) / static_cast<double>(tokens - 1);
}

}  // namespace ziggurat::bench
