#include <cuda_runtime.h>
namespace { template <int N> __global__ void shift(float *x) { x[threadIdx.x] += N; } }
float two(float *x) { shift<3><<<1, 32>>>(x); return 2; }
