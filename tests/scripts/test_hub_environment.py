#!/usr/bin/env python3
"""What a user's machine says about a hub is honoured: the cache of the hub's own client (read in place,
never written), HF_HUB_OFFLINE, revisions, proxies, certificates; and HTTPS alone beyond loopback."""
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hub"))
import cases  # noqa: E402
from cases import QUICK, TOKEN, Hub, expect, same, sent, tree  # noqa: E402
from proxy import Proxy  # noqa: E402


def state(folder):
    """Names, kinds, sizes, times and content of all below a folder."""
    out = {}
    for f in sorted(folder.rglob("*")):
        s = f.lstat()
        out[str(f.relative_to(folder))] = (s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns,
                                           os.readlink(f) if f.is_symlink() else None)
    return out, tree(folder)


# ---- the cache ----------------------------------------------------------------------------------

def test_a_cached_model_is_read_in_place(p):
    """From the CDN nothing is fetched; in the cache nothing is touched, not even a lock."""
    room = p.new()
    p.cache(room / "hf")
    before = state(room / "hf")
    with Hub(p.model) as hub:
        p.equal(room, p.fetch(hub, room))
        hub.idle()
        same(sent(hub.log), {}, "data that were fetched in spite of the cache")
    same(state(room / "hf"), before, "the cache")


def test_only_what_the_cache_lacks_is_fetched(p):
    room = p.new()
    snapshot = p.cache(room / "hf")
    lacks = sorted(f.name for f in snapshot.glob("*.safetensors"))[1:3]
    for name in lacks:
        (snapshot / name).resolve().unlink()
        (snapshot / name).unlink()
    before = state(room / "hf")
    with Hub(p.model) as hub:
        p.equal(room, p.fetch(hub, room))
        hub.idle()
        same(sorted(sent(hub.log)), lacks, "files that were fetched")
    same(state(room / "hf"), before, "the cache")


def test_a_cut_file_in_the_cache_is_not_believed(p):
    room = p.new()
    snapshot = p.cache(room / "hf")
    name = sorted(f.name for f in snapshot.glob("*.safetensors"))[1]
    os.truncate((snapshot / name).resolve(), 1000000)
    before = state(room / "hf")
    with Hub(p.model) as hub:
        p.equal(room, p.fetch(hub, room))
        hub.idle()
        same(list(sent(hub.log)), [name], "files that were fetched")
    same(state(room / "hf"), before, "the cache")


def test_a_wrong_byte_in_a_cached_side_file_is_not_believed(p):
    room = p.new()
    snapshot = p.cache(room / "hf")
    blob = (snapshot / "tokenizer.json").resolve()
    data = bytearray(blob.read_bytes())
    data[100] ^= 1
    blob.write_bytes(data)
    with Hub(p.model) as hub:
        p.equal(room, p.fetch(hub, room))


def test_other_places_of_the_cache(p):
    room = p.new()
    p.cache(room / "there")
    with Hub(p.model) as hub:
        for env in ({"HF_HUB_CACHE": room / "there/hub"},
                    {"HUGGINGFACE_HUB_CACHE": room / "there/hub"},
                    {"HF_HOME": room / "there"},
                    {"HF_HOME": "", "XDG_CACHE_HOME": room / "xdg"},
                    {"HF_HOME": "~/there", "HOME": room},
                    {"HF_HOME": "", "HOME": room / "home"}):
            if "XDG_CACHE_HOME" in env:
                shutil.copytree(room / "there", room / "xdg/huggingface", symlinks=True)
            if env.get("HOME") == room / "home":
                shutil.copytree(room / "there", room / "home/.cache/huggingface", symlinks=True)
            hub.log.clear()
            r = p.fetch(hub, room, "--replace", env=env)
            p.equal(room, r)
            hub.idle()
            same(sent(hub.log), {}, f"fetched with {sorted(env)}")


def test_offline_asks_nobody(p):
    room = p.new()
    p.cache(room / "hf")
    before = state(room / "hf")
    with Hub(p.model) as hub:
        for env in ({"HF_HUB_OFFLINE": "1"}, {"HF_HUB_OFFLINE": "yes"}, {"HF_HUB_OFFLINE": "On"},
                    {"TRANSFORMERS_OFFLINE": "TRUE"}):
            p.equal(room, p.fetch(hub, room, "--replace", env=env))
        p.equal(room, p.fetch(hub, room, "--replace", env={"HF_HUB_OFFLINE": "1"},
                              spec=f"hf://test/model@{p.revision.commit}"))
        empty = p.new()
        for spec in ("hf://test/model", "hf://test/other", "hf://test/model@v9"):
            r = p.fetch(hub, empty, "--quiet", env={"HF_HUB_OFFLINE": "1"}, spec=spec)
            p.refused(empty, r, "HF_HUB_OFFLINE", status=3)
        same(hub.log, [], "requests")
        p.equal(empty, p.fetch(hub, empty, env={"HF_HUB_OFFLINE": "0"}))
    same(state(room / "hf"), before, "the cache")


# ---- names --------------------------------------------------------------------------------------

def test_revisions(p):
    with Hub(p.model) as hub:
        for revision in ("main", "v1.0", "refs/pr/1", p.revision.commit):
            room = p.new()
            p.equal(room, p.fetch(hub, room, spec=f"hf://test/model@{revision}"))
            hub.idle()
            for x in hub.log:  # once a commit is known nobody asks for a branch
                expect(x["kind"] == "info" or x["kind"] == "cdn"
                       or f"/{p.revision.commit}" in x["path"], f"{x['path']} for {revision}")
        room = p.new()
        p.refused(room, p.fetch(hub, room, "--quiet", spec="hf://test/model@v9"), "v9", status=3)
        p.refused(room, p.fetch(hub, room, "--quiet", spec="hf://test/none"), "test/none",
                  status=3)


def test_names_that_are_none(p):
    room = p.new()
    with Hub(p.model) as hub:
        for spec in ("hf://", "hf://x", "hf://x/", "hf:///x", "hf://a/b/c", "hf://../x", "hf://a/..",
                     "hf://a/b@", "hf://a/b@../../x", "hf://a/b@x\ny", "hf://a b/c", "hf://a/b?x",
                     "hf://a/b#x", "hf://a%2Fb/c", "hf://user:password@host/x", "hf://-a/b",
                     "hf://a/" + "b" * 300):
            p.refused(room, p.fetch(hub, room, "--quiet", spec=spec), status=2)
        same(hub.log, [], "requests")


# ---- proxies ------------------------------------------------------------------------------------

def test_a_proxy_is_used_unless_excepted(p):
    with Hub(p.model) as hub, Proxy() as proxy:
        room = p.new()
        p.equal(room, p.fetch(hub, room, env={"http_proxy": proxy.url}))
        hub.idle()
        same(len(proxy.seen), len(hub.log), "requests by the proxy")
        proxy.seen.clear()
        room = p.new()
        p.equal(room, p.fetch(hub, room, env={"http_proxy": proxy.url,
                                              "no_proxy": "127.0.0.1,127.0.0.2"}))
        same(proxy.seen, [], "what the proxy saw")
        room = p.new()
        with_user = proxy.url.replace("://", "://name:secret@")
        r = p.fetch(hub, room, env={"ALL_PROXY": with_user})
        p.equal(room, r)
        expect(proxy.seen and all(x[2] for x in proxy.seen), "no Proxy-Authorization")
        expect("secret" not in r.out + r.err, f"the proxy's password is printed: {r}")
    room = p.new()
    with Hub(p.model) as hub:
        r = p.fetch(hub, room, "--quiet", *QUICK, env={
            "http_proxy": "http://name:secret@127.0.0.1:1"})
        p.refused(room, r, status=4)
        expect("secret" not in r.err, f"the proxy's password is printed: {r}")


# ---- HTTPS --------------------------------------------------------------------------------------

def certificate(room, names):
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=test", "-addext", f"subjectAltName={names}", "-keyout", str(room / "key.pem"),
         "-out", str(room / "cert.pem")], capture_output=True)
    expect(made.returncode == 0, made.stderr.decode())
    return str(room / "cert.pem"), str(room / "key.pem")


def test_certificates(p):
    if not shutil.which("openssl"):
        return "the command openssl is not installed"
    room = p.new()
    good = certificate(room, "IP:127.0.0.1,IP:127.0.0.2,IP:127.0.0.3")
    with Hub(p.model, tls=good, token=TOKEN) as hub, Proxy() as proxy:
        env = {"HF_TOKEN": TOKEN}
        r = p.fetch(hub, room, "--quiet", env=env)
        p.refused(room, r, "certificate", status=4)
        same(hub.log, [], "requests before the certificate was trusted")
        for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
            r = p.fetch(hub, room, "--replace", env={**env, name: good[0]})
            p.equal(room, r)
        hub.idle()
        expect(not any(x["auth"] for x in hub.log if x["server"] != "hub"), "token to the CDN")
        hub.log.clear()
        r = p.fetch(hub, room, "--replace",
                    env={**env, "SSL_CERT_FILE": good[0], "https_proxy": proxy.url})
        p.equal(room, r)
        expect(proxy.seen and all(x[0] == "CONNECT" and not x[3] for x in proxy.seen),
               f"by the proxy: {proxy.seen[:3]}")
        r = p.fetch(hub, p.new(), "--quiet", env={**env, "SSL_CERT_FILE": str(room / "none")})
        expect(r.status == 4 and "none" in r.err, str(r))
        for where in ("http://127.0.0.2:1/x", "http://127.0.0.1:1/x", "http://192.0.2.1/x"):
            hub.behave({"rules": [{"on": "resolve", "do": "redirect", "to": where}]})
            other = p.new()
            r = p.fetch(hub, other, "--quiet", *QUICK, env={**env, "SSL_CERT_FILE": good[0]})
            p.refused(other, r, "only https is", status=4)
    room = p.new()
    other = certificate(room, "DNS:hub.example.org")
    with Hub(p.model, tls=other) as hub:
        r = p.fetch(hub, room, "--quiet", *QUICK, env={"SSL_CERT_FILE": other[0]})
        p.refused(room, r, status=4)
        same(hub.log, [], "requests to a host with another's certificate")
    return None


def test_what_a_proxy_says_is_not_the_hubs_word(p):
    """The answer to CONNECT is not protected by anything: no redirect, no refusal and no repository
    is taken from it."""
    if not shutil.which("openssl"):
        return "the command openssl is not installed"
    room = p.new()
    good = certificate(room, "IP:127.0.0.1,IP:127.0.0.2,IP:127.0.0.3")
    with Hub(p.model, tls=good) as hub, Hub(p.model, tls=good) as evil:
        for head in (f"302 Found\r\nLocation: {evil.url}/api/models/test/model/revision/main",
                     "404 Not Found\r\nX-Error-Code: RepoNotFound",
                     "407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=x"):
            refusal = f"HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n".encode()
            with Proxy(refusal) as proxy:
                other = p.new()
                r = p.fetch(hub, other, "--quiet", "--retries", "1", env={
                    "SSL_CERT_FILE": good[0], "https_proxy": proxy.url,
                    "no_proxy": evil.url.split("//")[1]})
                p.refused(other, r, head[:3], status=4)
                expect("HF_TOKEN" not in r.err and "hub does" not in r.err, str(r))
        same(evil.log, [], "requests where the proxy pointed")
        same(hub.log, [], "requests to the hub")
    return None


def test_plain_http_is_for_loopback(p):
    room = p.new()
    with Hub(p.model) as hub:
        for url in ("http://192.0.2.1", "http://example.org", "http://127.0.0.1.example.org",
                    "http://127.1@example.org", "ftp://127.0.0.1", "file:///etc", "127.0.0.1:1",
                    "http://[::2]", "http://0x7f000001.example.org", "https://user:pw@127.0.0.1",
                    "https://127.0.0.1/?q", "http://2130706434.nip.example"):
            r = p.fetch(hub, room, "--quiet", *QUICK, env={"HF_ENDPOINT": url})
            p.refused(room, r, "HF_ENDPOINT", status=2)
        same(hub.log, [], "requests")
        port = hub.url.rpartition(":")[2]
        for url in (f"http://127.0.0.1:{port}/", f"http://localhost:{port}"):
            hub.url = url.rstrip("/")
            p.equal(room, p.fetch(hub, room, "--replace", env={"HF_ENDPOINT": url}))


def test_limits_of_a_shell_are_told(p):
    """A file that may not grow, too few open files: a sentence, and the same command goes on after."""
    with Hub(p.model) as hub:
        for limit, word in (("-f 500", "File too large"), ("-n 20", "ulimit")):
            for keep in ((), ("--keep", "kept")):
                room = p.new()
                options = [room / o if o == "kept" else o for o in ("--quiet", *keep)]
                front = ("bash", "-c", f'ulimit {limit}; exec "$@"', "x")
                p.refused(room, p.fetch(hub, room, *options, front=front), word, status=4)
                p.equal(room, p.fetch(hub, room, *options))


def test_files_are_kept_in_a_folder_and_not_through_a_link(p):
    with Hub(p.model) as hub:
        room = p.new()
        (room / "file").write_text("mine")
        r = p.fetch(hub, room, "--quiet", "--keep", room / "file")
        p.refused(room, r, f"{room / 'file'}: is not a folder", status=2)
        same((room / "file").read_text(), "mine", "the file")
        name = next(n for n, e in p.revision.entries.items() if e.large)
        (room / "kept").mkdir()
        (room / "kept" / name).symlink_to(room / "elsewhere")
        r = p.fetch(hub, room, "--quiet", "--keep", room / "kept")
        p.refused(room, r, name, "symbolic link", status=2)
        expect(not (room / "elsewhere").exists(), "written through a link")


TESTS = [(n, f) for n, f in list(globals().items()) if n.startswith("test_")]

if __name__ == "__main__":
    sys.exit(cases.main(TESTS))
