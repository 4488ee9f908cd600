/* Cases of products: every transposition, mixed types, tails, strides, groups that are empty or take
 * nearly all rows. Called with BF16 and F32 as the type of the first input. */
#include <stdint.h>

#include "tests/gpu/opcase.h"

static const struct {
    int64_t M, N, K, more; /* more: what rows are longer than they need be */
    bool big;
} shapes[] = {{0, 4, 4, 0, false}, {4, 0, 3, 0, false}, {3, 5, 0, 0, false},
    {1, 1, 1, 0, false}, {1, 64, 65, 0, false}, {7, 9, 33, 3, false},
    {64, 64, 64, 0, false}, {65, 72, 40, 8, false}, {130, 17, 129, 1, false},
    {128, 256, 512, 0, true}, {257, 384, 1000, 24, true}, {1000, 640, 2048, 0, true}};

static void one(struct suite *s, int i, int way, bool add, enum glm_dtype a,
    enum glm_dtype b, enum glm_dtype c_type)
{
    const bool ta = way & 1, tb = way & 2;
    const int64_t more = shapes[i].more;
    struct gemm p = {.M = shapes[i].M,
        .N = shapes[i].N,
        .K = shapes[i].K,
        .trans_a = ta,
        .trans_b = tb,
        .accumulate = add,
        .a_type = a,
        .b_type = b,
        .c_type = c_type};

    p.lda = (ta ? p.M : p.K) + more;
    p.ldb = (tb ? p.K : p.N) + more;
    p.ldc = p.N + more;
    struct opcase *c = case_new(s, OP_gemm, &p,
        "x %s -> %s, M %lld, N %lld, K %lld, %c%c%s%s", glm_dtype_name(b),
        glm_dtype_name(c_type), (long long)p.M, (long long)p.N, (long long)p.K,
        ta ? 'T' : 'N', tb ? 'T' : 'N', add ? ", added" : "", more ? ", long rows" : "");
    /* Random sums grow like sqrt(K): C as it was should matter. */
    case_run(s, c);
}

static void dense(struct suite *s, enum glm_dtype a)
{
    static const enum glm_dtype types[] = {GLM_BF16, GLM_F32};
    int n = 0;

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int way = 0; way < 4; way++)
            for (int add = 0; add < 2; add++)
                for (int b = 0; b < 2; b++)
                    for (int c = 0; c < 2; c++) {
                        /* Of small shapes all, of large ones some. */
                        const bool some = n++ % 3 == 0 || (a == GLM_BF16 && b == 0);
                        const bool few = a == GLM_BF16 && b == 0 ? c == add : n % 7 == 0;
                        if (shapes[i].big ? !s->small && few : some || i > 4)
                            one(s, (int)i, way, add, a, types[b], types[c]);
                    }
}

static const int32_t loads[][9] = {/* rows of each group, -1 behind the last */
    {0, -1}, {1, -1}, {0, 0, 0, -1}, {5, 0, 7, 1, -1}, {0, 0, 64, 0, -1},
    {63, 64, 65, 3, 0, 17, -1}, {1, 130, 0, 0, 2, 0, 0, 16, -1}, {257, 0, 100, 130, -1}};

static void group(struct suite *s, int load, enum group_kind kind, int64_t N, int64_t K,
    bool add, enum glm_dtype a, enum glm_dtype b, enum glm_dtype c_type)
{
    static const char *const names[] = {"NT", "NN", "TN"};
    int32_t offset[10] = {0};
    int64_t G = 0;

    for (; loads[load][G] >= 0; G++)
        offset[G + 1] = offset[G] + loads[load][G];
    const struct grouped_gemm p = {.G = G,
        .N = N,
        .K = K,
        .rows = (load + N) % 3 == 0 ? 0 : offset[G] + (load % 2 == 0 ? 0 : 5),
        .accumulate = add,
        .kind = kind,
        .a_type = a,
        .b_type = b,
        .c_type = c_type,
        .offset = (const int32_t *)(intptr_t)offset[G]}; /* see describe_grouped_gemm */
    struct opcase *c =
        case_new(s, OP_grouped_gemm, &p, "x %s -> %s, %s, loads %d, N %lld, K %lld%s%s",
            glm_dtype_name(b), glm_dtype_name(c_type), names[kind], load, (long long)N,
            (long long)K, add ? ", added" : "", p.rows == 0 ? ", rows unsaid" : "");
    if (c == NULL)
        return;
    case_copy(c, "offset", offset);
    case_run(s, c);
}

static void grouped(struct suite *s, enum glm_dtype a)
{
    static const struct {
        int64_t N, K;
        bool big;
    } sizes[] = {{1, 1, false}, {16, 24, false}, {65, 33, false}, {128, 64, false},
        {264, 72, false}, {96, 200, true}, {256, 512, true}, {640, 776, true}};

    for (size_t load = 0; load < sizeof loads / sizeof *loads; load++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            /* Large ones once or twice; several tile rows and columns meet in load 7. */
            const bool tall = load == 7, plain = a == GLM_F32;
            if (s->small ? sizes[i].big || (load == 6 && i == 3) || (i == 4) != tall
                         : (i >= 4) != (load == 5 || tall) || (i == 6 && !tall)
                        || (plain && i > 4) || (i < 4 && (load + i) % 2 == 1))
                continue;
            for (int kind = 0; kind < 3; kind++)
                for (int add = 0; add < 2; add++) {
                    const enum group_kind k = (enum group_kind)kind;
                    const int64_t N = sizes[i].N, K = sizes[i].K;
                    if (load < 5
                        && (i % 2 != load % 2
                            || add != (int)(load + i + (size_t)kind) % 2))
                        continue; /* of small loads some */
                    const bool all = load >= 5 && i >= 3;
                    if (all || a != GLM_BF16 || i % 2 == 0)
                        group(s, (int)load, k, N, K, add, a, a, GLM_F32);
                    if (a == GLM_BF16 && (all || i % 2 == 1))
                        group(s, (int)load, k, N, K, add, a, a, GLM_BF16);
                    if ((load + i) % 3 == 0) /* gradients in F32 meet weights in BF16 */
                        group(s, (int)load, k, N, K, add, a,
                            a == GLM_BF16 ? GLM_F32 : GLM_BF16, GLM_F32);
                }
        }
}

void cases_gemm(struct suite *s, enum glm_dtype dtype)
{
    dense(s, dtype);
    grouped(s, dtype);
}
