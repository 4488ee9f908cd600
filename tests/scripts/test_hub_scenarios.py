#!/usr/bin/env python3
"""Imports through the test hub under every named scenario (tests/hub/scenarios.py).

What can be survived ends with a checkpoint that equals the local import byte for byte. What cannot
ends with one sentence and status 3 or 4, leaves no output, and the same command against the healthy
hub goes on to that same checkpoint.

    test_hub_scenarios.py [SCENARIO...]"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hub"))
import cases  # noqa: E402
import scenarios  # noqa: E402
from cases import QUICK, Failure, Hub, expect  # noqa: E402


def survives(name):
    def test(p):
        room = p.new()
        with Hub(p.model, scenario=name) as hub:
            spec = f"hf://{scenarios.NAMED[name]['set'].get('renamed') or 'test/model'}"
            r = p.fetch(hub, room, "--quiet", "--stall-limit", "2", spec=spec)
            if spec == "hf://test/model":
                p.equal(room, r)
            else:  # the checkpoint names what was asked for: provenance differs, content does not
                expect(r.status == 0, str(r))
                cases.works("glm-verify", "diff", room / "ckpt", p.top / "local")
            hub.idle()
            faults = sum(bool(x["faults"]) for x in hub.log)
            expect(faults or not scenarios.NAMED[name]["rules"], "the scenario never acted")
    return test


def ends(name):
    scenario = scenarios.NAMED[name]

    def test(p):
        room = p.new()
        with Hub(p.model, scenario=name) as hub:
            r = p.fetch(hub, room, "--quiet", *QUICK)
            p.refused(room, r, *scenario["says"], status=scenario["status"])
            hub.idle()
            expect(any(x["faults"] for x in hub.log) or scenario["set"], "it never acted")
            hub.behave()
            again = p.fetch(hub, room, "--quiet", *QUICK, *scenario["again"])
            try:
                p.equal(room, again)
            except Failure as e:
                raise Failure(f"after '{r.err.strip()}' the rerun: {e}")
    return test


TESTS = [(n, (survives if s["survives"] else ends)(n)) for n, s in scenarios.NAMED.items()]

if __name__ == "__main__":
    sys.exit(cases.main(TESTS))
