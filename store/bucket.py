"""A folder on object storage, `s3://bucket/folder`, and what is said when it cannot be used.

Endpoint, region and credentials are those of the environment, as every S3 client reads them.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa

from fpdiff.store.errors import BucketError

CONNECT_SECONDS = 5
SILENT_SECONDS = 10
"""A request that moves no byte for so long has failed."""
ATTEMPTS = 3
"""So often is a request tried, unless it was refused."""

# A pathlib.Path has made one slash of the two.
_URL = re.compile(r"s3:/{1,2}([^/]+)/*(.*?)/*")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

# Storages and their clients disagree on what these lead to.
_AMBIGUOUS = {"", ".", ".."}

_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH"
    r"|EXPIRED_TOKEN|HTTP status 40[13]"
)
_UNREACHABLE = re.compile(r"NETWORK_CONNECTION.*?(?:curlCode: \d+, )?([^:;]*)(?:;|$)")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is on object storage."""
    return os.fspath(path).startswith("s3:/")


def refuse_other_scheme(path: str) -> None:
    """Refuse an address that a folder's name would be made of, such as `gs://bucket/run`.

    Raises:
        BucketError: it is one, of another scheme than s3.
    """
    if _SCHEME.match(path) and not is_url(path):
        raise BucketError(
            f"{path} is no address that fpdiff knows: give a folder, or s3://BUCKET/FOLDER"
        )


class ObjectFolder:
    """A folder on object storage; keys are relative to it.

    Raises (every method):
        BucketError: the storage refuses, cannot be reached, or has no such bucket.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        """Remember where it is; nothing is asked of the storage."""
        text = os.fspath(url)
        match = _URL.fullmatch(text)
        if match is None or not match[2]:
            raise BucketError(f"{text} names no folder: write s3://BUCKET/FOLDER")
        if not _AMBIGUOUS.isdisjoint([match[1], *match[2].split("/")]):
            raise BucketError(
                f"{text} has a part that is empty or made of dots: write s3://BUCKET/FOLDER"
            )
        self.bucket, folder = match[1], match[2]
        self.url = f"s3://{self.bucket}/{folder}"
        self._base = f"{self.bucket}/{folder}"

    def has(self, key: str) -> bool:
        """Return whether there is such an object."""
        from pyarrow.fs import FileType

        with self._reaching():
            (found,) = self._files.get_file_info([f"{self._base}/{key}"])
            if found.is_file:
                return True
            # The storage says of a key in a bucket that is not there no more than that.
            (bucket,) = self._files.get_file_info([self.bucket])
        if bucket.type == FileType.NotFound:
            raise BucketError(self._no_bucket())
        return False

    def names(self) -> list[str]:
        """Return what is directly in the folder, objects and folders."""
        return [os.path.basename(found.path) for found in self._select(recursive=False)]

    def sizes(self) -> dict[str, int]:
        """Return all objects below the folder with their sizes."""
        start = len(self._base) + 1
        return {f.path[start:]: f.size for f in self._select(recursive=True) if f.is_file}

    def read(self, key: str, start: int = 0) -> bytes:
        """Return an object's content, from the byte `start` on.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._reaching(), self._files.open_input_file(f"{self._base}/{key}") as file:
            file.seek(start)
            return bytes(file.read())

    def write(self, key: str, content: bytes) -> None:
        """Make or replace an object, whole or not at all."""
        with self._reaching():
            file = self._files.open_output_stream(f"{self._base}/{key}")
            file.write(content)
            file.close()  # Not on an error, which would make an object of a part.

    def remove(self, name: str) -> None:
        """Remove an object, or everything below a folder."""
        path = f"{self._base}/{name}"
        with self._reaching():
            (found,) = self._files.get_file_info([path])
            if found.is_file:
                self._files.delete_file(path)
            else:
                self._files.delete_dir(path)

    def _select(self, *, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        with self._reaching():
            selector = FileSelector(self._base, allow_not_found=True, recursive=recursive)
            return list(self._files.get_file_info(selector))

    @cached_property
    def _files(self) -> Any:
        # Imported here: it loads an S3 client, which nobody needs whose runs are in folders.
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

        variables = os.environ
        return S3FileSystem(
            # pyarrow asks for these itself in some versions only.
            endpoint_override=variables.get("AWS_ENDPOINT_URL_S3")
            or variables.get("AWS_ENDPOINT_URL"),
            region=variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION"),
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
            connect_timeout=CONNECT_SECONDS,
            request_timeout=SILENT_SECONDS,
            allow_delayed_open=True,  # A small object in one request, rather than in three.
        )

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (BucketError, FileNotFoundError):
            raise
        except (OSError, pa.ArrowException) as error:
            raise BucketError(self._sentence(str(error))) from error

    def _sentence(self, text: str) -> str:
        if found := _UNREACHABLE.search(text):
            return (
                f"{self.url} cannot be reached: {found[1].strip() or 'no connection'}; check the"
                " network and AWS_ENDPOINT_URL"
            )
        if "NO_SUCH_BUCKET" in text:
            return self._no_bucket()
        if found := _REFUSED.search(text):
            return (
                f"{self.url} is refused: {found[0]}; check AWS_ACCESS_KEY_ID,"
                " AWS_SECRET_ACCESS_KEY and what they may do"
            )
        first_line = (text.strip() or "no reason given").splitlines()[0].rstrip(".;")
        return (
            f"{self.url} cannot be used: {first_line}; check the credentials, AWS_REGION and"
            " AWS_ENDPOINT_URL"
        )

    def _no_bucket(self) -> str:
        return f"{self.url}: there is no bucket {self.bucket}; create it or correct its name"
