#include "cli/outcome.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <string.h>

static struct convert_report example(void)
{
    struct convert_report r = {.resumed = true,
        .hf_tensors = 296,
        .tensors = 121,
        .elements = 3436752,
        .converted = 70,
        .files = 5,
        .shards = 12,
        .read_bytes = 6873504,
        .written_bytes = 4000000,
        .skipped_bytes = 1000000,
        .seconds = 0.25,
        .topology = "tp2,pp2,ep4",
        .layout = "Et*2|t*6mL",
        .has_error = true,
        .error = {.count = 1000,
            .changed = 900,
            .non_finite = 1,
            .max_abs = 0.5,
            .max_rel = 0.0625,
            .signal = 100,
            .noise = 1}};
    memset(r.fingerprint, 0xAB, sizeof r.fingerprint);
    memset(r.id, 0x01, sizeof r.id);
    return r;
}

static void expect(const struct convert_report *r, bool json, const char *text)
{
    struct glm_error err = {0};
    cr_redirect_stdout();
    outcome_print(&(struct outcome){.command = "glm-convert",
                      .input = "a",
                      .output = "b",
                      .json = json,
                      .report = r},
        &err);
    cr_expect_eq(err.code, GLM_OK, "%s", err.text);
    fflush(stdout);
    cr_expect_stdout_eq_str(text);
}

#define AB8 "abababababababab"
#define ONE8 "0101010101010101"

Test(outcome, says_what_was_written_and_what_the_numbers_lost)
{
    const struct convert_report r = example();
    expect(&r, false,
        "written      b\n"
        "tensors      121 (296 in Hugging Face's count), 3436752 elements\n"
        "converted    70 tensors\n"
        "size         5.00 MB in 12 files\n"
        "topology     tp2,pp2,ep4 Et*2|t*6mL\n"
        "changed      900 of 1000 elements, 1 not finite\n"
        "error        at most 0.5 absolute, 0.0625 relative, SNR 20.00 dB\n"
        "fingerprint  " AB8 AB8 AB8 AB8 "\n");
}

Test(outcome, of_a_dry_run_claims_no_fingerprint)
{
    struct convert_report r = example();
    r.dry_run = true;
    r.has_error = false;
    r.converted = 0;
    r.skipped_bytes = 0;
    r.shards = 1;
    expect(&r, false,
        "would write  b\n"
        "tensors      121 (296 in Hugging Face's count), 3436752 elements\n"
        "size         4.00 MB in 1 file\n"
        "topology     tp2,pp2,ep4 Et*2|t*6mL\n"
        "estimate     0.2 s\n");
}

Test(outcome, of_a_converting_export_claims_no_fingerprint)
{
    struct convert_report r = example();
    memset(r.fingerprint, 0, sizeof r.fingerprint);
    r.has_error = false;
    r.topology[0] = '\0';
    expect(&r, false,
        "written      b\n"
        "tensors      121 (296 in Hugging Face's count), 3436752 elements\n"
        "converted    70 tensors\n"
        "size         5.00 MB in 12 files\n");
}

Test(outcome, as_json_has_the_same_keys_in_the_same_order)
{
    const struct convert_report r = example();
    expect(&r, true,
        "{\n  \"command\": \"glm-convert\",\n  \"input\": \"a\",\n  \"output\": \"b\",\n"
        "  \"dry_run\": false,\n  \"resumed\": true,\n  \"hf_tensors\": 296,\n  "
        "\"tensors\": 121,\n"
        "  \"elements\": 3436752,\n  \"converted\": 70,\n  \"input_files\": 5,\n"
        "  \"output_files\": 12,\n  \"read_bytes\": 6873504,\n  \"written_bytes\": "
        "4000000,\n"
        "  \"skipped_bytes\": 1000000,\n  \"seconds\": 0.25,\n"
        "  \"topology\": \"tp2,pp2,ep4\",\n  \"layout\": \"Et*2|t*6mL\",\n"
        "  \"fingerprint\": \"" AB8 AB8 AB8 AB8 "\",\n  \"id\": \"" ONE8 ONE8 ONE8 ONE8
        "\",\n"
        "  \"error\": {\n    \"elements\": 1000,\n    \"changed\": 900,\n    "
        "\"non_finite\": 1,\n"
        "    \"max_abs\": 0.5,\n    \"max_rel\": 0.0625,\n    \"snr_db\": 20.0\n  "
        "}\n}\n");
}

Test(outcome, as_json_has_null_for_what_there_is_not)
{
    const struct convert_report r = {.dry_run = true};
    expect(&r, true,
        "{\n  \"command\": \"glm-convert\",\n  \"input\": \"a\",\n  \"output\": \"b\",\n"
        "  \"dry_run\": true,\n  \"resumed\": false,\n  \"hf_tensors\": 0,\n  "
        "\"tensors\": 0,\n"
        "  \"elements\": 0,\n  \"converted\": 0,\n  \"input_files\": 0,\n  "
        "\"output_files\": 0,\n"
        "  \"read_bytes\": 0,\n  \"written_bytes\": 0,\n  \"skipped_bytes\": 0,\n"
        "  \"seconds\": 0.0,\n  \"topology\": null,\n  \"layout\": null,\n"
        "  \"fingerprint\": null,\n  \"id\": null,\n  \"error\": null\n}\n");
}
