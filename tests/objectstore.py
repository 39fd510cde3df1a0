"""An S3 server on loopback, which says what it was asked and can be told to fail."""

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "runs"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",  # Nobody is asked for credentials over the network.
}

_REFUSAL = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"""


class ObjectStore:
    """An S3 server in a thread.

    Attributes:
        requests: method and key of every request, as `PUT a/run.json`.
        puts_left: refuse every request after so many objects, as if the credentials had expired.
        is_broken: break every connection.
    """

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.requests: list[str] = []
        self.puts_left: int | None = None
        self.is_broken = False
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        self.client.create_bucket(Bucket=BUCKET)

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of all objects, without the marks that stand for empty folders."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        found = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return [key for key in found if not key.endswith("/")]

    def content(self, key: str) -> bytes:
        """Return an object."""
        return bytes(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    @contextmanager
    def watched(self, method: str) -> Iterator[list[str]]:
        """Yield a list that holds, when the block has ended, the keys of a method's requests."""
        first = len(self.requests)
        found: list[str] = []
        yield found
        asked = (request.partition(" ") for request in self.requests[first:])
        found += [key for asked_method, _, key in asked if asked_method == method]

    def heal(self) -> None:
        """Answer every request again."""
        self.puts_left, self.is_broken = None, False

    def variables(self) -> dict[str, str]:
        """Return the environment variables that lead here."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url}

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        key = environ["PATH_INFO"].removeprefix(f"/{BUCKET}/")
        self.requests.append(f"{environ['REQUEST_METHOD']} {key}")
        if key == "/refuse":  # So a program can say when it begins.
            self.puts_left = -1
            start("200 OK", [])
            return []
        if self.is_broken:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        if self.puts_left is not None and environ["REQUEST_METHOD"] == "PUT":
            self.puts_left -= 1
        if self.puts_left is not None and self.puts_left < 0:
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [_REFUSAL]
        answer: Iterable[bytes] = self._moto(environ, start)
        return answer
