#!/usr/bin/env python3
"""What users of other tools reported, planted as inputs for our commands: a test per report.

    test_field_reports.py [ID...]       all, or those named: B-01 B-62

The tests are in tests/field/, the list of all reports with their tests in tests/FIELD_REPORTS.md.
Prints "ok ID", "FAIL ID: why" or "SKIP ID: why", and a closing line with the counts."""
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "field"))
import harness  # noqa: E402
import container  # noqa: E402, F401
import disk  # noqa: E402, F401
import files  # noqa: E402, F401
import hub  # noqa: E402, F401
import lost  # noqa: E402, F401
import scales  # noqa: E402, F401


def main(names):
    passed = failed = skipped = 0
    top = pathlib.Path(tempfile.mkdtemp(prefix="glm-field-"))
    harness.Place.shared = top
    unknown = [n for n in names if n not in harness.reports]
    if unknown:
        print(f"FAIL {unknown[0]}: there is no such test")
        return 1
    try:
        for name in names or sorted(harness.reports):
            place = harness.Place(top)
            try:
                harness.reports[name](place)
                print(f"ok {name}", flush=True)
                passed += 1
            except harness.Skip as why:
                print(f"SKIP {name}: {why}", flush=True)
                skipped += 1
            except Exception as why:  # a test that breaks has failed; the others go on
                kind = "" if isinstance(why, harness.Failure) else f"{type(why).__name__}: "
                print(f"FAIL {name}: {kind}{' '.join(str(why).split())}", flush=True)
                failed += 1
            shutil.rmtree(place.top, ignore_errors=True)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
