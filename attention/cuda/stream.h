// The one name of CUDA's runtime that launchers have in their declarations, without its headers.
#pragma once

typedef struct CUstream_st* cudaStream_t;
