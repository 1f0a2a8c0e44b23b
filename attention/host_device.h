// Functions that kernels on a GPU share with everything else.
#pragma once

#if defined(__CUDACC__)
#define ZIGGURAT_HOST_DEVICE __host__ __device__
#else
#define ZIGGURAT_HOST_DEVICE
#endif
