// One image of one channel, zeros around it, as deep-learning libraries convolve: the filter is not turned.

template <int EDGE>
__device__ void convolve(const float* image, const float* filter, float* out, int rows, int cols) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= rows || column >= cols) return;
    float sum = 0.0f;
    for (int y = 0; y < EDGE; ++y) {
        for (int x = 0; x < EDGE; ++x) {
            int from_row = row + y - EDGE / 2, from_column = column + x - EDGE / 2;
            if (from_row >= 0 && from_row < rows && from_column >= 0 && from_column < cols)
                sum += image[from_row * cols + from_column] * filter[y * EDGE + x];
        }
    }
    out[row * cols + column] = sum;
}

extern "C" __global__ void conv2d_3x3(const float* image, const float* filter, float* out, int rows, int cols) {
    convolve<3>(image, filter, out, rows, cols);
}

extern "C" __global__ void conv2d_7x7(const float* image, const float* filter, float* out, int rows, int cols) {
    convolve<7>(image, filter, out, rows, cols);
}
