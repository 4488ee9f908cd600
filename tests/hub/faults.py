"""What can go wrong with one reply: do_NAME(hub, handler, reply, arguments of the rule).

A function changes the reply that would have been right (server.py, class Reply). Several may act on
one reply. Addresses in arguments may say {hub}, {cdn}, {other}, {near}, {repo}, {commit} and {path}, the last
being the path and query that were asked for."""
import gzip
import json
import urllib.parse


def fill(hub, h, text):
    return (text.replace("{hub}", hub.url).replace("{cdn}", hub.cdn).replace("{other}", hub.other)
            .replace("{near}", hub.near).replace("{repo}", hub.repo).replace("{commit}", hub.commit).replace("{path}", h.path))


def replace(reply, status, body=b"", kind="text/plain", keep=()):
    """Another reply altogether, apart from the headers named in keep."""
    reply.status, reply.body, reply.start, reply.count = status, body, 0, len(body)
    reply.headers = [(k, v) for k, v in reply.headers if k.lower() in keep]
    reply.headers.append(("Content-Type", kind))


# ---- statuses -----------------------------------------------------------------------------------

def do_status(hub, h, reply, status, headers=None, body="", kind="text/plain"):
    replace(reply, status, body.encode(), kind)
    for k, v in (headers or {}).items():
        reply.set(k, fill(hub, h, v))


def do_html(hub, h, reply, status=200):
    """An error page, as proxies, captive portals and mirrors give it."""
    replace(reply, status, b"<!DOCTYPE html>\n<html><head><title>Just a moment...</title></head>"
            b"<body>Sign in to the network to continue.</body></html>\n", "text/html")


def do_redirect(hub, h, reply, to, status=302, unless=None, keep=(
        "x-repo-commit", "x-linked-etag", "x-linked-size", "etag")):
    """unless: a host that the request may already have been sent to."""
    if unless and h.headers["Host"].startswith(unless):
        return
    replace(reply, status, b"moved", keep=keep)
    reply.set("Location", fill(hub, h, to))


def do_reflect(hub, h, reply, status):
    """What the client sent to prove who it is comes back in everything that may be shown."""
    said = h.headers["Authorization"] or "nothing"
    token = said.removeprefix("Bearer ")
    replace(reply, status, said.encode())
    for name in ("X-Error-Message", "X-Error-Code", "X-Request-Id", "ETag", "Retry-After"):
        reply.set(name, said)
    if 300 <= status < 400:
        reply.set("Location", f"http://192.0.2.1/{token}/x?{token}")


def do_hops(hub, h, reply, count, status=302):
    """The same address again with a counter, count times; then the reply as it is."""
    url = urllib.parse.urlsplit(h.path)
    query = dict(urllib.parse.parse_qsl(url.query))
    at = int(query.get("hop", 0))
    if at >= count:
        return
    query["hop"] = at + 1
    replace(reply, status, b"further")
    reply.set("Location", f"{url.path}?{urllib.parse.urlencode(query)}")


# ---- headers ------------------------------------------------------------------------------------

def do_headers(hub, h, reply, set):
    """Sets headers; null removes one."""
    for k, v in set.items():
        reply.set(k, None if v is None else fill(hub, h, str(v)))


def do_twice(hub, h, reply, name, value):
    """One header more of a name that is there."""
    reply.headers.append((name, value))


def do_big_headers(hub, h, reply, count=200, size=8000):
    reply.headers += [(f"X-Filler-{i}", "x" * size) for i in range(count)]


def do_length(hub, h, reply, plus=None, value=None, none=False):
    """Content-Length: other than the truth, or absent (the end of the connection ends the body)."""
    reply.length = False if none else value if value is not None else reply.count + plus
    if plus is not None and plus < 0:
        reply.count += plus  # what the announced length leaves room for


def do_chunked(hub, h, reply):
    reply.chunked = h.command != "HEAD"
    reply.length = False


def do_interim(hub, h, reply):
    reply.interim = True


def do_close(hub, h, reply):
    reply.close = True


# ---- bodies -------------------------------------------------------------------------------------

def do_drop(hub, h, reply, after=0, reset=False):
    reply.drop, reply.reset = after, reset


def do_stall(hub, h, reply, after=0, seconds=3600):
    """Nothing more after so many bytes of the body, while the connection stays."""
    reply.stall = (after, seconds)


def do_silence(hub, h, reply, seconds=3600):
    """Not even a status line."""
    h.request.settimeout(seconds)
    try:
        h.request.recv(1)
    except OSError:
        pass
    raise ConnectionAbortedError


def do_wait(hub, h, reply, seconds):
    reply.wait = seconds


def do_trickle(hub, h, reply, bytes=1, pause=0.1):
    reply.pace = (bytes, pause)


def do_ignore_range(hub, h, reply):
    if reply.status in (206, 416):
        reply.status, reply.start, reply.count = 200, 0, reply.body.size
        reply.set("Content-Range", None)


def do_shift_range(hub, h, reply, by, say=True):
    """206 with other bytes than asked for; say: Content-Range tells it."""
    if reply.status != 206:
        return
    size = reply.body.size
    reply.start = max(0, min(reply.start + by, size - reply.count))
    if say:
        reply.set("Content-Range",
                  f"bytes {reply.start}-{reply.start + reply.count - 1}/{size}")


def do_short_range(hub, h, reply, keep):
    """206 with fewer bytes than asked for, correctly described."""
    if reply.status == 206 and reply.count > keep:
        reply.count = keep
        reply.set("Content-Range",
                  f"bytes {reply.start}-{reply.start + keep - 1}/{reply.body.size}")


def do_flip(hub, h, reply, at):
    """One byte of the file is sent wrong; at: its offset, from the end if negative."""
    if isinstance(reply.body, bytes) or reply.status not in (200, 206):
        return
    reply.flips.append(at if at >= 0 else reply.body.size + at)


def do_gzip(hub, h, reply, lie=False):
    """A compressed body that nobody asked for; lie: only the header says so."""
    if isinstance(reply.body, bytes) or reply.status not in (200, 206):
        data = reply.body if isinstance(reply.body, bytes) else b""
    else:
        with open(reply.body.real, "rb") as f:
            f.seek(reply.start)
            data = f.read(reply.count)
    reply.set("Content-Encoding", "gzip")
    if lie or not data:
        return
    reply.body, reply.start = gzip.compress(data, 1, mtime=0), 0
    reply.count = len(reply.body)


def do_cut(hub, h, reply, keep):
    """A body that is shorter, and correctly described as such."""
    if isinstance(reply.body, bytes) or reply.status in (200, 206):
        reply.count = min(reply.count, keep)


def do_body(hub, h, reply, text=None, hexed=None, repeat=1, kind=None):
    """Another body with the same headers."""
    data = (bytes.fromhex(hexed) if hexed else text.encode()) * repeat
    reply.body, reply.start, reply.count = data, 0, len(data)
    if kind:
        reply.set("Content-Type", kind)


def do_extra(hub, h, reply, bytes=1000):
    """More than was announced."""
    reply.extra = b"\0" * bytes


def do_raw(hub, h, reply, text):
    """Not HTTP."""
    reply.raw = text.encode("latin-1")


# ---- the tree -----------------------------------------------------------------------------------

def lines_of(reply):
    return json.loads(reply.body)


def put_lines(reply, lines):
    reply.body, reply.start = json.dumps(lines).encode(), 0
    reply.count = len(reply.body)


def do_tree_add(hub, h, reply, entries):
    if reply.status == 200 and not reply.get("Link"):
        put_lines(reply, lines_of(reply) + entries)


def do_tree_change(hub, h, reply, path, set):
    """Members of one entry; null removes one."""
    if reply.status != 200:
        return
    lines = lines_of(reply)
    for line in lines:
        if line["path"] == path:
            line.update(set)
            for key in [k for k, v in set.items() if v is None]:
                del line[key]
    put_lines(reply, lines)


def do_tree_drop(hub, h, reply, path):
    if reply.status == 200:
        put_lines(reply, [x for x in lines_of(reply) if x["path"] != path])


def do_tree_next(hub, h, reply, to="{hub}{path}"):
    """A next page, also where there is none: by default this one again, for ever."""
    reply.set("Link", f'<{fill(hub, h, to)}>; rel="next"')
