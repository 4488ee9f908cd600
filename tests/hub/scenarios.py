"""The named scenarios. A test that wants its own numbers passes the object instead of a name.

survives: an import under it ends well and equal to the import of the folder; else it ends with a
sentence, and `status` is its exit status: 3 where the hub's answer is wrong or the user asked for what
there is not, 4 where the transfer failed. `says`: words that the sentence must have; `again`: options that a rerun needs."""
import json
import pathlib

BODY = ["cdn", "cache"]
LARGE = {"on": "cdn", "method": "GET"}
SMALL = {"on": "cache", "method": "GET"}
META = {"on": ["resolve", "cache"], "method": "HEAD"}

NAMED = {}


def scenario(name, what, *rules, survives=True, status=4, says=(), again=(),
             **options):
    NAMED[name] = {"what": what, "rules": list(rules), "set": options, "survives": survives,
                   "status": status, "says": list(says), "again": list(again)}


def load(s):
    """A name, a path of a file of JSON, an object or nothing."""
    if s is None:
        return {}
    if isinstance(s, dict):
        return s
    if s in NAMED:
        return NAMED[s]
    return json.loads(pathlib.Path(s).read_text())


scenario("healthy", "as the real hub answers")

# ---- the protocol's own forms -------------------------------------------------------------------
scenario("paged", "three entries a page", page=3)
scenario("direct", "no CDN and no relative redirect: the hub sends every byte", cdn=False,
         small="direct")
scenario("weak-etag", "ETag as W/\"...\"", etag="weak")
scenario("bare-etag", "ETag without quotes", etag="bare")
scenario("renamed", "307 from the old name of the repository", renamed="test/old-name")
scenario("renamed-308", "308 from the old name", renamed="test/old-name", renamed_status=308)
scenario("renamed-301", "301 from the old name", renamed="test/old-name", renamed_status=301)
scenario("hops", "four relative redirects before each answer", {"do": "hops", "count": 4})
scenario("early-hints", "103 before each answer", {"do": "interim"})
scenario("xet", "the headers that offer the Xet protocol", xet=True)
scenario("no-keepalive", "each connection serves one request", {"do": "close"})
scenario("link-expires", "a link to the CDN serves three requests, then 403", link_uses=3)
scenario("link-expires-soon", "a link to the CDN lives for a quarter of a second",
         link_seconds=0.25)

# ---- mirrors ------------------------------------------------------------------------------------
scenario("mirror-late", "metadata only on the last hop", mirror="late")
scenario("mirror-no-length", "metadata on the last hop only, and no length anywhere",
         {"on": ["resolve", *BODY], "method": "GET", "do": "length", "none": True}, mirror="late")
scenario("mirror-bare", "no digest, no commit, no size in any header", mirror="bare")
scenario("mirror-links", "absolute links to the hub that is mirrored",
         links="https://huggingface.co")

# ---- transfers ----------------------------------------------------------------------------------
scenario("drops", "each large file's first three bodies end after 300,000 bytes",
         {**LARGE, "do": "drop", "after": 300000, "each": True, "times": 3})
scenario("resets", "the same by a reset", {**LARGE, "do": "drop", "after": 300000, "reset": True,
                                           "each": True, "times": 3})
scenario("drops-at-once", "the first two connections for each file end before a byte of the body",
         {"on": BODY, "method": "GET", "do": "drop", "after": 0, "each": True, "times": 2})
scenario("stalls", "each large file's first body stops for ever after 200,000 bytes",
         {**LARGE, "do": "stall", "after": 200000, "each": True, "times": 1})
scenario("silent", "the first request to the CDN gets no answer at all",
         {**LARGE, "do": "silence", "times": 1})
scenario("trickle", "small files come byte by byte, 20 ms apart",
         {"on": "cache", "method": "GET", "file": "generation_config.json", "do": "trickle",
          "bytes": 16, "pause": 0.02})
scenario("range-ignored", "every range is answered by 200 and the whole file",
         {"on": BODY, "do": "ignore_range"})
scenario("drops-and-range-ignored", "cut bodies, and no way to go on in the middle",
         {**LARGE, "do": "ignore_range"},
         {**LARGE, "do": "drop", "after": 300000, "each": True, "times": 1})
scenario("short-ranges", "ranges give at most 100,000 bytes",
         {"on": BODY, "do": "short_range", "keep": 100000})
scenario("no-length", "bodies without Content-Length", {"on": BODY, "method": "GET",
                                                        "do": "length", "none": True})
scenario("chunked", "bodies in chunks", {"on": BODY, "do": "chunked"})
scenario("length-too-long", "once per file Content-Length promises 1000 bytes more than come",
         {**LARGE, "do": "length", "plus": 1000, "each": True, "times": 1})
scenario("length-too-short", "once per file Content-Length is 1000 bytes short",
         {**LARGE, "do": "length", "plus": -1000, "each": True, "times": 1})
scenario("gzip-small", "small files come compressed, unasked",
         {"on": ["cache", "info", "tree"], "method": "GET", "do": "gzip"})
scenario("flips-once", "one byte of each large file is wrong the first time",
         {**LARGE, "do": "flip", "at": 250000, "each": True, "times": 1})

# ---- the server's own trouble -------------------------------------------------------------------
scenario("busy", "two 503 for each file", {"on": BODY, "do": "status", "status": 503,
                                           "each": True, "times": 2})
scenario("bursts", "500, 502 and 504 from everything, three times in all",
         {"do": "status", "status": 500, "times": 1}, {"do": "status", "status": 502, "times": 1},
         {"do": "status", "status": 504, "skip": 2, "times": 1})
scenario("request-timeout", "one 408 for each file",
         {"on": BODY, "do": "status", "status": 408, "each": True, "times": 1})
scenario("limited-retry-after", "429 with Retry-After: 1",
         {"on": ["resolve", "tree"], "do": "status", "status": 429, "headers": {"Retry-After": "1"},
          "times": 2})
scenario("limited-until-a-date", "429 with Retry-After as a date of a clock that is years ahead",
         {"on": "resolve", "do": "status", "status": 429, "times": 1, "headers": {
             "Date": "Sun, 01 Jan 2090 00:00:00 GMT",
             "Retry-After": "Sun, 01 Jan 2090 00:00:01 GMT"}})
scenario("limited-ratelimit", "429 with the RateLimit headers",
         {"on": "resolve", "do": "status", "status": 429, "times": 1, "headers": {
             "RateLimit": '"resolvers";r=0;t=1',
             "RateLimit-Policy": '"fixed window";"resolvers";q=5000;w=300'}})
scenario("limited-at-cdn", "429 without a word about when",
         {**LARGE, "do": "status", "status": 429, "times": 1})

# ---- not to be survived: the repository ---------------------------------------------------------
scenario("no-repository", "401 RepoNotFound", {"do": "status", "status": 401, "headers": {
    "X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}},
    survives=False, status=3)
scenario("no-revision", "404 RevisionNotFound", {"do": "status", "status": 404, "headers": {
    "X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}},
    survives=False, status=3)
scenario("gated", "403 GatedRepo without the token", survives=False, status=3, token="hf_secret",
         gated=True)
scenario("file-gone", "the tree names a file that resolve does not have",
         {"on": "resolve", "file": "*00002*", "do": "status", "status": 404, "headers": {
             "X-Error-Code": "EntryNotFound"}}, survives=False, status=3)

# ---- not to be survived: content ----------------------------------------------------------------
scenario("flips", "one byte of a large file is always wrong",
         {**LARGE, "file": "*00002*", "do": "flip", "at": 250000}, survives=False)
scenario("flips-small", "one byte of tokenizer.json is always wrong",
         {"on": ["cache", "resolve"], "file": "tokenizer.json", "do": "flip", "at": 5},
         survives=False)
scenario("wrong-etag", "the digest that the hub names is of another file",
         {"on": "resolve", "file": "*00002*", "do": "headers",
          "set": {"X-Linked-Etag": '"' + "0" * 64 + '"'}},
         {"on": "tree", "do": "tree_change", "path": "model-00002-of-00004.safetensors",
          "set": {"lfs": {"oid": "0" * 64, "size": 0, "pointerSize": 130}}}, survives=False,
         again=["--restart"])  # a list with another digest is another source
scenario("etag-contradicts", "the digest in the headers is not that of the list",
         {"on": "resolve", "file": "*00002*", "do": "headers",
          "set": {"X-Linked-Etag": '"' + "0" * 64 + '"'}}, survives=False, says=["contradicts"])
scenario("wrong-size", "tree and headers give a size that the file does not have",
         {"on": "resolve", "file": "*00002*", "do": "headers", "set": {"X-Linked-Size": "12345"}},
         {"on": "tree", "do": "tree_change", "path": "model-00002-of-00004.safetensors",
          "set": {"size": 12345}}, survives=False)
scenario("html", "a page of HTML with 200 in the place of a large file",
         {**LARGE, "do": "html"}, survives=False)
scenario("html-tree", "a page of HTML with 200 in the place of the tree",
         {"on": ["info", "tree"], "do": "html"}, survives=False, status=3)
scenario("gzip-large", "large files come compressed, unasked, always",
         {**LARGE, "do": "gzip"}, survives=False)
scenario("gzip-lie", "Content-Encoding: gzip on bytes that are not",
         {**LARGE, "do": "gzip", "lie": True}, survives=False)
scenario("cut-files", "each large file is half of itself, honestly described",
         {**LARGE, "do": "cut", "keep": 200000}, survives=False)
scenario("range-shifted", "a range gives other bytes and says so",
         {**LARGE, "do": "shift_range", "by": -4096},
         {**LARGE, "range": False, "do": "drop", "after": 300000}, survives=False)
scenario("range-shifted-silently", "a range gives other bytes and says nothing",
         {**LARGE, "do": "shift_range", "by": -4096, "say": False},
         {**LARGE, "range": False, "do": "drop", "after": 300000}, survives=False)

# ---- not to be survived: transfers --------------------------------------------------------------
scenario("always-drops", "no body of a large file gets beyond its first byte",
         {**LARGE, "do": "drop", "after": 0}, survives=False)
scenario("always-stalls", "every body of a large file stops after 50 % of a range",
         {**LARGE, "do": "stall", "after": 1000}, survives=False)
scenario("always-503", "503 for ever", {**LARGE, "do": "status", "status": 503}, survives=False)
scenario("always-429", "429 for ever", {"on": ["resolve", *BODY], "do": "status", "status": 429,
                                        "headers": {"Retry-After": "0"}}, survives=False)
scenario("always-403", "the CDN refuses every link", {**LARGE, "do": "status", "status": 403},
         survives=False)
scenario("not-http", "what answers is no HTTP server",
         {"do": "raw", "text": "220 mail.example.org ESMTP\r\n"}, survives=False)
scenario("big-headers", "1.6 MB of headers", {"do": "big_headers"}, survives=False)

# ---- not to be survived: redirects --------------------------------------------------------------
scenario("loop", "each address redirects to itself", {"on": "resolve", "do": "redirect",
                                                      "to": "{path}"}, survives=False)
scenario("loop-of-hosts", "two hosts redirect to each other",
         {"on": "resolve", "server": "hub", "do": "redirect", "to": "{other}{path}"},
         {"server": "other", "do": "redirect", "to": "{hub}{path}"}, survives=False,
         says=["redirects"])
scenario("many-hops", "a hundred redirects", {"on": "resolve", "do": "hops", "count": 100},
         survives=False)
scenario("to-file", "a redirect to file:///etc/hostname",
         {"on": "resolve", "do": "redirect", "to": "file:///etc/hostname"}, survives=False)
scenario("to-scheme", "a redirect to gopher://",
         {"on": "resolve", "do": "redirect", "to": "gopher://127.0.0.1:70/x"}, survives=False)
scenario("to-plain-http", "a redirect to http on a host that is not loopback",
         {"on": "resolve", "do": "redirect", "to": "http://192.0.2.1/x"}, survives=False)
scenario("to-raw-bytes", "a redirect to an address with bytes that no terminal should see",
         {"on": "resolve", "do": "redirect", "to": "gopher://127.0.0.1/\xff\x9b31m"}, survives=False)
scenario("to-far", "a redirect to an address of 9000 bytes",
         {"on": "resolve", "do": "redirect", "to": "{cdn}/" + "a" * 9000}, survives=False,
         says=["address"])
scenario("to-nowhere", "a redirect without Location",
         {"on": "resolve", "do": "redirect", "to": "x"},
         {"on": "resolve", "do": "headers", "set": {"Location": None}}, survives=False)

# ---- not to be survived: the tree ---------------------------------------------------------------


def entry(path, size=3):
    return {"type": "file", "oid": "f2ad6c76f0115a6ba5b00456a849810e7ec0af20", "size": size,
            "path": path}


for key, path in (("parent", "../escaped.txt"), ("deep-parent", "a/../../escaped.txt"),
                  ("absolute", "/tmp/escaped.txt"), ("backslash", "..\\escaped.txt"),
                  ("unc", "\\\\host\\share\\x"), ("drive", "C:escaped.txt"),
                  ("nul", "a\0.txt"), ("newline", "a\n.txt"), ("c1", "a\u009b31m.txt"), ("long", "x" * 5000),
                  ("empty", ""), ("dot", "."), ("reserved", "CON")):
    scenario(f"name-{key}", f"the tree names {path[:30]!r}",
             {"on": "tree", "do": "tree_add", "entries": [entry(path)]}, survives=False, status=3)
scenario("name-turned", "the tree names a file whose letters a terminal would turn about",
         {"on": "tree", "do": "tree_add", "entries": [entry("a\u202egpj.txt")]}, survives=False,
         status=3)
scenario("name-twice-over-pages", "a later page of the tree names config.json again",
         {"on": "tree", "do": "tree_add", "entries": [entry("config.json")]},
         survives=False, status=3, page=3)
scenario("name-twice", "the tree names config.json twice",
         {"on": "tree", "do": "tree_add", "entries": [entry("config.json")]}, survives=False,
         status=3)
scenario("name-case", "the tree names Config.json beside config.json",
         {"on": "tree", "do": "tree_add", "entries": [entry("Config.json")]}, survives=False,
         status=3)
scenario("tree-endless", "the tree's next page is always this one",
         {"on": "tree", "do": "tree_next"}, survives=False, status=3)
scenario("tree-elsewhere", "the tree's next page is on another host",
         {"on": "tree", "do": "tree_next", "to": "{other}/evil"}, survives=False, status=3)
scenario("tree-deep", "brackets a million deep", {"on": "tree", "do": "body", "text": "[",
                                                  "repeat": 1000000}, survives=False, status=3)
scenario("tree-big", "60 MB of white space",
         {"on": "tree", "do": "body", "text": " " * 1000, "repeat": 60000}, survives=False,
         status=3)
scenario("tree-cut", "JSON that ends in the middle",
         {"on": "tree", "do": "body", "text": '[{"type":"file","path":"con'}, survives=False,
         status=3)
scenario("tree-not-utf8", "a byte that is not UTF-8",
         {"on": "tree", "do": "body", "hexed": '5b7b2270617468223a22ff227d5d'}, survives=False,
         status=3)
scenario("tree-size", "a size of 2^64",
         {"on": "tree", "do": "tree_change", "path": "model-00001-of-00004.safetensors",
          "set": {"size": 1 << 64}}, survives=False, status=3)
scenario("tree-negative", "a size below zero",
         {"on": "tree", "do": "tree_change", "path": "model-00001-of-00004.safetensors",
          "set": {"size": -1}}, survives=False, status=3)
scenario("tree-object", "an object where the list should be",
         {"on": "tree", "do": "body", "text": '{"error":"no"}'}, survives=False, status=3)
scenario("info-no-sha", "no sha in the revision's information",
         {"on": "info", "do": "body", "text": '{"id":"test/model"}'}, survives=False, status=3)
scenario("info-bad-sha", "a sha that is a path",
         {"on": "info", "do": "body", "text": '{"id":"test/model","sha":"../../../etc"}'},
         survives=False, status=3)
