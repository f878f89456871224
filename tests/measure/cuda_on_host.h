// CUDA's words for g++: the threads of a block are threads of the host, and blocks run one after another, so that what
// is __shared__ may be static.
#include <atomic>
#include <barrier>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

struct Index { unsigned int x = 0, y = 0; };
static thread_local Index threadIdx, blockIdx;
static Index blockDim;
static std::barrier<>* block_barrier;

#define __global__
#define __device__
#define __shared__ static
static void __syncthreads() { block_barrier->arrive_and_wait(); }
static unsigned int atomicAdd(unsigned int* at, unsigned int more) { return std::atomic_ref(*at).fetch_add(more); }

template <class... A, std::size_t... I>
static void call(void (*kernel)(A...), void** passed, std::index_sequence<I...>) { kernel(*static_cast<A*>(passed[I])...); }

template <class... A>
static void launch(void (*kernel)(A...), const int* extent, void** passed) {
    blockDim = {unsigned(extent[2]), unsigned(extent[3])};
    unsigned int lanes = blockDim.x * blockDim.y;
    std::barrier<> barrier(lanes);
    block_barrier = &barrier;
    std::vector<std::thread> threads;
    for (unsigned int lane = 0; lane < lanes; ++lane)
        threads.emplace_back([=] {
            threadIdx = {lane % blockDim.x, lane / blockDim.x};
            for (int block = 0; block < extent[0] * extent[1]; ++block) {
                blockIdx = {unsigned(block % extent[0]), unsigned(block / extent[0])};
                call(kernel, passed, std::index_sequence_for<A...>());
                block_barrier->arrive_and_wait();
            }
        });
    for (auto& thread : threads) thread.join();
}

// extent: grid and block, each in x and y; passed: the address of every argument.
#define LAUNCHER(kernel) \
    extern "C" void launch_##kernel(const int* extent, void** passed) { launch(kernel, extent, passed); }
