// The decoder's weights in the memory of a device.
#pragma once

#include <cstddef>
#include <memory>

#include "attention/cuda/device.h"
#include "model/checkpoint/model_config.h"
#include "model/cuda/product_library.h"
#include "model/decoder/linear.h"

namespace ziggurat::cuda {

/// Bytes of all weights of a model in `element`, as the factory lays them out.
size_t WeightBytes(const ModelConfig& config, ElementType element);

/// Copies weights into `memory`, one behind the other, and computes with `products`; both are the
/// factory's from then on. RESOURCE_EXHAUSTED where the memory does not hold them.
std::unique_ptr<LinearFactory> MakeCudaLinearFactory(Stream* stream, DeviceMemory memory,
                                                     std::unique_ptr<ProductLibrary> products);

}  // namespace ziggurat::cuda
