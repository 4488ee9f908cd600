#include "kernels/cuda/cudnn.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* ---- cuDNN's ABI (cudnn_graph.h of cuDNN 9) ---------------------------------------------------- */

typedef void *handle_t;
typedef void *desc_t;

/* cudnnBackendDescriptorType_t */
enum {
    D_POINTWISE = 0,
    D_ENGINE = 2,
    D_ENGINECFG = 3,
    D_ENGINEHEUR = 4,
    D_PLAN = 5,
    D_OP_POINTWISE = 13,
    D_OPERATIONGRAPH = 15,
    D_VARIANT_PACK = 16,
    D_TENSOR = 17,
    D_MATMUL = 18,
    D_OP_MATMUL = 19,
    D_REDUCTION = 21,
    D_OP_REDUCTION = 22
};

/* cudnnBackendAttributeType_t */
enum {
    T_HANDLE = 0,
    T_DATA_TYPE = 1,
    T_BOOLEAN = 2,
    T_INT64 = 3,
    T_VOID_PTR = 6,
    T_HEUR_MODE = 8,
    T_NUMERICAL_NOTE = 11,
    T_POINTWISE_MODE = 14,
    T_DESCRIPTOR = 15,
    T_REDUCTION_OPERATOR = 18
};

/* cudnnBackendAttributeName_t */
enum {
    A_POINTWISE_MODE = 0,
    A_POINTWISE_MATH_PREC = 1,
    A_POINTWISE_AXIS = 9,
    A_HEUR_MODE = 200,
    A_HEUR_GRAPH = 201,
    A_HEUR_RESULTS = 202,
    A_ENGINECFG_ENGINE = 300,
    A_PLAN_HANDLE = 400,
    A_PLAN_ENGINECFG = 401,
    A_PLAN_WORKSPACE = 402,
    A_OP_POINTWISE_DESC = 750,
    A_OP_POINTWISE_X = 751,
    A_OP_POINTWISE_B = 752,
    A_OP_POINTWISE_Y = 753,
    A_OP_POINTWISE_T = 758,
    A_GRAPH_HANDLE = 800,
    A_GRAPH_OPS = 801,
    A_TENSOR_ALIGNMENT = 900,
    A_TENSOR_TYPE = 901,
    A_TENSOR_DIMS = 902,
    A_TENSOR_STRIDES = 903,
    A_TENSOR_ID = 906,
    A_TENSOR_VIRTUAL = 907,
    A_TENSOR_BY_VALUE = 908,
    A_PACK_IDS = 1000,
    A_PACK_POINTERS = 1001,
    A_PACK_WORKSPACE = 1003,
    A_ENGINE_NOTE = 1303,
    A_MATMUL_COMP = 1500,
    A_OP_MATMUL_A = 1520,
    A_OP_MATMUL_B = 1521,
    A_OP_MATMUL_C = 1522,
    A_OP_MATMUL_DESC = 1523,
    A_REDUCTION_OP = 1600,
    A_REDUCTION_COMP = 1601,
    A_OP_REDUCTION_X = 1610,
    A_OP_REDUCTION_Y = 1611,
    A_OP_REDUCTION_DESC = 1612
};

/* cudnnStatus_t: thousands are classes, 2 bad parameters and 3 what is not supported. */
enum {
    STATUS_OLD_DRIVER = 3005,
    STATUS_OLD_CUDART = 3006,
    STATUS_MISSING_PREREQUISITE = 3008,
    STATUS_MISSING_SUBLIBRARY = 3009,
    STATUS_INTERNAL = 4000, /* cudnnCreate's where the card has no memory (9.14, H200) */
    STATUS_NOT_COMPILED = 4001,
    STATUS_NO_HOST_MEMORY = 4003,
    STATUS_NO_DEVICE_MEMORY = 4004
};

enum { NOTE_NONDETERMINISTIC = 4, HEUR_FALLBACK = 2, HEUR_A = 3 };

struct cudnn {
    void *library;
    handle_t handle;
    size_t (*version)(void);
    int (*create)(handle_t *);
    int (*destroy)(handle_t);
    int (*set_stream)(handle_t, cudaStream_t);
    const char *(*words)(int);
    int (*make)(int, desc_t *);
    int (*unmake)(desc_t);
    int (*finalize)(desc_t);
    int (*set)(desc_t, int, int, int64_t, const void *);
    int (*get)(desc_t, int, int, int64_t, int64_t *, void *);
    int (*execute)(handle_t, desc_t, desc_t);
};

/* A status of cuDNN's, or -1 for a limit of this file, as a failure. */
static int failed(
    const struct cudnn *c, int status, const char *what, struct glm_error *err)
{
    return glm_fail(err,
        status == STATUS_INTERNAL || status == STATUS_NO_HOST_MEMORY
                || status == STATUS_NO_DEVICE_MEMORY
            ? GLM_ENOMEM
            : GLM_EDEVICE,
        "cuDNN %ld: %s: %s; GLM_CUDA_ATTENTION=wgmma does without it", cudnn_version(c),
        what, status < 0 ? "too many" : c->words(status));
}

/* ---- opening ---------------------------------------------------------------------------------- */

static bool find(struct cudnn *c, const char *name, void *to)
{
    void *const p = dlsym(c->library, name);

    memcpy(to, &p, sizeof p); /* a function's address, through POSIX's promise */
    return p != NULL;
}

static bool find_all(struct cudnn *c)
{
    return find(c, "cudnnGetVersion", &c->version) && find(c, "cudnnCreate", &c->create)
        && find(c, "cudnnDestroy", &c->destroy)
        && find(c, "cudnnSetStream", &c->set_stream)
        && find(c, "cudnnGetErrorString", &c->words)
        && find(c, "cudnnBackendCreateDescriptor", &c->make)
        && find(c, "cudnnBackendDestroyDescriptor", &c->unmake)
        && find(c, "cudnnBackendFinalize", &c->finalize)
        && find(c, "cudnnBackendSetAttribute", &c->set)
        && find(c, "cudnnBackendGetAttribute", &c->get)
        && find(c, "cudnnBackendExecute", &c->execute);
}

struct cudnn *cudnn_new(long oldest, struct glm_error *err)
{
    struct cudnn *const c = calloc(1, sizeof *c);

    if (c == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory for cuDNN");
        return NULL;
    }
    if ((c->library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL)) == NULL) {
        glm_fail(err, GLM_EUSAGE, "no libcudnn.so.9");
        goto out;
    }
    if (!find_all(c)) {
        glm_fail(err, GLM_EUSAGE, "libcudnn.so.9 lacks a function of cuDNN 9");
        goto out;
    }
    if (cudnn_version(c) < oldest) {
        glm_fail(err, GLM_EUSAGE, "cuDNN %ld: expected %ld or newer", cudnn_version(c),
            oldest);
        goto out;
    }
    const int status = c->create(&c->handle);
    if (status == 0)
        return c;
    failed(c, status, "cudnnCreate", err);
out:
    cudnn_free(c);
    return NULL;
}

/* The library stays: others in the process may use it. */
void cudnn_free(struct cudnn *c)
{
    if (c == NULL)
        return;
    if (c->handle != NULL)
        c->destroy(c->handle);
    free(c);
}

long cudnn_version(const struct cudnn *c)
{
    return (long)c->version();
}

/* ---- graphs ----------------------------------------------------------------------------------- */

enum { MADE = 160, TENSORS = 64, OPS_MOST = 40, CONFIGS = 16 };

struct cudnn_graph {
    const struct cudnn *c;
    desc_t made[MADE], tensor[TENSORS], op[OPS_MOST];
    int made_n, tensors, ops;
    int status; /* the first that was no success, nor an engine's refusal; -1: too many */
    const char *what;
};

struct cudnn_plan {
    struct cudnn_graph *g; /* what the plan stands on */
    desc_t plan;
    int64_t workspace;
};

struct cudnn_graph *cudnn_graph_new(const struct cudnn *c)
{
    struct cudnn_graph *const g = calloc(1, sizeof *g);

    if (g != NULL)
        g->c = c;
    return g;
}

void cudnn_graph_free(struct cudnn_graph *g)
{
    if (g == NULL)
        return;
    while (g->made_n > 0)
        g->c->unmake(g->made[--g->made_n]);
    free(g);
}

static void keep(struct cudnn_graph *g, int status, const char *what)
{
    if (g->status == 0 && status != 0) {
        g->status = status;
        g->what = what;
    }
}

/* A new descriptor, the graph's own. */
static desc_t make(struct cudnn_graph *g, int type, const char *what)
{
    desc_t d = NULL;

    if (g->status != 0)
        return NULL;
    if (g->made_n == MADE) {
        keep(g, -1, what);
        return NULL;
    }
    keep(g, g->c->make(type, &d), what);
    if (d != NULL)
        g->made[g->made_n++] = d;
    return d;
}

static void set(struct cudnn_graph *g, desc_t d, int name, int type, int64_t n,
    const void *value, const char *what)
{
    if (g->status == 0)
        keep(g, g->c->set(d, name, type, n, value), what);
}

static void set_desc(
    struct cudnn_graph *g, desc_t d, int name, desc_t value, const char *what)
{
    set(g, d, name, T_DESCRIPTOR, 1, &value, what);
}

static void finish(struct cudnn_graph *g, desc_t d, const char *what)
{
    if (g->status == 0)
        keep(g, g->c->finalize(d), what);
}

static void finish_op(struct cudnn_graph *g, desc_t op, const char *what)
{
    finish(g, op, what);
    if (g->ops == OPS_MOST)
        keep(g, -1, what);
    if (g->status == 0)
        g->op[g->ops++] = op;
}

int cudnn_tensor(struct cudnn_graph *g, enum cudnn_type type, enum cudnn_place place,
    const int64_t dims[4], const int64_t strides[4])
{
    static const char what[] = "a tensor";
    const int64_t id = g->tensors + 1, align = place == CUDNN_NUMBER ? 4 : 16;
    const bool between = place == CUDNN_BETWEEN, number = place == CUDNN_NUMBER;
    desc_t const d = make(g, D_TENSOR, what);
    const int of = (int)type;

    if (id >= TENSORS) {
        keep(g, -1, what);
        return 1;
    }
    set(g, d, A_TENSOR_TYPE, T_DATA_TYPE, 1, &of, what);
    set(g, d, A_TENSOR_DIMS, T_INT64, 4, dims, what);
    set(g, d, A_TENSOR_STRIDES, T_INT64, 4, strides, what);
    set(g, d, A_TENSOR_ID, T_INT64, 1, &id, what);
    set(g, d, A_TENSOR_ALIGNMENT, T_INT64, 1, &align, what);
    set(g, d, A_TENSOR_VIRTUAL, T_BOOLEAN, 1, &between, what);
    set(g, d, A_TENSOR_BY_VALUE, T_BOOLEAN, 1, &number, what);
    finish(g, d, what);
    g->tensor[id] = d;
    return g->tensors = (int)id;
}

void cudnn_matmul(struct cudnn_graph *g, int a, int b, int c)
{
    static const char what[] = "a product";
    static const int f32 = CUDNN_F32;
    desc_t const d = make(g, D_MATMUL, what);

    set(g, d, A_MATMUL_COMP, T_DATA_TYPE, 1, &f32, what);
    finish(g, d, what);
    desc_t const op = make(g, D_OP_MATMUL, what);
    set_desc(g, op, A_OP_MATMUL_A, g->tensor[a], what);
    set_desc(g, op, A_OP_MATMUL_B, g->tensor[b], what);
    set_desc(g, op, A_OP_MATMUL_C, g->tensor[c], what);
    set_desc(g, op, A_OP_MATMUL_DESC, d, what);
    finish_op(g, op, what);
}

void cudnn_pointwise(struct cudnn_graph *g, enum cudnn_pointwise mode, enum cudnn_type in,
    int axis, int x, int b, int t, int y)
{
    static const char what[] = "a pointwise operation";
    const int m = (int)mode, type = (int)in;
    const int64_t along = axis;
    desc_t const d = make(g, D_POINTWISE, what);

    set(g, d, A_POINTWISE_MODE, T_POINTWISE_MODE, 1, &m, what);
    set(g, d, A_POINTWISE_MATH_PREC, T_DATA_TYPE, 1, &type, what);
    if (mode == CUDNN_INDEX)
        set(g, d, A_POINTWISE_AXIS, T_INT64, 1, &along, what);
    finish(g, d, what);
    desc_t const op = make(g, D_OP_POINTWISE, what);
    set_desc(g, op, A_OP_POINTWISE_DESC, d, what);
    set_desc(g, op, A_OP_POINTWISE_X, g->tensor[x], what);
    if (b != 0)
        set_desc(g, op, A_OP_POINTWISE_B, g->tensor[b], what);
    if (t != 0)
        set_desc(g, op, A_OP_POINTWISE_T, g->tensor[t], what);
    set_desc(g, op, A_OP_POINTWISE_Y, g->tensor[y], what);
    finish_op(g, op, what);
}

void cudnn_reduce(struct cudnn_graph *g, enum cudnn_reduction of, int x, int y)
{
    static const char what[] = "a reduction";
    static const int f32 = CUDNN_F32;
    const int m = (int)of;
    desc_t const d = make(g, D_REDUCTION, what);

    set(g, d, A_REDUCTION_COMP, T_DATA_TYPE, 1, &f32, what);
    set(g, d, A_REDUCTION_OP, T_REDUCTION_OPERATOR, 1, &m, what);
    finish(g, d, what);
    desc_t const op = make(g, D_OP_REDUCTION, what);
    set_desc(g, op, A_OP_REDUCTION_DESC, d, what);
    set_desc(g, op, A_OP_REDUCTION_X, g->tensor[x], what);
    set_desc(g, op, A_OP_REDUCTION_Y, g->tensor[y], what);
    finish_op(g, op, what);
}

/* ---- plans ------------------------------------------------------------------------------------ */

static desc_t whole(struct cudnn_graph *g)
{
    desc_t const all = make(g, D_OPERATIONGRAPH, "the graph");

    set(g, all, A_GRAPH_OPS, T_DESCRIPTOR, g->ops, g->op, "the graph's operations");
    set(g, all, A_GRAPH_HANDLE, T_HANDLE, 1, &g->c->handle, "the graph's handle");
    finish(g, all, "the graph");
    return all;
}

/* Whether a status says that an engine does not take the graph: a function of the graph, the device
 * and cuDNN. What depends on the moment or on the process (memory, the driver, a library that is
 * missing) must not choose another engine, whose bits are its own. */
static bool declined(int status)
{
    switch (status) {
    case STATUS_OLD_DRIVER:
    case STATUS_OLD_CUDART:
    case STATUS_MISSING_PREREQUISITE:
    case STATUS_MISSING_SUBLIBRARY:
        return false;
    case STATUS_NOT_COMPILED: /* so engines refuse shapes that they claimed to take; only by
                               * these words a compiler without memory would, too */
        return true;
    default:
        return status / 1000 == 2 || status / 1000 == 3;
    }
}

/* Whether a step went well; the graph keeps what was no refusal. */
static bool went(struct cudnn_graph *g, int status, const char *what)
{
    if (status != 0 && !declined(status))
        keep(g, status, what);
    return status == 0;
}

/* Whether the configuration's engine sums in an order of its own. */
static bool repeats(struct cudnn_graph *g, desc_t config)
{
    static const char what[] = "an engine";
    desc_t engine = make(g, D_ENGINE, what);
    int notes[16];
    int64_t n = 0;

    if (g->status != 0
        || !went(
            g, g->c->get(config, A_ENGINECFG_ENGINE, T_DESCRIPTOR, 1, &n, &engine), what)
        || !went(
            g, g->c->get(engine, A_ENGINE_NOTE, T_NUMERICAL_NOTE, 16, &n, notes), what))
        return false;
    for (int64_t i = 0; i < n && i < 16; i++)
        if (notes[i] == NOTE_NONDETERMINISTIC)
            return false;
    return true;
}

/* The configuration as a plan, if the engine can do it on this device. */
static bool try_config(struct cudnn_plan *p, desc_t config)
{
    static const char what[] = "a plan";
    struct cudnn_graph *const g = p->g;
    const struct cudnn *const c = g->c;
    int64_t n = 0;

    if (!repeats(g, config))
        return false;
    desc_t const plan = make(g, D_PLAN, what);
    if (plan == NULL
        || !went(g, c->set(plan, A_PLAN_HANDLE, T_HANDLE, 1, &c->handle), what)
        || !went(g, c->set(plan, A_PLAN_ENGINECFG, T_DESCRIPTOR, 1, &config), what)
        || !went(g, c->finalize(plan), what)
        || !went(g, c->get(plan, A_PLAN_WORKSPACE, T_INT64, 1, &n, &p->workspace), what))
        return false;
    p->plan = plan;
    return true;
}

static bool try_mode(struct cudnn_plan *p, desc_t graph, int mode)
{
    static const char what[] = "heuristics";
    struct cudnn_graph *const g = p->g;
    desc_t config[CONFIGS];
    int64_t n = 0;
    desc_t const heur = make(g, D_ENGINEHEUR, what);

    set_desc(g, heur, A_HEUR_GRAPH, graph, "heuristics of the graph");
    set(g, heur, A_HEUR_MODE, T_HEUR_MODE, 1, &mode, "heuristics' mode");
    if (g->status != 0 || !went(g, g->c->finalize(heur), what))
        return false;
    for (int i = 0; i < CONFIGS; i++)
        config[i] = make(g, D_ENGINECFG, "a configuration");
    if (g->status != 0
        || !went(
            g, g->c->get(heur, A_HEUR_RESULTS, T_DESCRIPTOR, CONFIGS, &n, config), what))
        return false;
    for (int64_t i = 0; i < n && i < CONFIGS && g->status == 0; i++)
        if (try_config(p, config[i]))
            return true;
    return false;
}

struct cudnn_plan *cudnn_plan_new(struct cudnn_graph *g, struct glm_error *err)
{
    struct cudnn_plan *const p = calloc(1, sizeof *p);

    if (p == NULL || g == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory for a plan of cuDNN");
        cudnn_graph_free(g);
        free(p);
        return NULL;
    }
    p->g = g;
    desc_t const graph = whole(g);
    if (g->status == 0
        && (try_mode(p, graph, HEUR_A) || try_mode(p, graph, HEUR_FALLBACK)))
        return p;
    if (g->status != 0 && !declined(g->status))
        failed(g->c, g->status, g->what, err);
    cudnn_plan_free(p);
    return NULL;
}

void cudnn_plan_free(struct cudnn_plan *p)
{
    if (p == NULL)
        return;
    cudnn_graph_free(p->g);
    free(p);
}

size_t cudnn_workspace(const struct cudnn_plan *p)
{
    return (size_t)p->workspace;
}

int cudnn_run(const struct cudnn_plan *p, cudaStream_t stream, const int64_t ids[],
    const void *const pointers[], int n, void *workspace, struct glm_error *err)
{
    const struct cudnn *const c = p->g->c;
    desc_t pack = NULL;
    int status = c->set_stream(c->handle, stream);

    if (status == 0)
        status = c->make(D_VARIANT_PACK, &pack);
    if (status == 0)
        status = c->set(pack, A_PACK_IDS, T_INT64, n, ids);
    if (status == 0)
        status = c->set(pack, A_PACK_POINTERS, T_VOID_PTR, n, pointers);
    if (status == 0)
        status = c->set(pack, A_PACK_WORKSPACE, T_VOID_PTR, 1, &workspace);
    if (status == 0)
        status = c->finalize(pack);
    if (status == 0)
        status = c->execute(c->handle, p->plan, pack);
    if (pack != NULL)
        c->unmake(pack);
    if (status != 0)
        return failed(c, status, "a plan does not run", err);
    return (int)err->code;
}
