#!/usr/bin/env python3
"""A Hugging Face hub on loopback that serves one model folder, and lies on demand.

    server.py DIR [--repo ORG/NAME] [--scenario NAME|FILE] [--set KEY=JSON]... [--log FILE]
    server.py --list                     the named scenarios (scenarios.py)

Its first line on stdout is {"hub": URL, "cdn": URL, "other": URL}: HF_ENDPOINT is the first. The
three are different hosts (127.0.0.1, 127.0.0.2, 127.0.0.3), as a token must see them. In tests it
runs inside the test: `with Hub(folder, scenario="drops") as hub: ...hub.url... hub.log`.

What it speaks is the protocol of the real one: model and revision information, the tree by pages,
resolve with X-Repo-Commit, X-Linked-Etag and X-Linked-Size, signed links to a CDN for large files, a
relative redirect into a cache for small ones, ranges. test_hub_protocol.py lets the official client
download from it.

A scenario is {"set": {OPTION: value}, "rules": [RULE, ...]}. Options are in OPTIONS below. A rule says
on which requests what goes wrong:

    on     info, tree, resolve, cache, cdn or a list of them; absent: all
    file   a pattern for the file's path in the repository, such as *.safetensors
    method HEAD or GET;  server: hub, cdn, other, near;  range: true or false, only requests with
           or without a range
    skip   so many matching requests pass first (0);  times: so many are hit then (all)
    each   true: skip and times count per file
    do     the name of a function of faults.py; the other keys are its arguments

All rules that match a request act on its reply, in order. The log has a line for each request:
    t, server, host, method, path, file, range, headers, auth (the header's value or null), status,
    from (offset of the body in the file), length (of the body as announced), sent (bytes of it given
    to the socket), faults, connection"""
import argparse
import fnmatch
import hashlib
import http.server
import json
import os
import pathlib
import re
import secrets
import select
import socket
import ssl
import sys
import threading
import time
import urllib.parse

import faults
import scenarios

PIECE = 1 << 16

OPTIONS = {
    "cdn": True,          # large files: a redirect to the CDN; false: served by the hub itself
    "small": "cache",     # small files: "cache" a relative redirect, "direct" at once
    "page": 1000,         # entries of a page of the tree
    "token": None,        # what Authorization must say, else 401 as for a private repository
    "gated": False,       # with another token, or none: 403 GatedRepo
    "link_uses": None,    # a link to the CDN serves so many requests, then 403
    "link_seconds": None,
    "renamed": None,      # the name that this repository had before: 307 to the new one
    "renamed_status": 307,
    "etag": "strong",     # strong "x", weak W/"x", bare x
    "mirror": None,       # "late": metadata on the last hop only; "bare": no metadata at all
    "links": None,        # what absolute links to the hub itself begin with (a mirror's mistake)
    "cdn_url": None,      # the same for links to the CDN
    "xet": False,         # the headers that offer the Xet protocol too
    "rate": None,         # bytes per second of a body
    "send_buffer": None,  # bytes of the sockets' send buffers
    "moves": None,        # {"after": n, "to": DIR}: after n requests the branch is another commit
}


# ---- what is served -----------------------------------------------------------------------------

class Entry:
    def __init__(self, root, path):
        self.path = path
        self.real = root / path
        self.size = self.real.stat().st_size
        # What .gitattributes of a model repository sends to the large file storage.
        self.large = ".safetensors" in path and not path.endswith(".json")
        git = hashlib.sha1(b"blob %d\0" % self.size)
        sha = hashlib.sha256()
        with open(self.real, "rb") as f:
            while block := f.read(1 << 20):
                git.update(block)
                sha.update(block)
        self.git, self.sha256 = git.hexdigest(), sha.hexdigest()
        self.etag = self.sha256 if self.large else self.git

    def line(self, xet):
        """As the tree API describes a file; a large one's oid is that of its pointer file."""
        if not self.large:
            return {"type": "file", "oid": self.git, "size": self.size, "path": self.path}
        text = (f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\n"
                f"size {self.size}\n").encode()
        out = {"type": "file", "oid": hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest(),
               "size": self.size, "path": self.path,
               "lfs": {"oid": self.sha256, "size": self.size, "pointerSize": len(text)}}
        return {**out, "xetHash": self.sha256[::-1]} if xet else out


class Revision:
    """The files of a folder, under a commit id that follows from their content."""

    def __init__(self, folder):
        root = pathlib.Path(folder)
        names = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
        self.entries = {n: Entry(root, n) for n in names}
        self.commit = hashlib.sha1(repr(sorted(
            (e.path, e.sha256) for e in self.entries.values())).encode()).hexdigest()

    def tree(self, under, recursive, xet):
        prefix = under + "/" if under else ""
        files = [e for n, e in self.entries.items() if n.startswith(prefix)]
        folders = {n[:i] for n in (e.path for e in files)
                   for i, c in enumerate(n) if c == "/" and i > len(prefix)}
        lines = [{"type": "directory", "oid": hashlib.sha1(f.encode()).hexdigest(), "size": 0,
                  "path": f} for f in sorted(folders)]
        lines += [e.line(xet) for e in files]
        return [x for x in lines if recursive or "/" not in x["path"][len(prefix):]]


# ---- one reply ----------------------------------------------------------------------------------

class Reply:
    """What will be sent; faults.py changes it."""

    def __init__(self, status, body=b"", kind="text/plain; charset=utf-8", **headers):
        self.status = status
        self.headers = [(k.replace("_", "-"), v) for k, v in headers.items() if v is not None]
        self.headers.append(("Content-Type", kind))
        self.body = body           # bytes, or the Entry whose file is sent
        self.start = 0             # first byte of it
        self.count = len(body) if isinstance(body, bytes) else body.size
        self.length = True         # say Content-Length; an int: say this instead
        self.chunked = False
        self.drop = None           # so many bytes of the body, then the connection is cut
        self.reset = False         # by a reset, not in order
        self.stall = None          # (after so many bytes, seconds)
        self.wait = 0.0            # seconds before anything is said
        self.pace = None           # (bytes, seconds between)
        self.flips = []            # offsets in the file whose byte is sent wrong
        self.raw = None            # sent instead of all this
        self.interim = False       # 103 Early Hints first
        self.close = False
        self.extra = b""           # sent after the body

    def set(self, name, value):
        self.headers = [(k, v) for k, v in self.headers if k.lower() != name.lower()]
        if value is not None:
            self.headers.append((name, str(value)))

    def get(self, name):
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)

    def pieces(self):
        """(offset in the file, bytes) of the body."""
        if isinstance(self.body, bytes):
            for at in range(self.start, self.start + self.count, PIECE):
                yield at, self.body[at:min(at + PIECE, self.start + self.count)]
            return
        with open(self.body.real, "rb") as f:
            f.seek(self.start)
            left, at = self.count, self.start
            size = min(PIECE, self.pace[0]) if self.pace else PIECE
            while left:
                piece = f.read(min(size, left))
                if not piece:
                    return
                for flip in self.flips:
                    if at <= flip < at + len(piece):
                        piece = bytearray(piece)
                        piece[flip - at] ^= 0x10
                yield at, bytes(piece)
                at += len(piece)
                left -= len(piece)

    @property
    def plain(self):
        return (self.drop is None and self.stall is None and not self.pace and not self.flips
                and not self.chunked and not isinstance(self.body, bytes))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "testhub", ""
    timeout = 600

    def setup(self):
        super().setup()
        self.hub = self.server.hub
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.hub.options["send_buffer"]:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF,
                                    self.hub.options["send_buffer"])
        self.connection_id = self.hub.next_connection()

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.sent, self.reply, self.hit = 0, None, []
        began = time.time()
        self.hub.enter()
        try:
            kind, file, reply = self.hub.answer(self)
            self.reply = reply
            if reply.status in (200, 206) and kind in ("resolve", "cache", "cdn"):
                self.ranged(reply)
            self.hub.misbehave(self, kind, file, reply)
            self.send(reply)
        except OSError:
            self.close_connection = True
        finally:
            r = self.reply
            self.hub.write_log({
                "t": round(began, 4), "server": self.server.role, "host": self.headers["Host"],
                "method": self.command, "path": self.path, "kind": kind, "file": file,
                "range": self.headers["Range"], "headers": dict(self.headers.items()),
                "auth": self.headers["Authorization"], "status": r and r.status,
                "from": r and r.start, "length": r and r.count, "sent": self.sent,
                "faults": self.hit, "connection": self.connection_id,
                "seconds": round(time.time() - began, 4)})

    do_HEAD = do_GET

    def do_POST(self):
        self.close_connection = True
        self.reply = Reply(405, b"only what a download needs\n")
        self.sent = 0
        self.send(self.reply)

    do_PUT = do_DELETE = do_POST

    def ranged(self, reply):
        """206 or 416 if a range is asked for."""
        asked = self.headers["Range"]
        tag = self.headers["If-Range"]
        reply.set("Accept-Ranges", "bytes")
        if not asked or (tag and tag != reply.get("ETag")):
            return
        m = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.strip())
        if not m or not (m[1] or m[2]):
            return
        size = reply.count
        if m[1]:
            first, last = int(m[1]), min(int(m[2]) if m[2] else size - 1, size - 1)
        else:
            first, last = max(0, size - int(m[2])), size - 1
        if first >= size or last < first:
            reply.status, reply.count = 416, 0
            reply.set("Content-Range", f"bytes */{size}")
            return
        reply.status, reply.start, reply.count = 206, first, last - first + 1
        reply.set("Content-Range", f"bytes {first}-{last}/{size}")

    # ---- sending

    def send(self, reply):
        if reply.wait:
            self.hub.sleep(reply.wait)
        if reply.raw is not None:
            self.wfile.write(reply.raw)
            self.count(len(reply.raw))
            self.close_connection = True
            return
        if reply.interim:
            self.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")
        self.send_response(reply.status)
        for k, v in reply.headers:
            self.send_header(k, v)
        if reply.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif reply.length is True:
            self.send_header("Content-Length", str(reply.count))
        elif reply.length is not False:
            self.send_header("Content-Length", str(reply.length))
        cut = (reply.length is not True and not reply.chunked) or reply.close or reply.extra
        if cut:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        if reply.plain and not self.server.tls and not self.hub.options["rate"]:
            self.send_file(reply)
        else:
            self.send_pieces(reply)
        if reply.chunked and not self.close_connection:
            self.wfile.write(b"0\r\n\r\n")
        if reply.extra:
            self.wfile.write(reply.extra)

    def send_file(self, reply):
        self.wfile.flush()
        with open(reply.body.real, "rb") as f:
            at, left = reply.start, reply.count
            while left:
                try:
                    n = os.sendfile(self.request.fileno(), f.fileno(), at, min(left, 1 << 22))
                except BlockingIOError:  # a socket with a timeout does not block by itself
                    if not select.select([], [self.request], [], self.timeout)[1]:
                        break
                    continue
                if n == 0:
                    break
                at += n
                left -= n
                self.count(n)

    def send_pieces(self, reply):
        rate = self.hub.options["rate"]
        began = time.monotonic()
        for _, piece in reply.pieces():
            for limit, what in ((reply.drop, self.cut),
                                (reply.stall and reply.stall[0], self.hang)):
                if limit is not None and self.sent + len(piece) > limit:
                    self.put(piece[:limit - self.sent], reply)
                    what(reply)
                    return
            self.put(piece, reply)
            if reply.pace:
                self.hub.sleep(reply.pace[1])
            if rate:
                self.hub.sleep(self.sent / rate - (time.monotonic() - began))
        if reply.drop is not None and reply.drop >= self.sent:
            self.cut(reply)

    def put(self, piece, reply):
        if not piece:
            return
        if reply.chunked:
            self.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
        else:
            self.wfile.write(piece)
        self.count(len(piece))

    def count(self, n):
        self.sent += n
        self.hub.moved += n  # for whoever waits for a moment; the log has what counts

    def cut(self, reply):
        self.close_connection = True
        if reply.reset:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.request.close()
            raise ConnectionResetError

    def hang(self, reply):
        self.close_connection = True
        # Ends when the client gives up: nothing more comes from it on this connection.
        self.request.settimeout(min(reply.stall[1], 3600))
        try:
            self.request.recv(1)
        except OSError:
            pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    hub, role, tls = None, "", False

    def handle_error(self, *_):
        pass  # a client that went away, or that our certificate did not please


# ---- the hub ------------------------------------------------------------------------------------

class Hub:
    """Three servers of one repository. scenario: a name, a path or the object itself."""

    def __init__(self, folder, repo="test/model", scenario=None, log=None, tls=None, **options):
        plan = scenarios.load(scenario)
        for key in (*plan.get("set", {}), *options):
            if key not in OPTIONS:
                raise ValueError(f"no option is called {key}")
        self.options = {**OPTIONS, **plan.get("set", {}), **options}
        self.rules = [dict(r) for r in plan.get("rules", [])]
        self.repo = repo
        self.revisions = [Revision(folder)]
        if self.options["moves"]:
            self.revisions.append(Revision(self.options["moves"]["to"]))
        self.branches = {"main", "v1.0", "refs/pr/1", "feature/x y"}
        self.lock = threading.Lock()
        self.counts, self.links = {}, {}
        self.requests = self.connections = self.moved = self.active = 0
        self.log, self.log_file = [], open(log, "a") if log else None
        self.stopped = threading.Event()
        self.servers = []
        for role, host in (("hub", "127.0.0.1"), ("cdn", "127.0.0.2"), ("other", "127.0.0.3"),
                           ("near", "127.0.0.1")):
            s = Server((host, 0), Handler)
            s.hub, s.role, s.tls = self, role, bool(tls)
            if tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*tls)
                # The handshake belongs to the connection's thread, not to the listener's.
                s.socket = context.wrap_socket(s.socket, server_side=True,
                                               do_handshake_on_connect=False)
            self.servers.append(s)
        scheme = "https" if tls else "http"
        self.url, self.cdn, self.other, self.near = (
            f"{scheme}://{s.server_address[0]}:{s.server_address[1]}" for s in self.servers)

    def __enter__(self):
        for s in self.servers:
            threading.Thread(target=s.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        ends = [threading.Thread(target=s.shutdown) for s in self.servers]
        for t in ends:
            t.start()
        for t, s in zip(ends, self.servers):
            t.join()
            s.server_close()
        if self.log_file:
            self.log_file.close()

    @property
    def commit(self):
        return self.revisions[0].commit

    def sleep(self, seconds):
        if seconds > 0 and self.stopped.wait(seconds):
            raise ConnectionAbortedError

    def next_connection(self):
        with self.lock:
            self.connections += 1
            return self.connections

    def enter(self):
        with self.lock:
            self.active += 1

    def idle(self, seconds=10):
        """Waits until no request is in progress; then the log has them all."""
        end = time.monotonic() + seconds
        while self.active and time.monotonic() < end:
            time.sleep(0.002)
        return not self.active

    def write_log(self, line):
        with self.lock:
            self.active -= 1
            self.log.append(line)
            if self.log_file and not self.log_file.closed:
                self.log_file.write(json.dumps(line) + "\n")
                self.log_file.flush()

    def behave(self, scenario=None, **options):
        """From now on another scenario: what a rerun finds."""
        plan = scenarios.load(scenario)
        with self.lock:
            self.options = {**OPTIONS, **plan.get("set", {}), **options}
            self.rules = [dict(r) for r in plan.get("rules", [])]
            self.counts = {}

    # ---- what would be right

    def answer(self, h):
        """(kind, file, reply) of a request, before any rule acts."""
        with self.lock:
            self.requests += 1
        url = urllib.parse.urlsplit(h.path)
        path = urllib.parse.unquote(url.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if h.server.role != "hub" and path.startswith("/blobs/"):
            return self.from_cdn(path, query)
        old = self.options["renamed"]
        if old and (f"/{old}/" in path + "/"):
            where = h.path.replace(f"/{old}", f"/{self.repo}", 1)
            return self.kind_of(path), None, Reply(
                self.options["renamed_status"], b"moved\n", Location=where)
        refusal = self.refusal(h)
        m = re.fullmatch(rf"/api/models/{re.escape(self.repo)}(/revision/(.+))?", path)
        if m:
            return "info", None, refusal or self.info(m[2] or "main")
        m = re.fullmatch(rf"/api/models/{re.escape(self.repo)}/tree/(.+)", path)
        if m:
            return "tree", None, refusal or self.tree(h, *self.split(m[1]), query)
        m = re.fullmatch(rf"/{re.escape(self.repo)}/resolve/(.+)", path)
        if m:
            revision, file = self.split(m[1])
            return "resolve", file, refusal or self.resolve(h, revision, file)
        m = re.fullmatch(rf"/api/resolve-cache/models/{re.escape(self.repo)}/(\w+)/(.+)", path)
        if m:
            return "cache", m[2], refusal or self.from_hub(self.revision(m[1]), m[2])
        return self.kind_of(path), None, Reply(
            401, b"Invalid username or password.", X_Error_Code="RepoNotFound",
            X_Error_Message="Repository not found")

    @staticmethod
    def kind_of(path):
        for kind, part in (("tree", "/tree/"), ("cache", "/api/resolve-cache/"),
                           ("info", "/api/"), ("resolve", "/resolve/"), ("cdn", "/blobs/")):
            if part in path:
                return kind
        return "unknown"

    def refusal(self, h):
        token, auth = self.options["token"], h.headers["Authorization"]
        if not token or auth == f"Bearer {token}":
            return None
        if self.options["gated"]:
            return Reply(403 if auth else 401,
                         f"Access to model {self.repo} is restricted.".encode(),
                         X_Error_Code="GatedRepo",
                         X_Error_Message=f"Access to model {self.repo} is restricted.")
        return Reply(401, b"Invalid username or password.", X_Error_Code="RepoNotFound",
                     X_Error_Message="Repository not found")

    def split(self, rest):
        """A revision and a path: names of branches may have slashes, as refs/pr/1 does."""
        for name in sorted(self.branches, key=len, reverse=True):
            if rest == name or rest.startswith(name + "/"):
                return name, rest[len(name) + 1:]
        revision, _, path = rest.partition("/")
        return revision, path

    def revision(self, name):
        if name in self.branches:
            moves = self.options["moves"]
            return self.revisions[1 if moves and self.requests > moves["after"] else 0]
        return next((r for r in self.revisions if r.commit == name), None)

    @staticmethod
    def unknown(what):
        return Reply(404, f"{what} not found".encode(), X_Error_Code=f"{what}NotFound",
                     X_Error_Message=f"{what} not found")

    @staticmethod
    def limits(kind):
        return {"RateLimit": f'"{kind}";r=4999;t=200',
                "RateLimit_Policy": f'"fixed window";"{kind}";q=5000;w=300'}

    def info(self, name):
        r = self.revision(name)
        if not r:
            return self.unknown("Revision")
        body = {"_id": "0" * 24, "id": self.repo, "modelId": self.repo, "sha": r.commit,
                "private": bool(self.options["token"]), "gated": self.options["gated"],
                "disabled": False, "tags": ["safetensors"], "downloads": 0, "likes": 0,
                "lastModified": "2026-01-01T00:00:00.000Z",
                "createdAt": "2026-01-01T00:00:00.000Z",
                "siblings": [{"rfilename": n} for n in r.entries]}
        return Reply(200, json.dumps(body).encode(), "application/json; charset=utf-8",
                     **self.limits("api"))

    def tree(self, h, name, under, query):
        r = self.revision(name)
        if not r:
            return self.unknown("Revision")
        lines = r.tree(under.strip("/"), query.get("recursive", "").lower() in ("true", "1"),
                       self.options["xet"])
        if under and not lines:
            return self.unknown("Entry")
        at = int(query.get("cursor", "0") or 0)
        size = min(self.options["page"], int(query.get("limit", 1000)))
        reply = Reply(200, json.dumps(lines[at:at + size]).encode(),
                      "application/json; charset=utf-8", X_Repo_Commit=r.commit,
                      **self.limits("api"))
        if at + size < len(lines):
            where = urllib.parse.urlsplit(h.path).path
            more = urllib.parse.urlencode({**query, "cursor": at + size})
            reply.set("Link", f'<{self.options["links"] or self.url}{where}?{more}>; rel="next"')
        return reply

    def quoted(self, etag):
        return {"weak": f'W/"{etag}"', "bare": etag}.get(self.options["etag"], f'"{etag}"')

    def resolve(self, h, name, file):
        r = self.revision(name)
        if not r:
            return self.unknown("Revision")
        e = r.entries.get(file)
        if not e:
            return self.unknown("Entry")
        mirror = self.options["mirror"]
        meta = {} if mirror else {"X_Repo_Commit": r.commit}
        if e.large and self.options["cdn"]:
            if not mirror:
                meta.update(X_Linked_Etag=self.quoted(e.sha256), X_Linked_Size=e.size)
            if self.options["xet"]:
                meta.update(X_Xet_Hash=e.sha256[::-1], Link=(
                    f'<{self.url}/api/models/{self.repo}/xet-read-token/{r.commit}>; '
                    f'rel="xet-auth", <{self.other}/v1/reconstructions/{e.sha256[::-1]}>; '
                    'rel="xet-reconstruction-info"'))
            where = self.link(e)
            return Reply(302, f"Found. Redirecting to {where}".encode(), Location=where,
                         **meta, **self.limits("resolvers"))
        if not e.large and self.options["small"] == "cache":
            where = (f"/api/resolve-cache/models/{self.repo}/{r.commit}/"
                     + urllib.parse.quote(file))
            if not mirror:
                meta["ETag"] = self.quoted(e.etag)
                meta["X_Linked_Size"] = e.size
            if self.options["links"]:
                where = self.options["links"] + where
            return Reply(307, b"Temporary Redirect", Location=where, **meta,
                         **self.limits("resolvers"))
        return self.from_hub(r, file)

    def from_hub(self, r, file):
        e = r and r.entries.get(file)
        if not e:
            return self.unknown("Entry")
        bare = self.options["mirror"] == "bare"
        return Reply(200, e, "application/octet-stream" if e.large else "text/plain",
                     ETag=None if bare else self.quoted(e.etag),
                     X_Repo_Commit=None if bare else r.commit, **self.limits("resolvers"))

    # ---- the CDN

    def link(self, e):
        key = secrets.token_hex(8)
        with self.lock:
            self.links[key] = [e, 0, time.monotonic()]
        base = self.options["cdn_url"] or self.cdn
        return f"{base}/blobs/{e.sha256}?Expires=1790000000&Signature={key}&Key-Pair-Id=K1"

    def from_cdn(self, path, query):
        with self.lock:
            link = self.links.get(query.get("Signature"))
            if link:
                link[1] += 1
        e = link and link[0]
        denied = ('<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>'
                  'Request has expired</Message></Error>').encode()
        if not e or path != f"/blobs/{e.sha256}":
            return "cdn", e and e.path, Reply(403, denied, "application/xml")
        uses, seconds = self.options["link_uses"], self.options["link_seconds"]
        if ((uses is not None and link[1] > uses)
                or (seconds is not None and time.monotonic() - link[2] > seconds)):
            return "cdn", e.path, Reply(403, denied, "application/xml")
        bare = self.options["mirror"] == "bare"
        return "cdn", e.path, Reply(
            200, e, "application/octet-stream", ETag=None if bare else f'"{e.sha256}"',
            Content_Disposition=f'attachment; filename="{os.path.basename(e.path)}"')

    # ---- what goes wrong

    def misbehave(self, h, kind, file, reply):
        for i, rule in enumerate(self.rules):
            on = rule.get("on", kind)
            if kind != on and kind not in on:
                continue
            if "file" in rule and not fnmatch.fnmatchcase(file or "", rule["file"]):
                continue
            if (rule.get("method", h.command) != h.command
                    or rule.get("server", h.server.role) != h.server.role):
                continue
            if "range" in rule and rule["range"] != bool(h.headers["Range"]):
                continue
            key = (i, file if rule.get("each") else None)
            with self.lock:
                n = self.counts[key] = self.counts.get(key, 0) + 1
            first = rule.get("skip", 0)
            if not first < n <= first + rule.get("times", 1 << 60):
                continue
            args = {k: v for k, v in rule.items()
                    if k not in ("on", "file", "method", "server", "range", "skip", "times", "each",
                                 "do")}
            h.hit.append(rule["do"])
            getattr(faults, "do_" + rule["do"])(self, h, reply, **args)


def main():
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("dir", nargs="?")
    p.add_argument("--repo", default="test/model")
    p.add_argument("--scenario", help="a name of --list, or a file of JSON")
    p.add_argument("--set", action="append", default=[], metavar="KEY=JSON")
    p.add_argument("--log", help="a line of JSON for each request is added to this file")
    p.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"))
    p.add_argument("--list", action="store_true")
    o = p.parse_args()
    if o.list or not o.dir:
        for name, s in scenarios.NAMED.items():
            print(f"{name:26} {'' if s['survives'] else 'fatal: '}{s['what']}")
        return 0 if o.list else 2
    options = {}
    for pair in o.set:
        key, _, value = pair.partition("=")
        options[key] = json.loads(value)
    with Hub(o.dir, o.repo, o.scenario, o.log, o.tls, **options) as hub:
        print(json.dumps({"hub": hub.url, "cdn": hub.cdn, "other": hub.other,
                          "commit": hub.commit}), flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
