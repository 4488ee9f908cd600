/* The modes of glm-verify: each a command of its own behind a common name. */
#ifndef CLI_VERIFY_MODES_H
#define CLI_VERIFY_MODES_H

/* All return the exit status. */
int verify_integrity(int argc, char **argv);
int verify_diff(int argc, char **argv);
int verify_resume(int argc, char **argv);
int verify_numerics(int argc, char **argv);

#endif
