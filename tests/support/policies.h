// Policies for tests of a whole engine, on a model of four layers with two KV heads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compression/pod_groups.h"
#include "compression/policy.h"
#include "gtest/gtest.h"

namespace ziggurat {

/// Four layers of two KV heads in two groups: of both heads, `pairs`, or in one head alone, `head`.
inline PolicyResources StubPodGroups() {
  PolicyResources resources;
  for (const bool both : {true, false}) {
    auto groups = std::make_shared<PodGroups>();
    groups->name = both ? "pairs" : "head";
    groups->num_layers = 4;
    groups->num_kv_heads = 2;
    for (int layer = 0; layer < 4; ++layer) {
      groups->lowest.push_back(layer / 2 * 2);
      groups->lowest.push_back(both ? layer / 2 * 2 : layer);
    }
    resources.pod_groups.push_back(std::move(groups));
  }
  return resources;
}

inline std::shared_ptr<const Policy> MustParse(const std::string& text) {
  auto policy = ParsePolicy(text, StubPodGroups());
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

/// Every method and way of storing, at settings at which it acts on some hundred tokens.
inline std::vector<std::string> PoliciesOfAllMethods() {
  return {"full",
          "streaming(sinks=2,recent=30)",
          "snapkv(budget=40,window=8)",
          "pyramidkv(budget=48,window=8)",
          "pyramidkv(budget=48,window=8,shape=entropy)",
          "windowkv(budget=48,task=localization,review=4,observe=8,group=2)",
          "h2o(heavy=20,recent=10)",
          "squeeze(budget=40,p=0.5)",
          "simlayerkv(threshold=0.5,sinks=2,recent=30)",
          "simlayerkv(threshold=0.5,sinks=2,recent=30,decide=decode)",
          "simlayerkv(threshold=0.5,sinks=2,recent=30)+snapkv(budget=50,window=8)",
          "minicache(start=0,retain=0.1,tail=6)",
          "minicache(start=1,retain=0.3,retain_by=threshold)",
          "pod(groups=pairs,sinks=2,recent=20)",
          "pod(groups=head,sinks=2,recent=20,skip=0.5)",
          "pod(groups=head,sinks=2,recent=20)+snapkv(budget=50,window=8)",
          "kivi(bits=4,group=8,residual=8)",
          "int8",
          "streaming(sinks=2,recent=30)+kivi(bits=4,group=8,residual=4)",
          "squeeze(budget=40,p=0.5)+kivi(bits=4,group=4,residual=0)",
          "h2o(heavy=20,recent=10)+int8",
          "pod(groups=pairs,sinks=2,recent=20)+fp8",
          "pod(groups=head,sinks=2,recent=20)+kivi(bits=4,group=8,residual=4)",
          "pod(groups=pairs,sinks=2,recent=20)+snapkv(budget=50,window=8)+kivi(group=8,residual=0)",
          "minicache(start=0,retain=0.1,tail=6)+kivi(bits=4,group=8,residual=8)"};
}

}  // namespace ziggurat
