// Element-wise kernels: one lane per element moved.

extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void saxpy(float alpha, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = alpha * x[i] + y[i];
}

// Every eighth element: each access of a lane is a 32-byte sector of its own.
extern "C" __global__ void strided_copy_8(const float* in, float* out, int n) {
    int i = 8 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = in[i];
}

extern "C" __global__ void random_access(const float* in, const int* index, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[index[i]];
}

// Neighbouring lanes take different branches, so each warp runs both. The branches differ in their arithmetic, lest
// the compiler merges them, and decide the sign of b: nothing can be left out. A product with an addition would fold:
// 64 of these are one.
extern "C" __global__ void vector_add_divergent(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned int state = i + 1;
    if (i % 2 == 0) {
        for (int step = 0; step < 64; ++step) state = 1664525u * state ^ 1013904223u;
    } else {
        for (int step = 0; step < 64; ++step) {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
        }
    }
    c[i] = a[i] + (state >> 31 ? b[i] : -b[i]);
}
