/* The modes of glm-data. Each parses its options, works, reports, and returns the exit status. */
#ifndef CLI_DATA_MODES_H
#define CLI_DATA_MODES_H

int data_build(int argc, char **argv);
int data_info(int argc, char **argv);
int data_show(int argc, char **argv);
int data_check(int argc, char **argv);

#endif
