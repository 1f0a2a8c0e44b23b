// How much memory a decoder takes, from a model's configuration alone.
#pragma once

#include <cstddef>
#include <vector>

#include "model/checkpoint/model_config.h"
#include "model/decoder/llama_decoder.h"
#include "model/decoder/prefill_workspace.h"
#include "model/model_runner.h"

namespace ziggurat {

WorkspaceShape MakeWorkspaceShape(const ModelConfig& config, const DecoderOptions& options);

/// Weights as they are kept in memory, whatever type they have in the file: matrices in the element
/// type, vectors in f32, and the embedding a second time where it is the packed output head too.
/// What packing adds to matrices of odd sizes is not counted. Whether a tied head is another matrix
/// all the same (HasHeadOfItsOwn) the loader has found out before it asks, and `ziggurat plan` has
/// not; where weights are packed it takes as much either way.
size_t WeightsBytes(const ModelConfig& config, ElementType element);

/// The lanes of the prefill workspace, each with room for a batch that needs all that plans may ask
/// for.
std::vector<PrefillLane> MakePrefillLanes(const WorkspaceShape& shape,
                                          const DecoderOptions& options);

/// What a batch of `prompts` prompts of `tokens` tokens each, all with the same needs, makes
/// resident.
size_t PrefillBytes(const WorkspaceShape& shape, int prompts, int tokens,
                    const PrefillNeeds& needs);

/// Activations and logits of a decode step of `rows` sequences.
size_t DecodeStepBytes(const WorkspaceShape& shape, int rows);

}  // namespace ziggurat
