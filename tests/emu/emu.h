/* Between the emulator's files: blocks of fibers and where they wait for each other. */
#ifndef TESTS_EMU_EMU_H
#define TESTS_EMU_EMU_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EMU_SHARED = 232448, EMU_THREADS = 1024, EMU_WARP = 32 };

/* Remembers e for cudaGetLastError. */
cudaError_t emu_failed(cudaError_t e);

/* Between BeginCapture and EndCapture: emu_note keeps a call, to be run at each launch of the graph;
 * `done` frees ctx with it. */
int emu_recording(void);
void emu_note(void (*call)(void *ctx), void (*done)(void *ctx), void *ctx);

struct emu_dim {
    unsigned x, y, z;
};

/* Runs call(ctx) in every thread of every block. */
cudaError_t emu_run(const char *kernel, struct emu_dim grid, struct emu_dim block,
    size_t shared, void (*call)(void *ctx), void *ctx);

/* ---- called by the fibers --------------------------------------------------------------------- */

/* Shared memory of the block: `key` is the address of something that stands for the variable. Below
 * 2^31, aligned to 1024, filled with NaN. emu_dynamic: what the launch asked for. */
void *emu_static(const void *key, size_t bytes);
void *emu_dynamic(void);

/* Waits until all threads of the block that still run are here. Returns the sum of what they said. */
int emu_block(int said);
/* Barrier `id` of `count` threads; arrive: without waiting. */
void emu_barrier(int id, int count, int arrive);
/* Waits until all lanes of `mask` that still run are here; what they said is in the result [32] until
 * the next call by the same lanes. `what` must be the same. */
const uint64_t *emu_warp(unsigned mask, uint64_t said, const char *what);
int emu_lane(void);
unsigned emu_live(void); /* lanes of the warp that still run */
int emu_thread(void);    /* 0 .. threads of the block - 1 */
/* Lets others run: for loops that wait for memory to change. */
void emu_spin(void);
/* Ends the program with a message about the kernel that runs. */
void emu_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* cp.async: the copy is made when its group is waited for. */
void emu_copy(void *to, const void *from, int bytes, int zeros);
void emu_copy_commit(void);
void emu_copy_wait(int left);

extern struct emu_dim emu_thread_at, emu_block_at, emu_block_size, emu_grid_size;

#ifdef __cplusplus
}
#endif
#endif
