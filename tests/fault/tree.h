/* Removing a folder and all in it, by system calls alone. */
#ifndef TESTS_FAULT_TREE_H
#define TESTS_FAULT_TREE_H

void tree_remove(
    int dir, const char *name); /* a file or a folder; no error if it is not there */

#endif
