/* glm-data: token datasets. */
#include "cli/data_modes.h"
#include "cli/modes.h"

int main(int argc, char **argv)
{
    static const struct modes self = {
        .command = "glm-data",
        .question = "what to do?",
        .summary = "Makes token datasets, and shows what is in them.",
        .mode = {{"build", "OUT SRC...", data_build}, {"info", "DATASET", data_info},
            {"show", "DATASET", data_show}, {"check", "DATASET", data_check}},
    };
    return modes_main(&self, argc, argv);
}
