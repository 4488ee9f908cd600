/* What the files of the toy generator share. */
#ifndef TESTS_SUPPORT_TOY_PRIVATE_H
#define TESTS_SUPPORT_TOY_PRIVATE_H

int toy_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* returns -1 */
char *toy_read_text(const char *path); /* malloc'd; NULL and toy_fail on failure */

#endif
