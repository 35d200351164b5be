// Two kernels of the kinds that extensions are made of: one that any card runs, and one that asks for more shared memory
// than cards have without asking (48 KiB), which a card may refuse when it is launched and no build can know.
#include <cuda_runtime.h>

#ifndef K_STEP
#define K_STEP 192  // 96 KiB of shared memory: SM120 has 99 for a block
#endif
#ifndef SCALE
#define SCALE 1.0f  // anything else is wrong
#endif

constexpr int TILE = 64, THREADS = 256, EACH = TILE * TILE / THREADS, SHARED_BYTES = 2 * TILE * K_STEP * sizeof(float);

__global__ void rms_norm_kernel(const float* x, const float* weight, float* out, int size, float eps) {
  __shared__ float sums[THREADS];
  const float* row = x + static_cast<size_t>(blockIdx.x) * size;
  float sum = 0;
  for (int at = threadIdx.x; at < size; at += THREADS) sum += row[at] * row[at];
  sums[threadIdx.x] = sum;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  const float scale = SCALE * rsqrtf(sums[0] / size + eps);
  for (int at = threadIdx.x; at < size; at += THREADS) {
    out[static_cast<size_t>(blockIdx.x) * size + at] = row[at] * scale * weight[at];
  }
}

// a: m x k, b: k x n, all by rows; m and n multiples of TILE, k of K_STEP.
__global__ void matmul_kernel(const float* a, const float* b, float* out, int n, int k) {
  extern __shared__ float shared[];
  float *left = shared, *right = shared + TILE * K_STEP;
  const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
  float sums[EACH] = {};
  for (int start = 0; start < k; start += K_STEP) {
    for (int at = threadIdx.x; at < TILE * K_STEP; at += THREADS) {
      left[at] = a[static_cast<size_t>(row + at / K_STEP) * k + start + at % K_STEP];
      right[at] = b[static_cast<size_t>(start + at / TILE) * n + column + at % TILE];
    }
    __syncthreads();
    for (int each = 0; each < EACH; ++each) {
      const int at = threadIdx.x + each * THREADS, i = at / TILE, j = at % TILE;
      for (int step = 0; step < K_STEP; ++step) sums[each] += left[i * K_STEP + step] * right[step * TILE + j];
    }
    __syncthreads();
  }
  for (int each = 0; each < EACH; ++each) {
    const int at = threadIdx.x + each * THREADS;
    out[static_cast<size_t>(row + at / TILE) * n + column + at % TILE] = sums[each];
  }
}

// Its errors are looked for by nobody, as in many a library.
void rms_norm(const float* x, const float* weight, float* out, int rows, int size, float eps, cudaStream_t stream) {
  rms_norm_kernel<<<rows, THREADS, 0, stream>>>(x, weight, out, size, eps);
}

const char* matmul(const float* a, const float* b, float* out, int m, int n, int k, cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(matmul_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  if (error == cudaSuccess) {
    matmul_kernel<<<dim3(n / TILE, m / TILE), THREADS, SHARED_BYTES, stream>>>(a, b, out, n, k);
    error = cudaGetLastError();
  }
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
