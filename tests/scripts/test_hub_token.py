#!/usr/bin/env python3
"""The token of a hub goes to the endpoint alone and is nowhere to be read afterwards.

The test hub logs the Authorization of each request with the host that saw it; all that the command
prints, on a terminal too, and all that it leaves in its folders is searched for the token."""
import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hub"))
import cases  # noqa: E402
from cases import BIN, TOKEN, QUICK, Hub, expect, same  # noqa: E402

SECRET = TOKEN.removeprefix("hf_")


def only_the_endpoint(hub, seen=True):
    """No other host than the endpoint, by name and port, saw the token; that one did."""
    hub.idle()
    endpoint = urllib.parse.urlsplit(hub.url).netloc
    for x in hub.log:
        expect(x["auth"] is None or (x["server"], x["host"]) == ("hub", endpoint),
               f"the token went to {x['server']} as {x['host']}: {x['path'][:80]}")
        expect(not seen or x["auth"] is None or x["auth"] == f"Bearer {TOKEN}", "another token")
        rest = json.dumps({**x, "auth": "", "headers": {
            k: v for k, v in x["headers"].items() if k.lower() != "authorization"}})
        expect(SECRET not in rest, f"the token in another place of a request: {x}")
    expect(not seen or any(x["auth"] for x in hub.log), "the endpoint never saw the token")


def nowhere(room, *texts, but=()):
    """Not in what was printed, nor in any file or name below the room."""
    for text in texts:
        expect(SECRET not in text, f"the token is printed: {text[-500:]}")
    for f in room.rglob("*"):
        expect(SECRET not in str(f), f"the token in a name: {f}")
        if f.is_file() and f not in but:
            expect(SECRET.encode() not in f.read_bytes(), f"the token in {f}")


def import_with(p, room, hub, *options, **env):
    return p.fetch(hub, room, *options, env={"HF_TOKEN": TOKEN, **env})


def to(where, **more):
    return {"rules": [{"on": "resolve", "do": "redirect", "to": where, **more}]}


def test_goes_to_the_endpoint_and_not_to_the_cdn(p):
    room = p.new()
    with Hub(p.model, token=TOKEN) as hub:
        r = import_with(p, room, hub)
        p.equal(room, r)
        only_the_endpoint(hub)
        expect(any(x["server"] == "cdn" for x in hub.log), "the CDN was not used")
        nowhere(room, r.out, r.err)


def test_not_to_another_port_of_the_same_host(p):
    room = p.new()
    with Hub(p.model) as hub:
        hub.options["cdn_url"] = hub.near
        p.equal(room, import_with(p, room, hub))
        only_the_endpoint(hub)
        expect(any(x["server"] == "near" for x in hub.log), "the other port was not used")


def test_not_to_another_name_of_the_same_server(p):
    room = p.new()
    with Hub(p.model) as hub:
        port = urllib.parse.urlsplit(hub.url).port
        hub.behave(to(f"http://localhost:{port}{{path}}", unless="localhost"))
        p.equal(room, import_with(p, room, hub))
        only_the_endpoint(hub)
        expect(any(x["host"].startswith("localhost") for x in hub.log), "the name was not used")


def test_not_behind_an_address_that_pretends(p):
    """user@host, a host that begins like the endpoint's, a backslash."""
    for where in ("http://{hub}@{other}/x", "http://{hub}:x@{other}/x", "{hub}.example.org/x",
                  "{hub}\\@{other}/x", "//{other}/x"):
        room = p.new()
        with Hub(p.model) as hub:
            bare = {"hub": hub.url.removeprefix("http://"),
                    "other": hub.other.removeprefix("http://")}
            text = where
            for name, value in bare.items():
                text = text.replace(f"http://{{{name}}}", f"http://{value}")
                if not text.startswith(f"{{{name}}}"):
                    text = text.replace(f"{{{name}}}", value)
            hub.behave(to(text))
            r = import_with(p, room, hub, "--quiet", *QUICK)
            p.refused(room, r)
            only_the_endpoint(hub)
            nowhere(room, r.out, r.err)


def test_not_with_the_next_page_of_the_list(p):
    for where in ("{other}/api", "{near}/api", "http://127.0.0.1@127.0.0.3/api"):
        room = p.new()
        with Hub(p.model, scenario={"rules": [
                {"on": "tree", "do": "tree_next", "to": where}]}) as hub:
            p.refused(room, import_with(p, room, hub, "--quiet", *QUICK), status=3)
            only_the_endpoint(hub)
            same({x["server"] for x in hub.log}, {"hub"}, "who was asked for a list of files")


def test_back_at_the_endpoint_it_goes_along_again(p):
    """Endpoint, another host, endpoint: the middle sees nothing, the end lets a member in."""
    room = p.new()
    with Hub(p.model, token=TOKEN, scenario={"rules": [
            {"on": "resolve", "server": "hub", "file": "LICENSE", "times": 1, "do": "redirect",
             "to": "{other}{path}"},
            {"server": "other", "do": "redirect", "to": "{hub}{path}"}]}) as hub:
        p.equal(room, import_with(p, room, hub))
        only_the_endpoint(hub)
        expect(any(x["server"] == "other" for x in hub.log), "there was no detour")


def test_mirrors_links_to_their_origin_keep_it_at_the_endpoint(p):
    room = p.new()
    with Hub(p.model, scenario="mirror-links", page=3) as hub:
        p.equal(room, import_with(p, room, hub))
        only_the_endpoint(hub)


def test_what_a_server_reflects_is_not_shown(p):
    for on, status in (("info", 401), ("tree", 403), ("resolve", 403), ("cache", 404),
                       ("resolve", 302), ("info", 302), ("resolve", 500), ("resolve", 429),
                       ("tree", 400)):
        room = p.new()
        with Hub(p.model, scenario={"rules": [
                {"on": on, "do": "reflect", "status": status}]}) as hub:
            r = import_with(p, room, hub, "--retries", "1", "--stall-limit", "1")
            expect(r.status in (3, 4), str(r))
            only_the_endpoint(hub)
            nowhere(room, r.out, r.err)


def terminal(words, env):
    """Everything that a command shows to a terminal, and its status."""
    ours, theirs = pty.openpty()
    p = subprocess.Popen([str(BIN / words[0]), *map(str, words[1:])],
                         env={k: str(v) for k, v in env.items()}, stdin=theirs, stdout=theirs,
                         stderr=theirs, start_new_session=True)
    os.close(theirs)
    text = b""
    while True:
        if select.select([ours], [], [], 60)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                piece = b""
            text += piece
            if piece:
                continue
        os.close(ours)
        return p.wait(), text.decode(errors="replace")


def test_a_terminal_and_json_show_nothing_of_it(p):
    room = p.new()
    with Hub(p.model, scenario="drops", token=TOKEN) as hub:
        env = {**p.env(hub, room), "HF_TOKEN": TOKEN}
        status, text = terminal(["glm-import", "hf://test/model", room / "ckpt"], env)
        same(status, 0, f"status: {text[-500:]}")
        expect("tries again" in text, f"notes are expected on a terminal: {text[-500:]}")
        nowhere(room, text)
        r = p.fetch(hub, room, "--json", "--replace", env={"HF_TOKEN": TOKEN})
        expect(r.status == 0, str(r))
        nowhere(room, r.out, r.err)
        r = cases.ended(["glm-inspect", "--json", room / "ckpt"], env)
        nowhere(room, r.out, r.err)


def test_nor_does_what_a_killed_import_leaves(p):
    room = p.new()
    with Hub(p.model, token=TOKEN, rate=2_000_000) as hub:
        c = cases.start(["glm-import", "hf://test/model", room / "ckpt"],
                        {**p.env(hub, room), "HF_TOKEN": TOKEN})
        while hub.moved < 2_000_000 and c.poll() is None:
            time.sleep(0.01)
        cmdline = pathlib.Path(f"/proc/{c.pid}/cmdline").read_text()
        c.send_signal(signal.SIGKILL)
        out, err = c.communicate()
        expect((room / "ckpt.partial").exists(), "nothing was left to be searched")
        nowhere(room, out, err, cmdline)


def test_a_plain_answer_without_it_says_what_to_set(p):
    room = p.new()
    with Hub(p.model, token=TOKEN) as hub:
        p.refused(room, p.fetch(hub, room, "--quiet"), "HF_TOKEN", status=3)
        r = p.fetch(hub, room, "--quiet", env={"HF_TOKEN": "hf_another"})
        p.refused(room, r, "token", status=3)
        expect("hf_another" not in r.err, f"the token is printed: {r}")


def test_where_it_is_looked_for(p):
    """HF_TOKEN, then HF_TOKEN_PATH, then HF_HOME/token; HF_HUB_DISABLE_IMPLICIT_TOKEN stops it."""
    room = p.new()
    home, path = room / "hf", room / "elsewhere"
    home.mkdir()
    (home / "token").write_text("hf_home\n")
    path.write_text("  hf_path \n")
    with Hub(p.model) as hub:
        for env, wanted in (({}, "hf_home"), ({"HF_TOKEN_PATH": path}, "hf_path"),
                            ({"HF_TOKEN_PATH": path, "HF_TOKEN": "hf_env"}, "hf_env"),
                            ({"HF_TOKEN": ""}, "hf_home"),
                            ({"HF_TOKEN_PATH": room / "none"}, None),
                            ({"HF_TOKEN": "hf_env", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, None)):
            hub.log.clear()
            r = p.fetch(hub, room, "--dry-run", env=env)
            expect(r.status == 0, str(r))
            hub.idle()
            same({x["auth"] for x in hub.log if x["server"] == "hub"},
                 {wanted and f"Bearer {wanted}"}, f"with {sorted(env)}")
        for text in ("two words", "a\tb", "line\nline", "\x7f", "ümlaut"):
            r = p.fetch(hub, room, "--quiet", "--dry-run", env={"HF_TOKEN": text})
            expect(r.status == 2 and text not in r.err, f"'{text}': {r}")


TESTS = [(n, f) for n, f in list(globals().items()) if n.startswith("test_")]

if __name__ == "__main__":
    sys.exit(cases.main(TESTS))
