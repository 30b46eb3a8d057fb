"""The decision log of one process: begun, changed and ended as the config says."""

import time
from pathlib import Path

from balancer.config.config import Config
from balancer.config.sections import DecisionLogSection
from balancer.scheduler.any_router import AnyRouter
from balancer.server.decision_log.files import DecisionFiles
from balancer.server.decision_log.recording import Recording
from balancer.server.metrics import Metrics
from balancer.server.native.recording import recording_of
from balancer.server.recorder import Recorder

_FILE_BYTES = 64 * 2**20
"""At which a process begins its next file: some minutes of a busy gateway, and quick to copy."""


class KeptLog:
    def __init__(self, router: AnyRouter, recorder: Recorder, metrics: Metrics, process: str, seed: int) -> None:
        self._router, self._recorder, self._metrics = router, recorder, metrics
        self._process, self._seed = process, seed
        self.files: DecisionFiles | None = None
        self._recording: Recording | None = None
        self._in_force: tuple[DecisionLogSection, Path | None] | None = None

    def configure(self, config: Config, source: Path, now_s: float) -> None:
        """Begin, change or end it, where the config, whose file is `source`, says other than before."""
        section, folder = config.decision_log, config.decision_log_folder(source)
        if (section, folder) == self._in_force:
            return
        self._in_force = (section, folder)
        self.stop()
        if folder is None or not section.share:
            return
        lines = self._metrics.decision_log_lines
        self.files = DecisionFiles(
            folder, self._process, _FILE_BYTES, section.max_files, lambda result, count: lines.labels(result).inc(count)
        )
        about = {"process": self._process, "seed": self._seed, "share": section.share}
        self._recording = recording_of(self._router, self.files, **about, now_s=now_s, unix_s=time.time())
        self._recorder.record(self._recording)

    def stop(self, wait_s: float = 0.0) -> None:
        """End it; `wait_s`: for how long what is recorded may take to be written."""
        self._recorder.record(None)
        if self._recording is not None:
            self._recording.close()
            self._recording = None
        if self.files is not None:
            self.files.close(wait_s)
            self.files = None
