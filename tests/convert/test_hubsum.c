/* Digests with a state: published vectors, and every way to stop and go on. */
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "ckpt/ckpt.h"
#include "convert/hubsum.h"

static void hash(enum hubsum_kind kind, const void *data, size_t n, char hex[HUBSUM_HEX])
{
    struct hubsum s;
    hubsum_begin(&s, kind, n);
    hubsum_update(&s, data, n);
    hubsum_hex(&s, hex);
}

Test(hubsum, gives_the_published_digests)
{
    char hex[HUBSUM_HEX];
    hash(HUBSUM_SHA256, "abc", 3, hex);
    cr_assert_str_eq(
        hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hash(HUBSUM_GIT, "hello\n", 6, hex); /* git hash-object */
    cr_assert_str_eq(hex, "ce013625030ba8dba906f756967f9e9ca394464a");
    hash(HUBSUM_GIT, "", 0, hex);
    cr_assert_str_eq(hex, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    hash(HUBSUM_NONE, "x", 1, hex);
    cr_assert_str_eq(hex, "");
}

Test(hubsum, knows_a_digest_by_its_digits)
{
    cr_assert_eq(hubsum_kind_of("0123456789abcdef0123456789abcdef01234567"), HUBSUM_GIT);
    cr_assert_eq(hubsum_kind_of(
                     "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"),
        HUBSUM_SHA256);
    cr_assert_eq(hubsum_kind_of("0123456789ABCDEF0123456789abcdef01234567"), HUBSUM_NONE);
    cr_assert_eq(hubsum_kind_of("0123456789abcdef0123456789abcdef0123456"), HUBSUM_NONE);
    cr_assert_eq(hubsum_kind_of(""), HUBSUM_NONE);
}

/* At every length up to three blocks and a bit: the partial block is part of the state. */
Test(hubsum, goes_on_from_a_written_state_at_any_byte)
{
    unsigned char data[200];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37 + 11);
    for (int kind = HUBSUM_SHA256; kind <= HUBSUM_GIT; kind++) {
        char whole[HUBSUM_HEX], resumed[HUBSUM_HEX], text[HUBSUM_TEXT];
        hash((enum hubsum_kind)kind, data, sizeof data, whole);
        for (size_t cut = 0; cut <= sizeof data; cut++) {
            struct hubsum s, t;
            hubsum_begin(&s, (enum hubsum_kind)kind, sizeof data);
            hubsum_update(&s, data, cut);
            hubsum_save(&s, text);
            cr_assert(strlen(text) < HUBSUM_TEXT && strpbrk(text, "\t\n") == NULL);
            cr_assert(hubsum_load(&t, text), "%s", text);
            cr_assert_eq(t.at, cut);
            hubsum_update(&t, data + cut, sizeof data - cut);
            hubsum_hex(&t, resumed);
            cr_assert_str_eq(resumed, whole, "kind %d cut at %zu", kind, cut);
        }
    }
}

/* Beyond 512 MiB the count of bits needs its upper word. */
Test(hubsum, counts_beyond_32_bits)
{
    struct hubsum s, t;
    char a[HUBSUM_HEX], b[HUBSUM_HEX], text[HUBSUM_TEXT];
    const size_t block = 32 << 20;
    unsigned char *zeros = calloc(block, 1);
    hubsum_begin(&s, HUBSUM_SHA256, 0);
    for (int i = 0; i < 17; i++)
        hubsum_update(&s, zeros, block);
    hubsum_save(&s, text);
    cr_assert(hubsum_load(&t, text));
    hubsum_update(&s, "x", 1);
    hubsum_update(&t, "x", 1);
    hubsum_hex(&s, a);
    hubsum_hex(&t, b);
    cr_assert_str_eq(a, b);
    struct digest *d = digest_new(); /* the same by libcrypto's other interface */
    unsigned char raw[DIGEST_SIZE];
    char c[DIGEST_HEX];
    digest_begin(d);
    for (int i = 0; i < 17; i++)
        digest_update(d, zeros, block);
    digest_update(d, "x", 1);
    digest_end(d, raw);
    digest_hex(raw, c);
    cr_assert_str_eq(a, c);
    digest_free(d);
    free(zeros);
}

Test(hubsum, refuses_a_state_that_is_none)
{
    struct hubsum s;
    char good[HUBSUM_TEXT], bad[HUBSUM_TEXT + 8];
    hubsum_begin(&s, HUBSUM_SHA256, 0);
    hubsum_update(&s, "hello", 5);
    hubsum_save(&s, good);
    cr_assert(hubsum_load(&s, good));
    for (size_t i = 0; i < strlen(good); i++) { /* cut anywhere */
        memcpy(bad, good, i);
        bad[i] = '\0';
        cr_assert_not(hubsum_load(&s, bad), "%s", bad);
    }
    static const char *const none[] = {
        "", "reset", "verified", "0 0 0 -", "3 0 0 -", "1 5 40 zz", "1 -1 8 00-00"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        cr_assert_not(hubsum_load(&s, none[i]), "%s", none[i]);
    strcpy(bad, good);
    bad[strlen(bad) - 1] = 'g';
    cr_assert_not(hubsum_load(&s, bad));
    strcat(strcpy(bad, good), "00");
    cr_assert_not(hubsum_load(&s, bad));
}
