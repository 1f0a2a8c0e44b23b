// What a daemon says of a policy, before it is measured with many requests.
#pragma once

#include <string>
#include <vector>

#include "grpcpp/support/status.h"
#include "ziggurat/v1/ziggurat.grpc.pb.h"

namespace ziggurat {

/// The text with every parameter of a policy that depends on the prompt (windowkv's task=auto),
/// which the daemon reports as what it became for one prompt; empty for others, and for policies
/// that only the daemon knows.
std::string TextOfAnyPrompt(const std::string& text);

/// Has the daemon judge a policy (empty: its default), by a request for one token with these stop
/// strings, again while it is busy: `canonical` is then its text with every parameter, open where
/// the prompt decides (windowkv's task=auto): each prompt that it is sent with decides for itself.
/// The daemon's refusal otherwise.
grpc::Status CheckPolicy(v1::Ziggurat::StubInterface& stub, const std::string& text,
                         const std::vector<std::string>& stop, std::string& canonical);

}  // namespace ziggurat
