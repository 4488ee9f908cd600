"""A forward proxy on loopback, for tests of http_proxy, https_proxy and no_proxy.

Plain requests with an absolute address are passed on, CONNECT is tunnelled; both are logged as
(method, address, value of Proxy-Authorization or None, value of Authorization or None). With
`refusal` (bytes) that is the answer to each CONNECT, and no tunnel is made."""
import http.server
import select
import socket
import threading
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def note(self):
        self.server.seen.append((self.command, self.path, self.headers["Proxy-Authorization"],
                                 self.headers["Authorization"]))

    def do_GET(self):
        self.note()
        url = urllib.parse.urlsplit(self.path)
        self.close_connection = True
        if not url.hostname:
            self.send_error(400, "an absolute address is needed")
            return
        with socket.create_connection((url.hostname, url.port or 80), timeout=30) as s:
            path = url._replace(scheme="", netloc="").geturl() or "/"
            lines = [f"{self.command} {path} HTTP/1.1"]
            lines += [f"{k}: {v}" for k, v in self.headers.items()
                      if k.lower() not in ("proxy-connection", "proxy-authorization",
                                           "connection")]
            s.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
            while piece := s.recv(1 << 16):
                self.wfile.write(piece)

    do_HEAD = do_GET

    def do_CONNECT(self):
        self.note()
        self.close_connection = True
        if self.server.refusal:
            self.wfile.write(self.server.refusal)
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as s:
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: s, s: self.connection}
            while True:
                for a in select.select(list(ends), [], [], 30)[0] or [None]:
                    piece = a.recv(1 << 16) if a else b""
                    if not piece:
                        return
                    ends[a].sendall(piece)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass


class Proxy:
    def __init__(self, refusal=None):
        self.refusal = refusal

    def __enter__(self):
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.refusal = self.refusal
        self.seen = self.server.seen = []
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
