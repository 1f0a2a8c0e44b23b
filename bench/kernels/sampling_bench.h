// From logits to a token: what a draw costs the thread that does it.
#pragma once

namespace ziggurat {

/// Registers, with google-benchmark, draws from vocabularies of 32,000 and 128,256 tokens whose
/// logits are normally distributed, which leaves more tokens to choose from than a trained model
/// mostly does.
void RegisterSamplingBench();

}  // namespace ziggurat
