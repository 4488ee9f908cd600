/* glm-verify: proofs about checkpoints and runs. */
#include "cli/modes.h"
#include "cli/verify_modes.h"

int main(int argc, char **argv)
{
    static const struct modes self = {
        .command = "glm-verify",
        .question = "which proof?",
        .summary = "Proves that checkpoints are intact and equal, that runs repeat, and "
                   "that the model computes\nwhat others do.",
        .mode = {{"integrity", "CKPT", verify_integrity}, {"diff", "A B", verify_diff},
            {"resume", "RECIPE", verify_resume},
            {"numerics", "CKPT GOLDEN", verify_numerics}},
    };
    return modes_main(&self, argc, argv);
}
