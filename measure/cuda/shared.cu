// Blocks of 1024 lanes read a table of 1024 words over and over, neighbouring lanes `ways` words apart: of a warp that
// many lanes meet in one bank (a power of two up to 32).
extern "C" __global__ void shared_bank_conflict(const float* table, float* out, int ways, int iterations) {
    __shared__ float words[1024];
    words[threadIdx.x] = table[threadIdx.x];
    __syncthreads();
    int at = threadIdx.x * ways;
    float sum = 0.0f;
    for (int step = 0; step < iterations; ++step) sum += words[(at + 32 * step) % 1024];
    out[blockIdx.x * 1024 + threadIdx.x] = sum;
}
