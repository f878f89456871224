// One lane of every block stores one word: what a launch costs by itself.
extern "C" __global__ void one_store(float* out) {
    if (threadIdx.x == 0) out[blockIdx.x] = 1.0f;
}
