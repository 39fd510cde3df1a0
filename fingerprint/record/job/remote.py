"""Records a command to object storage: its ranks into a local folder, which is uploaded meanwhile.

The upload is this process's business. No rank knows of it, so nothing that happens to it can stop
or slow the training, and no S3 client runs in the training's processes.
"""

import os
import shlex
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fpdiff.fingerprint.record.job import launcher
from fpdiff.fingerprint.record.job.launch import launcher_rank
from fpdiff.fingerprint.record.settings import Settings
from fpdiff.fingerprint.record.warning import say
from fpdiff.store.bucket import ObjectFolder
from fpdiff.store.errors import BucketError, RecordError, StoreError
from fpdiff.store.upload import Upload

INTERVAL_SECONDS = 10.0
"""So often is looked for segments that can be uploaded."""


@dataclass(frozen=True)
class Outcome:
    """How a recording to object storage ended.

    Attributes:
        exit_code: of the command.
        recorded: whether all of the run is there; else something else has been said.
    """

    exit_code: int
    recorded: bool


def run(settings: Settings, command: list[str], *, force: bool = False) -> Outcome:
    """Run a command to its end and record it, as `launcher.run` does.

    Args:
        settings: what to record; `settings.out` is `s3://BUCKET/FOLDER`.
        command: program and arguments.
        force: replace an existing run.

    Raises:
        RecordError: as `launcher.run`, or the storage cannot be written to, which is found out
            before the command begins.
    """
    recording = _Recording(settings.out)
    own = replace(settings, out=str(recording.root))
    try:
        exit_code = launcher.run(own, command, meanwhile=recording.uploading(force=force))
    except RecordError as error:
        recording.withdraw()
        # The user knows of the address only.
        raise RecordError(str(error).replace(str(recording.root), recording.url)) from error
    if not recording.root.exists():  # The command failed before anything was recorded.
        recording.withdraw()
        return Outcome(exit_code, recorded=False)
    return Outcome(exit_code, recorded=recording.finish())


class _Recording:
    """One run on its way from its local folder to object storage."""

    def __init__(self, url: str) -> None:
        self.url = ObjectFolder(url).url
        try:
            self._spool = Path(tempfile.mkdtemp(prefix="fpdiff-record-"))
        except OSError as error:
            raise RecordError(
                f"there is no local folder to record to: {error}; set TMPDIR to one"
            ) from error
        self.root = self._spool / "run"
        self._upload = Upload(self.root, self.url)
        self._rank = launcher_rank(os.environ)
        self._has_claimed = False
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._upload_now_and_then, name="fpdiff-upload")

    @contextmanager
    def uploading(self, *, force: bool) -> Iterator[None]:
        """Take the place, then upload in the background until the command has ended."""
        try:
            self._upload.claim(rank=self._rank, force=force)
        except (StoreError, BucketError) as error:
            raise RecordError(str(error)) from error
        self._has_claimed = True
        self._thread.start()
        try:
            yield
        finally:
            self._has_ended.set()

    def finish(self) -> bool:
        """Upload what is left; return whether all is there, and say what to do if not."""
        try:
            self._thread.join()
            self._upload.everything()
        except (BucketError, OSError, KeyboardInterrupt) as error:
            say(
                f"{self.url} is not complete: {_reason(error)}; the run is kept, upload it with:"
                f" fpdiff upload {shlex.quote(str(self.root))} {shlex.quote(self.url)}"
            )
            return False
        shutil.rmtree(self._spool, ignore_errors=True)
        return True

    def withdraw(self) -> None:
        """Give the place back: nothing was recorded."""
        if self._has_claimed and self._rank is None:
            self._thread.join()
            try:
                self._upload.withdraw()
            except BucketError as error:
                say(f"{self.url} holds an empty run: {error}")
        shutil.rmtree(self._spool, ignore_errors=True)

    def _upload_now_and_then(self) -> None:
        has_failed = False
        while not self._has_ended.wait(INTERVAL_SECONDS):
            try:
                self._upload.committed()
            except (BucketError, OSError) as error:
                if not has_failed:
                    say(
                        f"{_reason(error)}; the recording goes on in {self.root}, and the upload"
                        " will be tried again"
                    )
                has_failed = True


def _reason(error: BaseException) -> str:
    return str(error) or "interrupted"
