// out[column][row] = in[row][column]. Neighbouring lanes read neighbours.

// They write a whole row of `out` apart.
extern "C" __global__ void naive_transpose(const float* in, float* out, int rows, int cols) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < rows && column < cols) out[column * rows + row] = in[row * cols + column];
}

// A tile is turned in shared memory, so that writes are neighbours too; its rows are padded to lie in different banks.
extern "C" __global__ void shared_transpose(const float* in, float* out, int rows, int cols) {
    __shared__ float tile[32][33];
    int column = blockIdx.x * 32 + threadIdx.x;
    int row = blockIdx.y * 32 + threadIdx.y;
    if (row < rows && column < cols) tile[threadIdx.y][threadIdx.x] = in[row * cols + column];
    __syncthreads();
    column = blockIdx.y * 32 + threadIdx.x;
    row = blockIdx.x * 32 + threadIdx.y;
    if (row < cols && column < rows) out[row * rows + column] = tile[threadIdx.x][threadIdx.y];
}
