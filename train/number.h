/* Numbers as text that reads back bit for bit, as short as that allows. */
#ifndef TRAIN_NUMBER_H
#define TRAIN_NUMBER_H

#include <stddef.h>

/* 15 to 17 significant digits; buf wants 32 bytes. x is finite. Returns buf. */
const char *number_print(double x, char *buf, size_t size);

#endif
