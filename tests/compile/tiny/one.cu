#include <cuda_runtime.h>
namespace { template <int N> __global__ void scale(float *x) { x[threadIdx.x] *= N; } }
float one(float *x) { scale<3><<<1, 32>>>(x); return 1; }
