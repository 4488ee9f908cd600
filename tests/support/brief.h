/* Runs under instrumentation look for what a program does to memory, not for what it computes. */
#ifndef TESTS_SUPPORT_BRIEF_H
#define TESTS_SUPPORT_BRIEF_H

#include <stdbool.h>

/* TESTS_BRIEF=1 in the environment, as tests/run.sh has it under the sanitizers and valgrind: a test
 * that repeats the same code with other numbers (more combinations, steps, entries, sizes) takes
 * the fewest that still go through all of it. Everywhere else tests are whole. */
bool brief(void);

#endif
