// Blocks of 256 lanes take 512 elements each and leave one partial sum.

__device__ void sum_of_block(float mine, float* partial) {
    __shared__ float sums[256];
    sums[threadIdx.x] = mine;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) partial[blockIdx.x] = sums[0];
}

extern "C" __global__ void reduce_sum(const float* x, float* partial, int n) {
    int i = 512 * blockIdx.x + threadIdx.x, j = i + 256;
    sum_of_block((i < n ? x[i] : 0.0f) + (j < n ? x[j] : 0.0f), partial);
}

extern "C" __global__ void dot_product(const float* x, const float* y, float* partial, int n) {
    int i = 512 * blockIdx.x + threadIdx.x, j = i + 256;
    sum_of_block((i < n ? x[i] * y[i] : 0.0f) + (j < n ? x[j] * y[j] : 0.0f), partial);
}
