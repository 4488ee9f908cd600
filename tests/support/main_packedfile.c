/* packedfile FILE: writes the file of packedfile.h, for scripts that read it with other programs.
 * The plugin must be found (HDF5_PLUGIN_PATH). */
#include <stdio.h>

#include "tests/support/packedfile.h"

int main(int argc, char **argv)
{
    if (argc != 2 || packedfile_write(argv[1]) != 0) {
        fprintf(stderr, "packedfile: cannot write\n");
        return 1;
    }
    return 0;
}
