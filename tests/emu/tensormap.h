/* A tensor map of the emulator, inside the driver's 128 bytes. */
#ifndef TESTS_EMU_TENSORMAP_H
#define TESTS_EMU_TENSORMAP_H

#include <stdint.h>

struct emu_tensor {
    const void *base;
    int64_t size[3], stride[3]; /* elements; bytes */
    int box[3], rank;
};

#endif
