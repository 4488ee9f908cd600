/* SHA-256 against the published examples of FIPS 180-4, and the hexadecimal form. */
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "ckpt/digest.h"

static const struct {
    const char *text, *hex;
} known[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
};

Test(digest, equals_the_published_examples)
{
    unsigned char got[DIGEST_SIZE];
    char hex[DIGEST_HEX];

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        digest_of(known[i].text, strlen(known[i].text), got);
        digest_hex(got, hex);
        cr_expect_str_eq(hex, known[i].hex);
    }
    digest_of(NULL, 0, got);
    digest_hex(got, hex);
    cr_expect_str_eq(hex, known[0].hex);
}

Test(digest, equals_the_published_million)
{
    struct digest *d = digest_new();
    unsigned char got[DIGEST_SIZE];
    char a[1000], hex[DIGEST_HEX];

    memset(a, 'a', sizeof a);
    digest_begin(d);
    for (int i = 0; i < 1000; i++)
        digest_update(d, a, sizeof a);
    digest_end(d, got);
    digest_hex(got, hex);
    cr_expect_str_eq(
        hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    digest_free(d);
}

Test(digest, does_not_depend_on_how_bytes_are_fed_and_starts_again)
{
    struct digest *d = digest_new();
    unsigned char whole[DIGEST_SIZE], parts[DIGEST_SIZE];
    const char *text = known[2].text;

    digest_of(text, strlen(text), whole);
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        digest_begin(d);
        digest_update(d, text, cut);
        digest_update(d, text + cut, strlen(text) - cut);
        digest_end(d, parts);
        cr_expect_eq(memcmp(whole, parts, sizeof whole), 0);
    }
    digest_begin(d);
    digest_update(d, "dropped", 7);
    digest_begin(d);
    digest_update(d, text, strlen(text));
    digest_end(d, parts);
    cr_expect_eq(memcmp(whole, parts, sizeof whole), 0);
    digest_free(d);
    digest_free(NULL);
}

Test(digest, reads_its_own_hexadecimal_form_only)
{
    unsigned char in[DIGEST_SIZE], out[DIGEST_SIZE] = {0};
    char hex[DIGEST_HEX + 1];

    for (int i = 0; i < DIGEST_SIZE; i++)
        in[i] = (unsigned char)(i * 9 + 1);
    digest_hex(in, hex);
    cr_assert(digest_from_hex(hex, out));
    cr_expect_eq(memcmp(in, out, sizeof in), 0);
    hex[64] = '0';
    hex[65] = '\0';
    cr_expect(!digest_from_hex(hex, out), "65 digits");
    hex[63] = '\0';
    cr_expect(!digest_from_hex(hex, out), "63 digits");
    cr_expect(!digest_from_hex("", out));
    digest_hex(in, hex);
    hex[10] = 'A';
    cr_expect(!digest_from_hex(hex, out), "upper case");
    hex[10] = 'g';
    cr_expect(!digest_from_hex(hex, out));
    cr_expect_eq(memcmp(in, out, sizeof in), 0, "a refused text changed the result");
}
