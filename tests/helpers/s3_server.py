"""A local S3-compatible server that counts what it is asked, and fails when it is told to.

    python s3_server.py    prints its port, serves until it is killed

GET /_asked answers how often what was asked since the last time; GET /_fail?STATUS&CODE&COUNT lets
the next requests, as many as COUNT says, fail; GET /_lose the next PUT, after it was done.
"""

import json
import logging
from collections import Counter
from threading import Lock

BODY = "<?xml version='1.0'?><Error><Code>{}</Code><Message>told to</Message></Error>"


class Watched:
    """A WSGI application around another one."""

    def __init__(self, inner):
        self.inner, self.lock = inner, Lock()
        self.asked, self.fail, self.lose = Counter(), ("", "", 0), False

    def __call__(self, environ, start_response):
        path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        with self.lock:
            if path == "/_asked":
                said, self.asked = json.dumps(self.asked), Counter()
                return answer(start_response, "200 OK", said)
            if path == "/_fail":
                status, code, count = query.split("&")
                self.fail = (status, code, int(count))
                return answer(start_response, "200 OK", "")
            if path == "/_lose":
                self.lose = True
                return answer(start_response, "200 OK", "")
            what = environ["REQUEST_METHOD"]
            if what == "GET" and ("list-type" in query or path.count("/") < 2):
                what = "LIST"
            self.asked[what] += 1
            status, code, count = self.fail
            if count > 0:
                self.fail = (status, code, count - 1)
                said = "" if what == "HEAD" else BODY.format(code)
                return answer(start_response, f"{status} Told", said)
            lost, self.lose = self.lose and what == "PUT", self.lose and what != "PUT"
        if lost:
            list(self.inner(environ, lambda *_: None))
            return answer(start_response, "503 Told", BODY.format("SlowDown"))
        return self.inner(environ, start_response)


def answer(start_response, status, text):
    body = text.encode()
    start_response(
        status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
    )
    return [body]


def main():
    # not everybody who reads this file has them
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Watched(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
