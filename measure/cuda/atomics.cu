// Blocks of 256 lanes count one value each in shared memory, then add their counts to the total.
extern "C" __global__ void histogram(const int* values, unsigned int* bins, int n) {
    __shared__ unsigned int counts[256];
    counts[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) atomicAdd(&counts[values[i]], 1u);
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], counts[threadIdx.x]);
}

// All lanes of the grid update one counter, time and again.
extern "C" __global__ void atomic_hotspot(unsigned int* counter, int n, int iterations) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        for (int step = 0; step < iterations; ++step) atomicAdd(counter, 1u);
}
