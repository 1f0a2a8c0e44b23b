// The decoder's matrix products against oneDNN's best.
#pragma once

namespace ziggurat {

/// Registers, with google-benchmark, products of 1 to 512 rows with bf16 weights of 2048 x 8192:
/// the decoder's linear, whose weights are packed once for every number of rows, beside oneDNN's
/// own product with weights packed for just that number. The weights are many times those of a
/// layer, so that they come from memory. Nothing where this build has no oneDNN.
///   read_bandwidth  bytes per second, for comparison
void RegisterGemmBench(int threads, double read_bandwidth);

}  // namespace ziggurat
