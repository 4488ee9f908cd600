#!/usr/bin/env python3
"""The test hub speaks the hub's protocol and misbehaves as told: seen by a plain client, and by the
official one where huggingface_hub is installed.

Prints "ok NAME", "FAIL NAME: why" or "SKIP NAME: why", and a closing line with the counts."""
import hashlib
import http.client
import inspect
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/hub"))
import faults  # noqa: E402
import scenarios  # noqa: E402
from server import OPTIONS, Hub  # noqa: E402

BIG, SMALL = "weights/model-1.safetensors", "config.json"


def make(folder):
    """A folder with a large file, small ones and a sub-folder."""
    (folder / "weights").mkdir(parents=True)
    (folder / BIG).write_bytes(bytes(range(256)) * 4000)
    (folder / SMALL).write_text('{"model_type": "none"}')
    (folder / "README.md").write_text("# no model\n" * 20)
    return folder


def ask(url, path, method="GET", **headers):
    """(status, headers, body), nothing followed."""
    at = urllib.parse.urlsplit(url)
    c = http.client.HTTPConnection(at.hostname, at.port, timeout=10)
    try:
        c.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        r = c.getresponse()
        return r.status, r.headers, r.read()
    finally:
        c.close()


def follow(hub, path, **headers):
    status, found, body = ask(hub.url, path, **headers)
    while status in (301, 302, 307, 308):
        to = urllib.parse.urljoin(hub.url + path, found["Location"])
        at = urllib.parse.urlsplit(to)
        path = at._replace(scheme="", netloc="").geturl()
        status, found, body = ask(f"{at.scheme}://{at.netloc}", path, **headers)
    return status, found, body


def gone(hub, path, **headers):
    """Bytes that came before the connection was cut, or the client gave up."""
    _, found, _ = ask(hub.url, path, "HEAD")
    at = urllib.parse.urlsplit(found["Location"])
    c = http.client.HTTPConnection(at.hostname, at.port, timeout=0.5)
    c.request("GET", f"{at.path}?{at.query}", headers=headers)
    came = 0
    try:
        r = c.getresponse()
        while piece := r.read1(4096):
            came += len(piece)
        if r.length:
            return came, "short"
    except (OSError, http.client.HTTPException) as e:
        return came, type(e).__name__
    finally:
        c.close()
    return came, "whole"


RESOLVE = f"/test/model/resolve/main/{BIG}"


def test_information_tree_and_pages(folder, _):
    with Hub(folder, page=2) as hub:
        sha = json.loads(ask(hub.url, "/api/models/test/model")[2])["sha"]
        assert sha == hub.commit and len(sha) == 40
        assert json.loads(ask(hub.url, "/api/models/test/model/revision/refs%2Fpr%2F1")[2])["sha"]
        assert ask(hub.url, "/api/models/test/model/revision/none")[1]["X-Error-Code"] == \
            "RevisionNotFound"
        status, headers, body = ask(hub.url, f"/api/models/test/model/tree/{sha}?recursive=True")
        lines = json.loads(body)
        assert len(lines) == 2 and 'rel="next"' in headers["Link"]
        path = headers["Link"][1:].partition(">")[0].removeprefix(hub.url)
        lines += json.loads(ask(hub.url, path)[2])
        big = next(x for x in lines if x["path"] == BIG)
        assert big["lfs"]["oid"] == hashlib.sha256((folder / BIG).read_bytes()).hexdigest()
        small = (folder / SMALL).read_bytes()
        assert next(x for x in lines if x["path"] == SMALL)["oid"] == hashlib.sha1(
            b"blob %d\0" % len(small) + small).hexdigest()


def test_large_files_come_from_another_host_by_signed_links(folder, _):
    with Hub(folder, link_uses=2) as hub:
        status, headers, _ = ask(hub.url, RESOLVE, "HEAD")
        assert status == 302 and headers["X-Repo-Commit"] == hub.commit
        assert headers["X-Linked-Size"] == str((folder / BIG).stat().st_size)
        assert headers["Location"].startswith(hub.cdn + "/")
        assert urllib.parse.urlsplit(hub.cdn).hostname != urllib.parse.urlsplit(hub.url).hostname
        path = headers["Location"].removeprefix(hub.cdn)
        assert ask(hub.cdn, path)[2] == (folder / BIG).read_bytes()
        assert ask(hub.cdn, path, "HEAD")[0] == 200
        assert ask(hub.cdn, path)[0] == 403, "the link serves two requests"
        assert ask(hub.cdn, path.replace("Signature=", "Signature=0"))[0] == 403


def test_small_files_come_by_a_relative_redirect(folder, _):
    with Hub(folder) as hub:
        status, headers, _ = ask(hub.url, f"/test/model/resolve/main/{SMALL}", "HEAD")
        assert status == 307 and headers["Location"].startswith("/api/resolve-cache/")
        assert follow(hub, f"/test/model/resolve/main/{SMALL}")[2] == (folder / SMALL).read_bytes()


def test_ranges(folder, _):
    data = (folder / BIG).read_bytes()
    with Hub(folder) as hub:
        for text, part in (("bytes=0-9", data[:10]), ("bytes=1000-", data[1000:]),
                           ("bytes=-5", data[-5:]), (f"bytes=10-{len(data) + 9}", data[10:])):
            status, headers, body = follow(hub, RESOLVE, Range=text)
            assert status == 206 and body == part, text
            assert headers["Content-Range"].endswith(f"/{len(data)}")
        status, headers, body = follow(hub, RESOLVE, Range=f"bytes={len(data)}-")
        assert status == 416 and headers["Content-Range"] == f"bytes */{len(data)}"
        tag = '"' + hashlib.sha256(data).hexdigest() + '"'
        assert follow(hub, RESOLVE, Range="bytes=0-9", If_Range=tag)[0] == 206
        assert follow(hub, RESOLVE, Range="bytes=0-9", If_Range='"other"')[0] == 200


def test_the_log_counts_bytes_and_sees_tokens(folder, _):
    with tempfile.NamedTemporaryFile("r") as log, Hub(folder, log=log.name) as hub:
        follow(hub, RESOLVE, Range="bytes=10-19", Authorization="Bearer hf_x")
        assert hub.idle()
        with hub.lock:  # the last line is written under it
            lines = [json.loads(x) for x in log]
        # A line is written when its request is over: the hub's may come after the other's.
        assert sorted(x["server"] for x in lines) == ["cdn", "hub"]
        cdn = next(x for x in lines if x["server"] == "cdn")
        assert cdn["auth"] == "Bearer hf_x" and cdn["file"] == BIG
        assert (cdn["from"], cdn["sent"], cdn["status"]) == (10, 10, 206)


def test_private_and_gated_repositories(folder, _):
    with Hub(folder, token="hf_x") as hub:
        assert ask(hub.url, RESOLVE)[1]["X-Error-Code"] == "RepoNotFound"
        assert ask(hub.url, RESOLVE, Authorization="Bearer hf_x")[0] == 302
    with Hub(folder, token="hf_x", gated=True) as hub:
        assert ask(hub.url, RESOLVE)[0] == 401
        status, headers, _ = ask(hub.url, RESOLVE, Authorization="Bearer hf_y")
        assert status == 403 and headers["X-Error-Code"] == "GatedRepo"


def test_a_branch_moves_and_its_commits_stay(folder, top):
    other = make(top / "moved")
    (other / SMALL).write_text("{}")
    with Hub(folder, moves={"after": 1, "to": str(other)}) as hub:
        a, b = (json.loads(ask(hub.url, "/api/models/test/model")[2])["sha"] for _ in range(2))
        assert a == hub.commit and b != a
        assert follow(hub, f"/test/model/resolve/{b}/{SMALL}")[2] == b"{}"
        assert follow(hub, f"/test/model/resolve/{a}/{SMALL}")[2] == (folder / SMALL).read_bytes()


def test_cut_and_stalled_bodies(folder, _):
    def rule(**r):
        return {"rules": [{"on": "cdn", "method": "GET", **r}]}
    with Hub(folder, scenario=rule(do="drop", after=5000, times=1)) as hub:
        assert gone(hub, RESOLVE) == (5000, "short")
        assert gone(hub, RESOLVE) == (1024000, "whole"), "once only"
    with Hub(folder, scenario=rule(do="drop", after=5000, reset=True)) as hub:
        came, how = gone(hub, RESOLVE)
        assert came <= 5000 and how == "ConnectionResetError"
    with Hub(folder, scenario=rule(do="stall", after=70000)) as hub:
        assert gone(hub, RESOLVE) == (70000, "TimeoutError")
    with Hub(folder, scenario=rule(do="silence", times=1)) as hub:
        assert gone(hub, RESOLVE) == (0, "TimeoutError")


def test_lies_about_ranges_lengths_and_content(folder, _):
    data = (folder / BIG).read_bytes()

    def got(rule, **headers):
        with Hub(folder, scenario={"rules": [{"on": "cdn", **rule}]}) as hub:
            return follow(hub, RESOLVE, **headers)
    status, headers, body = got({"do": "ignore_range"}, Range="bytes=5-9")
    assert (status, body, headers["Content-Range"]) == (200, data, None)
    status, headers, body = got({"do": "shift_range", "by": 3}, Range="bytes=5-9")
    assert status == 206 and body == data[8:13] and "bytes 8-12/" in headers["Content-Range"]
    assert got({"do": "short_range", "keep": 2}, Range="bytes=5-9")[2] == data[5:7]
    status, headers, body = got({"do": "length", "none": True})
    assert headers["Content-Length"] is None and body == data
    assert got({"do": "chunked"})[2] == data
    assert got({"do": "length", "plus": -24})[2] == data[:-24]
    wrong = got({"do": "flip", "at": 70000})[2]
    assert [i for i in range(len(data)) if data[i] != wrong[i]] == [70000]
    assert got({"do": "flip", "at": -1}, Range="bytes=0-99")[2] == data[:100]
    headers, body = got({"do": "gzip"})[1:]
    assert headers["Content-Encoding"] == "gzip" and body[:2] == b"\x1f\x8b"
    assert got({"do": "html"})[1]["Content-Type"] == "text/html"


def test_rules_count_and_choose(folder, _):
    rule = {"on": ["resolve", "cdn"], "do": "status", "status": 503, "skip": 1, "times": 2,
            "each": True, "method": "HEAD"}
    with Hub(folder, scenario={"rules": [rule]}) as hub:
        assert [ask(hub.url, RESOLVE, "HEAD")[0] for _ in range(4)] == [302, 503, 503, 302]
        small = f"/test/model/resolve/main/{SMALL}"
        assert [ask(hub.url, small, "HEAD")[0] for _ in range(2)] == [307, 503], "for each file"
        assert ask(hub.url, RESOLVE)[0] == 302
        hub.behave()
        assert [ask(hub.url, RESOLVE, "HEAD")[0] for _ in range(3)] == [302] * 3


def test_every_named_scenario_is_made_of_known_faults(*_):
    for name, scenario in scenarios.NAMED.items():
        assert set(scenario["set"]) <= set(OPTIONS), name
        for rule in scenario["rules"]:
            fault = inspect.signature(getattr(faults, "do_" + rule["do"]))
            given = {k: v for k, v in rule.items()
                     if k not in ("on", "server", "file", "method", "range", "skip", "times", "each",
                                  "do")}
            fault.bind(None, None, None, **given)


OFFICIAL = """
import sys, huggingface_hub
print(huggingface_hub.snapshot_download("test/model", revision=sys.argv[1]))
"""


def test_the_official_client_downloads_from_it(folder, top):
    found = subprocess.run([sys.executable, "-c", "import huggingface_hub"], capture_output=True)
    if found.returncode:
        return "huggingface_hub is not installed"
    cut = {"rules": [{"on": "cdn", "method": "GET", "do": "drop", "after": 300000, "times": 1}]}
    for i, (scenario, revision) in enumerate((("paged", "refs/pr/1"), ("direct", "main"),
                                              (cut, "main"))):
        with Hub(folder, scenario=scenario, token="hf_secret") as hub:
            env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(top / f"hf{i}"),
                   "HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_XET": "1"}
            r = subprocess.run([sys.executable, "-c", OFFICIAL, revision], env=env, text=True,
                               capture_output=True, timeout=1800)
            assert r.returncode == 0, (scenario, r.stderr[-600:])
            for path in (BIG, SMALL, "README.md"):
                got = (pathlib.Path(r.stdout.strip()) / path).read_bytes()
                assert got == (folder / path).read_bytes(), (scenario, path)
            assert not any(x["auth"] for x in hub.log if x["server"] != "hub")
    return None


def main():
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory(prefix="glm-hub-") as top:
        top = pathlib.Path(top)
        folder = make(top / "model")
        for name, test in [(n, f) for n, f in globals().items() if n.startswith("test_")]:
            try:
                reason = test(folder, top)
                if reason:
                    skipped += 1
                    print(f"SKIP {name}: {reason}")
                else:
                    passed += 1
                    print(f"ok {name}")
            except Exception as e:  # a test that breaks has failed; the others go on
                failed += 1
                line = e.__traceback__
                while line.tb_next and line.tb_next.tb_frame.f_code.co_filename == __file__:
                    line = line.tb_next
                print(f"FAIL {name}: line {line.tb_lineno}: {type(e).__name__} {e}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
