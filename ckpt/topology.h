/* Axes of parallelism, pipeline stages, and who owns a tile. Pure (spec/format.md B, D, L). */
#ifndef CKPT_TOPOLOGY_H
#define CKPT_TOPOLOGY_H

#include "ckpt/table.h"

struct topology {
    int tp, pp, vpp, ep, etp; /* zero means 1 */
    char layout[256]; /* Megatron's pipeline layout string, or "" for the default */
};

/* One directory cell: (pp, tp) for all but routed experts, (pp, ep, etp) for routed experts. */
struct cell {
    bool expert;
    int pp, tp, ep, etp; /* tp unused (0) for experts; ep, etp 0 for the rest */
};

struct placement; /* a topology checked against a table */

/* Checks divisibility, the layout's grammar ("Et*18|t*20|t*20|t*20mL"), its layer count, that no
 * stage starts on a layer that shares its index set; without a layout computes the default one.
 * t must outlive the placement.
 * GLM_EUSAGE says what would be valid. *out is freed with placement_free. */
int placement_init(struct placement **out, const struct table *t,
    const struct topology *topo, struct glm_error *err);
void placement_free(struct placement *p);

/* Every axis >= 1 and the layout filled in, in its canonical form, which is read back the same. */
const struct topology *placement_topology(const struct placement *p);
int placement_stages(const struct placement *p); /* pp * vpp */
/* First layer of virtual stage s (0-based layer numbers). */
int placement_stage_start(const struct placement *p, int s);
int placement_pp(
    const struct placement *p, const struct table_entry *e); /* stage mod PP */
int placement_stage(const struct placement *p, const struct table_entry *e);

int placement_cells(const struct placement *p); /* pp*(tp + ep*etp) */
struct cell placement_cell(const struct placement *p, int index);
int placement_cell_index(const struct placement *p, const struct cell *c);
int cell_name(
    const struct cell *c, char *buf, size_t size); /* "p000-t000", "p000-e000-t000" */

/* The rectangle, in tiles of grid, that a cell stores of a tensor whose row is e: whole tiles whose
 * first element lies in the cell's compute slice. grid is that of the stored tensor (the row's own,
 * or its scale's, whose elements stand for block[0] x block[1] of the weight's; 1,1 otherwise).
 * Empty (false) if the cell stores nothing of it. Replicated tensors belong to rank 0. e NULL: a
 * tensor without a row (section train), whole in the first stage's rank 0. */
bool placement_tiles(const struct placement *p, const struct table_entry *e,
    const struct tile_grid *grid, const int64_t block[2], const struct cell *c,
    struct rect *tiles);
/* The compute slice itself, in elements of the row (what a rank loads). Replicated: all of it.
 * False if the cell has none. */
bool placement_slice(const struct placement *p, const struct table_entry *e,
    const struct cell *c, struct rect *elements);

/* "tp8,pp4,ep32" (also vpp, etp); GLM_EUSAGE names the word that is wrong. */
int topology_parse(struct topology *out, const char *word, struct glm_error *err);
int topology_print(
    const struct topology *t, char *buf, size_t size); /* without the layout */

#endif
