#include <cuda_runtime.h>
// Specializations alone, as in flash-attn: nvcc then puts the number of a process into the names of what is local to the file.
namespace { template <int N> __global__ void scale(float *x) { x[threadIdx.x] *= N; } }
template <int N> float one(float *x);
template <> float one<3>(float *x) { scale<3><<<1, 32>>>(x); return 1; }
