// c = a b of square matrices of n rows; one lane per element of c.

extern "C" __global__ void matmul_naive(const float* a, const float* b, float* c, int n) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= n || column >= n) return;
    float sum = 0.0f;
    for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}

extern "C" __global__ void matmul_tiled(const float* a, const float* b, float* c, int n) {
    __shared__ float left[32][32], right[32][32];
    int column = blockIdx.x * 32 + threadIdx.x;
    int row = blockIdx.y * 32 + threadIdx.y;
    float sum = 0.0f;
    for (int first = 0; first < n; first += 32) {
        int k = first + threadIdx.x, l = first + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < n && k < n ? a[row * n + k] : 0.0f;
        right[threadIdx.y][threadIdx.x] = l < n && column < n ? b[l * n + column] : 0.0f;
        __syncthreads();
        for (int step = 0; step < 32; ++step) sum += left[threadIdx.y][step] * right[step][threadIdx.x];
        __syncthreads();
    }
    if (row < n && column < n) c[row * n + column] = sum;
}
